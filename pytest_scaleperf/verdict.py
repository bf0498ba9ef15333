"""Observation and measurements against a baseline give a verdict; pure, no files, no clock."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_scaleperf.estimate import ENOUGH_STEPS
from pytest_scaleperf.model import (
    Baseline,
    Decision,
    Direction,
    Fingerprint,
    Measurement,
    Metric,
    MetricVerdict,
    Observation,
    Outcome,
    Verdict,
)
from pytest_scaleperf.noise import MIN_SAMPLES, Noise, Recorded, Scatter, spread_of

Z_BAND = 3.5
"""Narrowest band in standard deviations of the change after all launches; a narrower one is refused."""

Z_RED = 3.25
"""A regression is worse than a healthy case is by chance in 1 of 1,700 looks; over all looks in 1 of 1,000 sessions."""

Z_GREEN = 1.3
"""A pass before the last launch is so far inside its band that the rest would change it in 1 of 10 cases."""

Z_TWICE = 1.645
"""A pass excludes, at 95 %, that the case is worse by twice its band; else the run itself is too noisy to judge."""

Z_SHOWN = 1.96
"""Half-width of what is shown as noise: 95 %."""

FAR_WIDER = 3.0
"""A tolerance this many times what the noise allows is pointed out."""

_WIDER = 1.1
_ENOUGH_DEGREES = 10.0
_SPEEDS = frozenset({Metric.TPS, Metric.MFU, Metric.STEP_TIME})
# Reserved memory is counted, not timed: until samples say otherwise, it is the same in every launch.
_COUNTED = Noise(spread=0.0, degrees=1.0)

_WORST_FIRST = (
    Decision.FINGERPRINT_MISMATCH,
    Decision.NO_BASELINE,
    Decision.MISSING_METRIC,
    Decision.REGRESSION,
    Decision.INCONCLUSIVE,
    Decision.IMPROVEMENT,
    Decision.PASS,
)


@dataclass(frozen=True, slots=True)
class Rule:
    """What is asserted: the judged metrics and, as a fraction of the baseline, the least band of each.

    ``max_samples`` launches are taken at most. ``noise`` is what the recorded samples of the suite's other cases say.
    """

    judge: tuple[Metric, ...]
    tolerance: Mapping[Metric, float]
    compare_across: tuple[str, ...] = ()
    max_samples: int = 1
    noise: Mapping[Metric, Noise] = field(default_factory=dict)


def judge_outcome(expected: Outcome, observation: Observation) -> Verdict | None:
    """Verdict of how a run ended, or None where it completed as expected and its numbers decide.

    A case may expect an outcome other than completed (``oom``); that it completes after all is an improvement.
    """
    if observation.outcome is expected:
        if expected is Outcome.COMPLETED:
            return None
        return Verdict(Decision.PASS, (), f"ended as expected: {expected}{_reason_of(observation)}", samples=1)
    if observation.outcome.is_machine:
        return Verdict(Decision.MACHINE_FAILED, (), f"{observation.outcome}{_reason_of(observation)}", samples=1)
    if observation.outcome is Outcome.COMPLETED:
        return Verdict(Decision.IMPROVEMENT, (), f"expected {expected}, but the run completed: it fits now", samples=1)
    wanted = "" if expected is Outcome.COMPLETED else f" (expected {expected})"
    return Verdict(Decision.RUN_FAILED, (), f"{observation.outcome}{wanted}{_reason_of(observation)}", samples=1)


def judge(
    measurements: Sequence[Measurement], baseline: Baseline | None, fingerprint: Fingerprint, rule: Rule
) -> Verdict:
    """Verdict of a case from all its launches; a further one is pooled with the earlier ones, never replaces one.

    A metric's value is the mean of the launches', its baseline the median of the recorded samples. Its band is the
    larger of the rule's tolerance and what the noise of the recorded samples allows; see docs/statistics.md, also for
    the error rates. INCONCLUSIVE means that the value is near the edge of the band (``undecided``: another launch may
    decide), or that it can never be told: no steady window, a tolerance below the noise, too noisy a run.
    """
    shown = [metric for metric in Metric if metric in rule.judge or any(metric in m.values for m in measurements)]
    verdicts = tuple(_judge_metric(metric, measurements, baseline, rule) for metric in shown)
    judged = [v for v in verdicts if v.metric in rule.judge]
    notes = [w for m in measurements for w in m.warnings] + [v.note for v in judged if v.note]
    decision, reason = _overall(judged, baseline)
    differences = {} if baseline is None else fingerprint.differences(baseline.fingerprint)
    strict = {k: v for k, v in differences.items() if k not in rule.compare_across}
    if strict:
        decision, reason = Decision.FINGERPRINT_MISMATCH, f"the baseline is of another fingerprint: {_named(strict)}"
    elif differences:
        notes.append(f"differs from the baseline's run: {_named(differences)}")
    near = [v.undecided for v in judged if v.decision is Decision.INCONCLUSIVE]
    undecided = decision is Decision.INCONCLUSIVE and all(near)
    unsteady = next((m.unsteady for m in measurements if m.unsteady), "") if _SPEEDS.intersection(rule.judge) else ""
    # A run without a steady window is no baseline either, so that is said before a baseline is missed.
    not_compared = decision in (Decision.NO_BASELINE, Decision.FINGERPRINT_MISMATCH)
    if unsteady and (not_compared or (decision is Decision.INCONCLUSIVE and _unsteady(measurements))):
        decision, reason = Decision.INCONCLUSIVE, unsteady
    return Verdict(decision, verdicts, reason, len(measurements), tuple(dict.fromkeys(notes)), undecided)


def _overall(judged: Sequence[MetricVerdict], baseline: Baseline | None) -> tuple[Decision, str]:
    """The case's decision and reason as its metrics have it."""
    decision = worst(v.decision for v in judged)
    if baseline is None:
        return Decision.NO_BASELINE, "no baseline is stored for this case"
    reason = "; ".join(_why(v) for v in judged if v.decision is decision)
    if decision is Decision.IMPROVEMENT:
        reason = f"baseline stale, better than its band: {reason}"
    return decision, reason


