"""What srun and slurmstepd wrote into a job's output about how it ended. Pure.

With ``--label`` every line of a task has its number in front, so a line without one is Slurm's own. Only the CANCELLED
line of a step may come through a task's stderr, and names the step.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from pytest_scaleperf.launch.slurm.hostlist import expand
from pytest_scaleperf.model import JobState

_BAD_EXIT = re.compile(
    r"^srun: error: (?P<host>[\w.-]+): tasks? [\d,\[\]-]+: (?:Exited with exit code (?P<code>\d+)"
    r"|(?P<signal>Killed|Terminated|Segmentation fault|Bus error|Aborted|Floating point exception|Out Of Memory))"
)
_ENDED_BY_STEP = re.compile(
    r"^(?:\d+: )?slurmstepd(?:-[\w.-]+)?: error: \*\*\* (?:STEP|JOB) (?P<id>[\d.]+) ON (?P<host>[\w.-]+) CANCELLED "
    r"AT \S+"
    r"(?: DUE TO (?P<why>TIME LIMIT|NODE FAILURE|PREEMPTION))?"
)
_NODE = re.compile(
    r"^srun: error: (?:Node failure on (?P<hosts>\S+)|Task launch for \S+ failed on node (?P<host>[\w.-]+?):? )"
)
_KILL_ON_BAD = re.compile(r"^srun: (?:launch/slurm: _step_signal: )?Terminating StepId=")
_SIGNALS = {
    "Killed": 9,
    "Terminated": 15,
    "Segmentation fault": 11,
    "Bus error": 7,
    "Aborted": 6,
    "Floating point exception": 8,
}
_WHY = {
    "TIME LIMIT": JobState.TIMEOUT,
    "NODE FAILURE": JobState.NODE_FAIL,
    "PREEMPTION": JobState.PREEMPTED,
    None: JobState.CANCELLED,
}
_STEP_DENIED = re.compile(
    r"^srun: error: (?:Unable to create step for job \d+: |Unable to confirm allocation )(?P<why>.*)"
)


@dataclass(frozen=True, slots=True)
class Words:
    """``state`` is None where Slurm said nothing of why it ended; ``code`` is the first task's that ended badly.

    ``bad_host`` is where. ``said`` is the line that decides; ``denied`` why no step could be made.
    """

    state: JobState | None = None
    code: int | None = None
    bad_host: str = ""
    failed: tuple[str, ...] = ()
    said: str = ""
    denied: str = ""


def read(lines: Iterable[str]) -> Words:
    """What is said in a job's output; the first that ended it decides, a node's failure over all."""
    state: JobState | None = None
    code: int | None = None
    host = said = denied = ""
    failed: list[str] = []
    for line in lines:
        if found := _NODE.search(line):
            failed += _hosts(found["hosts"] or found["host"])
            state, said = JobState.NODE_FAIL, line
        elif found := _BAD_EXIT.search(line):
            if code is None and state is None:
                code, host, said = _code(found), found["host"], line
        elif found := _ENDED_BY_STEP.search(line):
            # After a task that ended badly it is --kill-on-bad-exit that ended the others.
            cause = _WHY[found["why"]]
            by_us = cause is JobState.CANCELLED and (code is not None or state is JobState.FAILED)
            if state is None and not by_us:
                state, said = cause, line
        elif _KILL_ON_BAD.search(line) and state is None:
            state = JobState.FAILED
        elif found := _STEP_DENIED.search(line):
            denied = found["why"]
    return Words(state, code, host, tuple(dict.fromkeys(failed)), said.strip(), denied.strip())


def _code(found: re.Match[str]) -> int | None:
    if found["code"]:
        return int(found["code"])
    signum = _SIGNALS.get(found["signal"])
    return None if signum is None else -signum


def _hosts(text: str) -> tuple[str, ...]:
    try:
        return expand(text.rstrip(",.;"))
    except ValueError:
        return (text,)
