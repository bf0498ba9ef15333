"""The judgement is pure: worse numbers never give a better verdict, and nothing missing is ever a pass."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_scaleperf.model import (
    Baseline,
    BaselineSample,
    Decision,
    Failure,
    Fingerprint,
    Measurement,
    Metric,
    Observation,
    Outcome,
)
from pytest_scaleperf.verdict import Rule, judge, judge_outcome, worst

HERE = Fingerprint("lab", None, "2.13.0", None, "0.3.0", None, "abc", 1e14)
RULE = Rule((Metric.TPS, Metric.PEAK_MEMORY), {Metric.TPS: 0.03, Metric.PEAK_MEMORY: 0.02})


def measured(tps: float | None = 1000.0, memory: float | None = 40.0, spread: float = 0.0) -> Measurement:
    values = {Metric.TPS: tps, Metric.PEAK_MEMORY: memory}
    present = {metric: value for metric, value in values.items() if value is not None}
    return Measurement(present, {Metric.TPS: spread, Metric.PEAK_MEMORY: 0.0}, (10, 20, 30))


def baseline(*tps: float, memory: float = 40.0, fingerprint: Fingerprint = HERE) -> Baseline:
    samples = tuple(BaselineSample("2026-01-01", "s", {Metric.TPS: t, Metric.PEAK_MEMORY: memory}) for t in tps)
    return Baseline("case", fingerprint, samples, "file.yaml:1")


STORED = baseline(1000.0)


@pytest.mark.parametrize(
    ("tps", "memory", "expected"),
    [
        (1000, 40, Decision.PASS),
        (971, 40, Decision.PASS),
        (969, 40, Decision.REGRESSION),
        (1029, 40, Decision.PASS),
        (1031, 40, Decision.IMPROVEMENT),
        (1000, 40.9, Decision.REGRESSION),
        (1000, 39.1, Decision.IMPROVEMENT),
        (1031, 40.9, Decision.REGRESSION),
        (None, 40, Decision.MISSING_METRIC),
        (1000, None, Decision.MISSING_METRIC),
    ],
)
def test_bands_follow_the_direction_of_the_metric(tps: float | None, memory: float | None, expected: Decision) -> None:
    assert judge([measured(tps, memory)], STORED, HERE, RULE).decision is expected


def test_noise_that_reaches_the_edge_is_inconclusive_and_more_samples_decide() -> None:
    one = measured(980, spread=0.01)
    assert judge([one], STORED, HERE, RULE).decision is Decision.INCONCLUSIVE
    assert judge([one] * 8, STORED, HERE, RULE).decision is Decision.PASS
    worse = measured(955, spread=0.01)
    assert judge([worse], STORED, HERE, RULE).decision is Decision.INCONCLUSIVE
    assert judge([worse] * 8, STORED, HERE, RULE).decision is Decision.REGRESSION


def test_spread_between_recorded_sessions_counts() -> None:
    quiet, loud = baseline(1000, 1000, 1000), baseline(970, 1000, 1030)
    assert judge([measured(980)], quiet, HERE, RULE).decision is Decision.PASS
    assert judge([measured(980)], loud, HERE, RULE).decision is Decision.INCONCLUSIVE


def test_a_sample_without_the_metric_is_not_left_out() -> None:
    verdict = judge([measured(1000), measured(None)], STORED, HERE, RULE)
    assert verdict.decision is Decision.MISSING_METRIC


def test_no_baseline_is_never_a_pass() -> None:
    assert judge([measured()], None, HERE, RULE).decision is Decision.NO_BASELINE
    without = Baseline("case", HERE, (BaselineSample("d", "s", {Metric.TPS: 1000.0}),), "f")
    assert judge([measured()], without, HERE, RULE).decision is Decision.NO_BASELINE


def test_an_allowed_difference_is_a_note_another_one_a_mismatch() -> None:
    other = Fingerprint("lab", None, "2.12.0", None, "0.3.0", None, "abc", 1e14)
    stored = baseline(1000, fingerprint=other)
    strict = judge([measured()], stored, HERE, RULE)
    assert strict.decision is Decision.FINGERPRINT_MISMATCH
    assert "torch is 2.13.0, the baseline's 2.12.0" in strict.reason
    loose = judge([measured()], stored, HERE, Rule(RULE.judge, RULE.tolerance, ("torch",)))
    assert loose.decision is Decision.PASS
    assert any("2.12.0" in note for note in loose.notes)


def test_a_tolerance_of_the_case_wins() -> None:
    stored = Baseline("case", HERE, STORED.samples, "f", {Metric.TPS: 0.10})
    assert judge([measured(950)], stored, HERE, RULE).decision is Decision.PASS


def test_judging_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing was judged"):
        worst([])


RANK = {Decision.IMPROVEMENT: 0, Decision.PASS: 1, Decision.INCONCLUSIVE: 2, Decision.REGRESSION: 3}
positive = st.floats(1.0, 1e6, allow_nan=False)
spreads = st.floats(0.0, 0.2)


@given(positive, positive, positive, spreads)
def test_lowering_tps_never_improves_a_verdict(stored: float, high: float, low: float, spread: float) -> None:
    high, low = max(high, low), min(high, low)
    rule = Rule((Metric.TPS,), {Metric.TPS: 0.03})
    better, worse = (judge([measured(v, spread=spread)], baseline(stored), HERE, rule).decision for v in (high, low))
    assert RANK[worse] >= RANK[better]


@given(positive, positive, positive)
def test_raising_memory_never_improves_a_verdict(stored: float, high: float, low: float) -> None:
    high, low = max(high, low), min(high, low)
    rule = Rule((Metric.PEAK_MEMORY,), {Metric.PEAK_MEMORY: 0.02})
    base = baseline(1.0, memory=stored)
    better, worse = (judge([measured(memory=v)], base, HERE, rule).decision for v in (low, high))
    assert RANK[worse] >= RANK[better]


@given(st.lists(positive, min_size=1, max_size=6), st.lists(positive, min_size=1, max_size=6), spreads)
def test_every_judgement_is_finite_and_named(values: list[float], stored: list[float], spread: float) -> None:
    verdict = judge([measured(v, spread=spread) for v in values], baseline(*stored), HERE, RULE)
    assert verdict.reason
    assert verdict.samples == len(values)
    assert all(math.isfinite(m.change) for m in verdict.metrics if m.change is not None)


@pytest.mark.parametrize("outcome", [o for o in Outcome if o is not Outcome.COMPLETED])
def test_every_outcome_but_completed_is_a_failure_or_the_machines(outcome: Outcome) -> None:
    failure = Failure(outcome, "because", rank=3, host="node7")
    verdict = judge_outcome(Outcome.COMPLETED, Observation(outcome, failure=failure))
    assert verdict is not None
    assert verdict.decision is (Decision.MACHINE_FAILED if outcome.is_machine else Decision.RUN_FAILED)
    assert "rank 3 (node7): because" in verdict.reason


def test_expected_oom() -> None:
    assert judge_outcome(Outcome.COMPLETED, Observation(Outcome.COMPLETED)) is None
    met = judge_outcome(Outcome.OOM, Observation(Outcome.OOM))
    assert met is not None
    assert met.decision is Decision.PASS
    fits = judge_outcome(Outcome.OOM, Observation(Outcome.COMPLETED))
    assert fits is not None
    assert fits.decision is Decision.IMPROVEMENT
    other = judge_outcome(Outcome.OOM, Observation(Outcome.ERROR))
    assert other is not None
    assert other.decision is Decision.RUN_FAILED
