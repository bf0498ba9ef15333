"""How high the speed can be at a batch that was not tried, if speed over the batch is concave.

TPS = sequence x b / t(b), where the time of a step t(b) = fixed + b x each grows with the batch b: it rises from
nothing at b = 0, flattens, and bends further down where memory pressure begins. A concave curve lies below every
line through two of its points, outside of the two. That is the bound: extrapolate the two points on the left, and the
two on the right; the lower one holds. (0, 0) is a point of the curve.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

NOISE = 0.005
"""Standard deviation of one run's TPS as a share of it: 0.5 % over seven runs on three H200 machines."""

SURE = 1.645
"""Standard deviations for 95 % on one side."""

_Point = tuple[int, float]
_ORIGIN: _Point = (0, 0.0)


def bound(speeds: Mapping[int, float], batch: int, deviations: float = 0.0) -> float:
    """The most tokens/s that an untried ``batch`` can have; infinite with nothing on its right and left to tell.

    With ``deviations``, by so many standard deviations of the bound's own noise more.
    """
    points = [_ORIGIN, *sorted(speeds.items())]
    left = [p for p in points if p[0] < batch]
    right = [p for p in points if p[0] > batch]
    lines = []
    if len(left) > 1:
        lines.append(_line(left[-2], left[-1], batch, deviations))
    if len(right) > 1:
        lines.append(_line(right[1], right[0], batch, deviations))
    return min(lines, default=math.inf)


def bends_upwards(speeds: Mapping[int, float]) -> tuple[int, ...]:
    """Batches at which the measured speeds are not concave, beyond their noise: a second hump, or a bad run."""
    points = [_ORIGIN, *sorted(speeds.items())]
    found = []
    for (x1, y1), (x2, y2), (x3, y3) in zip(points, points[1:], points[2:], strict=False):
        share = (x2 - x1) / (x3 - x1)
        chord = y1 + (y3 - y1) * share
        noise = NOISE * math.sqrt((y1 * (1 - share)) ** 2 + (y3 * share) ** 2 + y2**2)
        if y2 < chord - 2 * SURE * noise:
            found.append(x2)
    return tuple(found)


def _line(far: _Point, near: _Point, batch: int, deviations: float) -> float:
    ratio = (batch - near[0]) / (near[0] - far[0])
    value = near[1] + (near[1] - far[1]) * ratio
    return value + deviations * NOISE * math.hypot(near[1] * (1 + ratio), far[1] * ratio)
