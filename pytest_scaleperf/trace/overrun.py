"""Durations that cannot be true: a kernel that lasts beyond the start of its stream's next one."""

from __future__ import annotations

import numpy as np

from pytest_scaleperf.trace.columns import Bools, Ints

_ENDLESS = 1 << 53  # ns; 104 days: an unsigned number that wrapped
_OVERRUN = 1_000_000  # ns; a dependent launch starts up to 3.7 us early (measured on B200), faults last for seconds


def cut_overruns(start: Ints, end: Ints, lane: Ints, graph: Bools) -> tuple[Ints, Bools]:
    """End each kernel at the next start of its ``lane``, if it runs over by more than 1 ms; also return which were cut.

    ROCm writes durations of seconds for some kernels (AMD-AGI/TraceLens#669). Kernels of a CUDA graph may overlap
    in one lane and are left alone, unless they are endless.
    """
    if not len(start):
        return end, np.zeros(0, bool)
    endless = end - start > _ENDLESS
    latest = max(int(start.max()), int(np.where(endless, start, end).max()))
    order = np.lexsort((start, lane))
    limit = np.full(len(order), latest)
    same = lane[order][1:] == lane[order][:-1]
    limit[:-1] = np.where(same, start[order][1:], latest)
    allowed = np.empty_like(limit)
    allowed[order] = limit
    cut = endless | ((end > allowed + _OVERRUN) & ~graph)
    return np.where(cut, allowed, end), cut