def worst(decisions: Iterable[Decision]) -> Decision:
    """The decision that counts for a case; a rule that judges nothing has no verdict and raises ValueError."""
    found = set(decisions)
    for decision in _WORST_FIRST:
        if decision in found:
            return decision
    raise ValueError("nothing was judged: a system must judge at least one metric")


def describe(verdict: MetricVerdict) -> str:
    """One metric in words: value, baseline, change and band."""
    metric, unit = verdict.metric, verdict.metric.unit
    if verdict.value is None:
        return f"{metric} was not measured"
    if verdict.baseline is None or verdict.change is None:
        return f"{metric} {verdict.value:.5g} {unit} has no baseline"
    text = f"{metric} {verdict.value:.5g} {unit} against {verdict.baseline:.5g} ({verdict.change:+.1%}"
    if verdict.tolerance is not None:
        sign = "-" if metric.direction is Direction.HIGHER_IS_BETTER else "+"
        text += f", band {sign}{verdict.tolerance:.1%}"
    if verdict.noise:
        text += f", noise \N{PLUS-MINUS SIGN}{verdict.noise:.1%}"
    return text + ")"


def _judge_metric(
    metric: Metric, measurements: Sequence[Measurement], baseline: Baseline | None, rule: Rule
) -> MetricVerdict:
    values = [m.values[metric] for m in measurements if metric in m.values]
    # A launch without the metric is not left out quietly: the others would decide as if it had not been taken.
    missing = not values or len(values) < len(measurements)
    value = None if missing else statistics.fmean(values)
    recorded = Recorded.of(baseline, metric)
    base = recorded.centre
    change = (value - base) / base if value is not None and base else None
    noise = spread_of(recorded, rule.noise.get(metric, Noise()))
    if noise.spread is None and metric is Metric.PEAK_MEMORY:
        noise = _COUNTED
    scatter = Scatter.of(noise, recorded, [m.spread[metric] for m in measurements if metric in m.spread])
    found = MetricVerdict(
        metric,
        Decision.NOT_JUDGED,
        value,
        base,
        None,
        change,
        noise=None if value is None else Z_SHOWN * scatter.of_change(len(measurements)),
        spread=noise.spread,
    )
    if metric not in rule.judge:
        return found
    most = max(rule.max_samples, len(measurements))
    if metric in _SPEEDS and _unsteady(measurements):
        further = len(measurements) < most and not _too_short(measurements)
        return replace(found, decision=Decision.INCONCLUSIVE, undecided=further)
    if value is None:
        return replace(found, decision=Decision.MISSING_METRIC)
    written = None if baseline is None else baseline.tolerance.get(metric)
    floor = rule.tolerance.get(metric) if written is None else written
    if change is None or floor is None:
        return replace(found, decision=Decision.NO_BASELINE, tolerance=floor)
    band = Band.of(floor, noise, replace(scatter, within=0.0), most, fixed=written is not None)
    found = replace(found, tolerance=band.width, allowed=band.allowed)
    found = _decide(found, band, scatter, len(measurements))
    return replace(found, note=_note(metric, found.decision, band, recorded))


def _too_short(measurements: Sequence[Measurement]) -> bool:
    """Whether a launch has too few logged steps: so will have the next."""
    return any(m.unsteady and len(m.steps) < ENOUGH_STEPS for m in measurements)


def _unsteady(measurements: Sequence[Measurement]) -> bool:
    """Whether there is nothing to judge by; beside a steady launch, an unsteady one counts as a very noisy one."""
    return _too_short(measurements) or all(m.unsteady for m in measurements)


