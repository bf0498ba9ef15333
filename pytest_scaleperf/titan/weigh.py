"""Which of a log's findings explains the others: the first failing rank, not the loudest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_scaleperf.model import Outcome
from pytest_scaleperf.titan.rules import Weight

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_scaleperf.titan.finding import Finding
    from pytest_scaleperf.titan.torchrun import Worker

# Endings that name their reason; one that does not may itself have followed from a failing rank.
NAMED_ENDINGS = frozenset({Outcome.TIME_LIMIT, Outcome.PREEMPTED})
# What the cgroup and slurmctld prove counts even if it is written after the end: they speak last.
_SPEAKS_LATE = frozenset({Outcome.HOST_OOM, Outcome.NODE_FAILURE})
# States of the scheduler that explain every crash and every broken connection around them.
_EXPLAINS_CRASHES = frozenset({Outcome.PREEMPTED, Outcome.NODE_FAILURE, Outcome.HOST_OOM})
# Signals with which torchrun, the watchdog and people end a rank; any other is the rank's own death.
_SENT_BY_OTHERS = frozenset({1, 2, 6, 15})


@dataclass(frozen=True, slots=True)
class Stated:
    """What somebody outside the log says of the end: we, who stopped it (``by_us``), or the scheduler's state."""

    outcome: Outcome
    reason: str
    by_us: bool


def primary(findings: Sequence[Finding], stated: Stated | None) -> Finding | None:
    """The finding that explains the others; None where what was stated outside the log is all there is.

    Order: what says the cause; a crash or a rank's own death; a failed or timed-out collective; the end that the
    scheduler or a person made. Only what was written before that end counts, except what speaks late by nature.
    """
    ending = _ending(findings)
    before = findings[: findings.index(ending)] if ending else findings
    found = _first(before, Weight.CAUSE) or _late_cause(findings, ending) or _crash_or_death(before, stated)
    found = found or _communication(before, ending, stated)
    if found:
        return found
    if stated:
        # Our own SIGTERM, too, ends as an interrupt; a reason that the scheduler names is not ours.
        says_so = ending is not None and (ending.outcome in NAMED_ENDINGS or ending.outcome is stated.outcome)
        return ending if says_so else None
    return _first(before, Weight.EXIT) or ending


def first_observed(chosen: Finding, findings: Sequence[Finding], root: Worker | None) -> Finding:
    """Of several ranks that failed alike, the one that torchrun saw first."""
    if root is None or chosen.weight < Weight.COMMUNICATION:
        return chosen
    alike = [f for f in findings if (f.outcome, f.weight, f.rank) == (chosen.outcome, chosen.weight, root.rank)]
    return alike[0] if alike else chosen


def _ending(findings: Sequence[Finding]) -> Finding | None:
    """The first line that ends the run from outside; a requeue counts only where nothing else ended it."""
    endings = [f for f in findings if f.weight is Weight.ENDING]
    final = [f for f in endings if f.details.get("reason") != "job requeue"]
    named = [f for f in final if f.outcome in NAMED_ENDINGS]
    return next(iter(named or final or endings), None)


def _first(findings: Sequence[Finding], weight: Weight) -> Finding | None:
    return next((f for f in findings if f.weight is weight), None)


def _late_cause(findings: Sequence[Finding], ending: Finding | None) -> Finding | None:
    if ending is None or ending.outcome in NAMED_ENDINGS:
        return None
    return next((f for f in findings if f.weight is Weight.CAUSE and f.outcome in _SPEAKS_LATE), None)


def _crash_or_death(before: Sequence[Finding], stated: Stated | None) -> Finding | None:
    """An exception, or the first rank that died of a signal which nobody near it sent.

    A connection that failed before such a death was reported came of it; a timeout, which takes long, did not.
    """
    if stated and stated.outcome in _EXPLAINS_CRASHES:
        return None
    exits = [f for f in before if f.weight is Weight.EXIT]
    for finding in before:
        if finding.outcome is Outcome.NCCL_TIMEOUT:
            return None
        if finding.weight is Weight.CRASH:
            return finding
        if not stated and exits and finding is exits[0] and _died(finding):
            return finding
    return None


def _died(finding: Finding) -> bool:
    return finding.signal is not None and finding.signal not in _SENT_BY_OTHERS


def _communication(before: Sequence[Finding], ending: Finding | None, stated: Stated | None) -> Finding | None:
    """A collective that failed.

    Where only the scheduler's state tells of the end, its own signals break connections too, and only a timeout was
    certainly there before.
    """
    found = [f for f in before if f.weight is Weight.COMMUNICATION]
    if stated and stated.outcome in _EXPLAINS_CRASHES:
        return None
    if stated and not stated.by_us and ending is None:
        found = [f for f in found if f.outcome is Outcome.NCCL_TIMEOUT]
    return next(iter(found), None)


def with_rank(finding: Finding, rank: int | None) -> Finding:
    """The finding with its global rank filled in."""
    return finding if finding.rank == rank else replace(finding, rank=rank)
