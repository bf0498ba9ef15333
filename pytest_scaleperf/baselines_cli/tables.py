"""Baselines, differences and changes as lines of text, and as data; what files say is made printable here."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pytest_scaleperf.baseline import (
    Accepted,
    Change,
    Kind,
    Measured,
    MeasuredScaling,
    ScalingBaseline,
    ScalingChange,
    Shift,
    values_of,
)
from pytest_scaleperf.model import Baseline, Metric, as_plain
from pytest_scaleperf.report.escape import plain
from pytest_scaleperf.report.numbers import change, counted, figure

_FEWEST = 2
_COLUMNS = (Metric.TPS, Metric.MFU, Metric.PEAK_MEMORY)


def columns(grid: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines, each column as wide as its widest cell."""
    widths = [max(len(row[i]) for row in grid) for i in range(len(grid[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in grid]


def stored_cases(cases: Iterable[Baseline], accepted: Mapping[str, Sequence[Accepted]]) -> list[str]:
    """A line a case: the value of each metric with its spread between the samples, and what people said of it."""
    titles = ("case", *(f"{m} {m.unit}" for m in _COLUMNS), "samples", "since", "fingerprint", "note")
    rows = [
        (
            plain(case.case_id),
            *(_value(case, metric) for metric in _COLUMNS),
            str(len(case.samples)),
            min(sample.date for sample in case.samples),
            plain(f"{case.fingerprint.device}, torch {case.fingerprint.torch}"),
            plain(_note(case, accepted.get(case.case_id, ()))),
        )
        for case in cases
    ]
    return columns([titles, *rows])


def stored_scaling(pairs: Iterable[ScalingBaseline]) -> list[str]:
    """A line a pair of rungs."""
    titles = ("scaling", "efficiency", "samples", "since", "cases", "note")
    rows = [
        (
            plain(pair.pair_id),
            f"{pair.efficiency:.4f}",
            str(len(pair.samples)),
            min(sample.date for sample in pair.samples),
            plain(f"{pair.samples[-1].upper} / {pair.samples[-1].lower}"),
            plain(_tolerance({}, pair.tolerance) + pair.why),
        )
        for pair in pairs
    ]
    return columns([titles, *rows])


def spread(case: Baseline, metric: Metric) -> float | None:
    """Standard deviation between the samples over their mean; None with fewer than two."""
    values = [sample.values[metric] for sample in case.samples if metric in sample.values]
    return statistics.stdev(values) / statistics.fmean(values) if len(values) >= _FEWEST else None


def as_data(
    stored: Sequence[Baseline], accepted: Mapping[str, Sequence[Accepted]], pairs: Sequence[ScalingBaseline]
) -> dict[str, Any]:
    """What one file holds, for machines."""
    return {
        "cases": {
            each.case_id: {
                "values": {metric.value: value for metric, value in values_of(each.samples).items()},
                "samples": [as_plain(sample) for sample in each.samples],
                "tolerance": {metric.value: share for metric, share in each.tolerance.items()},
                "fingerprint": as_plain(each.fingerprint),
                "why": each.why,
                "accepted": [
                    {**as_plain(old), "values": {metric.value: value for metric, value in old.values.items()}}
                    for old in accepted.get(each.case_id, ())
                ],
                "where": each.where,
            }
            for each in stored
        },
        "scaling": {
            each.pair_id: {
                "efficiency": each.efficiency,
                "samples": [as_plain(sample) for sample in each.samples],
                "tolerance": each.tolerance,
                "fingerprint": as_plain(each.fingerprint),
                "why": each.why,
                "where": each.where,
            }
            for each in pairs
        },
    }


def differences(rows: Sequence[Difference]) -> list[str]:
    """A line a case, as sorted: state, and each metric as stored and as found."""
    titles = ("case", "against its baseline", *(f"{m} {m.unit}" for m in _COLUMNS), "samples")
    lines = [
        (
            plain(row.case_id),
            row.state,
            *(_shift(next((s for s in row.shifts if s.metric is metric), None)) for metric in _COLUMNS),
            str(row.samples),
        )
        for row in rows
    ]
    return columns([titles, *lines])


def efficiency_changes(found: Sequence[ScalingChange]) -> Iterator[str]:
    """A line a pair of rungs that is changed or refused."""
    for each in sorted(found, key=lambda c: (c.kind is not Kind.REFUSED, c.kind, c.pair_id)):
        if each.kind is not Kind.KNOWN:
            why = f"; {plain(each.reason)}" if each.reason else ""
            moved = efficiency(each.before, each.after)
            yield f"  {each.kind:8}  {plain(each.pair_id)}: efficiency {moved} (of {plain(each.session)}){why}"


def efficiency(before: float | None, after: float) -> str:
    """An efficiency as stored and as found."""
    return f"{after:.4f}" if before is None else f"{before:.4f} -> {after:.4f} ({change(after / before - 1)})"


def efficiency_differences(pairs: Sequence[tuple[MeasuredScaling, ScalingBaseline | None]]) -> list[str]:
    """A line a pair of rungs, worst first."""
    rows = []
    for new, stored in pairs:
        value, before = new.sample.efficiency, None if stored is None else stored.efficiency
        bands = 0.0 if before is None else (1 - value / before) / new.tolerance
        state = "no baseline" if before is None else "WORSE" if bands > 1 else "better" if bands < -1 else "inside"
        rows.append((-bands, plain(new.pair_id), state, efficiency(before, value)))
    return columns([("scaling", "against its baseline", "efficiency"), *(row[1:] for row in sorted(rows))])


def changes(found: Sequence[Change]) -> Iterator[str]:
    """A line a case that is changed or refused; what is as it was is counted."""
    for each in sorted(found, key=lambda c: (c.kind is not Kind.REFUSED, c.kind, c.case_id)):
        if each.kind is Kind.KNOWN:
            continue
        values = ", ".join(f"{s.metric} {_shift(s)}" for s in each.shifts if s.after is not None)
        samples = counted(each.samples, "sample")
        why = f"; {plain(each.reason)}" if each.reason else ""
        yield f"  {each.kind:8}  {plain(each.case_id)}: {values} ({samples} of {plain(each.session)}){why}"


def summary(found: Iterable[Change | ScalingChange]) -> str:
    """How many of each kind."""
    counts = Counter(each.kind for each in found)
    return ", ".join(f"{counts[kind]} {kind}" for kind in Kind if counts[kind]) or "nothing to take in"


class Difference:
    """One case's measurements against what is stored of it."""

    def __init__(self, measured: Measured, stored: Baseline | None, shifts: tuple[Shift, ...]) -> None:
        self.case_id = measured.case_id
        self.samples = len(measured.samples)
        self.shifts = shifts
        self.stored = stored
        self.state = _state(measured, stored, shifts)

    @property
    def severity(self) -> float:
        """How many bands the worst judged metric is worse."""
        return max((shift.severity for shift in self.shifts), default=0.0)

    def as_data(self) -> dict[str, object]:
        """For machines."""
        return {
            "case": self.case_id,
            "state": self.state,
            "samples": self.samples,
            "metrics": {
                s.metric.value: {"stored": s.before, "found": s.after, "change": s.change, "band": s.band}
                for s in self.shifts
            },
        }


def _state(measured: Measured, stored: Baseline | None, shifts: Sequence[Shift]) -> str:
    if stored is None:
        return "no baseline"
    if measured.lacking:
        return f"{', '.join(measured.lacking)} not measured"
    other = measured.fingerprint.differences(stored.fingerprint)
    note = f", other {', '.join(other)}" if other else ""
    if any(shift.is_worse() for shift in shifts):
        return f"WORSE{note}"
    return f"{'better' if any(shift.is_better for shift in shifts) else 'inside'}{note}"


def _value(case: Baseline, metric: Metric) -> str:
    value = values_of(case.samples).get(metric)
    if value is None:
        return "-"
    between = spread(case, metric)
    return figure(value) if between is None else f"{figure(value)} (cv {between:.1%})"


def _note(case: Baseline, accepted: Sequence[Accepted]) -> str:
    told = [f"accepted {each.date}, before {_values(each.values)}: {each.why}" for each in accepted]
    return _tolerance(case.tolerance, None) + "; ".join([*([case.why] if case.why else []), *told])


def _values(values: Mapping[Metric, float]) -> str:
    return ", ".join(f"{metric} {figure(values[metric])}" for metric in _COLUMNS if metric in values)


def _tolerance(by_metric: Mapping[Metric, float], own: float | None) -> str:
    parts = [f"{metric} {share:.1%}" for metric, share in by_metric.items()]
    parts += [] if own is None else [f"{own:.1%}"]
    return f"tolerance {', '.join(parts)}; " if parts else ""


def _shift(shift: Shift | None) -> str:
    if shift is None or shift.after is None:
        return "-"
    if shift.before is None or shift.change is None:
        return figure(shift.after)
    return f"{figure(shift.before)} -> {figure(shift.after)} ({change(shift.change)})"
