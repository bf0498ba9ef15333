"""The history of a case: where the level of its nights changed; beside the verdict, never in its place."""

from __future__ import annotations

import importlib.util
import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_scaleperf.model import Direction, LevelChange, Metric

NIGHTS = 60
"""So many of the newest nights are looked at: an older change has been seen, or accepted."""

FEWEST = 10
"""Fewer nights hardly say how much they vary."""

PENALTY = 30.0
"""What a change has to explain, in variances of a night: about 5.5 standard errors of the difference of two levels.

Chosen with benchmarks/creep.py: it prints how many nights a creep takes to be named, and how often nothing is.
"""

MATERIAL = 0.005
"""A smaller change of level is not said, however sure it is."""

EXTRA = "pip install 'pytest-scaleperf[history]'"
"""What brings the change point detection (ruptures)."""

_SHORTEST = 3
_WILD = 3.0
_NEAR = 5
_MAD_TO_SIGMA = 1.4826
# Differences clipped at three sigma have this much less variance (normal distribution).
_CLIPPED = 0.9733


@dataclass(frozen=True, slots=True)
class Night:
    """What one session measured of a metric: the mean of its launches. ``date`` is an ISO day."""

    date: str
    session: str
    value: float


def available() -> bool:
    """Whether the optional change point detection is installed."""
    return importlib.util.find_spec("ruptures") is not None


def changes(metric: Metric, nights: Sequence[Night]) -> tuple[LevelChange, ...]:
    """Every change of level in the newest nights, oldest first; none where there are too few of them.

    PELT (Killick, Fearnhead and Eckley 2012) on the squared error of piecewise constant levels, of at least three
    nights each; the noise of a night is that of the differences to its neighbours, which neither a step nor a creep
    adds to. A single odd night is clipped to what its neighbours allow, so that it is no level.
    Raises ModuleNotFoundError where the extra is not installed.
    """
    nights = nights[-NIGHTS:]
    values = [night.value for night in nights]
    if len(values) < FEWEST:
        return ()
    edges = [0, *_breaks(_standard(values)), len(values)]
    levels = [statistics.median(values[a:b]) for a, b in itertools.pairwise(edges)]
    return tuple(
        LevelChange(metric, nights[at].date, nights[at].session, before, after, len(values) - at)
        for at, before, after in zip(edges[1:-1], levels[:-1], levels[1:], strict=True)
    )


def newest(found: Sequence[LevelChange]) -> tuple[LevelChange, ...]:
    """The last changes that all go the same way: what the case is doing now."""
    last: list[LevelChange] = []
    for change in reversed(found):
        if last and (change.after > change.before) is not (last[0].after > last[0].before):
            break
        last.insert(0, change)
    return tuple(last)


def sentence(found: Sequence[LevelChange]) -> str:
    """What the newest changes say, or nothing where they are too small to be said."""
    run = newest(found)
    if not run:
        return ""
    metric, before, after = run[0].metric, run[0].before, run[-1].after
    change = after / before - 1
    if abs(change) < MATERIAL:
        return ""
    worse = (change < 0) is (metric.direction is Direction.HIGHER_IS_BETTER)
    how = f"in {len(run)} steps " if len(run) > 1 else ""
    return (
        f"history: {metric} is {'worse' if worse else 'better'} by {abs(change):.1%} since about {run[0].since}, {how}"
        f"from {before:.5g} to {after:.5g} {metric.unit} ({run[0].nights} nights)"
    )


def _standard(values: Sequence[float]) -> list[float]:
    """Values in sigmas of a night, an odd night clipped to three around its neighbours' median."""
    middle = statistics.median(values)
    steps = [abs(b - a) for a, b in itertools.pairwise(values)]
    limit = _WILD * _MAD_TO_SIGMA * statistics.median(steps)
    sigma = math.sqrt(math.fsum(min(step, limit) ** 2 for step in steps) / len(steps) / 2 / _CLIPPED)
    if not sigma:
        sigma = middle * 1e-9  # nights that are all alike: any change at all is one
    found = []
    for place, value in enumerate(values):
        begin = max(0, min(place - _NEAR // 2, len(values) - _NEAR))
        near = statistics.median(values[begin : begin + _NEAR])
        found.append((min(max(value, near - _WILD * sigma), near + _WILD * sigma) - middle) / sigma)
    return found


def _breaks(standard: Sequence[float]) -> list[int]:
    """Indices at which a new level begins; the only place that knows the library."""
    import numpy as np  # noqa: PLC0415 - the extra brings it, and collection imports neither
    import ruptures  # noqa: PLC0415 - an optional extra

    search = ruptures.KernelCPD(kernel="linear", min_size=_SHORTEST)
    ends = search.fit(np.asarray(standard, dtype=float).reshape(-1, 1)).predict(pen=PENALTY)
    return [int(end) for end in ends[:-1]]