def _decide(found: MetricVerdict, band: Band, scatter: Scatter, launches: int) -> MetricVerdict:
    change = found.change or 0.0
    worse = -change if found.metric.direction is Direction.HIGHER_IS_BETTER else change
    red, green = band.limits(scatter, launches)
    if worse > red:
        return replace(found, decision=Decision.REGRESSION)
    if band.refused:
        return replace(found, decision=Decision.INCONCLUSIVE)
    if worse > green:
        return replace(found, decision=Decision.INCONCLUSIVE, undecided=launches < band.most)
    return replace(found, decision=Decision.IMPROVEMENT if -worse > red else Decision.PASS)


@dataclass(frozen=True, slots=True)
class Band:
    """How far a case may be from its baseline: ``width`` as a fraction, after at most ``most`` launches.

    ``allowed`` is the narrowest band that the recorded noise allows (None: too little is recorded), ``floor`` the
    tolerance that was written. ``spread`` is what the limits before the last launch are laid for. A band is
    ``refused`` where the tolerance was written for this very case and is narrower than what is allowed.
    """

    width: float
    allowed: float | None
    spread: float
    most: int
    floor: float
    far_wider: bool

    @classmethod
    def of(cls, floor: float, noise: Noise, scatter: Scatter, most: int, *, fixed: bool) -> Band:
        """The band of a case; ``fixed`` where it was written for the case and is not to be made wider."""
        unit = replace(scatter, spread=1.0).of_change(most)
        allowed = None if noise.spread is None else Z_BAND * unit * noise.spread
        width = floor if fixed or allowed is None else max(floor, allowed)
        # Where little is recorded, the band itself says how much noise there may be: it would not hold with more.
        implied, known = width / (Z_BAND * unit), noise.upper
        spread = implied if known is None else min(implied, known)
        spread = max(spread, noise.spread or 0.0)
        far = bool(allowed) and noise.degrees >= _ENOUGH_DEGREES and floor > FAR_WIDER * (allowed or 0.0)
        return cls(width, allowed, spread, most, floor, far)

    @property
    def refused(self) -> bool:
        """True where the tolerance is below the noise."""
        return self.allowed is not None and self.width < self.allowed

    def limits(self, scatter: Scatter, launches: int) -> tuple[float, float]:
        """Above the first a change is a regression, up to the second a pass; in between undecided."""
        laid = replace(scatter, spread=self.spread)
        now = laid.of_change(launches)
        red = max(self.width, Z_RED * now)
        green = max(0.0, self.width - Z_GREEN * laid.ahead(launches, self.most))
        return red, min(green, 2 * self.width - Z_TWICE * now)


def _note(metric: Metric, decision: Decision, band: Band, recorded: Recorded) -> str:
    """What is to be known about a tolerance: refused or made wider by the noise, far above it, or not known."""
    count = f"{len(recorded.values)} recorded samples"
    if band.allowed is None:
        if decision not in (Decision.REGRESSION, Decision.INCONCLUSIVE):
            return ""
        return (
            f"{metric}: {count} of this case do not say how much it varies between sessions; {MIN_SAMPLES} do, or "
            "3 of at least 3 cases of the suite"
        )
    least = math.ceil(band.allowed * 1e4) / 1e4  # to two digits of a per cent, so that what is said is accepted
    can = f"{count} and {_launches(band.most)} can tell {least:.2%} and more"
    if band.refused:
        return (
            f"{metric}: the tolerance {band.width:.2%} of this case is narrower than the noise: {can}; "
            "write that, record more samples, or leave the tolerance out"
        )
    if band.width > _WIDER * band.floor:
        return f"{metric}: the band is {band.width:.2%} instead of {band.floor:.2%}, because of the noise: {can}"
    if band.far_wider:
        return f"{metric}: the tolerance {band.floor:.2%} is far wider than the noise: {can}"
    return ""


def _launches(count: int) -> str:
    return f"{count} launch" if count == 1 else f"{count} launches"


def _why(verdict: MetricVerdict) -> str:
    undecidable = verdict.decision is Decision.INCONCLUSIVE and not verdict.undecided and verdict.note
    return f"{describe(verdict)}: {verdict.note}" if undecidable else describe(verdict)


def _named(differences: Mapping[str, tuple[object, object]]) -> str:
    return ", ".join(f"{name} is {new!s}, the baseline's {old!s}" for name, (new, old) in differences.items())


def _reason_of(observation: Observation) -> str:
    failure = observation.failure
    if failure is None:
        return ""
    who = "" if failure.rank is None else f" on rank {failure.rank}"
    where = "" if failure.host is None else f" ({failure.host})"
    return f"{who}{where}: {failure.reason}"
