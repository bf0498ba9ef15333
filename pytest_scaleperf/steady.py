"""A run's steps to its steady numbers: which logged intervals count, the median over them, and how sure it is."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_scaleperf.model import Measurement, Metric, Observation, Outcome, StepSample

if TYPE_CHECKING:
    from collections.abc import Sequence

_FEWEST = 2
# Standard error of a median of n normal values: sqrt(pi/2) * sigma / sqrt(n) (Kenney and Keeping, Mathematics of
# Statistics, part 2, 1951, ch. 7).
_MEDIAN_EFFICIENCY = math.sqrt(math.pi / 2)
# Makes the median absolute deviation a consistent estimate of sigma for normal values: 1 / the normal distribution's
# upper quartile (Rousseeuw and Croux, Alternatives to the Median Absolute Deviation, 1993).
_MAD_TO_SIGMA = 1.4826
_ENOUGH_FOR_MAD = 20
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


def measure(
    observation: Observation,
    *,
    warmup: int,
    peak_flops: float | None,
    memory_total_gib: float | None = None,
    tokens_per_step_per_gpu: float | None = None,
) -> Measurement:
    """The numbers of one completed run.

    TPS is the median over the steady window of each step's median over ranks (tokens/s per GPU); MFU in per cent is
    100 x median TFLOP/s x 1e12 / ``peak_flops`` (FLOP/s; None: the mean of what the ranks measured, else no MFU;
    never torchtitan's own). Step time in seconds is ``tokens_per_step_per_gpu`` / TPS of each step. Peak memory in GiB
    is the maximum over all steps, in the window or not. Spread: see ``standard_error``.

    A run that did not reach its last step has no numbers; fewer than two steps in the window give no speed.
    A warning says so each time.
    """
    if observation.outcome is not Outcome.COMPLETED:
        return _nothing(f"the run is {observation.outcome}, not completed: its numbers are not judged")
    requested, last = observation.requested_steps, observation.last_step
    if last is None or (requested is not None and last < requested):
        return _nothing(f"the run reached step {last} of {requested}: its numbers are not judged")
    kept = window(observation.series, observation.first_step, warmup)
    found = _Numbers()
    times = found.add_speed(observation, kept, warmup, tokens_per_step_per_gpu)
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
    )


def standard_error(values: Sequence[float]) -> float:
    """Standard error of the median as a fraction of it: 1.253 x sigma / sqrt(n) / median.

    Sigma is 1.4826 x MAD, robust to outliers, where there are at least ``_ENOUGH_FOR_MAD`` values. With fewer it is
    at least their standard deviation: the MAD of a handful is often 0, which would make a noisy run look exact.
    ``values`` holds at least one number above 0.
    """
    middle = statistics.median(values)
    sigma = _MAD_TO_SIGMA * statistics.median(abs(value - middle) for value in values)
    if 1 < len(values) < _ENOUGH_FOR_MAD:
        mean = math.fsum(values) / len(values)
        sigma = max(sigma, math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1)))
    return _MEDIAN_EFFICIENCY * sigma / math.sqrt(len(values)) / middle


def _nothing(warning: str) -> Measurement:
    return Measurement(values={}, spread={}, steps=(), warnings=(warning,))


def _usable(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value) and value > 0]


@dataclass(slots=True)
class _Numbers:
    """The parts of a Measurement while they are collected."""

    values: dict[Metric, float] = field(default_factory=dict)
    spread: dict[Metric, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def add_speed(
        self, observation: Observation, kept: Sequence[StepSample], warmup: int, tokens: float | None
    ) -> tuple[float, ...]:
        """TPS and step time; returns the step times (seconds, in the order of the window)."""
        tps = _usable([sample.tps for sample in kept])
        if len(tps) < _FEWEST:
            logged = ", ".join(str(sample.step) for sample in observation.series) or "none"
            self.warnings.append(
                f"no speed: {len(tps)} of the logged steps ({logged}) have one after {warmup} steps of warm-up from "
                f"step {observation.first_step} and without the first interval, at least {_FEWEST} are needed: more "
                "steps, a shorter warm-up or a smaller log_freq"
            )
            return ()
        self.values[Metric.TPS], self.spread[Metric.TPS] = statistics.median(tps), standard_error(tps)
        if tokens is None:
            return ()
        times = tuple(tokens / value for value in tps)
        self.values[Metric.STEP_TIME] = statistics.median(times)
        self.spread[Metric.STEP_TIME] = standard_error(times)
        return times

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
        self.values[Metric.MFU] = 100 * statistics.median(tflops) * _TERA / peak
        self.spread[Metric.MFU] = standard_error(tflops)

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
