"""One window of a GPU's time, split without rest: compute, exposed communication, exposed copies, idle."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from pytest_scaleperf.model import TraceError
from pytest_scaleperf.trace.columns import Bools, Ints
from pytest_scaleperf.trace.intervals import Union, owned, union


class Kind(IntEnum):
    """What a GPU event does. An instant belongs to the first of these that is running, or is idle."""

    COMPUTE = 0
    COMMUNICATION = 1
    COPY = 2


@dataclass(frozen=True, slots=True)
class Partition:
    """A window's split, in nanoseconds.

    ``own[i]`` is the time that event ``i`` accounts for: of compute what no earlier compute event covers, of
    communication what neither earlier communication nor any compute covers, of copies what is covered by
    neither of these nor by earlier copies. ``gap`` are the idle stretches, ``gap_next`` the event whose start
    ends each (the count of events where none does). own and gap add up to the window.
    """

    own: Ints
    gap: Ints
    gap_next: Ints
    compute: Union
    communication: Union


def partition(low: int, high: int, start: Ints, end: Ints, kind: Ints) -> Partition:
    r"""Split [low, high) among events in order of start; events may reach beyond the window, which clips them.

    Definitions: |C| compute, |N \ C| exposed communication, |M \ (C u N)| exposed copies, the rest idle.

    Raises TraceError if the parts do not add up, which would be a fault of this module.
    """
    begin, stop = np.clip(start, low, high), np.clip(end, low, high)
    is_compute, is_communication, is_copy = (kind == each for each in Kind)
    compute = union(begin[is_compute], stop[is_compute])
    communication = union(begin[is_communication], stop[is_communication])
    either = union(
        np.concatenate((compute.start, communication.start)), np.concatenate((compute.end, communication.end))
    )
    everything = union(begin, stop)

    own = np.zeros(len(start), np.int64)
    for chosen, above in ((is_compute, None), (is_communication, compute), (is_copy, either)):
        own[chosen] = _own(begin, stop, chosen, above)
    gap_start, gap_end = everything.gaps(low, high)
    gap = gap_end - gap_start
    if int(own.sum()) + int(gap.sum()) != high - low or int(own[is_compute].sum()) != compute.measure:
        raise TraceError(
            f"compute {compute.measure} ns + exposed {int(own[~is_compute].sum())} ns + idle {int(gap.sum())} ns is "
            f"not the window's {high - low} ns: a fault of pytest-scaleperf, please report it with the trace"
        )
    return Partition(own, gap, _next(start, end, gap_end), compute, communication)


def _own(begin: Ints, stop: Ints, chosen: Bools, above: Union | None) -> Ints:
    own_start, own_end = owned(begin[chosen], stop[chosen])
    length: Ints = np.maximum(own_end - own_start, 0)
    if above is not None:
        length -= above.within(own_start, own_end)
    return length


def _next(start: Ints, end: Ints, times: Ints) -> Ints:
    """Index of the first event of some length that starts at or after each time."""
    lasting = np.flatnonzero(end > start)
    found: Ints = np.append(lasting, len(start))[np.searchsorted(start[lasting], times, side="left")]
    return found
