"""The network as a pre-flight measured it, in the place of the stated bandwidths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from pytest_scaleperf.model import Network, ScalePerfError
from pytest_scaleperf.preflight.words import LinkProbe, ProbeReport

_OPERATION = "all_gather"


def probed_network(stated: Network | None, report: ProbeReport) -> Network:
    """The stated network with the report's bandwidths of all_gather, at the largest size and in the widest groups.

    Bus bandwidth between nodes is that of all ranks of a node together; a level that was not probed stays as stated,
    and so do the latencies, which a probe of large buffers does not tell.

    Raises ScalePerfError where no network is stated, or where nothing was probed.
    """
    if stated is None:
        raise ScalePerfError(
            "expected `network` in the system file, which gives the latencies that a pre-flight does not measure; "
            "found none"
        )
    hosts = {gpu.rank: gpu.host for gpu in report.gpus}
    inside = _widest([link for link in report.links if not link.across_nodes])
    between = _widest([link for link in report.links if link.across_nodes])
    if not inside and not between:
        raise ScalePerfError(f"expected probes of {_OPERATION} in the pre-flight's report, found none")
    network = stated
    if inside:
        rate = median(link.gb_s for link in inside)
        network = replace(network, intra_node=replace(stated.intra_node, gb_s=rate))
    if between:
        rate = median(link.gb_s / _near(link, hosts) for link in between)
        network = replace(network, inter_node=replace(stated.inter_node, gb_s=rate))
    return network


def _widest(links: Sequence[LinkProbe]) -> list[LinkProbe]:
    mine = [link for link in links if link.operation == _OPERATION]
    most = max((len(link.ranks), link.mib) for link in mine) if mine else None
    return [link for link in mine if (len(link.ranks), link.mib) == most]


def _near(link: LinkProbe, hosts: dict[int, str]) -> int:
    """Ranks of the group on one node; the fewest of them pass the others' data on."""
    return min(Counter(hosts.get(rank, str(rank)) for rank in link.ranks).values())
