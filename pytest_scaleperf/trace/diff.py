"""Two analyses side by side: which kernels, collectives and idle times explain the difference of the step time."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from pytest_scaleperf.model import TraceError
from pytest_scaleperf.printable import one_line
from pytest_scaleperf.trace.result import TraceReport
from pytest_scaleperf.trace.rules import Phase

_TOP = 15
_NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Item:
    """One kernel, collective or idle time in one phase; ``phase`` is None where a side does not tell them.

    Times are exact means over the measured steps of all ranks, in nanoseconds: ``own`` counts towards the step,
    ``busy`` is the sum of durations. ``change`` of all items add up to the change of the step.
    """

    phase: Phase | None
    kind: str
    label: str
    name: str
    count: tuple[Fraction, Fraction]
    busy: tuple[Fraction, Fraction]
    own: tuple[Fraction, Fraction]

    @property
    def title(self) -> str:
        """Its name, with what it does in front where that is no computing."""
        return self.name if self.kind in ("compute", "idle") else f"{self.label}: {self.name}"

    @property
    def change(self) -> Fraction:
        """What this adds to the step, in nanoseconds."""
        return self.own[1] - self.own[0]


@dataclass(frozen=True, slots=True)
class Difference:
    """What explains the change from one run's step to another's, largest first."""

    step: tuple[Fraction, Fraction]
    items: tuple[Item, ...]
    notes: tuple[str, ...]

    @property
    def change(self) -> Fraction:
        """Nanoseconds that a step lasts longer."""
        return self.step[1] - self.step[0]


def difference(before: TraceReport, after: TraceReport) -> Difference:
    """Compare two runs, each by the mean over its ranks' measured steps.

    Raises TraceError where one is a GPU's and the other a CPU's, and if the parts did not add up.
    """
    if before.on_gpu != after.on_gpu:
        raise TraceError("a GPU's trace and a CPU's cannot be compared; give two of one kind")
    by_phase = all(rank.phases_from for report in (before, after) for rank in report.ranks)
    sides = [_means(report, by_phase=by_phase) for report in (before, after)]
    nothing = (Fraction(0),) * 3
    items = tuple(
        Item(*key, *zip(*(side.get(key, nothing) for side in sides), strict=True)) for key in {**sides[0], **sides[1]}
    )
    step = tuple(_step(report) for report in (before, after))
    if sum(item.change for item in items) != step[1] - step[0]:
        raise TraceError("the parts do not add up to the difference: a fault of pytest-scaleperf, please report it")
    ordered = sorted(items, key=lambda item: (-abs(item.change), item.kind, item.name, item.phase or ""))
    return Difference((step[0], step[1]), tuple(ordered), _notes(before, after, by_phase=by_phase))


def _means(report: TraceReport, *, by_phase: bool) -> dict[tuple[Phase | None, str, str, str], tuple[Fraction, ...]]:
    totals: dict[tuple[Phase | None, str, str, str], list[Fraction]] = defaultdict(lambda: [Fraction(0)] * 3)
    for rank in report.ranks:
        weight = Fraction(1, len(rank.measured) * len(report.ranks))
        for step in rank.measured:
            for row in step.rows:
                key = (row.phase if by_phase else None, row.kind, row.label, row.name)
                for at, value in enumerate((row.count, row.busy, row.own)):
                    totals[key][at] += value * weight
    return {key: tuple(values) for key, values in totals.items()}


def _step(report: TraceReport) -> Fraction:
    means = [Fraction(sum(step.split.total for step in rank.measured), len(rank.measured)) for rank in report.ranks]
    return sum(means, Fraction(0)) / len(means)


def _notes(before: TraceReport, after: TraceReport, *, by_phase: bool) -> tuple[str, ...]:
    notes = [
        f"{side} has no whole step: what lies between steps is missing there"
        for side, report in (("the first", before), ("the second", after))
        if not report.whole
    ]
    if not by_phase:
        notes.append("phases are not told apart, for one side does not tell them")
    if len(before.ranks) != len(after.ranks):
        notes.append(f"{len(before.ranks)} ranks on one side, {len(after.ranks)} on the other")
    if before.ranks[0].device != after.ranks[0].device:
        notes.append(f"different devices: {before.ranks[0].device} and {after.ranks[0].device}")
    return tuple(notes)


def describe_difference(found: Difference, top: int = _TOP) -> list[str]:
    """The difference as a table of plain text whose last column adds up to the step's change."""
    first, second = (float(value) / _NS_PER_MS for value in found.step)
    percent = f"{100 * float(found.change / found.step[0]):+.2f} %"
    lines = [
        f"step: {first:.3f} ms -> {second:.3f} ms, {float(found.change) / _NS_PER_MS:+.3f} ms ({percent})",
        "",
        f"{'what':58} {'phase':14} {'count':>13} {'busy ms':>17} {'adds ms':>9}",
    ]
    lines.extend(
        f"{item.title[:58]:58} {item.phase.words if item.phase else '':14} "
        f"{_pair(item.count, 1, '.0f'):>13} {_pair(item.busy, _NS_PER_MS, '.2f'):>17} "
        f"{float(item.change) / _NS_PER_MS:+9.3f}"
        for item in found.items[:top]
    )
    if rest := found.items[top:]:
        change = sum((item.change for item in rest), Fraction(0))
        lines.append(f"{f'{len(rest)} others':58} {'':14} {'':13} {'':17} {float(change) / _NS_PER_MS:+9.3f}")
    lines.append(f"{'sum':58} {'':14} {'':13} {'':17} {float(found.change) / _NS_PER_MS:+9.3f}")
    return [one_line(line) for line in (*lines, *(f"note: {note}" for note in found.notes))]


def _pair(values: tuple[Fraction, Fraction], unit: int, form: str) -> str:
    first, second = (format(float(value / unit), form) for value in values)
    return first if first == second else f"{first} -> {second}"


def difference_data(found: Difference) -> dict[str, Any]:
    """The difference as plain data for JSON; times in nanoseconds."""
    return {
        "step": [float(value) for value in found.step],
        "change": float(found.change),
        "items": [
            {
                "phase": item.phase.value if item.phase else None,
                "kind": item.kind,
                "class": item.label,
                "name": item.name,
                "count": [float(value) for value in item.count],
                "busy": [float(value) for value in item.busy],
                "own": [float(value) for value in item.own],
                "change": float(item.change),
            }
            for item in found.items
        ],
        "notes": list(found.notes),
    }


def explained(found: Difference, against: str, top: int = _TOP) -> dict[str, Any]:
    """The same for a report: the largest items, and the others summed, which add up; times in nanoseconds."""
    rest = found.items[top:]
    return {
        "against": against,
        "step": [float(value) for value in found.step],
        "change": float(found.change),
        "parts": [
            {
                "title": one_line(item.title),
                "phase": item.phase.words if item.phase else "",
                "count": [float(value) for value in item.count],
                "busy": [float(value) for value in item.busy],
                "change": float(item.change),
            }
            for item in found.items[:top]
        ],
        "others": {"count": len(rest), "change": float(sum((item.change for item in rest), Fraction(0)))},
        "notes": list(found.notes),
    }
