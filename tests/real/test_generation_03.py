"""torchtitan 0.3.0 trains for real on this machine's CPU, from our own arguments: dense and MoE, two ranks and four."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from pytest_scaleperf.model import ActivationCheckpoint, Case, Layout, Measure, Trainer
from tests.real import harness
from tests.titan import cases

SHORT = Measure(steps=4, warmup=1, log_freq=1)


def short(trainer: Trainer | None = None, **words: object) -> Case:
    return cases.case(trainer, measure=SHORT, sequence=128, **words)  # type: ignore[arg-type] # fields by name


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> harness.Ended:
    return harness.run(short(), tmp_path_factory.mktemp("plain"))


def test_fsdp_without_recomputation(plain: harness.Ended) -> None:
    harness.check_trained(plain)
    assert plain.says("Applied FSDP to the model")
    assert not plain.says("activation checkpointing")
    assert list(plain.ranks()[0]["matmul_samples"]["steps"]) == ["1", "2", "3"]
    assert plain.says("[rank0]:[scaleperf] no accelerator here: torchtitan trains on the CPU")


def test_dp_with_selective_recomputation(tmp_path: Path) -> None:
    ended = harness.run(short(layout=Layout(1, 2), checkpoint=ActivationCheckpoint.SELECTIVE), tmp_path)
    harness.check_trained(ended)
    assert ended.says("Applied SelectiveAC activation checkpointing")
    assert ended.says("dp_replicate=2, dp_shard=1")


def test_full_recomputation_accumulation_and_a_trace(tmp_path: Path) -> None:
    trainer = cases.trainer(args=cases.traced("0.3"))
    ended = harness.run(short(trainer, checkpoint=ActivationCheckpoint.FULL, accumulation=2), tmp_path)
    harness.check_trained(ended)
    assert ended.says("Applied FullAC activation checkpointing")
    assert ended.says("local batch size 2, global batch size 8, gradient accumulation steps 2, sequence length 128")
    phases = ended.phases()
    assert sorted(phases) == [0, 1]
    assert phases[0] == phases[1]
    assert phases[0]["scaleperf.forward"] == 2
    assert phases[0]["scaleperf.backward"] > 2, "the loss runs a backward of its own for each chunk"
    assert phases[0]["scaleperf.optimizer"] == 1
    assert ended.ranks()[0]["matmul_samples"]["steps"] == {}, "no matmul of ours stands in a trace"


def test_fsdp_times_dp_on_four_ranks(tmp_path: Path) -> None:
    ended = harness.run(short(layout=Layout(2, 2)), tmp_path)
    harness.check_trained(ended)
    assert ended.says("dp_replicate=2, dp_shard=2")


def test_a_mixture_of_experts_with_forced_balance_and_expert_parallelism(tmp_path: Path) -> None:
    trainer = cases.trainer(model="moe", force_load_balance=True)
    case = cases.case(trainer, layout=Layout(2, 1, ep=2), measure=SHORT, sequence=64)
    ended = harness.run(case, tmp_path)
    harness.check_trained(ended)
    assert ended.says("Building deepseek_v3 debugmodel")
    assert ended.says("ep=2")


def test_a_slowdown_slows_and_says_so(plain: harness.Ended, tmp_path: Path) -> None:
    slow = harness.run(short(), tmp_path, extra={"SCALEPERF_SLOWDOWN": "3"})
    harness.check_trained(slow)
    assert slow.says("[scaleperf] SCALEPERF_SLOWDOWN=3: every step is made 3 times as long on purpose")
    assert speed(slow) < 0.6 * speed(plain)


def test_a_rank_that_is_killed_is_the_root_cause(tmp_path: Path) -> None:
    ended = harness.run(short(), tmp_path, extra={"SCALEPERF_FAULT": "kill@3:1"})
    assert ended.code == 1
    assert ended.says("[rank1]:[scaleperf] SCALEPERF_FAULT: this rank will kill at step 3 on purpose")
    assert not ended.says("step:  3")
    cause = ended.log.split("Root Cause (first observed failure):")[1]
    assert "rank      : 1" in cause
    assert "SIGKILL" in cause
    assert ended.ranks()[1]["matmul_flops_after"] is None


def test_one_process_rehearses_512_ranks(tmp_path: Path) -> None:
    case = short(layout=Layout(128, 4))
    ended = harness.run(case, tmp_path, rehearse=True)
    assert ended.code == 0, ended.log[-3000:]
    assert ended.says("dp_replicate=4, dp_shard=128")
    assert list(ended.scalars()) == [0]
    assert max(ended.scalars()[0][harness.TPS]) == SHORT.steps


def speed(ended: harness.Ended) -> float:
    tps = ended.scalars()[0][harness.TPS]
    return statistics.median(value for step, value in tps.items() if step > SHORT.warmup + 1)
