"""Collective calls: sizes and groups of one rank's, and bandwidth and skew of the same call on several ranks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import median

from pytest_scaleperf.trace.columns import Collective, RankTrace
from pytest_scaleperf.trace.result import Call, CollectiveReport, RankReport, RepeatedReduce, StepReport
from pytest_scaleperf.trace.rules import Phase

# Bytes of an element, by PyTorch's names (c10/core/ScalarType.h) and by those of recorded shapes.
_BYTES = {
    1: ("byte", "char", "bool", "qint8", "quint8", "unsigned char", "signed char"),
    2: ("short", "half", "bfloat16", "uint16", "short int"),
    4: ("int", "float", "complexhalf", "uint32", "qint32"),
    8: ("long", "double", "complexfloat", "uint64", "long int"),
    16: ("complexdouble",),
}
_SIZE = {name: size for size, names in _BYTES.items() for name in names}
# What a rank moves of S bytes in a group of n, as a fraction of S (nccl-tests, PERFORMANCE.md).
_SHARED = ("all_gather", "reduce_scatter", "all_to_all")
_PAIRWISE = ("send", "recv", "send_recv", "put")
_COVERED = 0.95
_GRADIENTS = 1 << 20  # bytes: below it an all_reduce is a loss or a norm, not a gradient bucket


def element_bytes(dtype: str | None) -> int | None:
    """Bytes of one element, None for a type that is not known."""
    if dtype is None:
        return None
    name = dtype.removeprefix("c10::").lower()
    return 1 if name.startswith(("float8", "float4")) else _SIZE.get(name)


def message_bytes(op: str, call: Collective) -> int | None:
    """The size S of bus bandwidth: an all_gather's output, what the others put in; None where not recorded."""
    size = element_bytes(call.dtype)
    if size is None:
        return None
    if op == "all_gather":
        elements = call.out_elements
        if elements is None and call.in_elements is not None and call.group_size:
            elements = call.in_elements * call.group_size
    elif op in ("recv", "scatter"):
        elements = call.out_elements or call.in_elements
    else:
        elements = call.in_elements
    return None if elements is None else elements * size


def wire_bytes(op: str, size: int | None, ranks: int | None) -> int | None:
    """What one rank moves of ``size`` bytes in a group of ``ranks``."""
    if size is None or not ranks:
        return None
    if op in _SHARED:
        return size * (ranks - 1) // ranks
    return 2 * size * (ranks - 1) // ranks if op == "all_reduce" else size


def group_of(trace: RankTrace, call: Collective) -> tuple[str, str, int | None]:
    """A call's group: what people call it, a key that is equal on all its ranks, its size."""
    if call.group_name is None:
        # Gloo's calls do not say theirs; where all groups are of the same ranks, it does not matter which.
        real = [group for group in trace.groups.values() if group.size > 1]
        if len({group.ranks for group in real}) != 1 or not real[0].ranks:
            return "group not recorded", "", call.group_size
        return real[0].desc or "all ranks", str(real[0].ranks), real[0].size
    desc = call.group_desc if call.group_desc and call.group_desc != "undefined" else f"group {call.group_name}"
    ranks = call.group_ranks or ""
    # Long lists of ranks are cut ("[0, 1, ...]"): then the name has to tell groups apart.
    complete = bool(re.search(r"\d", ranks)) and "..." not in ranks
    return desc, f"{desc}{ranks}" if complete else f"{desc}{call.group_name}{ranks}", call.group_size


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
    coverage = min(rank.coverage for rank in ranks if rank.coverage is not None)
    if coverage < _COVERED:
        marks.append(f"only {coverage:.0%} of the communication events say their sizes")
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
