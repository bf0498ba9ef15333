"""What recorded samples say about noise: how much a case varies, and how much of it a session shares; pure."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_scaleperf.model import Baseline, Metric

MIN_SAMPLES = 5
"""Fewer recorded samples of a case say little about its own spread: that of three is wrong by half."""
_MIN_CASES = 3
_MIN_PER_CASE = 3
_MIN_DEGREES = 8
_ONE_IN_20 = statistics.NormalDist().inv_cdf(0.95)
# Standard error of a median against that of a mean, squared, for normal values (Kenney and Keeping, Mathematics of
# Statistics, part 2, 1951, ch. 7): also what the median of several cases' variances is worth against their mean.
MEDIAN_COST = math.pi / 2


@dataclass(frozen=True, slots=True)
class Noise:
    """What the recorded samples of a suite's cases say of one metric's noise.

    ``spread`` is the standard deviation between samples of the suite's middle case, as a fraction; None where too
    little is recorded. ``degrees`` is how many independent values it rests upon. ``shared`` is the part of the
    variance that all launches of one session have in common; 0 also where the samples cannot tell.
    """

    spread: float | None = None
    degrees: float = 0.0
    shared: float = 0.0

    @property
    def upper(self) -> float | None:
        """The spread that is above the true one in 95 % of cases."""
        return None if self.spread is None else self.spread / math.sqrt(_share_of_variance(0.05, self.degrees))

    def deviating_from(self, spread: float) -> bool:
        """Whether it is larger than ``spread`` by more than chance makes it in 95 % of cases."""
        return (self.spread or 0.0) > spread * math.sqrt(_share_of_variance(0.95, self.degrees))


@dataclass(frozen=True, slots=True)
class Recorded:
    """One metric's recorded samples of a case: values in its unit, each with the session that measured it."""

    values: tuple[float, ...]
    sessions: tuple[str, ...]

    @classmethod
    def of(cls, baseline: Baseline | None, metric: Metric) -> Recorded:
        """What a baseline has of a metric; empty where there is none."""
        pairs = (
            [] if baseline is None else [(s.values[metric], s.session) for s in baseline.samples if metric in s.values]
        )
        return cls(tuple(value for value, _ in pairs), tuple(session for _, session in pairs))

    @property
    def centre(self) -> float | None:
        """What the case is compared with: the median."""
        return statistics.median(self.values) if self.values else None

    @property
    def deviation(self) -> float:
        """Standard deviation as a fraction of the mean; at least two values."""
        mean = math.fsum(self.values) / len(self.values)
        return math.sqrt(math.fsum((v / mean - 1) ** 2 for v in self.values) / (len(self.values) - 1))

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many samples each session has."""
        return tuple(Counter(self.sessions).values())


@dataclass(frozen=True, slots=True)
class Scatter:
    """What a change varies by. ``spread`` between launches and ``within`` one launch are fractions of the value.

    ``shared`` is the part of the spread's variance that the launches of one session have in common. ``recorded`` is
    the variance of the baseline's median, in those of one launch, and ``grouped`` in those of one session.
    """

    spread: float
    shared: float
    within: float
    recorded: float
    grouped: float

    @classmethod
    def of(cls, noise: Noise, recorded: Recorded, within: Sequence[float]) -> Scatter:
        """From what was recorded, and the standard error that each launch has from its own steps."""
        count = max(1, len(recorded.values))
        # Variance of the median of n normal values against one, also for small n (Kenney and Keeping, above).
        median = MEDIAN_COST / (count + MEDIAN_COST - 1)
        alike = sum(size * size for size in recorded.sizes) / count
        own = math.sqrt(statistics.fmean(s * s for s in within)) if within else 0.0
        return cls(noise.spread or 0.0, noise.shared, own, median, median * max(1.0, alike))

    def of_change(self, launches: int) -> float:
        """Standard deviation of the change after so many launches, as a fraction."""
        variance = self.spread * self.spread
        stored = variance * (self.shared * (1 + self.grouped) + (1 - self.shared) * self.recorded)
        return math.sqrt(max(stored, self.within * self.within * self.recorded) + self._launch / launches)

    def ahead(self, launches: int, most: int) -> float:
        """By how much the change may still move until there are ``most`` launches, as a standard deviation."""
        return math.sqrt(self._launch * max(0.0, 1 / launches - 1 / most))

    @property
    def _launch(self) -> float:
        """Variance that each launch has of its own: what was recorded, or more if its steps vary more."""
        return max((1 - self.shared) * self.spread * self.spread, self.within * self.within)


def noise_of(baselines: Iterable[Baseline]) -> Mapping[Metric, Noise]:
    """The noise of each metric over all cases of a suite on one system, which are of one kind of machine.

    The spread is that of the middle case: a few cases that vary a lot (memory at its limit) move it little.
    """
    known = tuple(baselines)
    return {metric: _noise([Recorded.of(baseline, metric) for baseline in known]) for metric in Metric}


def spread_of(recorded: Recorded, suite: Noise) -> Noise:
    """The noise of one case: the suite's, or its own where that is larger by more than chance, or all that is known.

    Its own is asked from ``MIN_SAMPLES`` samples on. By chance: a variance that is larger in 1 of 20 cases.
    """
    if len(recorded.values) < MIN_SAMPLES:
        return suite
    own = Noise(recorded.deviation / _session_bias(recorded, suite.shared), len(recorded.values) - 1, suite.shared)
    if suite.spread is None or own.deviating_from(suite.spread):
        return own
    return suite


def _noise(cases: Sequence[Recorded]) -> Noise:
    usable = [case for case in cases if len(case.values) >= _MIN_PER_CASE]
    shared = _shared(usable)
    if len(usable) < _MIN_CASES:
        return Noise(shared=shared)
    variances = []
    for case in usable:
        # The median of a variance with few degrees of freedom lies below the variance (Wilson and Hilferty 1931).
        median = (1 - 2 / (9 * (len(case.values) - 1))) ** 3
        variances.append((case.deviation / _session_bias(case, shared)) ** 2 / median)
    degrees = sum(len(case.values) - 1 for case in usable) / MEDIAN_COST
    return Noise(math.sqrt(statistics.median(variances)), degrees, shared)


def _shared(cases: Sequence[Recorded]) -> float:
    """Intraclass correlation of samples of one session, by the analysis of variance over all cases.

    Each case is divided by its own spread, so that none counts for more (Searle, Casella and McCulloch, Variance
    Components, 1992, ch. 3). 0 where sessions with several samples are too few to tell, or differ no more than by
    chance (in 19 of 20 cases).
    """
    within = between = weight = 0.0
    degrees_within = degrees_between = 0
    for case in cases:
        sizes, total = case.sizes, math.fsum(case.values) / len(case.values)
        scale = case.deviation * total
        if len(sizes) < 2 or max(sizes) < 2 or not scale:  # noqa: PLR2004 - two sessions, one of them with two samples
            continue
        for session in dict.fromkeys(case.sessions):
            values = [v for v, at in zip(case.values, case.sessions, strict=True) if at == session]
            mean = math.fsum(values) / len(values)
            within += math.fsum((v - mean) ** 2 for v in values) / scale**2
            between += len(values) * (mean - total) ** 2 / scale**2
        degrees_within += len(case.values) - len(sizes)
        degrees_between += len(sizes) - 1
        weight += len(case.values) - sum(size * size for size in sizes) / len(case.values)
    if min(degrees_within, degrees_between) < _MIN_DEGREES:
        return 0.0
    own, all_ = within / degrees_within, between / degrees_between
    # Fisher's z: half the logarithm of two variances' ratio is about normal, with these degrees of freedom.
    by_chance = math.exp(2 * _ONE_IN_20 * math.sqrt((1 / degrees_within + 1 / degrees_between) / 2))
    if all_ <= by_chance * own:
        return 0.0
    common = (all_ - own) * degrees_between / weight
    return common / (common + own)


def _share_of_variance(level: float, degrees: float) -> float:
    """Quantile of an estimated variance, in true ones: chi-squared / degrees (Wilson and Hilferty 1931)."""
    part = 2 / (9 * degrees)
    return max(1e-3, 1 - part + statistics.NormalDist().inv_cdf(level) * math.sqrt(part)) ** 3


def _session_bias(recorded: Recorded, shared: float) -> float:
    """How much too small the usual standard deviation is where samples of one session are alike."""
    count = len(recorded.values)
    pairs = sum(size * size for size in recorded.sizes) / count - 1
    return math.sqrt(max(1 - shared * pairs / (count - 1), 1 / count))
