"""What the sessions' pre-flights measured and found, arranged for the pages; computes nothing."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_scaleperf.model import LaunchError
from pytest_scaleperf.preflight import FILE, GpuProbe, LinkProbe, ProbeReport, Severity, load
from pytest_scaleperf.preflight.words import MATMUL, MEMORY
from pytest_scaleperf.report.contents import Fault, Report
from pytest_scaleperf.report.numbers import counted, figure

GPU_TITLES = (
    "",
    "matmul TFLOP/s",
    "memory GB/s",
    "SM MHz",
    "°C",
    "W",
    "clocks held by",
    "ECC errors",
    "Xids",
    "NVLinks",
)
MOST_ROWS = 16
"""GPUs, and links, of one pre-flight that are listed: those with findings first, then the slowest."""

_PAIR = 2


@dataclass(frozen=True, slots=True)
class Part:
    """One pre-flight: a line on the whole, its findings, and two tables of text; ``left_out`` rows are not shown."""

    session: str
    when: float
    is_red: bool
    told: str
    findings: tuple[tuple[str, str], ...]
    gpus: tuple[tuple[str, ...], ...]
    link_titles: tuple[str, ...]
    links: tuple[tuple[str, ...], ...]
    left_out: int


def read_all(
    folders: Iterable[Path], sessions: Container[str], faults: list[Fault]
) -> tuple[tuple[str, ProbeReport], ...]:
    """The pre-flights of these sessions, each with its session's name; one that cannot be read becomes a fault.

    ``folders`` are run directories or sessions' own folders.
    """
    places = [path for folder in folders for path in (folder / FILE, *sorted(folder.glob(f"sessions/*/{FILE}")))]
    found: dict[str, ProbeReport] = {}
    for path in places:
        name = path.parent.name
        if name not in sessions or name in found or not path.exists():
            continue
        try:
            found[name] = load(path)
        except LaunchError as error:
            faults.append(Fault(str(path), str(error).removeprefix(f"{path}: ")))
    return tuple(found.items())


def parts(report: Report) -> list[Part]:
    """The pre-flights of this report's sessions, newest first; one that several sessions share comes once."""
    found = {probed.when: _part(session, probed) for session, probed in report.preflights}
    return sorted(found.values(), key=lambda part: -part.when)


def _part(session: str, probed: ProbeReport) -> Part:
    findings = tuple((str(finding.severity), finding.text) for finding in probed.findings)
    red = [finding for finding in probed.findings if finding.severity is not Severity.NOTE]
    named = {(host, index) for finding in red for host in finding.hosts for index in finding.indices}
    gpus = sorted(probed.gpus, key=lambda gpu: ((gpu.host, gpu.index) not in named, gpu.rates.get(MATMUL, 0.0)))
    sizes = sorted({link.mib for link in probed.links})
    links = _rows(probed, sizes)
    whole = f"{counted(len(probed.gpus), 'device')} of {probed.expected} answered"
    told = f"{whole}; " + (counted(len(red), "finding") if red else "nothing wrong")
    return Part(
        session=session,
        when=probed.when,
        is_red=bool(red),
        told=told,
        findings=findings,
        gpus=tuple(_cells(gpu) for gpu in gpus[:MOST_ROWS]),
        link_titles=("bus bandwidth, GB/s", "collective", *(f"{mib:,} MiB" for mib in sizes)),
        links=tuple(links[:MOST_ROWS]),
        left_out=max(0, len(gpus) - MOST_ROWS) + max(0, len(links) - MOST_ROWS),
    )


def _cells(gpu: GpuProbe) -> tuple[str, ...]:
    rates = (_number(gpu.rates.get(MATMUL)), _number(gpu.rates.get(MEMORY)))
    health = gpu.health
    if health is None:
        return (gpu.name, *rates, *("-" for _ in GPU_TITLES[3:]))
    return (
        gpu.name,
        *rates,
        _number(health.sm_clock),
        _number(health.temperature),
        _number(health.power),
        "-" if health.reasons is None else ", ".join(health.reasons) or "nothing",
        _number(health.ecc_uncorrected),
        "-" if health.xids is None else str(len(health.xids)),
        _number(health.nvlinks),
    )


def _rows(probed: ProbeReport, sizes: Sequence[int]) -> list[tuple[str, ...]]:
    """A row for each group and collective: the whole fleet first, then the slowest pairs."""
    rows: dict[tuple[tuple[int, ...], str], dict[int, LinkProbe]] = {}
    for link in probed.links:
        rows.setdefault((link.ranks, link.operation), {})[link.mib] = link
    ordered = sorted(rows.items(), key=lambda row: (-len(row[0][0]), min(link.gb_s for link in row[1].values())))
    return [
        (_who(probed, ranks), operation, *(_number(links[mib].gb_s if mib in links else None) for mib in sizes))
        for (ranks, operation), links in ordered
    ]


def _who(probed: ProbeReport, ranks: tuple[int, ...]) -> str:
    return probed.names(ranks) if len(ranks) <= _PAIR else f"{len(ranks)} from {probed.names(ranks[:1])}"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else figure(value)
