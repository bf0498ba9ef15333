"""What explains the difference of two steps: real runs, and a change made by hand."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest

from pytest_scaleperf.model import TraceError
from pytest_scaleperf.trace.analyse import analyse
from pytest_scaleperf.trace.diff import describe_difference, difference, difference_data
from pytest_scaleperf.trace.result import TraceReport
from pytest_scaleperf.trace.rules import Phase
from tests.trace.conftest import TRACES
from tests.trace.script import ENGINE, US, Script

STEP = 10_000


def made(path: Path, *, gemm: int = 100, reduce: int = 30, extra: bool = False) -> TraceReport:
    """Three steps of a kernel, a collective beside it, in forward; 5 us idle, and a backward."""
    script = Script(0, 1)
    script.kernel("gemm", -10 * US, -5 * US)
    at = 0
    for number in (1, 2, 3):
        base = number * STEP
        script.step(number, base, base + STEP - 10)
        script.evaluate(base + 500, base + 600)
        script.kernel("gemm<1>", at, at + gemm * US, base + 10)
        script.collective("allreduce", 10, at + 90 * US, at + (90 + reduce) * US, launched=base + 20)
        at += max(gemm, 90 + reduce) * US + 5 * US
        script.kernel("bwd", at, at + 40 * US, base + 550, tid=ENGINE)
        at += 40 * US
        if extra:
            script.kernel("new_kernel", at, at + 7 * US, base + 560, tid=ENGINE)
            at += 7 * US
    return analyse([script.write(path / f"{gemm}-{reduce}-{extra}.json")])


def test_a_slower_kernel_and_a_new_one(tmp_path: Path) -> None:
    """The GEMM takes 12 us more, 12 us of the collective are hidden by that, a new kernel takes 7 us."""
    found = difference(made(tmp_path), made(tmp_path, gemm=112, extra=True))
    assert [(item.name, item.phase, int(item.change)) for item in found.items if item.change] == [
        ("ncclDevKernel_allreduce", Phase.FORWARD, -12 * US),
        ("gemm", Phase.FORWARD, 12 * US),
        ("new_kernel", Phase.LAST_BACKWARD, 7 * US),
    ]
    assert found.change == 7 * US
    (new,) = [item for item in found.items if item.name == "new_kernel"]
    assert [*map(int, new.count), *map(int, new.busy)] == [0, 1, 0, 7 * US]


def test_a_longer_collective_counts_only_where_it_is_exposed(tmp_path: Path) -> None:
    found = difference(made(tmp_path, reduce=5), made(tmp_path, reduce=40))
    (item,) = [item for item in found.items if item.change]
    assert (item.kind, item.label, int(item.change)) == ("communication", "all_reduce", 30 * US)
    assert [*map(int, item.busy)] == [5 * US, 40 * US]


def test_real_runs_add_up_exactly(fsdp: TraceReport, ddp: TraceReport) -> None:
    found = difference(fsdp, ddp)
    assert sum(item.change for item in found.items) == found.change
    assert found.step[0] == Fraction(494_322_215 + 503_937_852 + 494_291_633 + 503_939_325, 4)
    assert [abs(item.change) for item in found.items] == sorted(
        (abs(item.change) for item in found.items), reverse=True
    )
    assert found.items[0].name == "multi_tensor_apply_kernel[FusedAdamMathFunctor]"
    assert "2 ranks on one side, 1 on the other" in found.notes
    assert "RING" not in " ".join(item.name for item in found.items), "NCCL's suffix is no algorithm"


def test_the_table_ends_in_its_sum(fsdp: TraceReport, ddp: TraceReport) -> None:
    lines = describe_difference(difference(fsdp, ddp), top=5)
    assert lines[0].startswith("step: 499.123 ms -> 617.344 ms, +118.221 ms (+23.69 %)")
    shown = [float(line.split()[-1]) for line in lines[3:9]]
    assert sum(shown) == pytest.approx(118.221, abs=0.01)
    assert lines[8].startswith("3") and " others " in lines[8]  # noqa: PT018 - one line
    assert lines[9].split() == ["sum", "+118.221"]


def test_the_same_twice_is_nothing(ddp: TraceReport) -> None:
    found = difference(ddp, ddp)
    assert found.change == 0
    assert not any(item.change for item in found.items)


def test_one_side_without_phases(tmp_path: Path, ddp: TraceReport) -> None:
    script = Script(0, 1)
    script.kernel("gemm", 0, 10 * US, 5)
    found = difference(analyse([script.write(tmp_path / "t.json")]), ddp)
    assert {item.phase for item in found.items} == {None}
    assert "phases are not told apart, for one side does not tell them" in found.notes
    assert "the first has no whole step: what lies between steps is missing there" in found.notes


def test_data_for_machines(tmp_path: Path) -> None:
    data = json.loads(json.dumps(difference_data(difference(made(tmp_path), made(tmp_path, extra=True)))))
    assert data["change"] == 7 * US == sum(item["change"] for item in data["items"])


def test_gpu_and_cpu_are_not_compared(ddp: TraceReport) -> None:
    cpu = analyse([TRACES / "gloo-rank0.json.gz"])
    with pytest.raises(TraceError, match="cannot be compared"):
        difference(cpu, ddp)
