"""What is wrong with a pre-flight's numbers: against what the system's file expects, and against the fleet. Pure.

A rate is judged twice. Against ``preflight`` of system.yaml: red below the expected value less its tolerance. Against
the other GPUs of the same pre-flight: red where it lies further than ``fleet_tolerance`` below the median and, of four
GPUs or more, has a modified z-score below -3.5 as well (Iglewicz and Hoaglin 1993: 0.6745 x (value - median) / MAD,
where MAD is the median of the distances from the median). Both are asked, because of 500 healthy GPUs some always
score low, and because a tight fleet gives a high score to nothing. Two GPUs have no middle: the slower one is compared
with the faster one.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence

from pytest_scaleperf.model import Preflight, System
from pytest_scaleperf.preflight.blame import LAUNCH
from pytest_scaleperf.preflight.words import RATES, Finding, GpuProbe, LinkProbe, ProbeReport, Severity

FLEET_TOLERANCE = 0.08
"""Where the system's file says nothing: two H200s of one machine differed by 4 % warm, by 7.6 % in a cold call."""

_CPU = "cpu"
_MODIFIED_Z = 3.5
_Z_SCALE = 0.6745  # makes the MAD of a normal distribution its standard deviation
_FEW = 4
_PAIR = 2
_BAD_REASONS = {
    "hw_slowdown": "the hardware slows its clocks down (heat, or the power supply)",
    "hw_thermal_slowdown": "the hardware slows its clocks down because of heat",
    "hw_power_brake_slowdown": "an external power brake slows it down",
    "sw_thermal_slowdown": "the driver slows its clocks down because of heat",
}
# Xids that NVIDIA's catalogue puts down to the application: a fault of somebody's kernel, an ended process.
_APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 69})


def judge(report: ProbeReport, system: System) -> tuple[Finding, ...]:
    """Everything that is wrong, errors first."""
    wanted = system.preflight
    found = [
        *_missing(report),
        *(finding for gpu in report.gpus for finding in _health(gpu)),
        *_rates(report, wanted),
        *_links(report, wanted),
    ]
    order = (Severity.ERROR, Severity.WARNING, Severity.NOTE)
    return tuple(sorted(found, key=lambda finding: order.index(finding.severity)))


def _missing(report: ProbeReport) -> Iterator[Finding]:
    for problem in report.problems:
        yield Finding(Severity.ERROR, LAUNCH, problem)
    answered = {gpu.rank for gpu in report.gpus}
    silent = [rank for rank in range(report.expected) if rank not in answered]
    if silent:
        listed = ", ".join(map(str, silent[:16])) + (" …" if len(silent) > 16 else "")  # noqa: PLR2004 - one line
        text = f"expected {report.expected} ranks to answer, found {len(answered)}; nothing from rank {listed}"
        yield Finding(Severity.ERROR, LAUNCH, text, ranks=tuple(silent))
    for gpu in report.gpus:
        for problem in gpu.problems:
            yield _of(gpu, Severity.ERROR, "probe", f"{gpu.name}: {problem}")


def _health(gpu: GpuProbe) -> Iterator[Finding]:
    health = gpu.health
    if health is None:
        return
    for reason in health.reasons or ():
        if reason in _BAD_REASONS:
            said = f"{gpu.name}: {_BAD_REASONS[reason]}"
            if health.temperature is not None:
                said += f", at {health.temperature} C"
            yield _of(gpu, Severity.ERROR, "clocks", said)
        elif reason == "sw_power_cap":
            yield _of(gpu, Severity.NOTE, "clocks", f"{gpu.name}: at its power limit under load, as usual")
    if health.ecc_uncorrected:
        said = f"{gpu.name}: {health.ecc_uncorrected} uncorrected ECC errors since the driver was loaded"
        yield _of(gpu, Severity.ERROR, "ecc", said)
    if health.remapping_failed:
        yield _of(gpu, Severity.ERROR, "ecc", f"{gpu.name}: a broken memory row could not be replaced")
    worst: dict[int, str] = dict(health.xids or ())
    for number, line in worst.items():
        severity = Severity.NOTE if number in _APPLICATION_XIDS else Severity.ERROR
        yield _of(gpu, severity, "xid", f"{gpu.name}: Xid {number} in the kernel's log: {line}")


