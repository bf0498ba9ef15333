"""A slow or sick GPU or link is named by host and index, a healthy fleet is left alone."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from pytest_scaleperf.model import Metric, Preflight, System
from pytest_scaleperf.preflight import (
    Finding,
    GpuProbe,
    Health,
    LinkProbe,
    ProbeReport,
    Severity,
    is_red,
    judge,
    summary,
)

EXPECTED = Preflight(
    tolerance=0.15,
    rates={"matmul_tflops": 735.0, "memory_gb_s": 4295.0},
    inside_node={("all_gather", 64): 215.0},
    across_nodes={("all_gather", 64): 40.0},
)
SYSTEM = System("h200", "NVIDIA H200", "H200", 8, 9.89e14, 139.8, (Metric.TPS,), {Metric.TPS: 0.03})
STATED = replace(SYSTEM, preflight=EXPECTED)


def gpu(rank: int, matmul: float = 760.0, memory: float = 4290.0, **words: object) -> GpuProbe:
    rates = {"matmul_tflops": matmul, "memory_gb_s": memory}
    return replace(GpuProbe(f"node{rank // 8}", rank % 8, rank, "NVIDIA H200", rates=rates), **words)  # type: ignore[arg-type] # fields by name


def fleet(gpus: list[GpuProbe], links: tuple[LinkProbe, ...] = ()) -> ProbeReport:
    return ProbeReport(0.0, len(gpus), "NVIDIA H200", tuple(gpus), links)


def healthy(count: int, seed: int) -> list[GpuProbe]:
    """GPUs that differ as healthy ones do: a standard deviation of 1.5 %."""
    draw = random.Random(seed)  # noqa: S311 - a simulation
    return [gpu(rank, 760 * draw.gauss(1, 0.015), 4290 * draw.gauss(1, 0.003)) for rank in range(count)]


def only(findings: tuple[Finding, ...]) -> Finding:
    (found,) = findings
    return found


@pytest.mark.parametrize("count", [1, 2, 8, 64, 512])
@pytest.mark.parametrize("system", [SYSTEM, STATED], ids=["fleet", "stated"])
def test_a_healthy_fleet_has_no_finding(count: int, system: System) -> None:
    for seed in range(20 if count < 512 else 3):
        assert judge(fleet(healthy(count, seed)), system) == ()


@pytest.mark.parametrize("count", [4, 8, 64, 512])
def test_one_slow_gpu_is_named_against_the_fleet_alone(count: int) -> None:
    gpus = healthy(count, 1)
    slow = count // 2 + 1
    gpus[slow] = gpu(slow, matmul=640.0)
    found = only(judge(fleet(gpus), SYSTEM))
    assert (found.hosts, found.indices, found.probe) == ((f"node{slow // 8}",), (slow % 8,), "matmul_tflops")
    assert found.severity is Severity.ERROR
    assert found.value == 640.0
    assert found.reference == pytest.approx(760, rel=0.01)
    assert f"node{slow // 8} GPU {slow % 8}: matmul 640 TFLOP/s, the fleet has 7" in found.text


def test_of_two_the_slower_one_is_compared_with_the_faster_one() -> None:
    found = only(judge(fleet([gpu(0, 760), gpu(1, 690)]), SYSTEM))
    assert (found.indices, found.reference) == ((1,), 760)
    assert judge(fleet([gpu(0, 760), gpu(1, 720)]), SYSTEM) == ()


def test_a_fleet_that_is_slow_as_a_whole_is_told_by_the_system_file() -> None:
    gpus = [gpu(rank, matmul=600.0) for rank in range(8)]
    assert judge(fleet(gpus), SYSTEM) == ()
    found = judge(fleet(gpus), STATED)
    assert [finding.indices for finding in found] == [(rank,) for rank in range(8)]
    assert "matmul 600 TFLOP/s, expected 735 (-18.4%)" in found[0].text


def test_the_edge_of_the_tolerance() -> None:
    assert judge(fleet([gpu(0, matmul=735 * 0.8501)]), STATED) == ()
    assert only(judge(fleet([gpu(0, matmul=735 * 0.8499)]), STATED)).reference == 735


def test_ranks_of_a_cpu_are_not_compared_with_each_other() -> None:
    report = replace(fleet([gpu(0, 0.04), gpu(1, 0.02)]), device="cpu")
    assert judge(report, SYSTEM) == ()


def pair(first: int, rate: float, *, across: bool = False) -> LinkProbe:
    return LinkProbe("pair", (first, first + 1), across, "send_recv", 256, rate)


def test_a_slow_link_is_named_by_both_ends() -> None:
    links = (pair(0, 300), pair(1, 298), pair(2, 150), pair(3, 302), pair(4, 299), pair(5, 301))
    found = only(judge(fleet([gpu(rank) for rank in range(8)], links), SYSTEM))
    assert (found.hosts, found.indices) == (("node0",), (2, 3))
    assert "node0 GPU 2 and node0 GPU 3: send_recv of 256 MiB at 150.0 GB/s, the others have 299.5" in found.text


def test_links_inside_and_across_nodes_are_judged_apart() -> None:
    gpus = [gpu(rank) for rank in range(16)]
    inside = [LinkProbe("node", tuple(range(b, b + 8)), False, "all_gather", 64, 210.0) for b in (0, 8)]
    across = LinkProbe("world", tuple(range(16)), True, "all_gather", 64, 38.0)
    assert judge(fleet(gpus, (*inside, across)), STATED) == ()
    slow = replace(across, gb_s=20.0)
    found = only(judge(fleet(gpus, (*inside, slow)), STATED))
    assert "16 GPUs of node0, node1: all_gather of 64 MiB at 20.0 GB/s, expected 40.0 (-50.0%)" in found.text
    assert (found.hosts, found.indices) == (("node0", "node1"), ())


@pytest.mark.parametrize(
    ("health", "severity", "text"),
    [
        (Health(reasons=("hw_thermal_slowdown",), temperature=91), Severity.ERROR, "because of heat, at 91 C"),
        (Health(reasons=("hw_power_brake_slowdown",)), Severity.ERROR, "power brake"),
        (Health(reasons=("sw_power_cap",)), Severity.NOTE, "at its power limit"),
        (Health(ecc_uncorrected=2), Severity.ERROR, "2 uncorrected ECC errors"),
        (Health(remapping_failed=True), Severity.ERROR, "broken memory row"),
        (Health(xids=((79, "GPU has fallen off the bus."),)), Severity.ERROR, "Xid 79 in the kernel's log: GPU has"),
        (Health(xids=((13, "Graphics Exception"),)), Severity.NOTE, "Xid 13"),
    ],
)
def test_what_the_driver_says(health: Health, severity: Severity, text: str) -> None:
    found = only(judge(fleet([gpu(0), gpu(1, health=health)]), STATED))
    assert found.severity is severity
    assert (found.hosts, found.indices) == (("node0",), (1,))
    assert text in found.text
    assert is_red((found,)) is (severity is not Severity.NOTE)


def test_nothing_is_said_of_what_is_not_known() -> None:
    assert judge(fleet([gpu(0, health=Health())]), STATED) == ()


def test_a_rank_that_does_not_answer_is_an_error() -> None:
    report = replace(fleet([gpu(0), gpu(2)]), expected=4)
    found = only(judge(report, STATED))
    assert found.severity is Severity.ERROR
    assert "expected 4 ranks to answer, found 2; nothing from rank 1, 3" in found.text


def test_errors_come_first_and_a_failed_probe_is_one() -> None:
    gpus = [gpu(0, health=Health(reasons=("sw_power_cap",))), gpu(1, problems=("matmul: RuntimeError: CUDA error",))]
    first, second = judge(fleet(gpus), STATED)
    assert (first.severity, first.indices) == (Severity.ERROR, (1,))
    assert "matmul: RuntimeError: CUDA error" in first.text
    assert second.severity is Severity.NOTE


def test_the_summary_of_a_fleet_is_small_and_names_its_gpus() -> None:
    gpus = [replace(one, uuid=f"GPU-{one.rank}") for one in healthy(16, 3)]
    report = fleet(gpus)
    report = replace(report, findings=judge(report, STATED))
    found = summary(report)
    assert found["gpus"]["node1"] == [f"GPU-{rank}" for rank in range(8, 16)]
    assert found["lowest"]["matmul_tflops"] == min(one.rates["matmul_tflops"] for one in gpus)
    assert found["lowest"]["matmul_tflops"] < found["medians"]["matmul_tflops"]
