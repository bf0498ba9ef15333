"""The numbers of an analysis that a baseline keeps: some to compare within a band, some that must stay equal."""

from __future__ import annotations

from pytest_scaleperf.trace.result import StepReport, TraceReport
from pytest_scaleperf.trace.rules import Phase

_PARTS = ("exposed_communication", "exposed_copy", "idle")


def metrics(report: TraceReport) -> dict[str, float]:
    """Numbers to compare within a band; what was not measured, or is marked as doubtful, is left out.

    Names end in, or begin with, their unit: per cent of the step, milliseconds, microseconds, GB/s (1e9). Each is
    the median over the measured steps, at the worst rank.
    """
    found = {
        "step_ms": report.worst(lambda step: step.split.total / 1e6),
        "compute_ms": report.worst(lambda step: step.split.compute / 1e6),
        **{f"{part}_pct": report.worst(lambda step, part=part: _share(step, part)) for part in _PARTS},  # type: ignore[misc]  # bound now
        "hidden_by_fsdp_copies_pct": report.worst(lambda step: 100 * step.hidden_by_copies / step.split.total),
    }
    steps = [step for rank in report.ranks for step in rank.measured]
    if all(step.communication for step in steps):
        found["overlap_pct"] = min(
            rank.median(lambda step: 100 * step.hidden / step.communication) for rank in report.ranks
        )
    if all(step.split.compute for step in steps):
        found["communication_to_compute"] = report.worst(lambda step: step.communication / step.split.compute)
    for phase in report.phases:
        for part in _PARTS:
            found[f"{phase}.{part}_pct"] = report.worst(
                lambda step, phase=phase, part=part: _share(step, part, phase)  # type: ignore[misc]  # bound now
            )
    return found | _of_collectives(report) | _of_classes(report)


def counts(report: TraceReport) -> dict[str, int]:
    """Numbers that must stay equal: calls and bytes per step of each collective, where they do not vary."""
    found = {}
    for each in report.collectives:
        if len(each.counts) == 1:
            found[f"calls {each.title}"] = each.counts[0]
        if len(each.bytes) == 1:
            found[f"bytes {each.title}"] = each.bytes[0]
    return found


def _share(step: StepReport, part: str, phase: Phase | None = None) -> float:
    """Per cent of the step that a part of it, or of one phase, takes."""
    if phase is None:
        return 100 * int(getattr(step.split, part)) / step.split.total
    own = step.phase(phase)
    return 100 * int(getattr(own.split, part)) / step.split.total if own else 0.0


def _of_collectives(report: TraceReport) -> dict[str, float]:
    """Of the large ones: time, exposed time, and what only all ranks of a group together can tell."""
    found = {}
    for each in report.collectives:
        if not each.is_large:
            continue
        found[f"exposed_ms {each.title}"] = each.exposed / 1e6
        if each.marks:
            continue
        found[f"time_ms {each.title}"] = each.time / 1e6
        if each.bandwidth is not None:
            found[f"bandwidth_gb_s {each.title}"] = each.bandwidth
        if each.skew is not None:
            found[f"skew_us {each.title}"] = each.skew[0] / 1e3
    return found


def _of_classes(report: TraceReport) -> dict[str, float]:
    """Each kernel class's own time; a CPU's operators are too many and too short for that."""
    if not report.on_gpu:
        return {}
    labels = {
        row.label for rank in report.ranks for step in rank.measured for row in step.rows if row.kind == "compute"
    }

    def own(step: StepReport, label: str) -> float:
        return sum(row.own for row in step.rows if row.kind == "compute" and row.label == label) / 1e6

    return {
        f"class_ms {label}": report.worst(lambda step, label=label: own(step, label))  # type: ignore[misc]  # bound now
        for label in sorted(labels)
    }
