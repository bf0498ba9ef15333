from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_scaleperf.model import Outcome
from pytest_scaleperf.search import Answer, Findings, PeakSearch
from pytest_scaleperf.search.bound import bends_upwards, bound
from tests.search.curves import KINDS, adversarial, drive, recorded, simulated

OOM = Answer(Outcome.OOM)
ADVERSARIAL = {curve.name: curve for curve in adversarial(0)}


def ran(tps: float | None, *, saturated: bool = False) -> Answer:
    return Answer(Outcome.COMPLETED, 50.0, tps, saturated)


def test_a_concave_curve_lies_below_the_lines_through_two_of_its_points() -> None:
    speeds = {10: 100.0, 20: 140.0, 40: 150.0}
    assert bound(speeds, 30) == pytest.approx(180)  # the line of 10 and 20 goes on
    assert bound(speeds, 15) == pytest.approx(137.5)  # the line of 20 and 40 backwards
    assert bound(speeds, 5) == pytest.approx(80)
    assert bound(speeds, 60) == pytest.approx(160)
    assert bound({10: 100.0}, 20) == pytest.approx(200)  # through nothing at batch 0: a step takes no less time
    assert bound({10: 100.0}, 5) == float("inf")
    assert bound(speeds, 60, 2.0) > bound(speeds, 60, 1.0) > bound(speeds, 60)


@given(top=st.floats(1e3, 1e5), half=st.floats(0.1, 100), tried=st.sets(st.integers(1, 64), min_size=2, max_size=6))
def test_the_bound_holds_for_every_curve_of_the_form_that_steps_have(top: float, half: float, tried: set[int]) -> None:
    speed = {batch: top * batch / (batch + half) for batch in range(1, 65)}
    known = {batch: speed[batch] for batch in tried}
    assert all(speed[batch] <= bound(known, batch) * (1 + 1e-9) for batch in speed if batch not in tried)
    assert bends_upwards(known) == ()


def test_a_hollow_is_seen_where_noise_cannot_explain_it() -> None:
    assert bends_upwards({10: 100.0, 20: 95.0, 30: 110.0}) == (20,)
    assert bends_upwards({10: 100.0, 20: 99.8, 30: 100.0}) == ()


@pytest.mark.parametrize(
    ("mode", "best", "runs"), [("none", 10, (6, 10)), ("selective", 16, (8, 16)), ("full", 8, (8,))]
)
def test_the_recorded_grid_is_found_with_half_of_its_runs(mode: str, best: int, runs: tuple[int, ...]) -> None:
    family = next(curve for curve in recorded() if curve.name == mode)
    searched = drive(family)
    assert (searched.peak.best, searched.peak.tried) == (best, runs)
    assert len(runs) * 2 <= family.full_grid


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_simulated_curves_are_found_with_half_of_the_runs(kind: str, width: int) -> None:
    curves = [simulated(kind, 1000 + seed) for seed in range(60)]
    searches = [drive(curve, width=width) for curve in curves]
    found = [curve.loss(s.peak.best) <= 0.01 for curve, s in zip(curves, searches, strict=True)]
    assert sum(found) / len(found) >= 0.95
    for curve, searched in zip(curves, searches, strict=True):
        assert len(searched.peak.tried) <= max(1, curve.full_grid / 2)
        assert searched.waves <= len(searched.peak.tried)
    sure = [(c.loss(s.peak.best), s.peak.sure_within) for c, s in zip(curves, searches, strict=True)]
    kept = [loss <= within for loss, within in sure if within is not None]
    assert sum(kept) / len(kept) >= 0.95


@pytest.mark.parametrize(
    "name", ["peak at the first point", "peak at the last point", "plateau", "narrow peak in the middle",
             "two humps, the higher one right", "retries from the second point on", "only the first point fits",
             "real runs need 15 GiB more"],
)  # fmt: skip
def test_curves_made_to_break_it_that_do_not(name: str) -> None:
    curve = ADVERSARIAL[name]
    searched = drive(curve)
    assert curve.loss(searched.peak.best) <= 0.01
    assert len(searched.peak.tried) <= max(1, curve.full_grid / 2)


def test_a_higher_hump_below_all_that_was_tried_is_not_found() -> None:
    """What docs/search.md says that it cannot do."""
    curve = ADVERSARIAL["two humps, the higher one left"]
    assert curve.loss(drive(curve).peak.best) > 0.1


def test_a_hollow_that_was_measured_makes_the_search_doubt() -> None:
    findings = Findings((10, 20, 30, 40, 50, 60), rehearsed={b: ran(None) for b in (10, 60)})
    findings.real = {10: ran(100.0), 30: ran(90.0), 60: ran(110.0)}
    result = PeakSearch(findings, limit=3).result()
    assert (result.best, result.sure_within) == (60, None)
    assert result.doubts == ("speed at 30 is below the line between its neighbours: two humps, or a bad run",)
    assert PeakSearch(findings, limit=6).wanted(6)


def test_without_rehearsals_the_line_of_memory_is_followed() -> None:
    curve = simulated("rising", 3)
    searched = drive(curve, rehearse=False)
    assert searched.peak.tried[0] == curve.grid[0]
    assert curve.loss(searched.peak.best) <= 0.01
    assert len(searched.peak.tried) <= curve.full_grid / 2


def test_a_real_run_without_memory_moves_the_top_down() -> None:
    grid = tuple(range(2, 34, 4))
    findings = Findings(grid, 100.0, rehearsed={b: Answer(Outcome.COMPLETED, 40.0 + b) for b in grid})
    search = PeakSearch(findings)
    assert search.wanted() == (30,)
    findings.real[30] = OOM
    assert search.wanted() == (26,)
    findings.real[26] = ran(100.0)
    assert search.result().out_of_memory == (30,)


def test_a_batch_that_gives_no_speed_is_passed_over_and_three_end_it() -> None:
    grid = tuple(range(2, 34, 4))
    findings = Findings(grid, 100.0, rehearsed={b: Answer(Outcome.COMPLETED, 40.0 + b) for b in grid})
    search = PeakSearch(findings)
    for batch in (30, 26, 22):
        assert search.wanted() == (batch,)
        findings.real[batch] = Answer(Outcome.NODE_FAILURE)
    assert search.wanted() == ()
    assert search.result().sentence() == "found no peak after 3 runs: the runs at 22, 26, 30 gave no speed"


def test_nothing_fits() -> None:
    findings = Findings((2, 6), 100.0, rehearsed={2: OOM, 6: OOM})
    assert PeakSearch(findings).wanted() == ()
    assert PeakSearch(findings).result().why == "no batch fits"


def test_several_that_cannot_be_told_apart_are_named() -> None:
    findings = Findings((2, 6, 10), rehearsed={b: ran(None) for b in (2, 6, 10)})
    findings.real = {2: ran(90.0), 6: ran(99.5), 10: ran(100.0)}
    assert PeakSearch(findings).result().as_good == (6, 10)


@given(seed=st.integers(0, 500), kind=st.sampled_from(KINDS), width=st.integers(1, 4), rehearse=st.booleans())
def test_only_the_answers_count_and_not_their_order(seed: int, kind: str, width: int, rehearse: bool) -> None:  # noqa: FBT001
    curve = simulated(kind, seed)
    done = drive(curve, rehearse=rehearse, width=width).findings
    real = dict(sorted(done.real.items())[:2])
    one = Findings(curve.grid, curve.room, done.rehearsed, real)
    other = Findings(curve.grid, curve.room, dict(reversed(done.rehearsed.items())), dict(reversed(real.items())))
    assert PeakSearch(one).wanted(width) == PeakSearch(other).wanted(width)
