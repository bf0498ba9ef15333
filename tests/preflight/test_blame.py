"""Which nodes a pre-flight's findings are put down to, and which cases meet them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import pytest

from pytest_scaleperf.model import Metric, Preflight, System
from pytest_scaleperf.preflight import GpuProbe, LinkProbe, ProbeReport, blame, concerns, judge

WELL = {"matmul_tflops": 750.0, "memory_gb_s": 4300.0}
SYSTEM = System(
    "lab", "lab", "lab", 2, 1e15, 80.0, (Metric.TPS,), {}, preflight=Preflight(0.1, WELL, {}, {("send_recv", 256): 40})
)


def fleet(
    hosts: Sequence[str],
    slow: Mapping[int, float] | None = None,
    silent: Sequence[int] = (),
    links: Sequence[LinkProbe] = (),
    problems: Sequence[str] = (),
) -> ProbeReport:
    """Two GPUs a host, ranks in the order of the hosts."""
    gpus = tuple(
        GpuProbe(host, index, 2 * place + index, "lab", None, {**WELL, "matmul_tflops": (slow or {}).get(rank, 750.0)})
        for place, host in enumerate(hosts)
        for index in (0, 1)
        if (rank := 2 * place + index) not in silent
    )
    report = ProbeReport(0.0, 2 * len(hosts), "lab", gpus, tuple(links), problems=tuple(problems))
    return dataclasses.replace(report, findings=judge(report, SYSTEM))


def pair(first: int, second: int, gb_s: float) -> LinkProbe:
    return LinkProbe("pair", (first, second), True, "send_recv", 256, gb_s)


def test_a_slow_gpu_is_its_hosts() -> None:
    found = blame(fleet("abcd", {5: 500.0}), "abcd")
    assert found.hosts == ("c",)
    assert found.unexplained == ()


def test_a_healthy_fleet_blames_nobody() -> None:
    found = blame(fleet("abcd", links=[pair(0, 2, 41.0)]), "abcd")
    assert (found.hosts, found.unexplained) == ((), ())


@pytest.mark.parametrize(
    ("rates", "hosts"),
    [
        ([41.0, 20.0, 21.0], ("c",)),  # two slow pairs share c
        ([20.0, 41.0, 41.0], ("a",)),  # b is well with c
        ([41.0, 41.0, 19.0], ("d",)),  # c is well with b
        ([20.0, 41.0, 20.0], ("a", "d")),
    ],
)
def test_of_a_slow_pair_the_one_with_the_other_slow_pairs(rates: list[float], hosts: tuple[str, ...]) -> None:
    links = [pair(2 * place, 2 * place + 2, rate) for place, rate in enumerate(rates)]
    found = blame(fleet("abcd", links=links), "abcd")
    assert (found.hosts, found.unexplained) == (hosts, ())


def test_two_nodes_with_one_slow_pair_are_not_told_apart() -> None:
    assert blame(fleet("ab", links=[pair(0, 2, 10.0)]), "ab").hosts == ("a", "b")


def test_a_slow_world_is_explained_by_a_blamed_host_and_else_by_nobody() -> None:
    wanted = dataclasses.replace(SYSTEM, preflight=Preflight(0.1, WELL, {}, {("all_gather", 256): 100}))
    world = LinkProbe("world", tuple(range(6)), True, "all_gather", 256, 30.0)
    for slow, hosts, unexplained in (({}, (), 1), ({4: 100.0}, ("c",), 0)):
        report = fleet("abc", slow, links=[world])
        report = dataclasses.replace(report, findings=judge(report, wanted))
        found = blame(report, "abc")
        assert (found.hosts, len(found.unexplained)) == (hosts, unexplained)


def test_a_node_that_does_not_answer_is_named_and_explains_how_the_probes_ended() -> None:
    report = fleet("abc", silent=[2, 3], problems=["the probes ended with exit code 1"])
    found = blame(report, "abc")
    assert (found.hosts, found.unexplained) == (("b",), ())


def test_where_nobody_answers_no_node_is_left_out_and_everything_is_in_doubt() -> None:
    report = fleet("ab", silent=range(4), problems=["the probes ended with exit code 1: No module named torch"])
    found = blame(report, "ab")
    assert found.hosts == ()
    assert [finding.text for finding in found.unexplained] == [finding.text for finding in report.findings]
    assert concerns(report, 1) == report.findings


def test_on_one_machine_a_case_meets_what_its_gpus_have() -> None:
    report = fleet("a", {1: 500.0})
    assert concerns(report, 1) == ()
    assert [finding.indices for finding in concerns(report, 2)] == [(1,)]


def test_on_one_machine_a_link_is_met_by_a_case_that_has_both_ends() -> None:
    wanted = dataclasses.replace(SYSTEM, preflight=Preflight(0.1, WELL, {("all_gather", 256): 100}, {}))
    report = fleet("a", links=[LinkProbe("pair", (0, 1), False, "all_gather", 256, 30.0)])
    report = dataclasses.replace(report, findings=judge(report, wanted))
    assert (len(concerns(report, 1)), len(concerns(report, 2))) == (0, 1)
