"""The published search as a suite: torchtitan's own parser reads every one of its command lines as it is meant."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from pytest_scaleperf import published
from pytest_scaleperf.model import ActivationCheckpoint, Case
from pytest_scaleperf.suite import load_suite, pairs
from pytest_scaleperf.system import load_system
from pytest_scaleperf.titan import command
from tests.titan import cases, interpreters
from tests.titan.test_parsed_by_torchtitan import AC_03, read_by_torchtitan

SUITE = load_suite(interpreters.ROOT / "suites" / "b200_30b_a3b.yaml")
SYSTEM = load_system(interpreters.ROOT / "baselines", "b200")
CASES = {case.id: case for case in SUITE.cases()}


@functools.cache
def parsed() -> dict[str, dict[str, Any]]:
    spoken = cases.dialect("0.3")
    flags = {name: command.flags(case, spoken, cases.RUN_DIR, device=SYSTEM.device) for name, case in CASES.items()}
    return read_by_torchtitan("0.3", flags, seconds=300)


def test_the_ladder_is_the_published_one() -> None:
    assert [rung.gpus for rung in SUITE.rungs] == [8, 16, 128, 512]
    layouts = {(case.gpus, case.layout.dp_shard, case.layout.dp_replicate) for case in CASES.values()}
    assert layouts == {(8, 8, 1), (16, 8, 2), (16, 16, 1), (128, 128, 1), (512, 128, 4)}
    last = {case.batch.local: case for case in CASES.values() if case.gpus == 512}
    assert {case.activation_checkpoint for case in last.values()} == {ActivationCheckpoint.SELECTIVE}
    assert 22 in last


def test_every_batch_is_found_and_every_published_row_is_a_case_that_can_be_found() -> None:
    assert all(case.search is not None for case in CASES.values())
    said = published.read(published.path_of(interpreters.ROOT / "baselines", "b200", SUITE.name))
    assert said is not None
    assert said.cases.keys() <= CASES.keys()
    assert {row.gpus for row in said.cases.values()} == {16, 128, 512}
    assert all(CASES[name].gpus == row.gpus for name, row in said.cases.items())
    assert said.scaling.keys() <= {pair.id for pair in pairs(SUITE)}


def test_published_speed_and_share_of_the_peak_agree_with_the_system_file() -> None:
    said = published.read(published.path_of(interpreters.ROOT / "baselines", "b200", SUITE.name))
    assert said is not None
    assert SYSTEM.peak_flops is not None
    flops = [row.mfu / 100 * SYSTEM.peak_flops / row.tps for row in said.cases.values() if row.mfu and row.tps]
    assert all(29.6e9 < each < 29.8e9 for each in flops)
    [small, middle, large] = sorted(said.cases.values(), key=lambda row: row.gpus)
    assert small.tps
    assert middle.tps
    assert large.tps
    told = {pair: row.efficiency for pair, row in said.scaling.items()}
    assert told[f"{SUITE.name}-16to128gpu-selective"] == pytest.approx(middle.tps / small.tps, abs=0.001)
    assert told[f"{SUITE.name}-16to512gpu-fsdp128-selective"] == pytest.approx(large.tps / small.tps, abs=0.001)


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_a_case_is_read_as_it_is_meant(case: Case) -> None:
    config = parsed()[case.id]
    assert config["_model"] == ["qwen3", "30B-A3B"]
    assert config["parallelism"]["data_parallel_shard_degree"] == case.layout.dp_shard
    assert config["parallelism"]["data_parallel_replicate_degree"] == case.layout.dp_replicate
    training = config["training"]
    assert (training["local_batch_size"], training["seq_len"]) == (case.batch.local, 4096)
    assert training["global_batch_size"] == case.batch.local * case.gpus
    assert training["steps"] == 30
    assert config["debug"]["moe_force_load_balance"] is True
    checkpoint = config["activation_checkpoint"]
    assert (checkpoint and checkpoint["_class"]) == AC_03[case.activation_checkpoint]
