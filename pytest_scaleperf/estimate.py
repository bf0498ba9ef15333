"""Estimates from a series of numbers: where it is steady, its spread, how many independent values it holds; pure."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

ENOUGH_STEPS = 3
"""A steady window of fewer logged steps is too short to be judged."""

# Makes the median absolute deviation a consistent estimate of sigma for normal values: 1 / the normal distribution's
# upper quartile (Rousseeuw and Croux, Alternatives to the Median Absolute Deviation, 1993).
_MAD_TO_SIGMA = 1.4826
_ENOUGH_FOR_MAD = 20
_ENOUGH_FOR_CORRELATION = 4
_WILD = 3.0
_HIGHEST_CORRELATION = 0.95
_NEGLIGIBLE = 1e-3

_BATCHES_FROM = 50
_BATCH = 5
_ENOUGH_TO_ASK = 8
_MATERIAL = 0.01
_LATE = 6.0
# How many sigma the start has to be off, by the number of values that sigma is from: Student's t at 99.5 % for few.
_UNLIKE = {3: 9.92, 4: 5.84, 5: 4.60}
_UNLIKE_MANY = 4.0


def steady_from(values: Sequence[float]) -> tuple[int, float]:
    """Index of the first value of the steady part; and a change that is too late to be a start, 0 where there is none.

    MSER (White 1997, Simulation 69; White, Cobb and Spratt 2000, Proc. WSC): the cut that makes the squared error of
    what is left, divided by the square of its length, smallest; on means of five values (MSER-5) from 50 values on.
    Its known weakness are short series, where a quiet end looks steady by chance. So at most half is cut, at least
    three values stay, and a start is cut only where its median is unlike that of the rest: by 4 sigma of the rest,
    and by more where that has fewer than six values.

    A late change, as a fraction: the best fit of two levels changes after more than half of the values, by more than
    1 % and by many times what they scatter around the two (7 to 12, more for fewer values; at least eight are asked
    for). No part is steady then. ``values`` are above 0.
    """
    return _cut(values), _late_change(values)


def drift(values: Sequence[float]) -> float | None:
    """Change from the first to the second half of a series, as a fraction; None where it may be noise, or below 1 %.

    Noise is that of neighbours: a trend hardly adds to the differences between them.
    """
    count = len(values)
    if count < _ENOUGH_TO_ASK:
        return None
    early, late = statistics.median(values[: count // 2]), statistics.median(values[-(count // 2) :])
    change = late / early - 1
    steps = [b - a for a, b in itertools.pairwise(values)]
    # Of two medians of count / 2 values each; a difference of neighbours has twice the variance of a value.
    error = sigma(steps) * math.sqrt(math.pi / count)
    return change if abs(late - early) > _UNLIKE_MANY * error and abs(change) > _MATERIAL else None


def sigma(values: Sequence[float]) -> float:
    """Standard deviation, robust to outliers: 1.4826 x MAD where there are at least ``_ENOUGH_FOR_MAD`` values.

    With fewer it is at least their usual standard deviation: the MAD of a handful is often 0, which would make a
    noisy run look exact. ``values`` holds at least one number.
    """
    middle = statistics.median(values)
    found = _MAD_TO_SIGMA * statistics.median(abs(value - middle) for value in values)
    if 1 < len(values) < _ENOUGH_FOR_MAD:
        mean = math.fsum(values) / len(values)
        found = max(found, math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1)))
    return found


def effective_size(values: Sequence[float]) -> float:
    """How many independent values say as much about the median as these: their number at most, and at least three.

    The series is taken for an AR(1) process with its own lag-1 correlation r (of values clipped at three sigma), made
    larger by (1 + 4 r) / n, which short series are short of (Marriott and Pope 1954; Kendall 1954, Biometrika 41). A
    median moves by the share of values below it, whose correlation at lag k is 2/pi asin(r^k) for normal values
    (Sheppard 1899): n / (1 + 2 sum_k 2/pi asin(r^k)). A negative correlation is not rewarded, and fewer than three
    are never said: a short series shows no longer correlation than that, and would at times be called worth nothing.
    """
    count = len(values)
    if count < _ENOUGH_FOR_CORRELATION:
        return float(count)
    found = _lag_one(values)
    found = min(_HIGHEST_CORRELATION, found + (1 + 4 * found) / count)
    inflation, power = 1.0, found
    while power > _NEGLIGIBLE:
        inflation += 4 / math.pi * math.asin(power)
        power *= found
    return max(float(ENOUGH_STEPS), count / inflation)


def student(level: float, degrees: float) -> float:
    """Upper quantile of Student's t at ``level`` (above 0.5): exact for 1 and 2 degrees of freedom.

    Between and above: the expansion of Abramowitz and Stegun, 26.7.5, with whole degrees, rounded down.
    """
    whole = max(1, math.floor(degrees))
    if whole == 1:
        return math.tan(math.pi * (level - 0.5))
    if whole == 2:  # noqa: PLR2004 - the other distribution with a closed form
        return (2 * level - 1) * math.sqrt(2 / (4 * level * (1 - level)))
    z = statistics.NormalDist().inv_cdf(level)
    return (
        z
        + (z**3 + z) / (4 * whole)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * whole**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * whole**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * whole**4)
    )


def _cut(values: Sequence[float]) -> int:
    size = _BATCH if len(values) >= _BATCHES_FROM else 1
    batches = [math.fsum(values[i : i + size]) / size for i in range(0, len(values) - size + 1, size)]
    highest = min(len(batches) // 2, len(batches) - ENOUGH_STEPS)
    # Squared errors of every tail in one pass, from numbers that are small: sums of squares would lose all digits.
    middle = statistics.median(values)
    count, total, squares, best, cut = 0, 0.0, 0.0, math.inf, 0
    for place in range(len(batches) - 1, -1, -1):
        value = batches[place] / middle - 1
        count, total, squares = count + 1, total + value, squares + value * value
        error = max(0.0, squares - total * total / count) / (count * count)
        if place <= highest and error <= best:
            best, cut = error, place
    cut *= size
    if not cut:
        return 0
    rest = values[cut:]
    gap = abs(statistics.median(values[:cut]) - statistics.median(rest))
    return cut if gap > _UNLIKE.get(len(rest), _UNLIKE_MANY) * sigma(rest) else 0


def _late_change(values: Sequence[float]) -> float:
    """The gap of two levels that fit and change after half of the values; a few odd ones at the end are no level."""
    count = len(values)
    if count < _ENOUGH_TO_ASK:
        return 0.0
    shortest = max(ENOUGH_STEPS, count // _ENOUGH_TO_ASK)
    middle = statistics.median(values)
    scaled = [value / middle - 1 for value in values]
    squares = math.fsum(value * value for value in scaled)
    total, early = math.fsum(scaled), math.fsum(scaled[: count // 2])
    least, gap = math.inf, 0.0
    for place in range(count // 2 + 1, count - shortest + 1):
        early += scaled[place - 1]
        begins, ends = early / place, (total - early) / (count - place)
        rest = squares - begins * begins * place - ends * ends * (count - place)
        if rest < least:
            least, gap = rest, abs(ends - begins)
    scatter = math.sqrt(max(least, 0.0) / (count - 2))
    return gap if gap > max(_MATERIAL, _LATE * (1 + _ENOUGH_TO_ASK / count) * scatter) else 0.0


def _lag_one(values: Sequence[float]) -> float:
    middle, limit = statistics.median(values), _WILD * sigma(values)
    clipped = [min(max(value - middle, -limit), limit) for value in values]
    mean = math.fsum(clipped) / len(clipped)
    centred = [value - mean for value in clipped]
    total = math.fsum(value * value for value in centred)
    return math.fsum(a * b for a, b in itertools.pairwise(centred)) / total if total else 0.0
