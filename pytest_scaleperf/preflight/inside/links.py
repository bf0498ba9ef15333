"""Bus bandwidth of the collectives that FSDP and DP use, over all ranks, over each node, and over pairs.

Pairs are what names a slow link: inside a node each rank with its neighbour (even ones first, then odd ones, so that
no rank is in two pairs at once), between nodes each rank with the one of the same place on the next node. All pairs
of a round run at the same time, as they do in training.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

OPERATIONS = ("all_gather", "reduce_scatter", "all_reduce")
EXCHANGE = "send_recv"
"""What pairs do: each sends the other one the buffer at the same time; its bytes over the time is the bandwidth."""

SIZES = (16, 64, 256, 1024)
"""MiB of the whole buffer: what FSDP gathers at once, from a small layer to an embedding."""

_PAIR_SIZES = (256,)
_CPU_SIZES, _CPU_PAIR_SIZES = (1, 4), (1,)
_WARM, _TIMED, _CPU_TIMED = 4, 12, 3
_ROUNDS = 5
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that communicate together."""

    scope: str
    ranks: tuple[int, ...]


def rounds(world: int, local: int) -> Iterator[list[Group]]:
    """Groups by round: those of one round have no rank in common. ``local``: ranks of one node."""
    everybody = Group("pair" if world == 2 else "world", tuple(range(world)))  # noqa: PLR2004 - a pair
    if world < 2:  # noqa: PLR2004 - as above
        return
    yield [everybody]
    nodes = [range(begin, begin + local) for begin in range(0, world, local)]
    if len(nodes) > 1 and local > 1:
        yield [Group("node", tuple(node)) for node in nodes]
    if local > 2:  # noqa: PLR2004 - the one link of a node of two is what the round above measures
        for first in (0, 1):
            yield [Group("pair", (node[i], node[i + 1])) for node in nodes for i in range(first, local - 1, 2)]
        yield [Group("pair", (node[0], node[-1])) for node in nodes]
    if world > local > 1 or (local == 1 and world > 2):  # noqa: PLR2004 - as above
        for first in (0, 1):
            pairs = [
                Group("pair", (nodes[i][place], nodes[i + 1][place]))
                for i in range(first, len(nodes) - 1, 2)
                for place in range(local)
            ]
            if pairs:
                yield pairs


def measure(rank: int, world: int, local: int, device: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - a torch device
    """The links of which this rank is the first: fields of ``LinkProbe``. Every rank has to call it."""
    found: list[dict[str, Any]] = []
    for groups in rounds(world, local):
        handles = _handles(groups, world)
        _barrier(device)
        mine = next((group for group in groups if rank in group.ranks), None)
        if mine is None:
            continue
        link = {
            "scope": mine.scope,
            "ranks": mine.ranks,
            "across_nodes": mine.ranks[0] // local != mine.ranks[-1] // local,
        }
        for operation, mib, rate in _rates(mine, rank, world, handles.get(mine.ranks), device):
            if rank == mine.ranks[0]:
                found.append({**link, "operation": operation, "mib": mib, "gb_s": rate})
    _barrier(device)
    return found


def _handles(groups: Sequence[Group], world: int) -> dict[tuple[int, ...], Any]:
    """The process group of each that needs one; every rank has to make them all, in the same order.

    Pairs exchange point to point and need none: a fleet has hundreds of them, and torch's way to make a group by its
    members alone hung with three gloo ranks of which one is in two groups (torch 2.13).
    """
    return {g.ranks: dist.new_group(list(g.ranks)) for g in groups if g.scope != "pair" and len(g.ranks) < world}


def _barrier(device: Any) -> None:  # noqa: ANN401 - a torch device
    """NCCL has to be told the device, or it guesses it."""
    if device.type == "cuda":
        dist.barrier(device_ids=[device.index])
    else:
        dist.barrier()


def _rates(
    mine: Group,
    rank: int,
    world: int,
    handle: Any,  # noqa: ANN401 - a torch process group
    device: Any,  # noqa: ANN401 - a torch device
) -> Iterator[tuple[str, int, float]]:
    """(operation, MiB, GB/s) of every probe of one group."""
    on_gpu, ranks = device.type == "cuda", len(mine.ranks)
    if ranks < world and mine.scope == "pair":
        partner = next(other for other in mine.ranks if other != rank)
        for mib in _PAIR_SIZES if on_gpu else _CPU_PAIR_SIZES:
            yield EXCHANGE, mib, mib * _MIB / _exchange(mib * _MIB, partner, device) / 1e9
        return
    for operation in OPERATIONS:
        for mib in SIZES if on_gpu else _CPU_SIZES:
            seconds = _collective(operation, mib * _MIB, ranks, handle, device)
            factor = (2 if operation == "all_reduce" else 1) * (ranks - 1) / ranks
            yield operation, mib, mib * _MIB * factor / seconds / 1e9


def _exchange(size: int, partner: int, device: Any) -> float:  # noqa: ANN401 - a torch device
    """Seconds in which this rank and its partner send each other ``size`` bytes."""
    there = torch.ones(size, device=device, dtype=torch.uint8)
    back = torch.empty_like(there)

    def call() -> None:
        for work in dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, there, partner), dist.P2POp(dist.irecv, back, partner)]
        ):
            work.wait()

    return _timed(call, device)


def _collective(operation: str, size: int, ranks: int, group: Any, device: Any) -> float:  # noqa: ANN401 - torch's objects
    """Seconds of one call on the slowest rank of the group; ``size`` is the whole buffer's in bytes."""
    kind = torch.bfloat16 if device.type == "cuda" else torch.float32
    elements = size // kind.itemsize // ranks * ranks
    whole = torch.ones(elements, device=device, dtype=kind)
    part = torch.ones(elements // ranks, device=device, dtype=kind)

    def call() -> None:
        if operation == "all_reduce":
            dist.all_reduce(whole, op=dist.ReduceOp.MAX, group=group)  # MAX: sums would grow without end
        elif operation == "all_gather":
            dist.all_gather_into_tensor(whole, part, group=group)
        else:
            dist.reduce_scatter_tensor(part, whole, op=dist.ReduceOp.MAX, group=group)

    mine = torch.tensor(_timed(call, device), device=device, dtype=torch.float64)
    dist.all_reduce(mine, op=dist.ReduceOp.MAX, group=group)
    return float(mine)


def _timed(call: Callable[[], None], device: Any) -> float:  # noqa: ANN401 - a torch device
    """Seconds of one call, of several in a row, after some that connect and warm up; the median of some such rounds.

    One round alone was once half as fast as the same link a minute later: a hiccup of the host is no slow link.
    """
    on_gpu = device.type == "cuda"
    for _ in range(_WARM if on_gpu else 1):
        call()
    timed, rounds_timed = (_TIMED, _ROUNDS) if on_gpu else (_CPU_TIMED, 1)
    taken = []
    for _ in range(rounds_timed):
        if on_gpu:
            torch.cuda.synchronize(device)
        begin = time.perf_counter()
        for _ in range(timed):
            call()
        if on_gpu:
            torch.cuda.synchronize(device)
        taken.append((time.perf_counter() - begin) / timed)
    return statistics.median(taken)
