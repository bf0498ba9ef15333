"""A trace against its baseline: what decides, what is only shown, and which steps are recorded."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_scaleperf.baseline import TraceBaseline, TraceSample
from pytest_scaleperf.campaign.trace_verdict import Found, TraceVerdict, combined, crept, judge
from pytest_scaleperf.campaign.tracing import schedule
from pytest_scaleperf.model import Decision, Limits, Measure, Tracing, Verdict
from tests.test_baseline import FINGERPRINT
from tests.titan import cases

SHARES = {"exposed_communication_pct": 5.0, "idle_pct": 2.0, "forward.idle_pct": 1.0}
COUNTS = {"calls all_gather [g x 2]": 4, "bytes all_gather [g x 2]": 4096}


def found(
    shares: dict[str, float] | None = None,
    counts: dict[str, int] | None = None,
    varying: tuple[str, ...] = (),
    *,
    on_gpu: bool = True,
) -> Found:
    metrics = {**(SHARES if shares is None else shares), "step_ms": 99.0, "hidden_by_fsdp_copies_pct": 50.0}
    return Found(metrics, COUNTS if counts is None else counts, varying, {"": ["all_gather"]}, on_gpu)


def stored(*shares: dict[str, float], counts: dict[str, int] | None = None) -> TraceBaseline:
    samples = tuple(TraceSample("2026-11-30", str(n), each) for n, each in enumerate(shares or (SHARES,)))
    return TraceBaseline("case", FINGERPRINT, samples, COUNTS if counts is None else counts, "file:1")


def verdict(what: Found, base: TraceBaseline | None = None, across: tuple[str, ...] = ()) -> TraceVerdict:
    return judge(what, base or stored(), FINGERPRINT, 0.02, across)


def test_only_shares_of_exposed_and_idle_time_are_judged() -> None:
    equal = verdict(found())
    assert (equal.decision, equal.reason, equal.changes) == (Decision.PASS, "", ())
    assert [share.name for share in equal.shares] == list(SHARES)


@given(st.floats(0, 90), st.floats(0, 90))
def test_the_band_is_in_points_of_the_step(value: float, base: float) -> None:
    decision = verdict(found({"idle_pct": value}), stored({"idle_pct": base})).decision
    change = value - base
    assert (decision is Decision.REGRESSION) == (change > 2)
    assert (decision is Decision.IMPROVEMENT) == (change < -2)


def test_a_phase_without_time_is_zero_but_phases_that_are_not_told_are_missing() -> None:
    told = verdict(found(SHARES | {"optimizer.idle_pct": 3.0}))
    assert "optimiser: idle 0.00 % -> 3.00 % of the step (+3.00 points, band +2.00)" in told.reason
    untold = verdict(found({name: value for name, value in SHARES.items() if "." not in name}))
    assert untold.decision is Decision.MISSING_METRIC
    assert untold.reason == "forward: idle is not told by this trace, the baseline's did"
    newly = verdict(found(), stored({name: value for name, value in SHARES.items() if "." not in name}))
    assert newly.decision is Decision.NO_BASELINE


@pytest.mark.parametrize(
    ("counts", "varying", "said"),
    [
        (COUNTS | {"calls all_gather [g x 2]": 3}, (), "all_gather [g x 2]: 4 -> 3 calls a step"),
        (COUNTS | {"calls x": 1, "bytes x": 8}, (), "x is new: 1 call, 8 bytes a step"),
        ({}, (), "all_gather [g x 2] is gone: 4 calls, 4,096 bytes a step in the baseline"),
        ({"calls all_gather [g x 2]": 4}, ("all_gather [g x 2]",), "all_gather [g x 2]: 4,096 -> varying bytes a step"),
        ({}, ("all_gather [g x 2]",), "all_gather [g x 2]: 4 -> varying calls, 4,096 -> varying bytes a step"),
    ],
)
@pytest.mark.parametrize("on_gpu", [True, False])
def test_counts_must_be_equal_on_a_cpu_too(
    counts: dict[str, int], varying: tuple[str, ...], said: str, *, on_gpu: bool
) -> None:
    changed = verdict(found(counts=counts, varying=varying, on_gpu=on_gpu))
    assert (changed.decision, changed.reason) == (Decision.REGRESSION, said)


def test_what_varied_at_the_baseline_is_not_compared() -> None:
    assert verdict(found(), stored(counts={"calls all_gather [g x 2]": 4})).decision is Decision.PASS


def test_a_cpus_shares_are_shown_only() -> None:
    shown = verdict(found({"idle_pct": 90.0}, on_gpu=False))
    assert shown.decision is Decision.NOT_JUDGED
    assert {share.decision for share in shown.shares} == {Decision.NOT_JUDGED}


def test_another_fingerprint_is_not_compared_unless_the_suite_says_so() -> None:
    newer = dataclasses.replace(FINGERPRINT, torch="2.14.1")
    other = judge(found(), stored(), newer, 0.02)
    assert other.decision is Decision.FINGERPRINT_MISMATCH
    assert "torch is 2.14.1, the baseline's 2.13.0+cpu" in other.reason
    across = judge(found(), stored(), newer, 0.02, ("torch",))
    assert (across.decision, len(across.notes)) == (Decision.PASS, 1)


@pytest.mark.parametrize(
    ("measured", "traced", "whole"),
    [
        ("pass", "pass", "pass"),
        ("pass", "not_judged", "pass"),
        ("pass", "improvement", "improvement"),
        ("pass", "regression", "regression"),
        ("pass", "no_baseline", "no_baseline"),
        ("pass", "recorded", "recorded"),
        ("improvement", "pass", "improvement"),
        ("improvement", "regression", "regression"),
        ("recorded", "recorded", "recorded"),
        ("recorded", "improvement", "recorded"),
        ("recorded", "regression", "regression"),
        ("regression", "pass", "regression"),
        ("regression", "improvement", "regression"),
        ("regression", "regression", "regression"),
    ],
)
def test_a_trace_can_only_take_a_pass_away(measured: str, traced: str, whole: str) -> None:
    both = combined(Verdict(Decision(measured), (), "numbers"), TraceVerdict(Decision(traced), "shares"))
    assert both.decision == whole
    assert "shares" in " ".join((both.reason, *both.notes))
    assert measured == "pass" or traced in ("regression", "no_baseline") or "numbers" in both.reason


def test_samples_that_are_added_may_not_creep() -> None:
    base = stored({"idle_pct": 5.0})
    assert not crept({"idle_pct": 6.9}, base, 0.02, alone=False)
    assert crept({"idle_pct": 6.9}, base, 0.02, alone=True) == ["step: idle 5.00 % -> 6.90 %"]
    assert crept({"idle_pct": 6.9}, stored({"idle_pct": 5.0}, {"idle_pct": 6.9}), 0.02, alone=False)


@given(st.integers(1, 40), st.integers(1, 12), st.integers(3, 8))
def test_the_recorded_steps_lie_behind_the_warm_up_and_between_logged_ones(
    warmup: int, log_freq: int, active: int
) -> None:
    plain = cases.case(
        measure=Measure(steps=1000, warmup=warmup, log_freq=log_freq),
        limits=Limits(startup=300, no_progress=60, total=900),
        suite_file=Path("/srv/suites/demo.yaml"),
    )
    case = dataclasses.replace(plain, suite=dataclasses.replace(plain.suite, trace=Tracing(steps=active)))
    traced, profile = schedule(case)
    steps, every = traced.suite.measure.steps, traced.suite.measure.log_freq
    recorded = range(profile.freq - active + 1, profile.freq + 1)
    assert profile.active == active
    assert profile.freq >= active + profile.warmup, "torch asserts it"
    assert recorded[0] > warmup
    assert steps > profile.freq, "the step behind the last recorded one is run, so that its trace is written"
    assert steps < 2 * profile.freq, "recorded once"
    assert steps % every == 0, "the last step is logged"
    assert every == 1 or not any(step % every == 0 for step in recorded)
    assert traced.suite.limits == Limits(startup=300, no_progress=300, total=900)
    assert traced.id == case.id
