"""The layouts of suites/h200_8gpu.yaml at world size 8, rehearsed by one process with a debug model on this CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_scaleperf.model import Layout, Measure
from tests.real import harness
from tests.titan import cases

SHORT = Measure(steps=3, warmup=1, log_freq=1)


@pytest.mark.parametrize("layout", [Layout(4, 2), Layout(2, 4)], ids=lambda layout: layout.label)
def test_replicas_of_shards_under_the_suites_torchtitan(tmp_path: Path, layout: Layout) -> None:
    case = cases.case(cases.trainer("0.2"), measure=SHORT, sequence=128, layout=layout)
    ended = harness.run(case, tmp_path, rehearse=True)
    assert ended.code == 0, ended.log[-3000:]
    assert ended.says(f"dp_replicate={layout.dp_replicate}, dp_shard={layout.dp_shard}, cp=1, tp=1, ep=1")
    assert max(ended.scalars()[0][harness.TPS]) == SHORT.steps


def test_experts_apart_on_eight_ranks(tmp_path: Path) -> None:
    trainer = cases.trainer("0.3", "moe", force_load_balance=True)
    case = cases.case(trainer, measure=SHORT, sequence=64, layout=Layout(8, 1, ep=8))
    ended = harness.run(case, tmp_path, rehearse=True)
    assert ended.code == 0, ended.log[-3000:]
    assert max(ended.scalars()[0][harness.TPS]) == SHORT.steps


def test_the_suites_torchtitan_lays_the_experts_out_so_and_a_cpu_takes_it_no_further(tmp_path: Path) -> None:
    """torchtitan 0.2.2 counts tokens by a function that torch has for GPUs alone: the mesh is built before."""
    trainer = cases.trainer("0.2", "moe", force_load_balance=True)
    ended = harness.run(
        cases.case(trainer, measure=SHORT, sequence=64, layout=Layout(8, 1, ep=8)), tmp_path, rehearse=True
    )
    assert ended.says("Successfully created meshes with active dimensions: ['batch', 'loss', 'fsdp', 'ep']")
    assert ended.says("histogram_cpu"), "if it trains now, the test above can be of this torchtitan"
