"""Observation and measurements against a baseline give a verdict; pure, no files, no clock."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

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

Z_DECIDED = 2.0
"""Half-width of the interval in standard errors: about 95 % of a normal distribution on each decision."""

MIN_SESSIONS = 3
"""Fewer recorded sessions than this say nothing about the spread between sessions."""

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
    """What is asserted: the judged metrics and, as a fraction of the baseline, the band of each."""

    judge: tuple[Metric, ...]
    tolerance: Mapping[Metric, float]
    compare_across: tuple[str, ...] = ()


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
    """Verdict of a case from all its samples; a further sample is pooled with the earlier ones, never replaces one.

    INCONCLUSIVE means that the interval of a judged metric holds the edge of its band.
    """
    shown = [metric for metric in Metric if metric in rule.judge or any(metric in m.values for m in measurements)]
    verdicts = tuple(_judge_metric(metric, measurements, baseline, rule) for metric in shown)
    notes = tuple(dict.fromkeys(w for m in measurements for w in m.warnings))
    if baseline is None:
        return Verdict(Decision.NO_BASELINE, verdicts, "no baseline is stored for this case", len(measurements), notes)
    differences = fingerprint.differences(baseline.fingerprint)
    strict = {k: v for k, v in differences.items() if k not in rule.compare_across}
    if strict:
        reason = f"the baseline is of another fingerprint: {_named(strict)}"
        return Verdict(Decision.FINGERPRINT_MISMATCH, verdicts, reason, len(measurements), notes)
    if differences:
        notes = (*notes, f"differs from the baseline's run: {_named(differences)}")
    judged = [v for v in verdicts if v.metric in rule.judge]
    decision = worst(v.decision for v in judged)
    reason = "; ".join(describe(v) for v in judged if v.decision is decision)
    if decision is Decision.IMPROVEMENT:
        reason = f"baseline stale, better than its band: {reason}"
    return Verdict(decision, verdicts, reason, len(measurements), notes)


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
    judged = metric in rule.judge
    values = [m.values[metric] for m in measurements if metric in m.values]
    # A sample without the metric is not left out quietly: the others would decide as if it had not been taken.
    missing = not values or len(values) < len(measurements)
    value = None if missing else statistics.median(values)
    recorded = [] if baseline is None else [s.values[metric] for s in baseline.samples if metric in s.values]
    base = statistics.median(recorded) if recorded else None
    tolerance = _tolerance(metric, baseline, rule) if judged else None
    change = (value - base) / base if value is not None and base else None
    noise = _noise(metric, measurements, recorded)
    if not judged:
        decision = Decision.NOT_JUDGED
    elif value is None:
        decision = Decision.MISSING_METRIC
    elif change is None or tolerance is None:
        decision = Decision.NO_BASELINE
    else:
        decision = _decide(metric, change, tolerance, noise)
    return MetricVerdict(metric, decision, value, base, tolerance, change, noise)


def _decide(metric: Metric, change: float, tolerance: float, noise: float) -> Decision:
    worse = -change if metric.direction is Direction.HIGHER_IS_BETTER else change
    if worse - noise > tolerance:
        return Decision.REGRESSION
    if worse + noise > tolerance:
        return Decision.INCONCLUSIVE
    return Decision.IMPROVEMENT if worse < -tolerance else Decision.PASS


def _tolerance(metric: Metric, baseline: Baseline | None, rule: Rule) -> float | None:
    if baseline is not None and metric in baseline.tolerance:
        return baseline.tolerance[metric]
    return rule.tolerance.get(metric)


def _noise(metric: Metric, measurements: Sequence[Measurement], recorded: Sequence[float]) -> float:
    """Half-width of the interval around the change, as a fraction.

    Within a run: the standard error of its steps. Between sessions: the spread of the recorded samples, in
    which the steps' own noise is contained; it counts for the new samples and for the baseline's median.
    """
    within = [m.spread[metric] for m in measurements if metric in m.spread]
    if not within:
        return 0.0
    count = len(within)
    variance = statistics.fmean(s * s for s in within) / count
    if len(recorded) >= MIN_SESSIONS:
        between = statistics.stdev(recorded) / statistics.fmean(recorded)
        variance = max(variance, between * between / count) + between * between / len(recorded)
    return Z_DECIDED * math.sqrt(variance)


def _named(differences: Mapping[str, tuple[object, object]]) -> str:
    return ", ".join(f"{name} is {new!s}, the baseline's {old!s}" for name, (new, old) in differences.items())


def _reason_of(observation: Observation) -> str:
    failure = observation.failure
    if failure is None:
        return ""
    who = "" if failure.rank is None else f" on rank {failure.rank}"
    where = "" if failure.host is None else f" ({failure.host})"
    return f"{who}{where}: {failure.reason}"
