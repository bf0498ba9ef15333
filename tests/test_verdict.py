"""The judgement is pure: worse numbers never give a better verdict, and nothing missing is ever a pass."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import assume, given
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
from pytest_scaleperf.noise import Noise, Recorded
from pytest_scaleperf.verdict import Rule, judge, judge_outcome, worst

HERE = Fingerprint("lab", None, "2.13.0", None, "0.3.0", None, "abc", 1e14)
OTHER = Fingerprint("lab", None, "2.12.0", None, "0.3.0", None, "abc", 1e14)
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


def rule(tolerance: float = 0.03, most: int = 4, noise: Noise | None = None) -> Rule:
    """TPS alone is judged, by so many launches at most, with what the suite's samples say of its noise."""
    return Rule((Metric.TPS,), {Metric.TPS: tolerance}, (), most, {} if noise is None else {Metric.TPS: noise})


def known(spread: float, degrees: float = 200.0, shared: float = 0.0) -> Noise:
    """What a suite with many recorded samples says."""
    return Noise(spread, degrees, shared)


def recorded(count: int, tps: float = 1000.0, per_session: int = 1) -> Baseline:
    """So many samples around a value, in equal steps from -0.6 % to +0.6 %: a spread of about 0.4 %."""
    values = [tps * (1 + 0.012 * (n / (count - 1) - 0.5)) if count > 1 else tps for n in range(count)]
    samples = [BaselineSample("2026-01-01", f"s{n // per_session}", {Metric.TPS: v}) for n, v in enumerate(values)]
    return Baseline("case", HERE, tuple(samples), "file.yaml:1")


def test_steps_that_vary_take_further_launches_and_all_of_them_decide() -> None:
    one = measured(980, spread=0.01)
    verdict = judge([one], STORED, HERE, rule())
    assert verdict.decision is Decision.INCONCLUSIVE
    assert verdict.undecided
    assert judge([one] * 4, STORED, HERE, rule()).decision is Decision.PASS
    worse = measured(960, spread=0.01)
    assert judge([worse], STORED, HERE, rule()).undecided
    assert judge([worse] * 4, STORED, HERE, rule()).decision is Decision.REGRESSION


def test_a_run_too_noisy_for_its_band_stays_inconclusive_and_asks_for_no_more() -> None:
    verdict = judge([measured(970, spread=0.05)] * 4, STORED, HERE, rule())
    assert verdict.decision is Decision.INCONCLUSIVE
    assert not verdict.undecided


def test_the_same_value_by_one_launch_and_by_four() -> None:
    # 1.5 % below: three times the spread. One launch cannot tell that from chance, four can.
    one, four = (judge([measured(985)] * n, recorded(36), HERE, rule(0.0095, noise=known(0.005))) for n in (1, 4))
    assert (one.decision, one.undecided) == (Decision.INCONCLUSIVE, True)
    assert (four.decision, four.undecided) == (Decision.REGRESSION, False)


@pytest.mark.parametrize(("tps", "decision"), [(1000, Decision.PASS), (997, Decision.PASS), (979, Decision.REGRESSION)])
def test_most_cases_cost_one_launch(tps: float, decision: Decision) -> None:
    verdict = judge([measured(tps)], recorded(36), HERE, rule(0.0095, noise=known(0.005)))
    assert verdict.decision is decision


def test_where_a_session_is_all_of_the_noise_no_further_launch_is_taken() -> None:
    for tps in range(970, 1001):
        verdict = judge([measured(tps)], recorded(36), HERE, rule(0.0095, noise=known(0.005, shared=1.0)))
        assert not verdict.undecided


def test_the_band_is_the_larger_of_tolerance_and_noise() -> None:
    by_noise = judge([measured(1000)], recorded(36), HERE, rule(0.001, noise=known(0.005)))
    tps = by_noise.metrics[0]
    # 3.5 standard deviations of the mean of 4 launches against the median of 36 samples.
    assert tps.tolerance == pytest.approx(3.5 * 0.005 * math.sqrt(1 / 4 + math.pi / 2 / 36), rel=0.01)
    assert tps.allowed == tps.tolerance
    assert any("0.95% instead of 0.10%" in note for note in by_noise.notes)
    kept = judge([measured(1000)], recorded(36), HERE, rule(0.03, noise=known(0.005)))
    assert kept.metrics[0].tolerance == 0.03


def test_more_recorded_samples_and_more_launches_allow_a_narrower_band() -> None:
    def allowed(count: int, most: int) -> float:
        found = judge([measured(1000)], recorded(count), HERE, rule(0.001, most, noise=known(0.005))).metrics[0].allowed
        assert found is not None
        return found

    assert allowed(1, 4) > allowed(5, 4) > allowed(36, 4)
    assert allowed(36, 1) > allowed(36, 2) > allowed(36, 4)


