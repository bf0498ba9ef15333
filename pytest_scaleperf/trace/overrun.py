"""Durations that cannot be true: a kernel that lasts beyond the start of its stream's next one."""

from __future__ import annotations

import numpy as np

from pytest_scaleperf.trace.columns import Bools, Ints

_ENDLESS = 1 << 53  # ns; 104 days: an unsigned number that wrapped
_NEVER = 1 << 62
_OVERRUN = 1_000_000  # ns; a dependent launch starts up to 3.7 us early (measured on B200), faults last for seconds


def cut_overruns(start: Ints, end: Ints, lane: Ints, graph: Bools) -> tuple[Ints, Bools]:
    """End each kernel at the next start of its ``lane``, if it runs over by more than 1 ms; also return which were cut.

    ROCm writes durations of seconds for some kernels (AMD-AGI/TraceLens#669). Kernels of a CUDA graph may overlap
    in one lane and are left alone. What lasts 104 days ends with the last event.
    """
    if not len(start):
        return end, np.zeros(0, bool)
    order = np.lexsort((start, lane))
    following = np.full(len(order), _NEVER)
    following[order[:-1]] = np.where(lane[order][1:] == lane[order][:-1], start[order][1:], _NEVER)
    over = (end > following + _OVERRUN) & ~graph
    ends = np.where(over, following, end)
    endless = ends - start > _ENDLESS
    latest = np.where(endless, start, ends).max()
    return np.where(endless, latest, ends), over | endless
