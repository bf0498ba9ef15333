"""Steady numbers: which steps count, medians and their uncertainty, and when there are none."""

from __future__ import annotations

import dataclasses
import math
import random
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_scaleperf.model import Measurement, Metric, Observation, Outcome, StepSample
from pytest_scaleperf.steady import measure, standard_error, window
from pytest_scaleperf.titan.observe import find_files, read_run
from pytest_scaleperf.titan.signatures import End

POSITIVE = st.floats(1.0, 1e6)


def series(*values: tuple[int, float]) -> tuple[StepSample, ...]:
    return tuple(
        StepSample(
            step=step, tps=tps, tps_min=tps - 1, tflops=tps / 100, memory_gib=50.0, memory_pct=40.0, alloc_retries=0
        )
        for step, tps in values
    )


RUN = Observation(
    outcome=Outcome.COMPLETED,
    series=series((1, 100.0), (10, 6000.0), (20, 7000.0), (30, 7100.0), (40, 7200.0)),
    requested_steps=40,
    last_step=40,
)


def of(observation: Observation = RUN, *, warmup: int = 10, peak_flops: float | None = 1e15) -> Measurement:
    return measure(observation, warmup=warmup, peak_flops=peak_flops)


def changed(index: int, **values: object) -> Observation:
    samples = list(RUN.series)
    samples[index] = dataclasses.replace(samples[index], **values)  # type: ignore[arg-type]  # any field
    return dataclasses.replace(RUN, series=tuple(samples))


@pytest.mark.parametrize(
    ("steps", "first", "warmup", "kept"),
    [
        ((1, 10, 20, 30), 1, 0, (10, 20, 30)),
        ((1, 10, 20, 30), 1, 1, (10, 20, 30)),
        ((1, 10, 20, 30), 1, 2, (20, 30)),
        ((1, 10, 20, 30), 1, 10, (20, 30)),
        ((1, 10, 20, 30), 1, 11, (30,)),
        ((1, 10, 20, 30), 1, 99, ()),
        ((10, 20, 30), 1, 10, (20, 30)),
        ((110, 120, 130), 101, 0, (120, 130)),
        ((110, 120, 130), 101, 10, (120, 130)),
        ((100, 200, 300), 97, 4, (200, 300)),
        ((100, 200, 300), 97, 5, (300,)),
        ((1, 2, 3, 4, 5), 1, 3, (4, 5)),
        ((), 1, 0, ()),
    ],
)
def test_the_window(steps: tuple[int, ...], first: int, warmup: int, kept: tuple[int, ...]) -> None:
    samples = tuple(StepSample(step=step) for step in steps)
    assert tuple(sample.step for sample in window(samples, first, warmup)) == kept


@given(st.sets(st.integers(1, 200), min_size=1), st.integers(0, 100), st.integers(1, 50))
def test_no_counted_interval_holds_a_step_of_warm_up(steps: set[int], warmup: int, first: int) -> None:
    logged = sorted(step + first - 1 for step in steps)
    kept = {s.step for s in window([StepSample(step=step) for step in logged], first, warmup)}
    begin = first
    for number, step in enumerate(logged):
        interval = range(begin, step + 1)
        clean = number > 0 and all(inside >= first + warmup for inside in interval)
        assert (step in kept) is clean
        begin = step + 1


def test_numbers_of_a_completed_run() -> None:
    found = measure(RUN, warmup=10, peak_flops=1e15, tokens_per_step_per_gpu=14200.0)
    assert found.steps == (20, 30, 40)
    assert found.values == {
        Metric.TPS: 7100.0,
        Metric.MFU: pytest.approx(7.1),
        Metric.PEAK_MEMORY: 50.0,
        Metric.STEP_TIME: 2.0,
    }
    assert found.step_times == (14200 / 7000, 2.0, 14200 / 7200)
    assert (found.tps_min, found.memory_pct, found.alloc_retries) == (6999.0, 40.0, 0)
    assert found.spread[Metric.PEAK_MEMORY] == 0.0
    # MAD and standard deviation of 7000, 7100, 7200 are both 100; the MAD is made comparable by 1.4826
    assert found.spread[Metric.TPS] == pytest.approx(1.2533 * 1.4826 * 100 / math.sqrt(3) / 7100, rel=1e-4)
    assert found.warnings == ()


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.COMPLETED])
def test_a_run_that_did_not_complete_has_no_numbers(outcome: Outcome) -> None:
    found = of(dataclasses.replace(RUN, outcome=outcome))
    assert (found.values, found.spread, found.steps) == ({}, {}, ())
    assert outcome in found.warnings[0]


@pytest.mark.parametrize("last", [39, None])
def test_a_run_short_of_its_last_step_has_no_numbers(last: int | None) -> None:
    found = of(dataclasses.replace(RUN, last_step=last))
    assert found.values == {}
    assert f"step {last} of 40" in found.warnings[0]


def test_too_few_steps_give_no_speed_and_name_the_numbers() -> None:
    found = of(warmup=21)
    assert set(found.values) == {Metric.PEAK_MEMORY}
    assert found.steps == (40,)
    assert "1 of the logged steps (1, 10, 20, 30, 40)" in found.warnings[0]
    assert "21 steps of warm-up" in found.warnings[0]


