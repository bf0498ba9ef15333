"""Bandwidths of a pre-flight take the place of the stated ones, level by level."""

from __future__ import annotations

import pytest

from pytest_scaleperf.model import Link, Network, ScalePerfError
from pytest_scaleperf.plan.probed import probed_network
from pytest_scaleperf.preflight.words import GpuProbe, LinkProbe, ProbeReport

STATED = Network(Link(900.0, 3.4), Link(50.0, 14.0))


def report(*links: LinkProbe) -> ProbeReport:
    gpus = tuple(GpuProbe(f"n{rank // 2}", rank % 2, rank, "GPU", None, {}, None, (), 1.0) for rank in range(4))
    return ProbeReport(0.0, 4, "GPU", gpus, links)


def link(ranks: tuple[int, ...], rate: float, *, mib: int = 1024, operation: str = "all_gather") -> LinkProbe:
    across = ranks[0] // 2 != ranks[-1] // 2
    return LinkProbe("node", ranks, across, operation, mib, rate)


def test_the_largest_size_in_the_widest_group_counts() -> None:
    found = probed_network(
        STATED,
        report(
            link((0, 1), 600.0),
            link((2, 3), 700.0),
            link((0, 1), 100.0, mib=16),
            link((0, 1), 800.0, operation="all_reduce"),
            link((0, 2), 20.0),
            link((0, 1, 2, 3), 80.0),
        ),
    )
    # Between the nodes two ranks of each share what was measured for both.
    assert found == Network(Link(650.0, 3.4), Link(40.0, 14.0))


def test_what_was_not_probed_stays_as_it_is_stated() -> None:
    assert probed_network(STATED, report(link((0, 1), 600.0))) == Network(Link(600.0, 3.4), Link(50.0, 14.0))


def test_latencies_have_to_be_stated_and_something_probed() -> None:
    with pytest.raises(ScalePerfError, match="expected `network` in the system file"):
        probed_network(None, report(link((0, 1), 600.0)))
    with pytest.raises(ScalePerfError, match="expected probes of all_gather"):
        probed_network(STATED, report())
