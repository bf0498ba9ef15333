"""What a pre-flight measured and what is wrong: frozen values that a file can hold."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

MATMUL = "matmul_tflops"
MEMORY = "memory_gb_s"
RATES = {MATMUL: "TFLOP/s", MEMORY: "GB/s"}
"""What is measured on each GPU, with its unit; 1 GB is 10^9 bytes."""


class Severity(StrEnum):
    """How bad a finding is. ERROR: do not measure here. WARNING: look at it. NOTE: to be known, never red."""

    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Health:
    """What NVML said while the GPU multiplied matrices; None: this driver or device does not say it.

    Clocks in MHz, temperature in degrees Celsius, power in watts. ``reasons`` are the words for why the clocks are
    not at their maximum. ``ecc_uncorrected`` counts since the driver was loaded. ``xids`` are (number, line) from the
    kernel's log, None where it cannot be read. ``nvlinks`` counts active links.
    """

    sm_clock: int | None = None
    sm_clock_max: int | None = None
    memory_clock: int | None = None
    temperature: int | None = None
    power: float | None = None
    power_limit: float | None = None
    reasons: tuple[str, ...] | None = None
    ecc_uncorrected: int | None = None
    remapping_failed: bool | None = None
    nvlinks: int | None = None
    memory_used_gib: float | None = None
    xids: tuple[tuple[int, str], ...] | None = None


@dataclass(frozen=True, slots=True)
class GpuProbe:
    """One GPU (or CPU rank): where it is, its ``rates`` by the names in ``RATES``, and its health.

    ``index`` is the device's number on its host. ``problems`` are probes that failed, each in one line.
    """

    host: str
    index: int
    rank: int
    device: str
    uuid: str | None = None
    rates: Mapping[str, float] = field(default_factory=dict)
    health: Health | None = None
    problems: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def name(self) -> str:
        """How a person finds it: ``node7 GPU 3``."""
        return f"{self.host} {'rank' if self.device == 'cpu' else 'GPU'} {self.index}"


@dataclass(frozen=True, slots=True)
class LinkProbe:
    """One collective over a group of ranks: ``mib`` is the whole buffer, ``gb_s`` its bus bandwidth.

    Bus bandwidth as nccl-tests define it: bytes x (n-1)/n / seconds for all_gather and reduce_scatter, twice that for
    all_reduce; seconds are the slowest rank's. Pairs of a larger fleet do ``send_recv``: bytes / seconds, both ways at
    once. ``scope`` is ``pair``, ``node`` or ``world``.
    """

    scope: str
    ranks: tuple[int, ...]
    across_nodes: bool
    operation: str
    mib: int
    gb_s: float


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """One pre-flight: ``expected`` ranks were asked, ``gpus`` answered. ``when`` is seconds since the epoch."""

    when: float
    expected: int
    device: str
    gpus: tuple[GpuProbe, ...]
    links: tuple[LinkProbe, ...]
    findings: tuple[Finding, ...] = ()
    problems: tuple[str, ...] = ()

    def names(self, ranks: Iterable[int]) -> str:
        """The GPUs of these ranks for a person; a rank that did not answer by its number."""
        known = {gpu.rank: gpu.name for gpu in self.gpus}
        return " and ".join(known.get(rank, f"rank {rank}") for rank in ranks)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: ``hosts`` and ``indices`` name the GPUs (several for a link), ``text`` says it all.

    ``ranks`` are the probes' ranks that it concerns; empty where it is no device's. ``value`` and ``reference`` are in
    ``unit``; None where the finding is no number.
    """

    severity: Severity
    probe: str
    text: str
    hosts: tuple[str, ...] = ()
    indices: tuple[int, ...] = ()
    value: float | None = None
    reference: float | None = None
    unit: str = ""
    ranks: tuple[int, ...] = ()


def is_red(findings: Iterable[Finding]) -> bool:
    """Whether a pre-flight ends red: any finding that is more than a note."""
    return any(finding.severity is not Severity.NOTE for finding in findings)


def summary(report: ProbeReport) -> dict[str, Any]:
    """What a case's record keeps of the pre-flight: small, and no numbers of single GPUs of a large fleet.

    ``gpus`` are the UUIDs by host: with them a slow machine can be found again in the records of many nights.
    """
    rates = {
        name: [gpu.rates[name] for gpu in report.gpus if name in gpu.rates]
        for name in RATES
    }  # fmt: skip
    by_host: dict[str, list[str]] = {}
    for gpu in report.gpus:
        by_host.setdefault(gpu.host, []).append(gpu.uuid or str(gpu.index))
    return {
        "when": report.when,
        "medians": {name: statistics.median(values) for name, values in rates.items() if values},
        "lowest": {name: min(values) for name, values in rates.items() if values},
        "gpus": by_host,
        "findings": [finding.text for finding in report.findings if finding.severity is not Severity.NOTE],
    }
