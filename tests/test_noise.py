"""What recorded samples say about noise: right for the noise they were drawn from, and robust to odd cases."""

from __future__ import annotations

import dataclasses
import random
import statistics

import pytest

from pytest_scaleperf.model import Baseline, BaselineSample, Fingerprint, Metric
from pytest_scaleperf.noise import MIN_SAMPLES, Noise, Recorded, Scatter, noise_of, spread_of

HERE = Fingerprint("lab", None, "2.13.0", None, "0.3.0", None, "abc", 1e14)


def case(rng: random.Random, sessions: int, repeats: int = 1, *, cv: float = 0.005, shared: float = 0.0) -> Baseline:
    """A case whose samples vary by ``cv``, of whose variance a session shares a part."""
    samples = []
    for session in range(sessions):
        together = rng.gauss(0, cv * shared**0.5)
        for number in range(repeats):
            value = 1000 * (1 + together + rng.gauss(0, cv * (1 - shared) ** 0.5))
            samples.append(BaselineSample("2026-01-01", f"s{session}", {Metric.TPS: value}, number + 1))
    return Baseline("case", HERE, tuple(samples), "file")


def learnt(count: int, *, sessions: int, repeats: int, cv: float = 0.005, shared: float = 0.0) -> list[Noise]:
    rng = random.Random(11)  # noqa: S311 - a simulation
    return [
        noise_of([case(rng, sessions, repeats, cv=cv, shared=shared) for _ in range(10)])[Metric.TPS]
        for _ in range(count)
    ]


@pytest.mark.parametrize(("sessions", "repeats"), [(3, 1), (7, 1), (12, 3)])
def test_the_spread_of_a_suite_is_the_one_it_was_drawn_with(sessions: int, repeats: int) -> None:
    found = [noise.spread or 0.0 for noise in learnt(150, sessions=sessions, repeats=repeats)]
    assert statistics.fmean(found) == pytest.approx(0.005, rel=0.04)


@pytest.mark.parametrize("shared", [0.0, 0.5, 1.0])
def test_the_part_that_a_session_shares_is_found(shared: float) -> None:
    found = learnt(60, sessions=12, repeats=3, shared=shared)
    assert statistics.fmean(noise.shared for noise in found) == pytest.approx(shared, abs=0.05)
    assert statistics.fmean(noise.spread or 0.0 for noise in found) == pytest.approx(0.005, rel=0.05)


def test_sessions_of_one_sample_cannot_say_what_a_session_shares() -> None:
    assert {noise.shared for noise in learnt(5, sessions=36, repeats=1, shared=0.7)} == {0.0}


def test_a_few_cases_that_vary_a_lot_move_the_suite_little_and_keep_their_own() -> None:
    rng = random.Random(3)  # noqa: S311 - a simulation
    calm, wild = [case(rng, 12) for _ in range(9)], case(rng, 12, cv=0.10)
    suite = noise_of([*calm, wild])[Metric.TPS]
    assert suite.spread == pytest.approx(0.005, rel=0.3)
    assert spread_of(Recorded.of(wild, Metric.TPS), suite).spread == pytest.approx(0.10, rel=0.5)
    assert sum(spread_of(Recorded.of(each, Metric.TPS), suite) is suite for each in calm) >= 8


def test_few_samples_say_nothing_of_their_own() -> None:
    rng = random.Random(5)  # noqa: S311 - a simulation
    few, enough = case(rng, MIN_SAMPLES - 1), case(rng, MIN_SAMPLES)
    assert spread_of(Recorded.of(few, Metric.TPS), Noise()).spread is None
    own = spread_of(Recorded.of(enough, Metric.TPS), Noise())
    assert own.spread == pytest.approx(Recorded.of(enough, Metric.TPS).deviation)
    assert noise_of([few, few])[Metric.TPS].spread is None


def test_the_upper_bound_is_above_the_truth_in_19_of_20_cases() -> None:
    rng = random.Random(8)  # noqa: S311 - a simulation
    bounds = [spread_of(Recorded.of(case(rng, 8), Metric.TPS), Noise()).upper or 0.0 for _ in range(2000)]
    assert sum(bound >= 0.005 for bound in bounds) / len(bounds) == pytest.approx(0.95, abs=0.02)


def test_a_metric_that_some_samples_lack_and_one_that_never_varies() -> None:
    stored = case(random.Random(1), 6)  # noqa: S311 - a simulation
    memory = [dataclasses.replace(s, values={**s.values, Metric.PEAK_MEMORY: 40.0}) for s in stored.samples[:5]]
    mixed = dataclasses.replace(stored, samples=(*memory, stored.samples[5]))
    assert len(Recorded.of(mixed, Metric.PEAK_MEMORY).values) == 5
    assert noise_of([mixed] * 3)[Metric.PEAK_MEMORY].spread == 0.0
    assert Recorded.of(None, Metric.TPS).centre is None


@pytest.mark.parametrize("shared", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("launches", [1, 4])
def test_the_scatter_of_a_change_is_what_changes_really_do(shared: float, launches: int) -> None:
    rng = random.Random(4)  # noqa: S311 - a simulation
    changes = []
    for _ in range(4000):
        base = Recorded.of(case(rng, 8, 2, shared=shared), Metric.TPS).centre
        new = Recorded.of(case(rng, 1, launches, shared=shared), Metric.TPS).values
        assert base
        changes.append(statistics.fmean(new) / base - 1)
    recorded = Recorded.of(case(rng, 8, 2), Metric.TPS)
    said = Scatter.of(Noise(0.005, 50.0, shared), recorded, [0.0] * launches).of_change(launches)
    assert said == pytest.approx(statistics.stdev(changes), rel=0.06)
