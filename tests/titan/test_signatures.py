"""How runs end: the table of tests/data/logs/endings.yaml, and rules that hold for any log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pytest_scaleperf.model import Observation, Outcome, StopReason
from pytest_scaleperf.titan.observe import observe
from pytest_scaleperf.titan.signatures import End, classify
from tests.titan.logs import PARTS, begin, header, line, read

DATA = Path(__file__).parents[1] / "data"
ENDINGS = yaml.safe_load((DATA / "logs/endings.yaml").read_text(encoding="utf-8"))
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB."
WATCHDOG = (
    "[E820 09:23:20.000000000 ProcessGroupNCCL.cpp:689] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=321) ran for 600051 milliseconds before timing out."
)


def written(text: str) -> str:
    for name, part in PARTS.items():
        text = text.replace("{" + name + "}", part)
    return text


def value(name: str, seen: Observation) -> Any:
    if name in ("outcome", "last_step", "attempts"):
        return getattr(seen, name)
    assert seen.failure is not None
    if name == "reason":
        return seen.failure.details.get("reason")
    return getattr(seen.failure, name)


@pytest.mark.parametrize("case", ENDINGS, ids=[case["name"] for case in ENDINGS])
def test_ending(case: dict[str, Any], tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text(written(case["log"]), encoding="utf-8")
    known = dict(case["given"])
    if "stopped" in known:
        known["stopped"] = StopReason(known["stopped"])
    seen = observe(logs=[log], **known)
    expected = dict(case["expect"])
    consequence = expected.pop("consequence", None)
    warning = expected.pop("warning", None)
    expected.pop("detail", None)  # tests/test_cli_observe.py
    assert {name: value(name, seen) for name in expected} == expected
    if consequence:
        assert seen.failure is not None
        assert any(text.startswith(f"{consequence}:") for text in seen.failure.consequences)
    if warning:
        assert any(warning in text for text in seen.warnings)


def test_every_class_has_an_ending() -> None:
    assert {case["expect"]["outcome"] for case in ENDINGS} == set(Outcome)


def test_a_failure_names_its_line_and_the_line_says_it(tmp_path: Path) -> None:
    for case in ENDINGS:
        text = written(case["log"])
        log = tmp_path / "run.log"
        log.write_text(text, encoding="utf-8")
        known = {name: v for name, v in case["given"].items() if name != "stopped"}
        failure = observe(logs=[log], **known).failure
        if failure is not None and failure.line is not None and "not finite" not in failure.reason:
            shown = text.split("\n")[failure.line - 1]
            assert failure.reason.removeprefix("torchrun: ")[:40] in shown, case["name"]


@pytest.mark.parametrize(
    ("name", "outcome", "rank", "reason", "consequences"),
    [
        ("oom", Outcome.OOM, 1, "torch.OutOfMemoryError: CUDA out of memory", ["nccl_error: rank 0", "exit code -15"]),
        ("kill", Outcome.KILLED, 1, "E1130 20:39:56.653000", ["nccl_error: rank 0", "exit code -15: rank 0"]),
        (
            "hang",
            Outcome.NCCL_TIMEOUT,
            0,
            "RuntimeError: [/pytorch/pytorch/third_party/gloo",
            ["exit code -15: rank 1"],
        ),
        ("crash", Outcome.ERROR, 0, "RuntimeError: SCALEPERF_FAULT", ["nccl_error: rank 1", "exit code -15: rank 1"]),
        (
            "nan-0.3",
            Outcome.NAN_LOSS,
            0,
            "RuntimeError: Loss is not finite",
            ["nan_loss: rank 1", "exit code 1: rank 1"],
        ),
        ("nan-0.2", Outcome.NAN_LOSS, 0, "the loss printed at step 3 is not finite", []),
    ],
)
def test_faults_that_really_happened_on_a_cpu(
    name: str, outcome: Outcome, rank: int, reason: str, consequences: list[str]
) -> None:
    """Two gloo ranks under torchrun; one was made to fail in step 3."""
    seen = observe(logs=[DATA / f"cpu/{name}.txt"], exit_code=0 if name == "nan-0.2" else 1)
    failure = seen.failure
    assert failure is not None
    assert (seen.outcome, failure.rank) == (outcome, rank)
    assert failure.reason.startswith(reason)
    assert [
        shown for shown, said in zip(consequences, failure.consequences, strict=True) if not said.startswith(shown)
    ] == []
    if name.startswith("nan"):
        assert failure.step == 3


@given(st.permutations(range(8)), st.integers(0, 7))
def test_the_rank_that_ran_out_of_memory_decides_in_any_order(order: list[int], culprit: int) -> None:
    lines = [
        f"[rank{rank}]:[rank{rank}]: {OOM}" if rank == culprit else f"[rank{rank}]:[rank{rank}]:{WATCHDOG.format(rank)}"
        for rank in order
    ]
    ending = classify(
        read(PARTS["start"] + "\n" + "\n".join(lines)), End(exit_code=1, last_step=10, requested_steps=40)
    )
    assert ending.outcome is Outcome.OOM
    assert ending.failure is not None
    assert ending.failure.rank == culprit
    assert any(text.startswith("nccl_timeout: ") for text in ending.failure.consequences)


@given(st.text(max_size=300), st.sampled_from([None, 0, 1, 2, 137, 143, -9]))
def test_no_text_is_ever_a_completed_run(text: str, exit_code: int | None) -> None:
    ending = classify(read(text), End(exit_code=exit_code, requested_steps=10))
    assert ending.outcome is not Outcome.COMPLETED
    assert ending.failure is not None
    assert ending.failure.reason


def test_many_ranks_are_told_in_one_line() -> None:
    lines = [f"[rank{rank % 8}]:[rank{rank}]:{WATCHDOG.format(rank)}" for rank in range(512) if rank != 259]
    text = PARTS["start"] + f"\n[rank3]:[rank259]: {OOM}\n" + "\n".join(lines)
    failure = classify(read(text), End(exit_code=1, last_step=10)).failure
    assert failure is not None
    assert failure.rank == 259
    assert len(failure.consequences) == 1
    assert failure.consequences[0].startswith("nccl_timeout: ranks 0-258, 260-511: [E820 09:23:20")


def fast(*, failed_at: str) -> str:
    """A run of steps of 50 ms, with an OOM written into the file before two steps that came before it."""
    steps = [line(step, "13:04").replace("13:04,000", f"13:04,{50 * step:03}") for step in range(1, 9)]
    return begin() + "\n".join([*steps[:5], f"[rank1]:[rank1]: {failed_at}", *steps[5:]]) + "\n"


def test_steps_that_stand_behind_an_error_only_because_copies_are_late_prove_no_recovery() -> None:
    ending = classify(read(fast(failed_at=OOM)), End(exit_code=1, last_step=8, requested_steps=40))
    assert ending.outcome is Outcome.OOM


def test_the_copy_in_torchruns_report_is_no_second_failure() -> None:
    text = f"""{PARTS["start"]}
