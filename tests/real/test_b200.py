"""Layouts of suites/b200_30b_a3b.yaml at 16, 128 and 512 ranks, rehearsed by real torchtitan with its small Qwen3 MoE.

The suite's own cases, each with a model that a CPU holds: what torchtitan makes of the layout, the mode of activation
checkpointing and the forced load balance is that of the real run.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_scaleperf.model import Batch, Measure
from pytest_scaleperf.suite import load_suite
from tests.real import harness
from tests.titan import interpreters

SUITE = load_suite(interpreters.ROOT / "suites" / "b200_30b_a3b.yaml")
CASES = {case.id.removeprefix(f"{SUITE.name}-"): case for case in SUITE.cases()}
SHORT = Measure(steps=3, warmup=1, log_freq=1)
RUNGS = [
    "16gpu-fsdp8-dp2-none-lbs2",
    "16gpu-fsdp16-dp1-full-lbs2",
    "128gpu-fsdp128-dp1-selective-lbs2",
    "512gpu-fsdp128-dp4-selective-lbs2",
]


@pytest.mark.parametrize("name", RUNGS)
def test_the_suites_layout_trains_with_a_small_mixture_of_experts(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    trainer = replace(case.suite.trainer, config="qwen3_moe_debug")
    batch = Batch(1, case.layout.data_parallel, 1, 64)
    small = replace(case, suite=replace(case.suite, trainer=trainer, measure=SHORT), batch=batch)
    ended = harness.run(small, tmp_path, rehearse=True)
    assert ended.code == 0, ended.log[-3000:]
    assert ended.says(f"dp_replicate={case.layout.dp_replicate}, dp_shard={case.layout.dp_shard}")
    assert max(ended.scalars()[0][harness.TPS]) == SHORT.steps
