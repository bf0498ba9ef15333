"""Faults on real GPUs: each has its class and its rank, and gives the GPUs back."""

from __future__ import annotations

import pytest

from tests.gpu.conftest import Lab, check_given_back, memory_used

STEP = 10


@pytest.mark.parametrize(
    ("fault", "outcome", "rank"), [("kill", "killed", 1), ("crash", "error", 1), ("nan", "nan_loss", None)]
)
def test_a_rank_that_fails_at_a_step(lab: Lab, fault: str, outcome: str, rank: int | None) -> None:
    before = memory_used()
    ended = lab.run(SCALEPERF_FAULT=f"{fault}@{STEP}:1")
    assert ended.code == 1, ended.out[-3000:]
    assert ended.sample["outcome"] == outcome, ended.out[-3000:]
    if rank is not None:  # a NaN of one rank is everybody's once the loss is averaged
        assert ended.failure["rank"] == rank
    check_given_back(before)


def test_a_stopped_rank_is_told_by_the_watchdog_of_the_other(lab: Lab) -> None:
    """SIGSTOP: the process lives, says nothing, and ignores SIGTERM; NCCL's watchdog speaks after half of the limit."""
    before = memory_used()
    ended = lab.run(SCALEPERF_FAULT=f"stop@{STEP}:1")
    assert ended.code == 1, ended.out[-3000:]
    assert ended.sample["outcome"] == "nccl_timeout", ended.out[-3000:]
    assert ended.failure["rank"] == 0
    assert ended.failure["details"]["quiet_ranks"] == [1]
    assert ended.sample["stopped"] in ("no_progress", None)
    check_given_back(before)


def test_a_batch_that_does_not_fit(lab: Lab) -> None:
    lab.suite["sequence"] = 2048
    (entry,) = lab.suite["ladder"]
    entry["local_batch"] = 16_384  # 33 million tokens: their logits alone take 128 GiB
    before = memory_used()
    ended = lab.run()
    assert ended.code == 1, ended.out[-3000:]
    assert ended.sample["outcome"] == "oom", ended.out[-3000:]
    assert ended.failure["rank"] in (0, 1)
    assert ended.failure["requested_gib"] > 1
    check_given_back(before)


def test_a_run_that_is_well_gives_the_gpus_back_too(lab: Lab) -> None:
    before = memory_used()
    ended = lab.run("--record-baselines")
    assert ended.record["decision"] == "recorded", ended.out[-3000:]
    assert ended.sample["outcome"] == "completed"
    check_given_back(before)
