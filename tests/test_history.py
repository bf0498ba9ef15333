"""The history of a case: changes of level are named and dated, noise and odd nights are not, and it only looks."""

from __future__ import annotations

import importlib.util
import random
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_scaleperf import history
from pytest_scaleperf.history import Night, changes, newest, sentence
from pytest_scaleperf.model import LevelChange, Metric

needs_extra = pytest.mark.skipif(importlib.util.find_spec("ruptures") is None, reason=f"needs {history.EXTRA}")
CV = 0.005


def nights(*levels: tuple[int, float], seed: int = 1, cv: float = CV) -> list[Night]:
    """So many nights at each level, with noise."""
    rng = random.Random(seed)  # noqa: S311 - a simulation
    values = [level * (1 + rng.gauss(0, cv)) for count, level in levels for _ in range(count)]
    return [Night(f"2026-{1 + n // 28:02}-{1 + n % 28:02}", f"s{n:03}", value) for n, value in enumerate(values)]


@needs_extra
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("metric", [Metric.TPS, Metric.PEAK_MEMORY])
def test_a_step_is_named_with_its_night_and_its_levels(metric: Metric, seed: int) -> None:
    [found] = changes(metric, nights((20, 1000.0), (8, 975.0), seed=seed))
    assert abs(int(found.session[1:]) - 20) <= 1
    assert found.since == nights((28, 1000.0))[int(found.session[1:])].date
    assert found.nights == 28 - int(found.session[1:])
    assert found.before == pytest.approx(1000, rel=0.004)
    assert found.after == pytest.approx(975, rel=0.004)
    assert ("worse by 2" in sentence([found])) is (metric is Metric.TPS)
    assert ("better by 2" in sentence([found])) is (metric is Metric.PEAK_MEMORY)


@needs_extra
@pytest.mark.parametrize("seed", range(10))
def test_a_loss_of_three_tenths_of_a_per_cent_a_night_is_named_within_14_nights(seed: int) -> None:
    levels = [(30, 1000.0), *((1, 1000 * (1 - 0.003 * night)) for night in range(1, 15))]
    case = nights(*levels, seed=seed)
    first = next(n for n in range(31, 45) if "worse" in sentence(changes(Metric.TPS, case[:n])))
    assert 32 <= first <= 42
    assert "tps is worse by" in sentence(changes(Metric.TPS, case))


@needs_extra
def test_stationary_nights_say_nothing() -> None:
    said = [
        sentence(changes(Metric.TPS, nights((60, 1000.0), seed=seed)[:n])) for seed in range(20) for n in (10, 30, 60)
    ]
    assert said == [""] * 60


@needs_extra
def test_one_odd_night_is_no_level() -> None:
    for place in (0, 15, 28, 29):
        case = nights((30, 1000.0))
        case[place] = Night(case[place].date, case[place].session, 700.0)
        assert changes(Metric.TPS, case) == ()


@needs_extra
def test_an_old_change_is_not_told_for_ever() -> None:
    assert changes(Metric.TPS, nights((10, 1100.0), (history.NIGHTS, 1000.0))) == ()


@needs_extra
def test_nights_that_are_all_alike_and_then_are_not() -> None:
    [found] = changes(Metric.PEAK_MEMORY, nights((12, 40.0), (4, 41.0), cv=0.0))
    assert (found.before, found.after, found.nights) == (40.0, 41.0, 4)
    assert "peak_memory is worse by 2.5%" in sentence([found])
    assert changes(Metric.PEAK_MEMORY, nights((16, 40.0), cv=0.0)) == ()


@needs_extra
@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0.5, 2.0), min_size=0, max_size=70), st.integers(-20, 20))
def test_the_unit_does_not_matter_and_every_change_lies_inside(values: list[float], power: int) -> None:
    case = [Night("2026-01-01", f"s{n:03}", value) for n, value in enumerate(values)]
    scaled = [Night(n.date, n.session, n.value * 2.0**power) for n in case]
    found = changes(Metric.TPS, case)
    assert [c.session for c in found] == [c.session for c in changes(Metric.TPS, scaled)]
    assert all(3 <= change.nights <= min(len(values), history.NIGHTS) - 3 for change in found)
    assert len(values) >= history.FEWEST or not found


def change(before: float, after: float) -> LevelChange:
    return LevelChange(Metric.TPS, "2026-02-03", "s1", before, after, 9)


def test_the_newest_changes_are_those_of_one_direction() -> None:
    up, down, further = change(1000, 1020), change(1020, 1010), change(1010, 990)
    assert newest([up, down, further]) == (down, further)
    text = sentence([up, down, further])
    assert "tps is worse by 2.9% since about 2026-02-03, in 2 steps from 1020 to 990" in text
    assert sentence([change(1000, 996)]) == ""
    assert sentence([]) == ""


def test_without_the_extra_it_says_so_and_nothing_needs_it() -> None:
    hidden = (
        "import sys; sys.modules['ruptures'] = None\n"
        "import importlib.util as util; real = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'ruptures' else real(name, *rest)\n"
        "from pytest_scaleperf import history\n"
        "assert not history.available()\n"
        "try: history.changes('tps', [history.Night('2026-01-01', str(n), 1.0 + n % 3) for n in range(12)])\n"
        "except ModuleNotFoundError: print('refused')\n"
    )
    done = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "refused", done.stderr


def test_importing_it_brings_neither_numpy_nor_ruptures() -> None:
    code = "import sys, pytest_scaleperf.history; print(sorted({'numpy', 'ruptures', 'scipy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