[rank1]:[rank1]: {OOM}
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
entry FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-08-20_09:13:20
  host      : node-a
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 100)
  error_file: /run/0/error.json
  traceback : Traceback (most recent call last):
    File "/w/train.py", line 1, in train
  RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:10658

------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-08-20_09:13:19
  host      : node-a
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 101)
  error_file: /run/1/error.json
  traceback : Traceback (most recent call last):
    File "/w/train.py", line 1, in train
      raise torch.OutOfMemoryError("{OOM}")
  {OOM}

============================================================
"""
    failure = classify(read(text), End(exit_code=1, last_step=10)).failure
    assert failure is not None
    assert (failure.outcome, failure.rank, failure.host, failure.line) == (Outcome.OOM, 1, "node-a", 5)
    assert [said.split(":")[0] for said in failure.consequences] == ["nccl_error", "exit code -15"]
    assert "rank 0: RuntimeError: [pair.cc:553]" in failure.consequences[0]


def test_the_report_alone_tells_why() -> None:
    report = """Root Cause (first observed failure):
[0]:
  time      : 2026-08-20_09:13:19
  host      : node-b
  rank      : 9 (local_rank: 1)
  exitcode  : 1 (pid: 101)
  error_file: /run/1/error.json
  traceback : Traceback (most recent call last):
    File "/w/train.py", line 1, in train
  RuntimeError: shape '[2, 8192]' is invalid for input of size 8192

============================================================
"""
    failure = classify(read(PARTS["start"] + "\n" + report), End(exit_code=1, last_step=10)).failure
    assert failure is not None
    assert (failure.outcome, failure.rank, failure.host) == (Outcome.ERROR, 9, "node-b")
    assert failure.reason.startswith("RuntimeError: shape")


def test_files_of_several_nodes_are_read_in_the_order_of_their_clocks() -> None:
    later = begin() + line(1) + f"\n[rank0]:[rank0]:{WATCHDOG.format(0).replace('09:23:20', '09:43:20')}\n"
    earlier = begin(rank="[rank0]:") + line(1, rank="[rank0]:") + f"\n[rank0]:[rank8]:{WATCHDOG.format(8)}\n"
    failure = classify(read(later, earlier), End(exit_code=1, last_step=1)).failure
    assert failure is not None
    assert (failure.rank, failure.details["file"]) == (8, "log1")


def test_an_error_file_of_its_own_is_read_for_the_last_attempt_only() -> None:
    out = begin() + line(1) + "\n" + begin(first=2, clock="15:00") + line(10, "15:10") + "\n"
    err = (
        f"[rank0]:[rank0]:{WATCHDOG.format(0).replace('09:23:20', '09:14:00')}\n"
        "[rank1]:[rank1]:[E820 09:16:00.000000000 ProcessGroupNCCL.cpp:1] [Rank 1] NCCL error: unhandled system error\n"
    )
    ending = classify(read(out, err), End(exit_code=1, last_step=10))
    assert ending.outcome is Outcome.NCCL_ERROR


@pytest.mark.parametrize("state", ["TIMEOUT", "timeout", "CANCELLED by 0", "CANCELLED+", "NODE_FAIL", "PREEMPTED"])
def test_states_are_read_in_any_spelling(state: str) -> None:
    expected = {
        "timeout": Outcome.TIME_LIMIT,
        "cancelled": Outcome.CANCELLED,
        "node_fail": Outcome.NODE_FAILURE,
        "preempted": Outcome.PREEMPTED,
    }
    ending = classify(read(PARTS["start"]), End(exit_code=143, slurm_state=state, last_step=10, requested_steps=40))
    assert ending.outcome is expected[state.lower().split()[0].rstrip("+")]


def test_a_state_that_says_failed_is_believed_over_the_marker() -> None:
    text = "\n".join(PARTS.values())
    ending = classify(read(text), End(slurm_state="FAILED", last_step=40, requested_steps=40))
    assert ending.outcome is Outcome.ERROR


def test_a_warning_of_torchtitan_is_no_failure() -> None:
    text = PARTS["start"] + "\n" + header("13:20").replace("INFO", "WARNING") + "CUDA out of memory was avoided\n"
    ending = classify(read(text), End(last_step=10, requested_steps=10))
    assert ending.outcome is Outcome.COMPLETED
