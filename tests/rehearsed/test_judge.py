"""What a rehearsing process did, judged: every way to end, with the recorded H200 logs among them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_scaleperf import steady
from pytest_scaleperf.model import (
    Case,
    Failure,
    Fingerprint,
    Gate,
    GateState,
    Layout,
    Measurement,
    Metric,
    Observation,
    Outcome,
    Rehearse,
    StepSample,
)
from pytest_scaleperf.rehearsed import (
    Attribution,
    Cause,
    Fit,
    RankRehearsal,
    Rehearsal,
    Room,
    Speeds,
    as_record,
    attribute,
    communication_tax,
    from_record,
    judge_case,
    judge_rank,
    not_rehearsable,
    ranks_of,
    rehearsal_gate,
    with_baseline,
)
from pytest_scaleperf.titan.observe import observe
from tests.titan import cases

H200 = Path(__file__).parent.parent / "data" / "h200" / "runs"
GPU = Room(total_gib=139.8, reserve_gib=2.0)
CPU = Room(total_gib=None, reserve_gib=2.0, on_cpu=True)
FINGERPRINT = Fingerprint("NVIDIA H200", "580", "2.11", "2.27", "0.2.2", None, "abc", 9.9e14)


def ran(peak: float = 100.0, retries: int = 0, tps: float = 40_000.0) -> tuple[Observation, Measurement]:
    series = tuple(StepSample(step, tps=tps, memory_gib=peak, memory_pct=peak / 1.398) for step in (1, 2, 3))
    values = {Metric.TPS: tps, Metric.PEAK_MEMORY: peak}
    measured = Measurement(values, {}, (2, 3), alloc_retries=retries, warnings=("short", "x"), unsteady="short")
    return Observation(Outcome.COMPLETED, series=series, requested_steps=3, last_step=3), measured


def ended(outcome: Outcome, reason: str, *, steps: int = 0, gib: float | None = None) -> RankRehearsal:
    series = tuple(StepSample(step) for step in range(1, steps + 1))
    failure = Failure(outcome, reason, requested_gib=gib)
    return judge_rank(0, Observation(outcome, series=series, failure=failure), Measurement({}, {}, ()), GPU)


def rehearsal(*ranks: RankRehearsal, layout: Layout | None = None) -> Rehearsal:
    case = cases.case(layout=layout or Layout(16, 1))
    fit, reason, notes = judge_case(ranks, GPU)
    return Rehearsal(
        case.id, "cpu", "h200", case.gpus, case.layout, case.activation_checkpoint, case.batch, fit, reason, ranks,
        steps=3, reserve_gib=2.0, fingerprint=FINGERPRINT, notes=notes, session="s", finished=1.5, where="/r/x.json",
    )  # fmt: skip


def rehearsing(layout: Layout, **words: object) -> Case:
    case = cases.case(layout=layout)
    return dataclasses.replace(case, suite=dataclasses.replace(case.suite, rehearse=Rehearse(**words)))  # type: ignore[arg-type]  # fields by name


def test_what_fits_says_what_is_left_beside_the_reserve() -> None:
    found = judge_rank(0, *ran(100.0), GPU)
    assert found.fit is Fit.FITS
    assert found.margin_gib == pytest.approx(37.8)
    assert found.reason == "37.80 GiB left beside the reserve of 2 GiB"
    assert found.notes == ("x",), "that few steps are no verdict is no news"


@pytest.mark.parametrize(
    ("peak", "retries", "fit"), [(138.0, 0, Fit.TIGHT), (137.7, 0, Fit.FITS), (50.0, 1, Fit.SATURATED)]
)
def test_less_than_the_reserve_and_retries_still_fit_but_are_said(peak: float, retries: int, fit: Fit) -> None:
    found = judge_rank(0, *ran(peak, retries), GPU)
    assert found.fit is fit
    assert found.fit.fits


def test_on_a_cpu_it_fits_if_it_runs() -> None:
    found = judge_rank(0, *ran(0.6), CPU)
    assert (found.fit, found.margin_gib, found.total_gib) == (Fit.FITS, None, None)
    assert "on a CPU" in found.reason
    assert CPU.share is None


@pytest.mark.parametrize(
    ("outcome", "reason", "steps", "fit"),
    [
        (Outcome.OOM, "Tried to allocate 2.00 GiB", 0, Fit.DOES_NOT_FIT),
        (Outcome.OOM, "Tried to allocate 2.00 GiB", 2, Fit.DOES_NOT_FIT),
        (Outcome.CONFIG_ERROR, "Invalid parallel dims", 0, Fit.INVALID),
        (Outcome.ERROR, "AssertionError", 0, Fit.INVALID),
        (Outcome.ERROR, "AssertionError", 1, Fit.FAILED),
        (Outcome.HANG, "no progress", 1, Fit.FAILED),
        (Outcome.HOST_OOM, "oom-kill", 0, Fit.FAILED),
        (Outcome.NODE_FAILURE, "node7", 1, Fit.MACHINE_FAILED),
        (Outcome.CANCELLED, "scancel", 1, Fit.MACHINE_FAILED),
    ],
)
def test_every_other_end(outcome: Outcome, reason: str, steps: int, fit: Fit) -> None:
    found = ended(outcome, reason, steps=steps)
    assert found.fit is fit
    assert reason in found.reason
    assert not found.fit.fits


def recorded(run: str) -> RankRehearsal:
    seen = observe(H200 / run, losses=False)
    measured = steady.measure(seen, warmup=5, peak_flops=989.4e12, memory_total_gib=139.8)
    return judge_rank(0, seen, measured, Room(139.8, 0.5))


def test_the_recorded_reducer_of_0_2_is_no_verdict_of_the_configuration() -> None:
    found = recorded("f2ddp")
    assert found.fit is Fit.NOT_REHEARSABLE
    assert "fake process group" in found.reason
    assert "hook result is either a Tensor or a TensorList found None" in found.reason
    assert not found.fit.is_known


def test_a_recorded_rehearsal_of_a_gpu() -> None:
    found = recorded("f2full8")
    assert found.fit is Fit.FITS
    assert found.peak_gib == pytest.approx(66.66, abs=0.01)
    assert found.tps == pytest.approx(46_447, rel=0.01)
    assert found.device_gib == pytest.approx(139.8, abs=0.2)


def test_replicas_alone_and_pipelines_are_known_before_anything_starts() -> None:
    assert "replicas alone" in not_rehearsable(cases.case(layout=Layout(1, 16)), "0.2")
    assert not_rehearsable(cases.case(layout=Layout(1, 16)), "0.3") == ""
    assert not_rehearsable(cases.case(layout=Layout(1, 1)), "0.2") == ""
    assert not_rehearsable(cases.case(layout=Layout(4, 4)), "0.2") == ""
    assert "pipeline" in not_rehearsable(cases.case(layout=Layout(4, 1, pp=4)), "ours")


def test_ranks_count_from_both_ends_and_once() -> None:
    assert ranks_of(rehearsing(Layout(16, 1))) == (0,)
    assert ranks_of(rehearsing(Layout(16, 1), ranks=(0, -1, 15, 7))) == (0, 15, 7)
    assert ranks_of(rehearsing(Layout(128, 4), ranks=(-1,))) == (511,)


def test_the_worst_rank_decides_and_is_named() -> None:
    good, bad = judge_rank(0, *ran(), GPU), dataclasses.replace(ended(Outcome.OOM, "full"), rank=15)
    fit, reason, _ = judge_case((good, bad), GPU)
    assert fit is Fit.DOES_NOT_FIT
    assert reason == "rank 15: oom: full"


def test_what_does_not_fit_closes_the_gate_with_the_size_and_the_place() -> None:
    case, found = rehearsing(Layout(16, 1)), rehearsal(ended(Outcome.OOM, "CUDA out of memory", gib=2.5))
    gate = rehearsal_gate(case, found)
    assert gate == Gate(
        GateState.CLOSED,
        "OOM in rehearsal: 2.50 GiB more were asked for, rank 0 of 16: oom: CUDA out of memory (/r/x.json)",
    )


@pytest.mark.parametrize(
    ("case", "found"),
    [
        (rehearsing(Layout(16, 1)), None),
        (rehearsing(Layout(16, 1), closes_gate=False), rehearsal(ended(Outcome.OOM, "full"))),
        (dataclasses.replace(rehearsing(Layout(16, 1)), expect=Outcome.OOM), rehearsal(ended(Outcome.OOM, "full"))),
        (rehearsing(Layout(16, 1)), rehearsal(ended(Outcome.ERROR, "broken"))),
        (rehearsing(Layout(16, 1)), rehearsal(judge_rank(0, *ran(), GPU))),
        (
            rehearsing(Layout(16, 1)),
            rehearsal(ended(Outcome.OOM, "CUDA out of memory. GPU 0 has a total capacity of 79.10 GiB of which 1 GiB")),
        ),
    ],
    ids=["none", "suite-says-so", "expected", "invalid", "fits", "smaller-device"],
)
def test_nothing_else_closes_a_gate(case: Case, found: Rehearsal | None) -> None:
    assert rehearsal_gate(case, found) is None


def test_a_smaller_device_is_said() -> None:
    seen = ended(Outcome.OOM, "CUDA out of memory. GPU 0 has a total capacity of 79.10 GiB of which 1 GiB is free")
    assert rehearsal(seen).notes == ("rehearsed on a device of 79.1 GiB, the system's has 139.8 GiB",)


def test_memory_against_the_real_baseline() -> None:
    found = rehearsal(judge_rank(0, *ran(66.66), GPU))
    same = with_baseline(found, 66.66, 0.02)
    assert same is not None
    assert (same.change, same.is_equal) == (0.0, True)
    more = with_baseline(found, 60.0, 0.02)
    assert more is not None
    assert not more.is_equal
    assert with_baseline(found, None, 0.02) is None
    assert with_baseline(rehearsal(ended(Outcome.OOM, "full")), 66.66, 0.02) is None


def test_a_file_says_all_of_it_again() -> None:
    found = rehearsal(judge_rank(0, *ran(66.66), GPU), ended(Outcome.OOM, "full", gib=2.5))
    found = dataclasses.replace(found, with_baseline=with_baseline(found, 60.0, 0.02))
    record = json.loads(json.dumps(as_record(found)))
    assert from_record(record, "/r/x.json") == found
    assert from_record({**record, "rehearsal": 2}, "") is None
    assert from_record({**record, "gpus": "many"}, "") is None


# The pairs of facts that were measured on H200: real TPS, rehearsed TPS, what communication costs.
@pytest.mark.parametrize(
    ("real", "ceiling", "tax"), [(41_374, 44_580, 0.072), (48_750, 51_382, 0.051), (43_637, 46_365, 0.059)]
)
def test_the_communication_tax(real: float, ceiling: float, tax: float) -> None:
    assert communication_tax(real, ceiling) == pytest.approx(tax, abs=5e-4)


def test_no_tax_without_both_speeds() -> None:
    assert communication_tax(None, 1.0) is None
    assert communication_tax(1.0, None) is None


def cause(before: Speeds, now: Speeds) -> Attribution:
    found = attribute(before, now)
    assert found is not None
    return found


def test_a_slower_network_leaves_the_ceiling() -> None:
    found = cause(Speeds(41_000, 44_500), Speeds(36_000, 44_400))
    assert found.cause is Cause.COMMUNICATION
    assert found.sentence.startswith(
        "communication: the ceiling held, 44,500 to 44,400 tokens/s/GPU (-0.2%), only the real run fell, 41,000 to "
        "36,000 (-12.2%)"
    )


def test_slower_kernels_lower_both() -> None:
    found = cause(Speeds(41_000, 44_500), Speeds(36_400, 39_100))
    assert found.cause is Cause.COMPUTE
    assert "compute: the ceiling without communication fell too, 44,500 to 39,100" in found.sentence


def test_both_at_once_say_how_much_is_which() -> None:
    found = cause(Speeds(40_000, 44_000), Speeds(32_000, 39_000))
    assert found.cause is Cause.BOTH
    assert found.compute == pytest.approx((1 / 39 - 1 / 44) / (1 / 32 - 1 / 40))
    assert f"{found.compute:.0%}" in found.sentence


def test_a_run_that_is_no_slower_has_no_cause() -> None:
    assert attribute(Speeds(40_000, 44_000), Speeds(40_000, 39_000)) is None


@given(
    compute=st.floats(1e-5, 1e-4), communication=st.floats(1e-7, 1e-5), lost=st.floats(0.05, 3.0),
    share=st.floats(0.0, 1.0),
)  # fmt: skip
def test_time_that_is_lost_in_one_place_is_found_there(
    compute: float, communication: float, lost: float, share: float
) -> None:
    """Whatever part of the lost time per token is compute, that part is what is said, within the ceiling's noise."""
    more = lost * (compute + communication)
    now_compute, now_communication = compute + share * more, communication + (1 - share) * more
    found = cause(
        Speeds(1 / (compute + communication), 1 / compute),
        Speeds(1 / (now_compute + now_communication), 1 / now_compute),
    )
    assert found.compute == pytest.approx(share, abs=0.011 / lost + 1e-6)
    if share > 0.8:
        assert found.cause is Cause.COMPUTE or lost < 0.06
    if share < 0.2:
        assert found.cause is Cause.COMMUNICATION
