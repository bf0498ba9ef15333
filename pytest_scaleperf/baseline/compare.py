"""What was measured against what is stored: by how much each judged metric is worse or better; pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_scaleperf.model import BaselineSample, Direction, Fingerprint, Metric


@dataclass(frozen=True, slots=True)
class Measured:
    """The completed launches of one case in one session. ``bands`` has the judged metrics, each with its tolerance."""

    case_id: str
    fingerprint: Fingerprint
    samples: tuple[BaselineSample, ...]
    bands: Mapping[Metric, float]

    @property
    def session(self) -> str:
        """The session that launched it."""
        return self.samples[0].session

    @property
    def date(self) -> str:
        """The day on which it was measured."""
        return self.samples[0].date

    @property
    def lacking(self) -> tuple[Metric, ...]:
        """Judged metrics that one of the launches did not say."""
        return tuple(metric for metric in self.bands if any(metric not in sample.values for sample in self.samples))


@dataclass(frozen=True, slots=True)
class Shift:
    """One metric from ``before`` to ``after``; ``band`` is its tolerance as a fraction, None where it is not judged."""

    metric: Metric
    before: float | None
    after: float | None
    band: float | None

    @property
    def change(self) -> float | None:
        """(after - before) / before, or None where one of them is not known."""
        if self.before is None or self.after is None:
            return None
        return (self.after - self.before) / self.before

    @property
    def worse(self) -> float | None:
        """The change as a fraction, positive where it is in the bad direction."""
        if self.change is None:
            return None
        return -self.change if self.metric.direction is Direction.HIGHER_IS_BETTER else self.change

    def is_worse(self, share: float = 1.0) -> bool:
        """True where it is judged and worse by more than ``share`` of its band."""
        return self.worse is not None and self.band is not None and self.worse > share * self.band

    @property
    def is_better(self) -> bool:
        """True where it is judged and better by more than its band."""
        return self.worse is not None and self.band is not None and self.worse < -self.band

    @property
    def severity(self) -> float:
        """How many bands it is worse; what worst-first is sorted by. Nothing to compare or to judge is 0."""
        return 0.0 if self.worse is None or not self.band else self.worse / self.band


def medians(samples: Iterable[Mapping[Metric, float]]) -> dict[Metric, float]:
    """The median of each metric over the samples that have it."""
    found: dict[Metric, list[float]] = {}
    for values in samples:
        for metric, value in values.items():
            found.setdefault(metric, []).append(value)
    return {metric: statistics.median(found[metric]) for metric in Metric if metric in found}


def shifts(
    before: Mapping[Metric, float], after: Mapping[Metric, float], bands: Mapping[Metric, float]
) -> tuple[Shift, ...]:
    """One shift for each metric that either side knows or that is judged."""
    known = (metric for metric in Metric if metric in before or metric in after or metric in bands)
    return tuple(Shift(metric, before.get(metric), after.get(metric), bands.get(metric)) for metric in known)


def better(one: Mapping[Metric, float], other: Mapping[Metric, float]) -> dict[Metric, float]:
    """The better of two values for each metric that either has."""
    found = {}
    for metric in Metric:
        known = [values[metric] for values in (one, other) if metric in values]
        if known:
            found[metric] = max(known) if metric.direction is Direction.HIGHER_IS_BETTER else min(known)
    return found


def values_of(samples: Sequence[BaselineSample]) -> dict[Metric, float]:
    """The medians of recorded samples."""
    return medians(sample.values for sample in samples)
