"""What followed from a failure, one line for each class: which ranks, and the first of their lines."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from pytest_scaleperf.titan.rules import Weight
from pytest_scaleperf.titan.scene import line_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_scaleperf.titan.console import Console
    from pytest_scaleperf.titan.finding import Finding
    from pytest_scaleperf.titan.scene import Scene

_LONGEST = 160
_MOST_HOSTS = 4


def consequences(chosen: Finding | None, scene: Scene, console: Console) -> tuple[str, ...]:
    """Every other class that the log tells of, and every other rank of torchrun's reports.

    ``nccl_timeout: ranks 0-2, 4-7: Watchdog caught ... (line 120)``, then ``exit code -15: rank 0 on node-a``.
    """
    by_class: dict[str, list[Finding]] = defaultdict(list)
    for finding in scene.findings:
        if not _repeats(finding, chosen):
            by_class[str(finding.outcome)].append(finding)
    return (*(_of_class(name, found, console) for name, found in by_class.items()), *_exits(chosen, scene))


def _repeats(finding: Finding, chosen: Finding | None) -> bool:
    """Whether a finding says of the same rank what is said already: its exit, or its message once more."""
    if finding.weight is Weight.EXIT and finding.exit_code is not None:
        return True  # told by rank below
    if chosen is None:
        return False
    same_rank = finding.rank == chosen.rank or finding.rank is None
    return finding.place == chosen.place or (finding.outcome is chosen.outcome and same_rank)


def _of_class(name: str, found: list[Finding], console: Console) -> str:
    ranks = {finding.rank for finding in found if finding.rank is not None}
    first = found[0]
    who = f"{_ranks(ranks)}: " if ranks else ""
    return f"{name}: {who}{first.reason[:_LONGEST]} (line {line_of(first, console)})"


def _exits(chosen: Finding | None, scene: Scene) -> Iterable[str]:
    by_code: dict[int, set[int]] = defaultdict(set)
    hosts: dict[int, set[str]] = defaultdict(set)
    for worker in scene.workers:
        if chosen is None or worker.rank != chosen.rank:
            by_code[worker.exit_code].add(worker.rank)
            hosts[worker.exit_code].add(worker.host)
    for code, ranks in by_code.items():
        names = sorted(hosts[code])
        more = f" and {len(names) - _MOST_HOSTS} more" if len(names) > _MOST_HOSTS else ""
        yield f"exit code {code}: {_ranks(ranks)} on {', '.join(names[:_MOST_HOSTS])}{more}"


def _ranks(ranks: set[int]) -> str:
    """``rank 3``, ``ranks 0-2, 7``."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and rank == parts[-1][-1] + 1:
            parts[-1][1:] = [rank]
        else:
            parts.append([rank])
    shown = ", ".join("-".join(map(str, part)) for part in parts)
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
