"""Whom a pre-flight's findings concern: nodes that are better left out, and cases that need what is wrong. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_scaleperf.preflight.words import Finding, ProbeReport, Severity

LAUNCH = "launch"
"""The probe of findings that are no device's: the job ended otherwise, or ranks did not answer."""

_PAIR = 2


@dataclass(frozen=True, slots=True)
class Blame:
    """``hosts`` that errors are put down to, and the errors that no host explains: those concern everybody."""

    hosts: tuple[str, ...]
    unexplained: tuple[Finding, ...]


def blame(report: ProbeReport, hosts: Sequence[str]) -> Blame:
    """Which of the probed ``hosts`` are to be left out, so that the rest can be measured on.

    A finding on one host is that host's. Of a slow pair between two hosts it is the one with more slow pairs, then the
    one with fewer well ones: a bad network port slows down every pair that it is in. Where that does not tell them
    apart, both are blamed. A slow group of many is explained by a blamed host among them. So is the end of the job,
    which a broken device brings about.
    """
    wrong = errors(report)
    silent = _silent(report, hosts)
    blamed = {finding.hosts[0] for finding in wrong if len(finding.hosts) == 1} | silent
    pairs = [finding for finding in wrong if len(finding.hosts) == _PAIR and len(finding.ranks) == _PAIR]
    slow = Counter(host for finding in pairs for host in finding.hosts)
    well = _well_pairs(report, pairs)
    for finding in sorted(pairs, key=lambda f: -max(slow[host] for host in f.hosts)):
        if blamed.isdisjoint(finding.hosts):
            worst = max((slow[host], -well[host]) for host in finding.hosts)
            blamed |= {host for host in finding.hosts if (slow[host], -well[host]) == worst}
    left = tuple(finding for finding in wrong if not _explained(finding, blamed))
    return Blame(tuple(host for host in hosts if host in blamed), left)


def concerns(report: ProbeReport, gpus: int) -> tuple[Finding, ...]:
    """The errors that a case meets on one machine, where it takes the first ``gpus`` devices."""
    wrong = errors(report)
    if not report.gpus:
        return wrong
    placed = [finding for finding in wrong if finding.ranks]
    return tuple(finding for finding in placed or wrong if not finding.ranks or _reached(finding) < gpus)


def errors(report: ProbeReport) -> tuple[Finding, ...]:
    """What is wrong: no notes."""
    return tuple(finding for finding in report.findings if finding.severity is not Severity.NOTE)


def _reached(finding: Finding) -> int:
    """The last rank that a case must have to meet it: all of a link's, the first of those that did not answer."""
    return min(finding.ranks) if finding.probe == LAUNCH else max(finding.ranks)


def _silent(report: ProbeReport, hosts: Sequence[str]) -> set[str]:
    """Hosts of which a rank did not answer, where others did: torchrun numbers the ranks of a node in a row."""
    if not report.gpus or not hosts:
        return set()
    local = max(1, report.expected // len(hosts))
    answers = Counter(gpu.host for gpu in report.gpus)
    return {host for host in hosts if answers[host] < local}


def _well_pairs(report: ProbeReport, slow: Sequence[Finding]) -> Counter[str]:
    """How many pairs between hosts are well, by host."""
    named = {gpu.rank: gpu.host for gpu in report.gpus}
    bad = {tuple(sorted(finding.ranks)) for finding in slow}
    pairs = {tuple(sorted(link.ranks)) for link in report.links if link.across_nodes and len(link.ranks) == _PAIR}
    return Counter(named[rank] for pair in pairs - bad for rank in pair if rank in named)


def _explained(finding: Finding, blamed: set[str]) -> bool:
    return bool(blamed) and (not finding.hosts or not blamed.isdisjoint(finding.hosts))
