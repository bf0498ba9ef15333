"""How long a plan takes on an allocation: its cases, packed as a session packs them, with their gates; pure."""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_scaleperf.model import Resources, Wanted
from pytest_scaleperf.packing import Node, Packer


@dataclass(frozen=True, slots=True)
class Task:
    """One case to run; it may start once any of ``after`` has ended (empty: at once)."""

    key: str
    gpus: int
    seconds: float
    after: tuple[str, ...] = ()
    exclusive: bool = False


@dataclass(frozen=True, slots=True)
class Simulated:
    """Wall time, GPU-seconds that were busy and those that the allocation had in this time; when each task began."""

    seconds: float
    busy: float
    available: float
    starts: Mapping[str, float]


def nodes_of(gpus: int, gpus_per_node: int) -> list[Node]:
    """An allocation of whole nodes and, where ``gpus`` is no multiple, one smaller node."""
    sizes = [gpus_per_node] * (gpus // gpus_per_node) + [gpus % gpus_per_node] * (gpus % gpus_per_node > 0)
    return [Node(f"node{number}", size) for number, size in enumerate(sizes)]


def simulate(tasks: Sequence[Task], gpus: int, gpus_per_node: int) -> Simulated:
    """Run all tasks on ``gpus`` GPUs; every task's ``after`` has to be among them.

    Raises LaunchError where one can never run there.
    """
    packer, queue = Packer(nodes_of(gpus, gpus_per_node)), _Queue(gpus_per_node)
    known = {task.key: task for task in tasks}
    families = defaultdict[tuple[str, ...], list[Task]](list)
    for task in tasks:
        families[task.after].append(task)
    opens = defaultdict[str, list[tuple[str, ...]]](list)
    for parents in families:
        for parent in parents:
            opens[parent].append(parents)
    queue.add(families.pop((), []))
    ends: list[tuple[float, int, str]] = []
    now, starts = 0.0, dict[str, float]()
    while True:
        for number, wanted in enumerate(queue.started(packer)):
            starts[wanted.key] = now
            heapq.heappush(ends, (now + known[wanted.key].seconds, number, wanted.key))
        if not ends:
            break
        now, _, key = heapq.heappop(ends)
        packer.free(key)
        for parents in opens[key]:
            queue.add(families.pop(parents, []))
    return Simulated(now, sum(task.gpus * task.seconds for task in tasks), gpus * now, starts)


class _Queue:
    """What waits, by size: a packer needs to see only the first of each, so that 10,000 cost no more than ten."""

    def __init__(self, gpus_per_node: int) -> None:
        self._gpus_per_node = gpus_per_node
        self._waiting: dict[Resources, deque[Wanted]] = defaultdict(deque)

    def add(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            resources = Resources(task.gpus, self._gpus_per_node, task.exclusive)
            self._waiting[resources].append(Wanted(task.key, resources))

    def started(self, packer: Packer) -> Iterator[Wanted]:
        """Start whatever may start now."""
        while (chosen := packer.choose([waiting[0] for waiting in self._waiting.values() if waiting])) is not None:
            wanted, placement = chosen
            packer.take(wanted.key, placement)
            self._waiting[wanted.resources].popleft()
            yield wanted
