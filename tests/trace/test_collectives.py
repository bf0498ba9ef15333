"""Collectives: sizes, what goes over the wire, bandwidth from the rank that waited least, skew, groups, coverage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_scaleperf.trace.analyse import analyse
from pytest_scaleperf.trace.calls import element_bytes, message_bytes, wire_bytes
from pytest_scaleperf.trace.columns import Collective
from pytest_scaleperf.trace.measures import counts, metrics
from pytest_scaleperf.trace.names import operation
from pytest_scaleperf.trace.result import CollectiveReport, TraceReport
from tests.trace.script import ENGINE, US, Script

STEP = 10_000
MIB = 1 << 20


def run(path: Path, ranks: list[list[tuple[str, int, int]]], **more: Any) -> TraceReport:
    """One step in which each rank runs (call, elements, microseconds) one after the other."""
    paths = []
    for rank, calls in enumerate(ranks):
        script = Script(rank, len(ranks))
        script.step(3, 0, STEP)
        script.evaluate(5000, 5100)
        script.kernel("gemm", 0, 10 * US, 5)
        at = 10 * US
        for place, (call, elements, lasting) in enumerate(calls):
            script.collective(call, elements, at, at + lasting * US, launched=10 + place, **more)
            at += lasting * US
        paths.append(script.write(path / f"rank{rank}.json"))
    return analyse(paths)


def only(report: TraceReport) -> CollectiveReport:
    (found,) = report.collectives
    return found


def test_bandwidth_is_that_of_the_rank_that_waited_least(tmp_path: Path) -> None:
    """4 MiB floats twice; the first rank waits in the first call, the second in the other: 100 us of work each."""
    found = only(
        run(
            tmp_path,
            [[("allreduce", MIB, 900), ("allreduce", MIB, 100)], [("allreduce", MIB, 100), ("allreduce", MIB, 500)]],
        )
    )
    assert (found.op, found.title) == ("all_reduce", "all_reduce [mesh x 2]")
    assert (found.counts, found.bytes) == ((2,), (8 * MIB,))
    assert found.time == 200 * US
    assert found.bandwidth == pytest.approx(8 * MIB / (200 * US))  # bytes a nanosecond are GB/s; 2(n-1)/n = 1
    assert found.marks == ()
    assert found.skew == (600 * US, 800 * US)


def test_send_and_receive_are_not_matched(tmp_path: Path) -> None:
    """A pipeline's ranks send and receive in different orders: each call counts by itself, and the wait is said."""
    found = run(tmp_path, [[("send", MIB, 10), ("recv", MIB, 90)], [("recv", MIB, 10), ("send", MIB, 20)]])
    assert {each.op for each in found.collectives} == {"send", "recv"}
    assert all(
        each.skew is None and each.marks == ("times include waiting for the peer",) for each in found.collectives
    )


def test_ranks_that_disagree_are_said(tmp_path: Path) -> None:
    found = only(run(tmp_path, [[("allreduce", MIB, 10)], [("allreduce", 2 * MIB, 10)]]))
    assert found.marks == ("the ranks do not agree on the calls",)
    assert found.bytes == (4 * MIB, 8 * MIB)
    assert found.skew is None


def test_a_rank_without_the_call_is_a_count_of_zero(tmp_path: Path) -> None:
    found = only(run(tmp_path, [[("allreduce", MIB, 10)], []]))
    assert found.counts == (0, 1)
    assert "calls all_reduce [mesh x 2]" not in counts(run(tmp_path, [[("allreduce", MIB, 10)], []]))


def test_groups_are_told_apart(tmp_path: Path) -> None:
    """HSDP on four ranks: two shard groups of the same name run side by side, each matched by itself."""
    paths = []
    for rank in range(4):
        script = Script(rank, 4)
        script.step(3, 0, STEP)
        group = [0, 1] if rank < 2 else [2, 3]
        said = {"Process Group Ranks": str(group), "Process Group Name": str(group[0])}
        script.collective("_allgather_base", MIB, 0, (100 + 100 * rank) * US, launched=10, said=said)
        paths.append(script.write(tmp_path / f"rank{rank}.json"))
    found = only(analyse(paths))
    assert found.time == (100 + 300) / 2 * US
    assert found.bandwidth == pytest.approx(2 * 4 * MIB / (400 * US))  # (n-1)/n of 8 MiB on each of two groups
    assert found.marks == ()
    assert found.skew == (100 * US, 100 * US)


def test_long_lists_of_ranks_are_told_apart_by_name(tmp_path: Path) -> None:
    paths = []
    for rank, lasting in ((0, 100), (64, 50)):
        script = Script(rank, 128)
        script.step(3, 0, STEP)
        said = {"Process Group Ranks": "[0, 1, 2, ...]", "Process Group Name": str(rank), "Group size": 64}
        script.collective("allreduce", MIB, 0, lasting * US, launched=10, said=said)
        paths.append(script.write(tmp_path / f"rank{rank}.json"))
    found = only(analyse(paths))
    assert found.skew is None
    assert found.marks == ("1 of 64 ranks read: times include waiting for the others",)


