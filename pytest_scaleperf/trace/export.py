"""An analysis as plain data for machines."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from pytest_scaleperf.trace.measures import counts, metrics
from pytest_scaleperf.trace.result import RankReport, Split, StepReport, TraceReport
from pytest_scaleperf.trace.rules import Phase

SCHEMA = 1


def to_data(report: TraceReport) -> dict[str, Any]:
    """Numbers, strings, lists and dictionaries, ready for JSON.

    Times are nanoseconds unless the name says otherwise. ``metrics`` and ``counts`` are what baselines keep.
    """
    repeated = report.repeated
    return {
        "schema": SCHEMA,
        "whole_steps": report.whole,
        "device": report.ranks[0].device,
        "on_gpu": report.on_gpu,
        "world_size": report.ranks[0].world_size,
        "metrics": metrics(report),
        "counts": counts(report),
        "collectives": collectives_data(report),
        "all_reduce_repeated": repeated
        and {"backward_passes": repeated.backwards, "bytes": repeated.bytes, "saving": repeated.saving},
        "notes": list(report.notes),
        "ranks": [_rank(rank) for rank in report.ranks],
    }


def step_mean(rank: RankReport) -> dict[str, float]:
    """What one rank's step went to: the mean over its measured steps, in nanoseconds."""
    splits = [_split(step.split) for step in rank.measured]
    return {name: sum(split[name] for split in splits) / len(splits) for name in splits[0]}


def phase_means(rank: RankReport) -> list[tuple[Phase, dict[str, float]]]:
    """What one rank's phases went to, in order: means over its measured steps, in nanoseconds."""
    steps = rank.measured
    found = []
    for phase in Phase:
        parts = [_split(part.split) for step in steps if (part := step.phase(phase))]
        if parts:
            found.append((phase, {name: sum(part[name] for part in parts) / len(steps) for name in parts[0]}))
    return found


def collectives_data(report: TraceReport) -> list[dict[str, Any]]:
    """Each collective's counts, bytes, times, bandwidth and skew."""
    return [
        {
            "op": each.op,
            "group": each.group,
            "group_size": each.size,
            "calls_per_step": list(each.counts),
            "bytes_per_step": list(each.bytes),
            "time_per_step": each.time,
            "bus_bandwidth_gb_s": each.bandwidth,
            "skew": None if each.skew is None else {"median": each.skew[0], "largest": each.skew[1]},
            "exposed_per_step": each.exposed,
            "marks": list(each.marks),
        }
        for each in report.collectives
    ]


def _rank(rank: RankReport) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "file": str(rank.path),
        "phases_from": rank.phases_from or None,
        "described_communication": rank.coverage(),
        "clips": [{"reason": clip.reason, "count": clip.count, "first": clip.first} for clip in rank.clips],
        "notes": list(rank.notes),
        "steps": [_step(step) for step in rank.steps],
    }


def _step(step: StepReport) -> dict[str, Any]:
    classes: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for row in step.rows:
        for at, value in enumerate((row.count, row.busy, row.own)):
            classes[row.kind, row.label][at] += value
    return {
        "step": step.number,
        "whole": step.whole,
        "window": step.split.total,
        **_split(step.split),
        "communication": step.communication,
        "hidden_communication": step.hidden,
        "hidden_by_fsdp_copies": step.hidden_by_copies,
        "backward_passes": step.backwards,
        "phases": {
            part.phase.value: {**_split(part.split), "exposed_by": dict(part.exposed_by)} for part in step.phases
        },
        "classes": [
            {"kind": kind, "class": label, "events": count, "busy": busy, "own": own}
            for (kind, label), (count, busy, own) in sorted(classes.items(), key=lambda item: -item[1][2])
        ],
    }


def _split(split: Split) -> dict[str, int]:
    return {
        "compute": split.compute,
        "exposed_communication": split.exposed_communication,
        "exposed_copy": split.exposed_copy,
        "idle": split.idle,
    }
