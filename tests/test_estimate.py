"""Estimates from series: a start is found where there is one and only there, and intervals hold what they say."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_scaleperf.estimate import drift, effective_size, sigma, steady_from, student
from pytest_scaleperf.steady import median_interval, standard_error

POSITIVE = st.floats(1.0, 1e6)


def correlated(rng: random.Random, count: int, phi: float, *, scale: float = 1.0, heavy: bool = False) -> list[float]:
    """An AR(1) series around 100 with standard deviation ``scale``; heavy: Student's t with 3 degrees of freedom."""

    def draw() -> float:
        if not heavy:
            return rng.gauss(0, 1)
        return rng.gauss(0, 1) / math.sqrt(rng.gammavariate(1.5, 2) / 3) / math.sqrt(3)

    value, found = draw(), []
    for _ in range(count):
        found.append(100 + scale * value)
        value = phi * value + math.sqrt(1 - phi * phi) * draw()
    return found


@pytest.mark.parametrize("count", [4, 6, 10, 20, 40, 100])
@pytest.mark.parametrize("size", [0.02, 0.3])
def test_a_slow_start_is_found(count: int, size: float) -> None:
    rng = random.Random(1)  # noqa: S311 - a simulation
    start = count // 4
    exact = 0
    for _ in range(50):
        values = correlated(rng, count, 0.2, scale=0.1)
        for place in range(start):
            values[place] *= 1 - size
        first, late = steady_from(values)
        exact += start <= first <= start + max(3, count // 4)
        assert late == 0.0
    assert exact >= (45 if count >= 10 else 25)


def test_a_start_that_fades_is_cut_until_it_is_noise() -> None:
    rng = random.Random(2)  # noqa: S311 - a simulation
    values = [v * (1 - 0.2 * math.exp(-n / 3)) for n, v in enumerate(correlated(rng, 60, 0.0, scale=0.2))]
    first, late = steady_from(values)
    assert late == 0.0
    assert 10 <= first <= 25
    assert statistics.median(values[first:]) == pytest.approx(100, rel=0.002)


@pytest.mark.parametrize("phi", [0.0, 0.4, 0.8])
@pytest.mark.parametrize("heavy", [False, True])
@pytest.mark.parametrize("count", [3, 4, 5, 8, 12, 40, 80])
def test_a_steady_series_is_called_steady_and_hardly_cut(count: int, phi: float, heavy: bool) -> None:  # noqa: FBT001
    rng = random.Random(3)  # noqa: S311 - a simulation
    found = [steady_from(correlated(rng, count, phi, scale=5.0, heavy=heavy)) for _ in range(400)]
    assert all(late == 0.0 for _, late in found)
    # What is cut without need is harmless: the rest is as good, only shorter.
    assert sum(first > 0 for first, _ in found) / len(found) <= (0.05 if phi < 0.5 else 0.12)


def test_a_run_that_warms_up_for_more_than_half_of_it_is_not_steady() -> None:
    rng = random.Random(4)  # noqa: S311 - a simulation
    values = correlated(rng, 20, 0.0, scale=0.2)
    assert steady_from([v * 0.7 if n < 14 else v for n, v in enumerate(values)])[1] == pytest.approx(0.43, abs=0.01)


def test_a_run_that_becomes_slow_late_is_not_steady_and_a_hiccup_at_the_end_is_no_level() -> None:
    rng = random.Random(4)  # noqa: S311 - a simulation
    values = correlated(rng, 40, 0.0, scale=0.2)
    assert steady_from([v * 0.9 if n >= 30 else v for n, v in enumerate(values)])[1] == pytest.approx(0.1, abs=0.005)
    assert steady_from([v * 0.9 if n >= 38 else v for n, v in enumerate(values)]) == (0, 0.0)


def test_a_quiet_end_is_no_reason_to_throw_the_rest_away() -> None:
    values = [100.0, 101.0, 99.0, 100.5, 99.2, 100.8, 100.0, 100.0, 100.0]
    assert steady_from(values) == (0, 0.0)


@given(st.lists(POSITIVE, min_size=1, max_size=80), st.floats(1e-3, 1e3))
def test_the_cut_leaves_half_and_does_not_depend_on_the_unit(values: list[float], factor: float) -> None:
    first, late = steady_from(values)
    assert len(values) - first >= min(len(values), 3)
    assert first <= len(values) / 2
    exact = 2.0 ** round(math.log2(factor))  # a power of two: no rounding decides
    assert steady_from([value * exact for value in values]) == (first, late)


def test_a_drift_is_named_and_noise_is_not() -> None:
    rng = random.Random(5)  # noqa: S311 - a simulation
    assert drift([v * (1 - 0.002 * n) for n, v in enumerate(correlated(rng, 20, 0.0, scale=0.1))]) == pytest.approx(
        -0.02, abs=0.004
    )
    assert drift([v * (1 - 0.0002 * n) for n, v in enumerate(correlated(rng, 20, 0.0, scale=0.1))]) is None
    assert sum(drift(correlated(rng, 20, 0.0, scale=2.0)) is not None for _ in range(500)) <= 2
    assert drift([100.0, 50.0, 20.0]) is None


@pytest.mark.parametrize(("phi", "worth"), [(0.0, 200.0), (0.5, 82.0), (0.8, 33.0)])
def test_the_effective_size_of_an_ar1_series(phi: float, worth: float) -> None:
    # 200 / (1 + 2 sum 2/pi asin(phi^k)): 200, 82.1, 32.8; a random sign makes white noise look a little correlated.
    rng = random.Random(6)  # noqa: S311 - a simulation
    found = statistics.fmean(effective_size(correlated(rng, 200, phi)) for _ in range(100))
    assert found == pytest.approx(worth, rel=0.12)


@given(st.lists(POSITIVE, min_size=1, max_size=60))
def test_a_series_is_worth_three_values_at_least_and_all_of_them_at_most(values: list[float]) -> None:
    assert min(len(values), 3) <= effective_size(values) <= len(values)


@pytest.mark.parametrize(
    ("count", "phi", "least"),
    [
        (5, 0.0, 0.94), (8, 0.0, 0.94), (20, 0.0, 0.93), (40, 0.0, 0.93),
        (8, 0.3, 0.92), (20, 0.3, 0.91), (40, 0.3, 0.92),
        (8, 0.6, 0.86), (20, 0.6, 0.89), (40, 0.6, 0.90),
        (40, 0.8, 0.88), (100, 0.8, 0.90),
    ],
)  # fmt: skip
def test_the_interval_covers_the_true_median_at_about_its_rate(count: int, phi: float, least: float) -> None:
    # 95 % is said. Where the correlation is high and the series short, the lowest value seen is written here.
    rng = random.Random(7)  # noqa: S311 - a simulation
    hits = 0
    for _ in range(800):
        low, high = median_interval(correlated(rng, count, phi))
        hits += low <= 100 <= high
    assert least <= hits / 800 <= 0.995


def test_ignoring_the_correlation_would_not_cover() -> None:
    rng = random.Random(8)  # noqa: S311 - a simulation
    hits = 0
    for _ in range(400):
        values = correlated(rng, 40, 0.6)
        half = 1.96 * 1.2533 * sigma(values) / math.sqrt(len(values))
        hits += abs(statistics.median(values) - 100) <= half
    assert hits / 400 < 0.8


@given(st.lists(POSITIVE, min_size=2, max_size=30))
def test_the_interval_lies_around_the_median(values: list[float]) -> None:
    low, high = median_interval(values)
    assert 0 <= low <= statistics.median(values) <= high < math.inf
    assert standard_error(values) >= 0


@pytest.mark.parametrize(
    ("degrees", "level", "table"),
    [
        (1, 0.975, 12.706), (2, 0.975, 4.303), (3, 0.975, 3.182), (4, 0.975, 2.776), (6, 0.975, 2.447),
        (10.9, 0.975, 2.228), (30, 0.975, 2.042), (1000, 0.975, 1.962), (2, 0.995, 9.925), (5, 0.95, 2.015),
    ],
)  # fmt: skip
def test_students_t_is_that_of_the_tables(degrees: float, level: float, table: float) -> None:
    assert student(level, degrees) == pytest.approx(table, rel=0.004)