def test_coverage_under_95_percent_marks_bandwidth(tmp_path: Path) -> None:
    script = Script(0, 1)
    script.step(3, 0, STEP)
    for at in range(10):
        script.collective("allreduce", MIB, at * 10 * US, (at * 10 + 5) * US, launched=10, said={"Group size": 1})
    for at in (100, 110):
        script.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", at * US, (at + 5) * US, 20)
    report = analyse([script.write(tmp_path / "rank0.json")])
    assert report.ranks[0].coverage() == pytest.approx(10 / 12)
    assert all("only 83% of its calls say their sizes" in each.marks for each in report.collectives)
    assert not any(name.startswith("bandwidth_gb_s") for name in metrics(report))


@pytest.mark.parametrize(
    ("op", "call", "size", "wire"),
    [
        ("all_gather", Collective("x", 10, 80, 8, "BFloat16"), 160, 140),
        ("all_gather", Collective("x", 10, None, 8, "Float"), 320, 280),
        ("reduce_scatter", Collective("x", 80, 10, 8, "Float"), 320, 280),
        ("all_to_all", Collective("x", 80, 80, 8, "Float8_e4m3fn"), 80, 70),
        ("all_reduce", Collective("x", 80, 80, 8, "Long"), 640, 1120),
        ("broadcast", Collective("x", 80, 80, 8, "Char"), 80, 80),
        ("recv", Collective("x", 0, 80, 8, "Half"), 160, 160),
        ("all_reduce", Collective("x", 80, 80, None, "Float"), 320, None),
        ("all_reduce", Collective("x", 80, 80, 8, "Quaternion"), None, None),
        ("all_reduce", Collective("x", None, None, 8, "Float"), None, None),
        ("all_reduce", Collective("x", 80, 80, 1, "ComplexFloat"), 640, 0),
    ],
)
def test_bytes_and_wire(op: str, call: Collective, size: int | None, wire: int | None) -> None:
    assert message_bytes(op, call) == size
    assert wire_bytes(op, size, call.group_size) == wire


@pytest.mark.parametrize(
    ("dtype", "size"), [("c10::BFloat16", 2), ("float", 4), ("long int", 8), ("Float4_e2m1fn_x2", 1)]
)
def test_types_of_both_spellings(dtype: str, size: int) -> None:
    assert element_bytes(dtype) == size


@pytest.mark.parametrize(
    ("call", "op"),
    [
        ("_allgather_base", "all_gather"),
        ("allgather_into_tensor_coalesced", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("allreduce", "all_reduce"),
        ("all_to_allv", "all_to_all"),
        ("alltoall_base_", "all_to_all"),
        ("_broadcast_oop", "broadcast"),
        ("send", "send"),
        ("recv_", "recv"),
        ("_reduce_oop", "reduce"),
        ("barrier", "barrier"),
        ("coalesced", "communication"),
    ],
)
def test_calls_by_their_names(call: str, op: str) -> None:
    assert operation(call) == op


def accumulating(path: Path, *, forward: bool, first: int, large: int = MIB) -> TraceReport:
    """Two microbatches with all_reduces: in forward if asked, in the first backward ``first`` ones, two in the last."""
    script = Script(0, 1)
    script.step(3, 0, STEP)
    at = [0]

    def reduce(when: int, tid: int) -> None:
        script.collective("allreduce", large, at[0], at[0] + 10 * US, launched=when, tid=tid)
        at[0] += 10 * US

    if forward:
        reduce(5, 100)
    script.evaluate(100, 200)
    for _ in range(first):
        reduce(150, ENGINE)
    script.kernel("gemm", at[0], at[0] + 5 * US, 500)
    at[0] += 5 * US
    script.evaluate(1000, 1100)
    for _ in range(2):
        reduce(1050, ENGINE)
    return analyse([script.write(path / "rank0.json")])


def test_a_reduce_in_every_backward_is_found(tmp_path: Path) -> None:
    found = accumulating(tmp_path, forward=False, first=2).repeated
    assert found is not None
    assert (found.backwards, found.bytes, found.saving) == (2, 8 * MIB, 20 * US)


@pytest.mark.parametrize(
    "how",
    [
        {"forward": True, "first": 2},  # tensor parallelism: activations, which every microbatch must reduce
        {"forward": False, "first": 1},  # not what the last one reduces
        {"forward": False, "first": 0},  # the published optimisation
        {"forward": False, "first": 2, "large": 100},  # losses and norms
    ],
)
def test_other_reduces_are_not_complained_of(how: dict[str, Any], tmp_path: Path) -> None:
    assert accumulating(tmp_path, **how).repeated is None
