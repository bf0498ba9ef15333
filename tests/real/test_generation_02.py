"""torchtitan 0.2.2 trains for real as well, in an environment of its own that SCALEPERF_TITAN02_PYTHON names."""

from __future__ import annotations

from pathlib import Path

from pytest_scaleperf.model import ActivationCheckpoint, Layout, Measure
from tests.real import harness
from tests.titan import cases

SHORT = Measure(steps=4, warmup=1, log_freq=1)


def test_fsdp_with_selective_recomputation_and_a_trace(tmp_path: Path) -> None:
    trainer = cases.trainer("0.2", args=cases.traced("0.2"))
    case = cases.case(trainer, measure=SHORT, sequence=128, accumulation=2, checkpoint=ActivationCheckpoint.SELECTIVE)
    ended = harness.run(case, tmp_path)
    harness.check_trained(ended)
    assert ended.says("torchtitan version: 0.2.2")
    assert ended.says("Applied selective activation checkpointing to the model")
    assert ended.says("gradient accumulation steps 2, sequence length 128")
    expected = {"scaleperf.forward": 2, "scaleperf.backward": 2, "scaleperf.optimizer": 1}
    assert ended.phases() == {0: expected, 1: expected}


def test_one_process_rehearses_512_ranks(tmp_path: Path) -> None:
    case = cases.case(cases.trainer("0.2"), measure=SHORT, sequence=128, layout=Layout(128, 4))
    ended = harness.run(case, tmp_path, rehearse=True)
    assert ended.code == 0, ended.log[-3000:]
    assert max(ended.scalars()[0][harness.TPS]) == SHORT.steps