def test_a_cases_own_tolerance_below_the_noise_is_refused_with_the_numbers() -> None:
    stored = dataclasses.replace(recorded(36), tolerance={Metric.TPS: 0.003})
    verdict = judge([measured(1000)], stored, HERE, rule(noise=known(0.005)))
    assert verdict.decision is Decision.INCONCLUSIVE
    assert not verdict.undecided
    assert "0.30% of this case is narrower than the noise" in verdict.reason
    assert "36 recorded samples and 4 launches can tell 0.95% and more" in verdict.reason
    assert judge([measured(900)], stored, HERE, rule(noise=known(0.005))).decision is Decision.REGRESSION


def test_a_tolerance_far_above_the_noise_is_pointed_out_and_kept() -> None:
    verdict = judge([measured(1000)], recorded(36), HERE, rule(0.05, noise=known(0.005)))
    assert verdict.decision is Decision.PASS
    assert any("5.00% is far wider than the noise" in note and "0.95%" in note for note in verdict.notes)
    assert not judge([measured(1000)], recorded(36), HERE, rule(0.02, noise=known(0.005))).notes


def test_own_samples_say_the_noise_where_no_other_case_does() -> None:
    few, many = recorded(4), recorded(36)
    assert judge([measured(1000)], few, HERE, rule()).metrics[0].allowed is None
    assert judge([measured(1000)], many, HERE, rule()).metrics[0].spread == pytest.approx(0.0036, rel=0.02)


def test_a_regression_with_too_few_samples_says_so() -> None:
    verdict = judge([measured(900)], STORED, HERE, rule())
    assert verdict.decision is Decision.REGRESSION
    assert any("1 recorded samples of this case do not say how much it varies" in note for note in verdict.notes)
    assert judge([measured(1000)], STORED, HERE, rule()).notes == ()


def test_memory_is_counted_so_one_launch_decides() -> None:
    only = Rule((Metric.PEAK_MEMORY,), {Metric.PEAK_MEMORY: 0.02}, (), 4)
    for memory in (40.0, 40.79, 40.81, 39.1):
        assert not judge([measured(memory=memory)], STORED, HERE, only).undecided


def test_a_window_too_short_is_never_green_and_no_baseline() -> None:
    short = dataclasses.replace(measured(1000), steps=(10, 20), unsteady="too short: 2 of the logged steps")
    for stored in (STORED, None, baseline(1000.0, fingerprint=OTHER)):
        verdict = judge([short], stored, HERE, RULE)
        assert verdict.decision is Decision.INCONCLUSIVE
        assert not verdict.undecided
        assert "2 of the logged steps" in verdict.reason
    verdict = judge([measured(1000), short], STORED, HERE, rule())
    assert (verdict.decision, verdict.undecided) == (Decision.INCONCLUSIVE, False)
    memory_only = Rule((Metric.PEAK_MEMORY,), {Metric.PEAK_MEMORY: 0.02})
    assert judge([short], STORED, HERE, memory_only).decision is Decision.PASS


def test_a_run_that_changed_late_is_followed_by_others_and_counts_as_a_noisy_one() -> None:
    late = dataclasses.replace(measured(850, spread=0.3), unsteady="no steady window: the speed changed by 30 %")
    first = judge([late], STORED, HERE, rule(0.5))
    assert (first.decision, first.undecided, first.reason) == (Decision.INCONCLUSIVE, True, late.unsteady)
    assert judge([late, measured(1000), measured(990)], STORED, HERE, rule(0.5)).decision is Decision.PASS
    assert judge([late, *[measured(1000)] * 3], STORED, HERE, rule(0.03)).decision is Decision.INCONCLUSIVE
    last = judge([late] * 4, STORED, HERE, rule(0.5))
    assert (last.decision, last.undecided) == (Decision.INCONCLUSIVE, False)
    no_baseline = judge([late], None, HERE, rule(0.5))
    assert (no_baseline.decision, no_baseline.reason) == (Decision.INCONCLUSIVE, late.unsteady)
    assert judge([late, measured(1000)], None, HERE, rule(0.5)).decision is Decision.INCONCLUSIVE


def test_a_sample_without_the_metric_is_not_left_out() -> None:
    verdict = judge([measured(1000), measured(None)], STORED, HERE, RULE)
    assert verdict.decision is Decision.MISSING_METRIC


