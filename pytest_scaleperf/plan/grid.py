"""What the same search would cost if it were made at the target scale: every layout, mode and batch, pure.

The sweep of the lowest rungs (those that require nothing) is the search. At the target its activation checkpointing,
batches and sequences stay what they are, and its layouts are all that the same rule gives there: FSDP degrees from the
smallest that was swept, doubling up to the GPU count, with what remains as replicas. A ladder may leave degrees out at
the bottom because small rungs answer for large ones; a search without a ladder has nothing that answers for them.
``own`` counts only the degrees that the lowest rungs have themselves: it cannot even find the ladder's result where
that is of a larger degree. Candidates of a search count all, but for those that are known not to fit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from pytest_scaleperf.model import Layout
from pytest_scaleperf.plan.forecast import Forecast, State

_Other = tuple[int, int, int, int]
"""tp, cp, pp, ep."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A search at one GPU count: its cases and GPU-seconds; ``own_…`` with the lowest rungs' own FSDP degrees only."""

    gpus: int
    cases: int
    gpu_seconds: float
    own_cases: int
    own_gpu_seconds: float


def exhaustive(forecasts: Sequence[Forecast], gpus: int) -> Grid:
    """The grid at ``gpus``; a configuration takes as long there as below (the same tokens for each GPU)."""
    times = defaultdict[tuple[_Other, str, int, int], list[float]](list)
    shards = defaultdict[_Other, set[int]](set)
    for one in forecasts:
        if not one.gated and one.state is not State.CLOSED:
            case = one.case
            other = _other(case.layout)
            times[other, case.activation_checkpoint, case.batch.local, case.batch.sequence].append(one.expected.seconds)
            shards[other].add(case.layout.dp_shard)
    degrees = {other: _degrees(other, found, gpus) for other, found in shards.items()}
    own = {other: found & degrees[other] for other, found in shards.items()}
    seconds = [(key[0], median(found)) for key, found in times.items()]
    return Grid(
        gpus=gpus,
        cases=sum(len(degrees[other]) for other, _ in seconds),
        gpu_seconds=gpus * sum(len(degrees[other]) * each for other, each in seconds),
        own_cases=sum(len(own[other]) for other, _ in seconds),
        own_gpu_seconds=gpus * sum(len(own[other]) * each for other, each in seconds),
    )


def _other(layout: Layout) -> _Other:
    return layout.tp, layout.cp, layout.pp, layout.ep


def _degrees(other: _Other, swept: set[int], gpus: int) -> set[int]:
    """FSDP degrees that a layout of ``gpus`` can have: those that were swept, and the doublings of the smallest."""
    tp, cp, pp, ep = other
    if gpus % (tp * cp * pp):
        return set()
    ranks = gpus // (tp * cp * pp)
    doubled = {min(swept) << power for power in range((ranks // min(swept)).bit_length())}
    return {d for d in doubled | swept if ranks % d == 0 and (d * cp * tp) % ep == 0}