def test_mfu_against_what_the_ranks_measured() -> None:
    seen = dataclasses.replace(RUN, rank_peak_flops=(1e15, 3e15))
    assert of(seen, peak_flops=None).values[Metric.MFU] == pytest.approx(3.55)
    assert of(seen, peak_flops=1e15).values[Metric.MFU] == pytest.approx(7.1)


def test_no_peak_no_mfu_and_never_torchtitans_own() -> None:
    found = of(changed(3, mfu_pct=42.0), peak_flops=None)
    assert Metric.MFU not in found.values
    assert any(text.startswith("no MFU") for text in found.warnings)


def test_no_tflops_no_mfu() -> None:
    samples = tuple(dataclasses.replace(sample, tflops=None) for sample in RUN.series)
    found = of(dataclasses.replace(RUN, series=samples))
    assert set(found.values) == {Metric.TPS, Metric.PEAK_MEMORY}
    assert any("no MFU: 0 steps" in text for text in found.warnings)


def test_memory_is_the_highest_of_all_steps() -> None:
    assert of(changed(1, memory_gib=72.0)).values[Metric.PEAK_MEMORY] == 72.0


def test_unknown_memory_is_no_number() -> None:
    samples = tuple(dataclasses.replace(s, memory_gib=None, memory_pct=None, alloc_retries=None) for s in RUN.series)
    found = of(dataclasses.replace(RUN, series=samples))
    assert Metric.PEAK_MEMORY not in found.values
    assert (found.memory_pct, found.alloc_retries) == (None, None)
    assert any("no peak memory" in text for text in found.warnings)


def test_memory_in_per_cent_of_the_systems_where_the_run_does_not_say() -> None:
    samples = tuple(dataclasses.replace(sample, memory_pct=None) for sample in RUN.series)
    seen = dataclasses.replace(RUN, series=samples)
    assert measure(seen, warmup=0, peak_flops=None, memory_total_gib=100.0).memory_pct == 50.0
    assert measure(seen, warmup=0, peak_flops=None).memory_pct is None


@pytest.mark.parametrize(
    ("counts", "new"),
    [
        ((0, 8, 18, 28, 30), 22),
        ((5, 5, 5, 5, 5), 0),
        ((0, 0, 9, 2, 1), 1),
        ((7, 8, 9, 2, 1), None),
        ((0, None, 1, 2, 3), None),
    ],
)
def test_retries_are_those_of_the_window(counts: tuple[int | None, ...], new: int | None) -> None:
    samples = tuple(dataclasses.replace(s, alloc_retries=n) for s, n in zip(RUN.series, counts, strict=True))
    assert of(dataclasses.replace(RUN, series=samples)).alloc_retries == new


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf"), None])
def test_a_step_without_a_usable_speed_is_left_out(bad: float | None) -> None:
    assert of(changed(2, tps=bad)).values[Metric.TPS] == 7150.0


@given(st.lists(POSITIVE, min_size=3, max_size=30), POSITIVE)
def test_the_median_lies_among_the_values_and_scales_with_them(values: list[float], factor: float) -> None:
    def speeds(scale: float) -> Measurement:
        samples = series(*((number + 1, value * scale) for number, value in enumerate(values)))
        last = len(values)
        return of(dataclasses.replace(RUN, series=samples, requested_steps=last, last_step=last), warmup=0)

    found, scaled = speeds(1.0), speeds(factor)
    tps = found.values[Metric.TPS]
    assert min(values[1:]) <= tps <= max(values[1:])
    assert scaled.values[Metric.TPS] == pytest.approx(tps * factor)
    assert scaled.spread[Metric.TPS] == pytest.approx(found.spread[Metric.TPS], abs=1e-9)


@given(st.lists(POSITIVE, min_size=1, max_size=50))
def test_the_standard_error_is_a_finite_fraction(values: list[float]) -> None:
    assert 0 <= standard_error(values) < math.inf


def test_one_wild_step_of_many_moves_the_spread_little() -> None:
    calm = [100.0, 101.0, 99.0, 100.5, 99.5, 100.0, 100.2] * 3
    assert standard_error([*calm, 5.0]) < 1.5 * standard_error(calm)


def test_of_a_handful_one_wild_step_is_not_called_exact() -> None:
    values = [7000.0, 7000.0, 7000.0, 3500.0]
    assert standard_error(values) > 0.1


def test_the_standard_error_is_what_medians_really_do() -> None:
    rng = random.Random(7)  # noqa: S311 - a simulation
    draws = [[rng.gauss(100.0, 2.0) for _ in range(40)] for _ in range(2000)]
    real = statistics.stdev(statistics.median(values) for values in draws) / 100
    said = statistics.fmean(standard_error(values) for values in draws)
    assert said == pytest.approx(real, rel=0.1)


