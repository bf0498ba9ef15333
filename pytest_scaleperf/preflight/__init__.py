"""Before a session spends GPUs: probe each GPU and link for some seconds, and say which is slow or ill.

The probes run as a job of their own (`inside/`, which alone imports torch and triton); everything else here only
makes that job's command line, reads what it wrote, and judges it.
"""

from pytest_scaleperf.preflight.blame import Blame, blame, concerns, errors
from pytest_scaleperf.preflight.job import ProbeJob, command
from pytest_scaleperf.preflight.judge import judge
from pytest_scaleperf.preflight.store import FILE, load, read, save
from pytest_scaleperf.preflight.words import (
    Finding,
    GpuProbe,
    Health,
    LinkProbe,
    ProbeReport,
    Severity,
    is_red,
    summary,
)

__all__ = [
    "FILE",
    "Blame",
    "Finding",
    "GpuProbe",
    "Health",
    "LinkProbe",
    "ProbeJob",
    "ProbeReport",
    "Severity",
    "blame",
    "command",
    "concerns",
    "errors",
    "is_red",
    "judge",
    "load",
    "read",
    "save",
    "summary",
]