def test_no_baseline_is_never_a_pass() -> None:
    assert judge([measured()], None, HERE, RULE).decision is Decision.NO_BASELINE
    without = Baseline("case", HERE, (BaselineSample("d", "s", {Metric.TPS: 1000.0}),), "f")
    assert judge([measured()], without, HERE, RULE).decision is Decision.NO_BASELINE


def test_an_allowed_difference_is_a_note_another_one_a_mismatch() -> None:
    stored = baseline(1000, fingerprint=OTHER)
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


noises = st.builds(known, st.floats(0.0, 0.05), st.floats(4.0, 500.0), st.floats(0.0, 1.0))
counts = st.integers(1, 12)


@given(counts, st.lists(st.tuples(st.floats(0.5, 1.5), spreads), min_size=1, max_size=6), st.data(), noises, counts)
def test_lowering_tps_never_improves_a_verdict(
    count: int, values: list[tuple[float, float]], data: st.DataObject, noise: Noise, most: int
) -> None:
    runs = [measured(1000 * tps, spread=spread) for tps, spread in values]
    index = data.draw(st.integers(0, len(runs) - 1))
    lower = measured(1000 * values[index][0] * data.draw(st.floats(0.5, 1.0)), spread=values[index][1])
    stored, by = recorded(count), rule(data.draw(st.floats(1e-4, 0.2)), most, noise=noise)
    before = judge(runs, stored, HERE, by)
    after = judge([*runs[:index], lower, *runs[index + 1 :]], stored, HERE, by)
    assert RANK[after.decision] >= RANK[before.decision]


@given(counts, st.lists(st.floats(0.9, 1.1), min_size=1, max_size=5), spreads, st.floats(1e-4, 0.2), noises)
def test_samples_equal_to_the_baseline_never_make_red(
    count: int, values: list[float], spread: float, tolerance: float, noise: Noise
) -> None:
    stored, by = recorded(count), rule(tolerance, 6, noise=noise)
    base = Recorded.of(stored, Metric.TPS).centre
    assume(judge([measured(base, spread=spread)], stored, HERE, by).decision.is_pass)  # else the noise forbids any pass
    runs = [measured(1000 * value, spread=spread) for value in values]
    before = judge(runs, stored, HERE, by).decision
    after = judge([*runs, measured(base, spread=spread)], stored, HERE, by).decision
    assert RANK[after] <= max(RANK[before], RANK[Decision.PASS])


@given(counts, st.lists(st.floats(0.9, 1.1), min_size=1, max_size=5), spreads, noises, st.floats(0.01, 1e4))
def test_the_unit_does_not_matter(count: int, values: list[float], spread: float, noise: Noise, factor: float) -> None:
    one = judge([measured(1000 * v, spread=spread) for v in values], recorded(count), HERE, rule(noise=noise))
    runs = [measured(1000 * factor * v, spread=spread) for v in values]
    other = judge(runs, recorded(count, 1000 * factor), HERE, rule(noise=noise))
    assert one.metrics[0].change == pytest.approx(other.metrics[0].change, abs=1e-9)
    edges = [abs(abs(m.change or 0) - (m.tolerance or 0)) for m in (one.metrics[0],)]
    assert one.decision is other.decision or min(edges) < 1e-9


@given(st.permutations(range(5)), st.lists(st.tuples(st.floats(0.9, 1.1), spreads), min_size=5, max_size=5), noises)
def test_the_order_of_samples_does_not_matter(
    order: list[int], values: list[tuple[float, float]], noise: Noise
) -> None:
    stored = recorded(5, per_session=2)
    mixed = dataclasses.replace(stored, samples=tuple(stored.samples[i] for i in order))
    runs = [measured(1000 * tps, spread=spread) for tps, spread in values]
    one = judge(runs, stored, HERE, rule(noise=noise))
    other = judge([runs[i] for i in order], mixed, HERE, rule(noise=noise))
    assert one.decision is other.decision
    assert one.metrics[0].noise == pytest.approx(other.metrics[0].noise)
    assert one.metrics[0].tolerance == pytest.approx(other.metrics[0].tolerance)


@given(spreads, noises, st.floats(1e-4, 0.2), counts)
def test_a_case_as_good_as_its_baseline_passes_at_once_unless_noise_forbids(
    spread: float, noise: Noise, tolerance: float, count: int
) -> None:
    stored = recorded(count)
    verdict = judge([measured(1000, spread=spread)], stored, HERE, rule(tolerance, noise=noise))
    tps = verdict.metrics[0]
    within_reach = (
        1.645 * math.hypot(spread * math.sqrt(2), 2 * (noise.upper or 0.0), tps.spread or 0.0) < 0.5 * tolerance
    )
    assert verdict.decision.is_pass or not within_reach


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