def steps(*tps: float, every: int = 1, begin: int = 1) -> Observation:
    """A completed run that logged each of these speeds, the first at step ``begin``."""
    logged = series(*((begin + number * every, value) for number, value in enumerate(tps)))
    last = logged[-1].step
    return dataclasses.replace(RUN, series=logged, requested_steps=last, last_step=last, first_step=begin)


def noisy(count: int, seed: int, at: float = 7000.0) -> list[float]:
    rng = random.Random(seed)  # noqa: S311 - a simulation
    return [at * (1 + rng.gauss(0, 0.003)) for _ in range(count)]


@pytest.mark.parametrize("begin", [1, 101])
def test_a_longer_warm_up_than_the_suite_says_is_found(begin: int) -> None:
    # Compilation at the first step, slow steps while the allocator grows; the suite says 2. Also after a resume.
    run = steps(100.0, 4000.0, 5500.0, 6300.0, 6600.0, *noisy(25, 1), begin=begin)
    found = of(run, warmup=2)
    assert begin + 5 <= found.steps[0] <= begin + 9  # MSER may take a few good steps too
    assert found.dropped == found.steps[0] - begin - 2
    assert found.unsteady == ""
    assert found.values[Metric.TPS] == pytest.approx(7000, rel=0.002)
    assumed = measure(run, warmup=2, peak_flops=1e15, find_start=False)
    assert assumed.steps[0] == begin + 2
    assert assumed.dropped == 0


def test_what_the_suite_calls_warm_up_is_never_judged() -> None:
    found = of(steps(100.0, *noisy(29, 2)), warmup=12)
    assert found.steps[0] == 13
    assert found.dropped == 0


@given(st.lists(POSITIVE, min_size=1, max_size=40), st.integers(0, 20))
def test_the_found_window_is_the_end_of_the_assumed_one(values: list[float], warmup: int) -> None:
    run = steps(*values)
    kept = of(run, warmup=warmup).steps
    assumed = tuple(sample.step for sample in window(run.series, 1, warmup))
    assert kept == assumed[len(assumed) - len(kept) :]
    assert len(kept) >= len(assumed) / 2


@pytest.mark.parametrize(("usable", "value"), [(2, True), (1, False), (0, False)])
def test_fewer_than_three_logged_steps_are_not_to_be_judged(usable: int, value: bool) -> None:  # noqa: FBT001
    found = of(steps(100.0, 7000.0, 7100.0, 7200.0, every=10), warmup=41 - 10 * (usable + 1))
    assert len(found.steps) == usable
    assert (Metric.TPS in found.values) is value
    assert f"{usable} of the logged steps (1, 11, 21, 31)" in found.unsteady
    assert "at least 3 are needed" in found.unsteady
    assert found.unsteady in found.warnings


def test_a_run_that_warms_up_all_the_time_is_not_to_be_judged() -> None:
    found = of(steps(100.0, *noisy(20, 3, at=5000.0), *noisy(10, 4)), warmup=1)
    assert "no steady window" in found.unsteady
    assert "changed by 40" in found.unsteady
    assert "after more than half of them" in found.unsteady
    assert found.spread[Metric.TPS] == pytest.approx(0.4, abs=0.01)


def test_no_speed_at_all_is_missing_and_not_unsteady() -> None:
    silent = tuple(dataclasses.replace(sample, tps=None) for sample in RUN.series)
    found = of(dataclasses.replace(RUN, series=silent))
    assert found.unsteady == ""
    assert Metric.TPS not in found.values


def test_a_drift_within_the_window_is_a_note() -> None:
    falling = [value * (1 - 0.002 * number) for number, value in enumerate(noisy(30, 5))]
    found = of(steps(100.0, *falling), warmup=1)
    assert any("drifts within the steady steps" in text for text in found.warnings)
    assert found.unsteady == ""


def test_every_metric_that_varies_has_its_interval() -> None:
    found = measure(steps(100.0, *noisy(30, 6)), warmup=5, peak_flops=1e15, tokens_per_step_per_gpu=14000.0)
    for metric in (Metric.TPS, Metric.MFU, Metric.STEP_TIME):
        low, high = found.interval[metric]
        assert low < found.values[metric] < high
        assert (high - low) / found.values[metric] == pytest.approx(4.2 * found.spread[metric], rel=0.05)
    assert Metric.PEAK_MEMORY not in found.interval


@pytest.mark.parametrize(
    ("run", "warmup", "value", "dropped"),
    [
        ("lf1a", 1, 41491, 1),
        ("lf1a", 5, 41491, 0),
        ("sel8", 1, 48750, 0),
        ("none10", 5, 57264, 0),
        ("lf10a", 5, 41722, 0),
    ],
)
def test_real_runs_of_two_h200(run: str, warmup: int, value: float, dropped: int) -> None:
    folder = Path(__file__).parent / "data" / "h200" / "runs" / run
    seen = read_run(find_files(folder), End(exit_code=0)).observation
    found = measure(seen, warmup=warmup, peak_flops=989e12)
    assert found.values[Metric.TPS] == pytest.approx(value, rel=1e-3)
    assert found.dropped == dropped
    assert found.unsteady == ""
    assert found.spread[Metric.TPS] < 0.005
