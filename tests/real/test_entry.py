"""What the entry does inside a job, apart from training: its tokens, its refusals."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tests.titan import cases

ENTRY = [sys.executable, "-m", "pytest_scaleperf.titan.entry"]


@pytest.fixture
def tokens() -> Any:
    pytest.importorskip("torch", reason="torch is not installed here")
    from pytest_scaleperf.titan.inside import tokens  # noqa: PLC0415 - imports torch

    return tokens


def draw(tokens: Any, *, dp_rank: int, positions: bool = True, batches: int = 2) -> list[Any]:
    made = tokens.SyntheticTokens(vocabulary=50, sequence=64, batch=3, dp_rank=dp_rank, positions=positions)
    return [batch for _, batch in zip(range(batches), made, strict=False)]


def test_tokens_have_the_form_that_torchtitan_reads(tokens: Any) -> None:
    import torch  # noqa: PLC0415 - only where the fixture found it

    for inputs, labels in draw(tokens, dp_rank=0):
        assert inputs["input"].shape == inputs["positions"].shape == labels.shape == (3, 64)
        assert inputs["input"].dtype == inputs["positions"].dtype == labels.dtype == torch.int64
        assert torch.equal(inputs["input"][:, 1:], labels[:, :-1])
        assert inputs["positions"].tolist() == [list(range(64))] * 3
        assert 1 <= int(inputs["input"].min()) <= int(inputs["input"].max()) < 50
    assert list(draw(tokens, dp_rank=0, positions=False)[0][0]) == ["input"]


def test_tokens_differ_by_rank_and_by_batch_and_are_the_same_every_time(tokens: Any) -> None:
    drawn = {rank: [labels.tolist() for _, labels in draw(tokens, dp_rank=rank)] for rank in (0, 1, 0)}
    assert drawn[0] == [labels.tolist() for _, labels in draw(tokens, dp_rank=0)]
    assert drawn[0] != drawn[1]
    assert drawn[0][0] != drawn[0][1]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("SCALEPERF_SLOWDOWN", "0.5", "a number from 1 upwards, found '0.5'"),
        ("SCALEPERF_MOST_MEMORY", "1.2", "a share of the device's memory, above 0 and at most 1, found '1.2'"),
        ("SCALEPERF_MOST_MEMORY", "all", "a share of the device's memory, above 0 and at most 1, found 'all'"),
        ("SCALEPERF_SLOWDOWN", "nan", "a number from 1 upwards, found 'nan'"),
        ("SCALEPERF_FAULT", "oops@3", "KIND one of oom, nan, hang, stop, crash, kill, found 'oops@3'"),
        ("SCALEPERF_FAULT", "oom@0", "found 'oom@0'"),
    ],
)
def test_a_trial_that_cannot_be_is_refused(
    tokens: Any, capsys: pytest.CaptureFixture[str], name: str, text: str, expected: str
) -> None:
    del tokens  # only asks for torch
    from pytest_scaleperf.titan.inside import memory, trials  # noqa: PLC0415 - imports torch

    read = {
        trials.SLOWDOWN: trials.read_slowdown,
        trials.FAULT: trials.read_fault,
        memory.MOST_MEMORY: memory.read_share,
    }
    with pytest.raises(SystemExit) as caught:
        read[name]({name: text})
    assert caught.value.code == 2
    line = capsys.readouterr().err
    assert line.startswith(f"[scaleperf] {name}: expected ")
    assert expected in line


def test_a_refusal_is_one_line_and_exit_code_2(tokens: Any) -> None:
    del tokens  # only asks for torch
    done = subprocess.run(ENTRY, env=cases.inherited(SCALEPERF_FAULT="x"), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1


def test_a_trial_that_can_be_is_read(tokens: Any) -> None:
    del tokens  # only asks for torch
    from pytest_scaleperf.titan.inside import trials  # noqa: PLC0415 - imports torch

    assert trials.read_slowdown({}) == 1.0
    assert trials.read_slowdown({trials.SLOWDOWN: "2.5"}) == 2.5
    assert trials.read_fault({}) is None
    assert trials.read_fault({trials.FAULT: "hang@5:3"}) == trials.Fault(trials.Kind.HANG, 5, 3)
    assert trials.read_fault({trials.FAULT: "oom@12"}) == trials.Fault(trials.Kind.OOM, 12, 0)


def test_peak_memory_is_that_since_the_last_reset(tokens: Any) -> None:
    del tokens  # only asks for torch
    from pytest_scaleperf.titan.inside import cpu  # noqa: PLC0415 - imports torch

    size, slack = 300 << 20, 4 << 20  # the kernel counts a thread's pages in batches
    cpu._reset_peak()
    before = cpu._peak_bytes()
    held = bytearray(size)  # zeroed, so it is resident
    during = cpu._peak_bytes()
    del held
    assert cpu._peak_bytes() > during - slack, "a peak stays until it is reset"
    assert during - before > 0.9 * size
    cpu._reset_peak()
    assert cpu._peak_bytes() < during - 0.9 * size
    assert cpu._memory_stats()["num_alloc_retries"] == 0


def test_the_peak_rate_is_the_median_of_what_was_sampled(tokens: Any) -> None:
    del tokens  # only asks for torch
    from pytest_scaleperf.titan.inside.peak import Peak  # noqa: PLC0415 - imports torch

    peak = Peak()
    assert peak.facts()["matmul_flops"] is None
    peak.before = 100e9
    assert peak.facts()["matmul_flops"] == 100e9
    assert peak.facts()["matmul_flops_after"] is None
    peak.steps = {1: 1e9, 2: 60e9, 3: 50e9, 4: 40e9}  # step 1 is never judged on
    peak.after = 20e9
    assert peak.facts()["matmul_flops"] == 55e9
    assert peak.facts()["matmul_flops_after"] == 45e9
