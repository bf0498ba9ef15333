"""The same collective calls on several ranks: bandwidth, skew, and all_reduces that need not be."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from pytest_scaleperf.trace.names import UNNAMED
from pytest_scaleperf.trace.result import Call, CollectiveReport, RankReport, RepeatedReduce, StepReport
from pytest_scaleperf.trace.rules import Phase

_PAIRWISE = ("send", "recv", "send_recv", "put")
_COVERED = 0.95
_GRADIENTS = 1 << 20  # bytes: below it an all_reduce is a loss or a norm, not a gradient bucket


_Cell = dict[int, list[Call]]  # calls by rank, of one process group in one step


def across_ranks(ranks: Sequence[RankReport]) -> tuple[CollectiveReport, ...]:
    """Every collective, those with the most time first; calls are matched by their order within step and group."""
    cells: dict[tuple[str, str, int | None], dict[tuple[str, int | None], _Cell]] = {}
    for rank in ranks:
        for step in rank.measured:
            for call in step.calls:
                groups = cells.setdefault((call.op, call.group, call.size), {})
                groups.setdefault((call.key, step.number), {}).setdefault(rank.rank, []).append(call)
    reports = (_report(*key, list(groups.values()), ranks) for key, groups in cells.items())
    return tuple(sorted(reports, key=lambda each: (-each.time, each.title)))


def _report(op: str, group: str, size: int | None, cells: list[_Cell], ranks: Sequence[RankReport]) -> CollectiveReport:
    runs = [calls for cell in cells for calls in cell.values()]
    silent = sum(len(rank.measured) for rank in ranks) > len(runs)  # some step of some rank has none
    sizes = [[call.bytes for call in calls] for calls in runs]
    described = all(each is not None for calls in sizes for each in calls)
    matched = [same for cell in cells for same in _matched(op, cell)]
    shortest = [min(same, key=lambda call: call.duration) for same in matched]
    time = sum(call.duration for call in shortest)
    wire = [call.wire for call in shortest if call.wire is not None]
    spreads = [_spread(same) for same in matched if len(same) > 1]
    return CollectiveReport(
        op=op,
        group=group,
        size=size,
        counts=_distinct([len(calls) for calls in runs], silent=silent),
        bytes=_distinct([sum(each or 0 for each in calls) for calls in sizes], silent=silent) if described else (),
        time=time / len(cells),
        bandwidth=sum(wire) / time if time and len(wire) == len(shortest) else None,
        skew=(median(spreads), max(spreads)) if spreads else None,
        exposed=max(_exposed(rank, op, group) for rank in ranks),
        marks=tuple(_marks(op, size, cells, ranks)),
    )


def _matched(op: str, cell: _Cell) -> list[tuple[Call, ...]]:
    """The same call on all ranks, in order; where that cannot be told, each call by itself."""
    if op in _PAIRWISE or not _agree(cell):
        return [(call,) for calls in cell.values() for call in calls]
    return list(zip(*cell.values(), strict=True))


def _agree(cell: _Cell) -> bool:
    """Whether the ranks of a group ran the same calls (an all-to-all's sizes differ by nature)."""
    return (
        len({tuple(None if call.op == "all_to_all" else call.bytes for call in calls) for calls in cell.values()}) == 1
    )


def _marks(op: str, size: int | None, cells: list[_Cell], ranks: Sequence[RankReport]) -> list[str]:
    """What is wrong with the bandwidth."""
    marks = []
    coverage = min(each for rank in ranks if (each := rank.coverage(op, UNNAMED)) is not None)
    if coverage < _COVERED:
        marks.append(f"only {coverage:.0%} of its calls say their sizes")
    if size is None:
        marks.append("group size not recorded")
    elif (seen := max(len(cell) for cell in cells)) < size and op not in _PAIRWISE:
        marks.append(f"{seen} of {size} ranks read: times include waiting for the others")
    if op in _PAIRWISE:
        marks.append("times include waiting for the peer")
    elif not all(_agree(cell) for cell in cells):
        marks.append("the ranks do not agree on the calls")
    return marks


def _exposed(rank: RankReport, op: str, group: str) -> float:
    calls = [call for step in rank.measured for call in step.calls if (call.op, call.group) == (op, group)]
    return sum(call.exposed for call in calls) / len(rank.measured)


def _distinct(values: list[int], *, silent: bool) -> tuple[int, ...]:
    return tuple(sorted({*values, 0} if silent else set(values)))


def _spread(calls: Sequence[Call]) -> int:
    durations = [call.duration for call in calls]
    return max(durations) - min(durations)


def repeated_reduce(ranks: Sequence[RankReport]) -> RepeatedReduce | None:
    """Gradients all-reduced before the last backward too, in every measured step of every rank; else None.

    Tensor parallelism all-reduces activations in every backward and must: it does so in forward as well.
    """
    steps = [step for rank in ranks for step in rank.measured]
    repeated = [_repeated(step) for step in steps]
    if not steps or not all(repeated):
        return None
    saving = min(
        sum(call.exposed for step in rank.measured for call in _repeated(step)) / len(rank.measured) for rank in ranks
    )
    return RepeatedReduce(
        backwards=min(step.backwards for step in steps),
        bytes=min(sum(call.bytes or 0 for call in calls) for calls in repeated),
        saving=saving,
    )


def _repeated(step: StepReport) -> list[Call]:
    """The gradient all_reduces that the last backward repeats."""
    large = [call for call in step.calls if call.op == "all_reduce" and (call.bytes or 0) >= _GRADIENTS]
    forward = {call.key for call in large if call.phase is Phase.FORWARD}
    gradients = [call for call in large if call.key not in forward]
    before = [call for call in gradients if call.phase is Phase.BACKWARD]
    last = sum(call.bytes or 0 for call in gradients if call.phase is Phase.LAST_BACKWARD)
    often = sum(call.bytes or 0 for call in before) >= 0.9 * last * (step.backwards - 1)
    return before if last and step.backwards > 1 and often else []
