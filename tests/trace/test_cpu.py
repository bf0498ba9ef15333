"""Traces of a CPU: what can be said of gloo's work, recorded and from a real torchtitan run."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_scaleperf.model import Layout, Measure
from pytest_scaleperf.trace.analyse import analyse, trace_files
from pytest_scaleperf.trace.measures import counts, metrics
from pytest_scaleperf.trace.rank import analyse_rank
from pytest_scaleperf.trace.result import TraceReport
from pytest_scaleperf.trace.rules import Phase, Rules
from pytest_scaleperf.trace.words import describe
from tests.real import harness
from tests.titan import cases
from tests.trace.conftest import TRACES
from tests.trace.script import ENGINE, MAIN, US, Script

GLOO = 300


@pytest.fixture(scope="module")
def recorded() -> TraceReport:
    """FSDP2 around three blocks, two microbatches, one all_reduce a step, on two CPU ranks."""
    return analyse([TRACES / f"gloo-rank{rank}.json.gz" for rank in (0, 1)])


def test_recorded_gloo_splits_exactly(recorded: TraceReport) -> None:
    for rank in recorded.ranks:
        assert [(step.number, step.whole) for step in rank.steps] == [(2, True), (3, True), (4, True)]
        for step in rank.steps:
            assert sum(part.split.total for part in step.phases) == step.split.total
            assert sum(row.own for row in step.rows) == step.split.total
            assert step.backwards == 2
            assert min(step.split.compute, step.split.exposed_communication, step.split.idle) > 0


def test_recorded_gloo_knows_calls_by_what_issued_them(recorded: TraceReport) -> None:
    """Gloo runs a reduce_scatter as an all_reduce and calls it so; three blocks gather twice a microbatch."""
    assert counts(recorded) == {
        "calls all_gather [default_pg x 2]": 12,
        "bytes all_gather [default_pg x 2]": 12 * 131_968 * 4,
        "calls reduce_scatter [default_pg x 2]": 6,
        "bytes reduce_scatter [default_pg x 2]": 6 * 131_968 * 4,
        "calls all_reduce [default_pg x 2]": 1,
        "bytes all_reduce [default_pg x 2]": 4,
    }
    assert [rank.coverage() for rank in recorded.ranks] == [1.0, 1.0]


def test_reduce_scatters_are_never_in_forward(recorded: TraceReport) -> None:
    """FSDP's hooks run after autograd's last call, on the thread that also runs forward."""
    for rank in recorded.ranks:
        for step in rank.steps:
            assert {call.phase for call in step.calls if call.op == "reduce_scatter"} == {
                Phase.BACKWARD,
                Phase.LAST_BACKWARD,
            }
            assert {call.phase for call in step.calls if call.op == "all_reduce"} == {Phase.OPTIMIZER}


def test_the_words_say_first_that_it_is_a_cpu(recorded: TraceReport) -> None:
    lines = describe(recorded)
    assert lines[0] == "ranks 0, 1 of 2, CPU; steps 2, 3, 4"
    assert lines[1].startswith("a CPU trace, no GPU events: compute is the time in operators")


def cpu_script() -> Script:
    script = Script(device=None)
    script.step(1, 0, 1000 * US)
    script.operator("aten::linear", 100 * US, 300 * US)
    script.operator("aten::addmm", 110 * US, 290 * US)
    script.operator("autograd::engine::evaluate_function: MmBackward0", 400 * US, 600 * US, tid=ENGINE)
    script.operator("aten::mm", 450 * US, 500 * US, tid=ENGINE)
    script.operator("aten::copy_", 0, 1000 * US, tid=GLOO)
    script.operator("c10d::allreduce_", 480 * US, 590 * US, tid=ENGINE, Input_Dims=[[[10]]], Input_type=["TensorList"])
    script.annotate("gloo:all_reduce", 490 * US, 700 * US, tid=GLOO)
    script.events[-1]["args"] = {"Input Dims": [[10]], "Input type": ["float"]}
    return script


def test_compute_is_operators_of_the_training_threads(tmp_path: Path) -> None:
    """Not gloo's own copies, nor autograd's frames, nor what waits for a process group; nested ones count once."""
    (step,) = analyse_rank(cpu_script().write(tmp_path / "t.json"), Rules()).steps
    assert (step.split.compute, step.split.exposed_communication) == (250 * US, 200 * US)
    assert step.split.idle == 550 * US
    (call,) = step.calls
    assert (call.op, call.bytes, call.duration, call.phase) == ("all_reduce", 40, 210 * US, Phase.LAST_BACKWARD)


def test_transfers_that_do_not_pair_with_calls_stand_for_themselves(tmp_path: Path) -> None:
    script = cpu_script()
    script.annotate("gloo:broadcast", 710 * US, 720 * US, tid=GLOO)
    (step,) = analyse_rank(script.write(tmp_path / "t.json"), Rules()).steps
    assert [(call.op, call.phase) for call in step.calls] == [
        ("all_reduce", Phase.LAST_BACKWARD),
        ("broadcast", Phase.OPTIMIZER),
    ]


def test_one_process_without_any_communication(tmp_path: Path) -> None:
    script = Script(device=None)
    script.operator("aten::mm", 100 * US, 300 * US, tid=MAIN)
    report = analyse([script.write(tmp_path / "t.json")])
    assert report.ranks[0].steps[0].split.compute == 200 * US
    assert "no communication" in describe(report)
    assert "overlap_pct" not in metrics(report)


PROFILED = ("--profiler.enable_profiling", "--profiler.profile_freq", "5",
            "--profiler.profiler_active", "3", "--profiler.profiler_warmup", "1")  # fmt: skip


def test_torchtitan_on_two_cpu_ranks_is_traced_and_read(tmp_path: Path) -> None:
    """The whole way: our entry trains, annotates and writes a trace per rank, and every number of a step is there."""
    case = cases.case(
        cases.trainer(args=PROFILED),
        layout=Layout(2, 1),
        accumulation=2,
        sequence=128,
        measure=Measure(steps=5, warmup=1, log_freq=1),
    )
    ended = harness.run(case, tmp_path / "run")
    assert ended.code == 0, ended.log[-3000:]
    (folder,) = {path.parent for path in ended.folder.rglob("*trace.json.gz")}
    report = analyse(trace_files([folder]), expected_ranks=2)
    assert report.whole
    assert not report.on_gpu
    assert [rank.phases_from for rank in report.ranks] == ["annotations", "annotations"]
    for rank in report.ranks:
        assert len(rank.steps) == 3
        assert {step.backwards for step in rank.steps} == {2}, "the loss's chunks are not microbatches"
    assert report.phases == (Phase.FORWARD, Phase.BACKWARD, Phase.LAST_BACKWARD, Phase.OPTIMIZER)
    assert counts(report)["calls reduce_scatter [default_pg x 2]"] > 0
    assert metrics(report)["exposed_communication_pct"] > 0
