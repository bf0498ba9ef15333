"""Exact arithmetic on half-open integer intervals: unions, what one covers of another, who owns which instant."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pytest_scaleperf.trace.columns import Ints


@dataclass(frozen=True, slots=True)
class Union:
    """Disjoint intervals in rising order; ``before[i]`` is the length of all intervals before ``i``."""

    start: Ints
    end: Ints
    before: Ints

    @property
    def measure(self) -> int:
        """Length of the union."""
        return int((self.end - self.start).sum())

    def within(self, start: Ints, end: Ints) -> Ints:
        """Length of the union inside each of [start, end); 0 where end <= start."""
        return np.where(end > start, self._until(end) - self._until(start), 0)

    def gaps(self, low: int, high: int) -> tuple[Ints, Ints]:
        """What [low, high) has outside the union, as disjoint intervals; the union must lie inside."""
        start = np.concatenate(([low], self.end))
        end = np.concatenate((self.start, [high]))
        real = end > start
        return start[real], end[real]

    def _until(self, at: Ints) -> Ints:
        """Length of the union left of each time."""
        if not len(self.start):
            return np.zeros(len(at), np.int64)
        index = np.maximum(np.searchsorted(self.start, at, side="right") - 1, 0)
        inside = np.clip(at - self.start[index], 0, self.end[index] - self.start[index])
        length: Ints = self.before[index] + inside
        return length


def union(start: Ints, end: Ints) -> Union:
    """Union of [start, end) in any order; empty intervals add nothing, touching ones merge."""
    real = end > start
    start, end = start[real], end[real]
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    if not len(start):
        return Union(start, end, start)
    reach = np.maximum.accumulate(end)
    opens = np.concatenate(([True], start[1:] > reach[:-1]))
    first = np.flatnonzero(opens)
    last = np.concatenate((first[1:] - 1, [len(start) - 1]))
    merged_start, merged_end = start[first], reach[last]
    lengths = merged_end - merged_start
    return Union(merged_start, merged_end, np.cumsum(lengths) - lengths)


def owned(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """The part of each interval that no earlier one covers; ``start`` must rise.

    [max(start, all earlier ends), end): disjoint, and together as long as the union. Empty parts have end <= start.
    """
    if not len(start):
        return start, end
    earlier = np.concatenate((start[:1], np.maximum.accumulate(end)[:-1]))
    return np.maximum(start, earlier), end
