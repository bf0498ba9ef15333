"""A run's steps to its steady numbers: which logged intervals count, the median over them, and how sure it is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from pytest_scaleperf.estimate import ENOUGH_STEPS, drift, effective_size, sigma, steady_from, student
from pytest_scaleperf.model import Measurement, Metric, Observation, Outcome, StepSample

_FEWEST = 2
LEVEL = 0.95
"""Share of runs whose interval holds the true median."""
# Standard error of a median of n normal values: sqrt(pi/2) * sigma / sqrt(n) (Kenney and Keeping, Mathematics of
# Statistics, part 2, 1951, ch. 7).
_MEDIAN_EFFICIENCY = math.sqrt(math.pi / 2)
_TERA = 1e12


def window(series: Sequence[StepSample], first_step: int, warmup: int) -> tuple[StepSample, ...]:
    """The logged steps that count: without the first (compilation) and without any interval that holds warm-up.

    A logged step speaks of an interval: from the step after the previous logged one (or ``first_step``) to itself.
    The first ``warmup`` steps of the attempt, counted from ``first_step``, are warm-up; so after a resume the slow
    interval is left out too, whatever its step number.
    """
    kept = []
    begin = first_step
    for number, sample in enumerate(series):
        if number > 0 and begin >= first_step + warmup:
            kept.append(sample)
        begin = sample.step + 1
    return tuple(kept)


def measure(  # noqa: PLR0913 - what only the caller knows, each by name
    observation: Observation,
    *,
    warmup: int,
    peak_flops: float | None,
    memory_total_gib: float | None = None,
    tokens_per_step_per_gpu: float | None = None,
    find_start: bool = True,
) -> Measurement:
    """The numbers of one completed run.

    The steady window is ``window``, of which the start that is not yet steady is dropped (``estimate.steady_from`` on
    its TPS; ``find_start`` False: nothing is). TPS is the median over it of each step's median over ranks (tokens/s
    per GPU); MFU in per cent is 100 x median TFLOP/s x 1e12 / ``peak_flops`` (FLOP/s; None: the mean of what the ranks
    measured, else no MFU; never torchtitan's own). Step time in seconds is ``tokens_per_step_per_gpu`` / TPS of each
    step. Peak memory in GiB is the maximum over all steps, in the window or not. Spread: see ``standard_error``;
    interval: see ``median_interval``.

    A run that did not reach its last step has no numbers; fewer than two steps in the window give no speed, and fewer
    than three one that is not to be judged (``unsteady``). So is one that still changed after half of the window; the
    change then counts as its standard error. A warning says so each time.
    """
    if observation.outcome is not Outcome.COMPLETED:
        return _nothing(f"the run is {observation.outcome}, not completed: its numbers are not judged")
    requested, last = observation.requested_steps, observation.last_step
    if last is None or (requested is not None and last < requested):
        return _nothing(f"the run reached step {last} of {requested}: its numbers are not judged")
    assumed = window(observation.series, observation.first_step, warmup)
    kept, late = _settled(assumed) if find_start else (assumed, 0.0)
    found = _Numbers(least_spread=late)
    times = found.add_speed(kept, tokens_per_step_per_gpu)
    found.add_length(observation, kept, warmup, len(assumed) - len(kept), late)
    found.add_mfu(observation, kept, peak_flops)
    peak = found.add_peak_memory(observation.series)
    slowest = [s.tps_min for s in kept if s.tps_min is not None]
    return Measurement(
        values=found.values,
        spread=found.spread,
        steps=tuple(s.step for s in kept),
        step_times=times,
        tps_min=min(slowest) if slowest else None,
        memory_pct=_percent(observation.series, peak, memory_total_gib),
        alloc_retries=new_retries(observation.series, kept),
        warnings=tuple(found.warnings),
        interval=found.interval,
        dropped=len(assumed) - len(kept),
        unsteady=found.unsteady,
    )


def standard_error(values: Sequence[float]) -> float:
    """Standard error of the median as a fraction of it: 1.253 x sigma / sqrt(m) / median.

    m is how many independent values the series is worth (``effective_size``); sigma is made larger accordingly,
    because values that are alike scatter less than what they are drawn from: by sqrt((n - 1) / (n - n / m)) (Bayley
    and Hammersley 1946). ``values`` holds at least one number above 0.
    """
    count, worth = len(values), effective_size(values)
    scatter = sigma(values)
    if count > 1:
        scatter *= math.sqrt((count - 1) / max(count - count / worth, 0.5))
    return _MEDIAN_EFFICIENCY * scatter / math.sqrt(worth) / statistics.median(values)


def median_interval(values: Sequence[float], level: float = LEVEL) -> tuple[float, float]:
    """Where the true median lies in ``level`` of all runs: median +- t x standard error, also of correlated steps.

    Student's t has the effective number of steps less one as its degrees of freedom.
    """
    middle = statistics.median(values)
    half = middle * standard_error(values) * student((1 + level) / 2, effective_size(values) - 1)
    return max(0.0, middle - half), middle + half


def _settled(assumed: tuple[StepSample, ...]) -> tuple[tuple[StepSample, ...], float]:
    """The window without the part at its start that is unlike the rest, and a late change, else 0."""
    spoken = [sample for sample in assumed if _usable([sample.tps])]
    if not spoken:
        return assumed, 0.0
    first, late = steady_from(_usable([sample.tps for sample in spoken]))
    begin = spoken[first].step
    return (tuple(s for s in assumed if s.step >= begin), late) if first else (assumed, late)


def _nothing(warning: str) -> Measurement:
    return Measurement(values={}, spread={}, steps=(), warnings=(warning,))


def _usable(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value) and value > 0]


@dataclass(slots=True)
class _Numbers:
    """The parts of a Measurement while they are collected."""

    values: dict[Metric, float] = field(default_factory=dict)
    spread: dict[Metric, float] = field(default_factory=dict)
    interval: dict[Metric, tuple[float, float]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    unsteady: str = ""
    least_spread: float = 0.0

    def add(self, metric: Metric, values: Sequence[float], factor: float = 1.0) -> None:
        """A metric that varies: ``factor`` x the median of ``values``, its standard error and its interval."""
        low, high = median_interval(values)
        self.values[metric] = factor * statistics.median(values)
        self.spread[metric] = max(self.least_spread, standard_error(values))
        self.interval[metric] = (factor * low, factor * high)

    def add_speed(self, kept: Sequence[StepSample], tokens: float | None) -> tuple[float, ...]:
        """TPS and step time; returns the step times (seconds, in the order of the window)."""
        tps = _usable([sample.tps for sample in kept])
        if len(tps) < _FEWEST:
            return ()
        self.add(Metric.TPS, tps)
        if (change := drift(tps)) is not None:
            self.warnings.append(
                f"the speed drifts within the steady steps {kept[0].step} to {kept[-1].step}: {change:+.1%} from their "
                "first half to their second"
            )
        if tokens is None:
            return ()
        times = tuple(tokens / value for value in tps)
        self.add(Metric.STEP_TIME, times)
        return times

    def add_length(
        self, observation: Observation, kept: Sequence[StepSample], warmup: int, dropped: int, late: float
    ) -> None:
        """Whether the window is long enough to be judged, else why not, with the numbers."""
        said = len(_usable([sample.tps for sample in kept]))
        if not late and said >= ENOUGH_STEPS:
            return
        what = "no speed" if said < _FEWEST else "no steady window" if late else "too short a steady window"
        logged = ", ".join(str(sample.step) for sample in observation.series) or "none"
        also = f", without {dropped} more that were not yet steady" if dropped else ""
        if late:
            also += f", and the speed changed by {late:.1%} after more than half of them"
        else:
            also += f" and without the first interval, at least {ENOUGH_STEPS} are needed"
        text = (
            f"{what}: {said} of the logged steps ({logged}) have one after {warmup} steps of warm-up from step "
            f"{observation.first_step}{also}: more steps, a shorter warm-up or a smaller log_freq"
        )
        self.warnings.append(text)
        if _usable([sample.tps for sample in observation.series]):
            self.unsteady = text

    def add_mfu(self, observation: Observation, kept: Sequence[StepSample], peak_flops: float | None) -> None:
        """MFU against the system's peak, or against what the ranks measured."""
        tflops = _usable([sample.tflops for sample in kept])
        if len(tflops) < _FEWEST:
            if Metric.TPS in self.values:
                self.warnings.append(
                    f"no MFU: {len(tflops)} steps of the window say their TFLOP/s, at least {_FEWEST} are needed"
                )
            return
        measured = _usable(observation.rank_peak_flops)
        peak = peak_flops if peak_flops is not None else statistics.fmean(measured) if measured else None
        if peak is None:
            self.warnings.append("no MFU: neither the system's peak FLOP/s is known nor did the ranks measure one")
            return
        self.add(Metric.MFU, tflops, 100 * _TERA / peak)

    def add_peak_memory(self, series: Sequence[StepSample]) -> float | None:
        """The highest peak of any step in GiB; it does not vary, so its spread is 0."""
        peaks = _usable([sample.memory_gib for sample in series])
        if not peaks:
            self.warnings.append("no peak memory: no step says how much was reserved")
            return None
        self.values[Metric.PEAK_MEMORY], self.spread[Metric.PEAK_MEMORY] = max(peaks), 0.0
        return max(peaks)


def _percent(series: Sequence[StepSample], peak_gib: float | None, total_gib: float | None) -> float | None:
    """Highest share of the device's memory in per cent: as the run says it, else against the system's memory."""
    said = _usable([sample.memory_pct for sample in series])
    if said:
        return max(said)
    return None if peak_gib is None or not total_gib else 100 * peak_gib / total_gib


def new_retries(series: Sequence[StepSample], kept: Sequence[StepSample]) -> int | None:
    """Allocation retries within the window ``kept``; the counter is cumulative, so what came before is taken off.

    None where either count is not known, or where the counter went back.
    """
    if not kept:
        return None
    before = [sample for sample in series if sample.step < kept[0].step]
    start = before[-1].alloc_retries if before else None
    end = kept[-1].alloc_retries
    return None if start is None or end is None or end < start else end - start
