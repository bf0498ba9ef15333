"""The H200 suites: torchtitan 0.2.2's own parser reads every one of their command lines as it is meant."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from pytest_scaleperf.model import ActivationCheckpoint, Case, Outcome
from pytest_scaleperf.suite import Ladder, load_suite
from pytest_scaleperf.system import load_system
from pytest_scaleperf.titan import command
from tests.titan import cases, interpreters
from tests.titan.test_parsed_by_torchtitan import read_by_torchtitan

SUITES = {
    path.stem: load_suite(path)
    for path in sorted((interpreters.ROOT / "suites").glob("h200_*.yaml"))
}  # fmt: skip
SYSTEM = load_system(interpreters.ROOT / "baselines", "h200")
CASES = {case.id: case for suite in SUITES.values() for case in suite.cases()}
EIGHT = [case for case in CASES.values() if case.suite.name == "h200-30b-a3b-16l"]


@functools.cache
def parsed() -> dict[str, dict[str, Any]]:
    spoken = cases.dialect("0.2")
    flags = {name: command.flags(case, spoken, cases.RUN_DIR, device=SYSTEM.device) for name, case in CASES.items()}
    return read_by_torchtitan("0.2", flags, seconds=300)


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_a_case_is_read_as_it_is_meant(case: Case) -> None:
    config = parsed()[case.id]
    assert config["_model"] == [case.suite.trainer.module, case.suite.trainer.config]
    degrees = {
        "data_parallel_shard_degree": case.layout.dp_shard,
        "data_parallel_replicate_degree": case.layout.dp_replicate,
        "expert_parallel_degree": case.layout.ep,
        "tensor_parallel_degree": 1,
        "pipeline_parallel_degree": 1,
    }
    assert {key: config["parallelism"][key] for key in degrees} == degrees
    training = config["training"]
    assert (training["local_batch_size"], training["seq_len"]) == (case.batch.local, case.batch.sequence)
    assert training["global_batch_size"] == case.batch.global_
    assert config["activation_checkpoint"]["mode"] == case.activation_checkpoint
    assert config["compile"]["enable"] is True
    assert config["debug"]["moe_force_load_balance"] is (case.suite.trainer.module == "qwen3")


def test_eight_gpus_are_laid_out_in_four_ways() -> None:
    layouts = {(case.layout.dp_shard, case.layout.dp_replicate, case.layout.ep) for case in EIGHT if case.gpus == 8}
    assert layouts == {(8, 1, 1), (4, 2, 1), (2, 4, 1), (8, 1, 8)}
    for layout in layouts:
        modes = {
            case.activation_checkpoint
            for case in EIGHT
            if case.gpus == 8 and (case.layout.dp_shard, case.layout.dp_replicate, case.layout.ep) == layout
        }
        assert modes == {ActivationCheckpoint.SELECTIVE, ActivationCheckpoint.FULL}


def test_every_rung_above_two_is_gated_and_one_gpu_is_known_to_be_too_small() -> None:
    suite = SUITES["h200_8gpu"]
    assert [rung.gpus for rung in suite.rungs] == [1, 2, 4, 8]
    assert [case.expect for case in EIGHT if case.gpus == 1] == [Outcome.OOM]
    ladder = Ladder(suite)
    for case in EIGHT:
        parents = ladder.parents(case)
        assert {parent.gpus for parent in parents} == ({case.gpus // 2} if case.gpus > 2 else set())
        assert all(parent.activation_checkpoint is case.activation_checkpoint for parent in parents)
    searched = {case.batch.local for case in EIGHT if case.search is not None}
    assert searched == {4, 8, 12, 16, 20, 24}


def test_the_eight_layer_cut_climbs_from_one_to_eight() -> None:
    suite = SUITES["h200_30b_a3b"]
    assert [rung.gpus for rung in suite.rungs] == [1, 2, 4, 8]