def _rates(report: ProbeReport, wanted: Preflight | None) -> Iterator[Finding]:
    for name, unit in RATES.items():
        gpus = [gpu for gpu in report.gpus if name in gpu.rates]
        values = [gpu.rates[name] for gpu in gpus]
        least = None if wanted is None else wanted.rates.get(name)
        for gpu, others in zip(gpus, _against_fleet(values, report, wanted), strict=True):
            value = gpu.rates[name]
            if least is not None and wanted is not None and value < least * (1 - wanted.tolerance):
                yield _of(gpu, Severity.ERROR, name, _low(gpu.name, name, value, least, "expected"), value, least, unit)
            elif others is not None:
                text = _low(gpu.name, name, value, others, "the fleet has")
                yield _of(gpu, Severity.ERROR, name, text, value, others, unit)


def _links(report: ProbeReport, wanted: Preflight | None) -> Iterator[Finding]:
    groups: dict[tuple[str, bool, str, int, int], list[LinkProbe]] = defaultdict(list)
    for link in report.links:
        groups[link.scope, link.across_nodes, link.operation, link.mib, len(link.ranks)].append(link)
    for links in groups.values():
        values = [link.gb_s for link in links]
        least = None if wanted is None else wanted.link(links[0].across_nodes, links[0].operation, links[0].mib)
        for link, others in zip(links, _against_fleet(values, report, wanted), strict=True):
            if least is not None and wanted is not None and link.gb_s < least * (1 - wanted.tolerance):
                yield _slow_link(report, link, least, "expected")
            elif others is not None:
                yield _slow_link(report, link, others, "the others have")


def _against_fleet(values: Sequence[float], report: ProbeReport, wanted: Preflight | None) -> list[float | None]:
    """For each value what the fleet has, where the value is too far below it; None where it is not."""
    if len(values) < _PAIR or report.device == _CPU:  # ranks of a CPU share its cores: they say nothing of each other
        return [None] * len(values)
    allowed = FLEET_TOLERANCE if wanted is None or wanted.fleet_tolerance is None else wanted.fleet_tolerance
    middle = max(values) if len(values) == _PAIR else statistics.median(values)
    spread = statistics.median(abs(value - middle) for value in values)
    found: list[float | None] = []
    for value in values:
        is_low = value < middle * (1 - allowed)
        if is_low and len(values) >= _FEW and spread > 0:
            is_low = _Z_SCALE * (value - middle) / spread < -_MODIFIED_Z
        found.append(middle if is_low else None)
    return found


def _low(who: str, name: str, value: float, reference: float, source: str) -> str:
    what = name.partition("_")[0]
    return f"{who}: {what} {value:,.0f} {RATES[name]}, {source} {reference:,.0f} ({value / reference - 1:+.1%})"


def _slow_link(report: ProbeReport, link: LinkProbe, reference: float, source: str) -> Finding:
    members = {gpu.rank: gpu for gpu in report.gpus}
    known = [members[rank] for rank in link.ranks if rank in members]
    few = len(link.ranks) <= _PAIR
    hosts = tuple(dict.fromkeys(gpu.host for gpu in known))
    where = report.names(link.ranks) if few else f"{len(link.ranks)} GPUs of {', '.join(hosts[:8])}"
    text = (
        f"{where}: {link.operation} of {link.mib} MiB at {link.gb_s:,.1f} GB/s, {source} {reference:,.1f} "
        f"({link.gb_s / reference - 1:+.1%})"
    )
    indices = tuple(gpu.index for gpu in known) if few else ()
    return Finding(
        Severity.ERROR,
        f"{link.operation} {link.mib} MiB",
        text,
        hosts,
        indices,
        link.gb_s,
        reference,
        "GB/s",
        link.ranks,
    )


def _of(  # noqa: PLR0913, PLR0917 - a finding's fields in their order
    gpu: GpuProbe,
    severity: Severity,
    probe: str,
    text: str,
    value: float | None = None,
    reference: float | None = None,
    unit: str = "",
) -> Finding:
    return Finding(severity, probe, text, (gpu.host,), (gpu.index,), value, reference, unit, (gpu.rank,))
