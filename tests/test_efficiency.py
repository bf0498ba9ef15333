"""The verdict of an efficiency: what is a regression, what the noise leaves open, when the fastest is not known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_scaleperf.baseline import ScalingBaseline, ScalingSample
from pytest_scaleperf.campaign.efficiency import Speed, judge_pair, passing, unsure
from pytest_scaleperf.model import Case, Decision, Fingerprint
from pytest_scaleperf.suite import Pair, pairs
from tests.suite_texts import HEAD, load

LADDER = """\
scaling: {tolerance: 2 %}
ladder:
  - {gpus: 2, dp_shard: 2, activation_checkpoint: none, local_batch: [2, 4]}
  - {gpus: 4, requires: {gpus: 2, same: []}, dp_shard: 4, activation_checkpoint: none, local_batch: [2, 4]}
"""
FINGERPRINT = Fingerprint("lab", None, "2.13.0", None, "0.3.0", None, "3f2a00000000", 1e14)
SPEED = st.floats(min_value=1, max_value=1e6)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    [found] = pairs(load(tmp_path_factory.mktemp("suite"), HEAD + LADDER))
    return found


def stored(*efficiencies: float, tolerance: float | None = None) -> ScalingBaseline:
    samples = tuple(ScalingSample("2026-11-30", f"s{n}", value, "u", "l") for n, value in enumerate(efficiencies))
    return ScalingBaseline("p", FINGERPRINT, samples, "lab/demo.yaml:9", tolerance)


def speed(case: Case, tps: float | None, decision: Decision = Decision.PASS, noise: float = 0.0) -> Speed:
    return Speed(case, decision, tps, noise)


@pytest.mark.parametrize(
    ("tps", "noise", "expected"),
    [
        (1000, 0.0, Decision.PASS),
        (981, 0.0, Decision.PASS),
        (979, 0.0, Decision.REGRESSION),
        (1019, 0.0, Decision.PASS),
        (1021, 0.0, Decision.IMPROVEMENT),
        (979, 0.01, Decision.INCONCLUSIVE),  # 2.1 % lost, 1.4 % of it may be noise
        (981, 0.01, Decision.PASS),  # inside, and nothing more can be measured here
        (960, 0.01, Decision.REGRESSION),
    ],
)
def test_the_verdict(pair: Pair, tps: float, noise: float, expected: Decision) -> None:
    upper, lower = speed(pair.upper[0], tps, noise=noise), speed(pair.lower[0], 1000, noise=noise)
    found = judge_pair(pair, upper, lower, stored(1.0), FINGERPRINT)
    assert found.decision is expected
    assert found.noise == pytest.approx(noise * 2**0.5)


def test_an_entry_may_have_its_own_tolerance(pair: Pair) -> None:
    upper, lower = speed(pair.upper[0], 960), speed(pair.lower[0], 1000)
    assert judge_pair(pair, upper, lower, stored(1.0, tolerance=0.05), FINGERPRINT).decision is Decision.PASS


def test_the_baseline_is_the_median_of_its_samples(pair: Pair) -> None:
    upper, lower = speed(pair.upper[0], 1000), speed(pair.lower[0], 1000)
    assert judge_pair(pair, upper, lower, stored(0.9, 1.0, 1.02), FINGERPRINT).baseline == 1.0


@given(SPEED, SPEED, st.floats(min_value=0.5, max_value=2), st.floats(min_value=0.001, max_value=1000))
def test_only_the_ratio_counts(pair: Pair, upper: float, lower: float, base: float, factor: float) -> None:
    """Machines that are all faster by the same factor have the same efficiency."""
    before = stored(base)
    one = judge_pair(pair, speed(pair.upper[0], upper), speed(pair.lower[0], lower), before, FINGERPRINT)
    two = judge_pair(
        pair, speed(pair.upper[0], upper * factor), speed(pair.lower[0], lower * factor), before, FINGERPRINT
    )
    assert one.efficiency == pytest.approx(two.efficiency)


def test_what_did_not_pass_has_no_speed(pair: Pair) -> None:
    first, second = pair.lower
    side = [speed(first, 1000, Decision.REGRESSION), speed(second, 900)]
    assert [s.tps for s in passing(side)] == [900]


@pytest.mark.parametrize(
    ("base", "count"),
    [
        (0.0, 0),  # it failed before it had a speed, and never had one: nothing says that it was the fastest
        (1000.0, 1),
        (800.0, 0),
    ],
)
def test_the_fastest_is_unknown_where_a_faster_case_failed(pair: Pair, base: float, count: int) -> None:
    first, second = pair.lower
    side = [speed(first, None, Decision.RUN_FAILED), speed(second, 900)]
    assert unsure(side, [base, 900.0]).count(first.id) == count


def test_a_case_that_regressed_but_is_still_the_fastest_makes_it_unknown(pair: Pair) -> None:
    first, second = pair.lower
    assert first.id in unsure([speed(first, 950, Decision.REGRESSION), speed(second, 900)], [0.0, 0.0])
