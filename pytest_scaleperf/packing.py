"""Which of the waiting launches may start now, and on which nodes: pure arithmetic over counts of free GPUs.

The rules, in the order in which they decide:

1. Largest first; of equal size in the order of the queue. An exclusive launch counts as the whole allocation.
2. A launch of a node's size or more takes whole nodes, on as few leaf switches as can be, and of those the ones with
   the least room left. A smaller one shares a node and is never split: the node with the least room that holds it.
3. What does not fit is overtaken by what does. Once launches of no greater size have been handed `OVERTAKEN` times its
   own GPUs since it began to wait, nodes are drained for it: those that can be free soonest (idle ones, then those
   whose newest job has run longest) take nothing else, until it starts. All other nodes are used as before. For a large
   share of the allocation the factor is larger, up to `OVERTAKEN_BY_ALL` for the whole of it: where jobs of one length
   end one after another, draining a share of the nodes leaves them idle for half of that share of a job's time, so
   that draining costs at most 5 % of what was handed out before it.

Running times are not known here, so nothing is started on a draining node because it "would end in time".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pytest_scaleperf.model import LaunchError, Placement, Resources, Wanted

OVERTAKEN = 4
"""How many times its own GPUs a waiting launch sees handed to others before nodes are drained for it, at least."""

OVERTAKEN_BY_ALL = 10
"""The same for a launch that needs the whole allocation; in proportion to its share where that is more."""

_Size = tuple[int, int, bool]
"""GPUs, GPUs per node, exclusive: launches of one size are told apart only by where they may not run."""


@dataclass(frozen=True, slots=True)
class Node:
    """One node of an allocation: its host name, its GPUs, its leaf switch (None where the topology is not known)."""

    name: str
    gpus: int
    switch: str | None = None


@dataclass(slots=True)
class _State:
    """What runs on a node: ``since`` is the number of its newest launch, -1 where nothing runs."""

    node: Node
    free: int
    since: int = -1
    held: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def idle(self) -> bool:
        return not self.held


class Packer:
    """The free and the taken GPUs of one allocation. Deterministic; to be used from one thread.

    ``choose`` takes time in proportion to the queue and, for every different size in it, to the nodes.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._states = {node.name: _State(node, node.gpus) for node in nodes}
        if not nodes or len(self._states) < len(nodes) or any(node.gpus < 1 for node in nodes):
            listed = ", ".join(f"{node.name} ({node.gpus})" for node in nodes) or "none"
            raise LaunchError(f"expected nodes of different names with at least one GPU each, found: {listed}")
        self._all_gpus = sum(node.gpus for node in nodes)
        self._left_out: set[str] = set()
        self._placed: dict[str, Placement] = {}
        self._offered: dict[str, Wanted] = {}
        self._alone: str | None = None
        self._overtaken: dict[_Size, int] = {}
        self._waiting: set[_Size] = set()
        self._reserved: tuple[_Size, frozenset[str]] | None = None
        self._taken = 0

    @property
    def total_gpus(self) -> int:
        """GPUs of all nodes that are not left out, busy or not."""
        return sum(state.node.gpus for state in self._usable())

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes that are not left out."""
        return tuple(state.node for state in self._usable())

    @property
    def busy_gpus(self) -> int:
        """GPUs that running launches hold, with those beside them on nodes that they took whole."""
        return sum(state.node.gpus - state.free for state in self._states.values())

    @property
    def draining(self) -> frozenset[str]:
        """Nodes that take nothing until the launch has started that they are drained for."""
        return frozenset() if self._reserved is None else self._reserved[1]

    def choose(self, waiting: Sequence[Wanted]) -> tuple[Wanted, Placement] | None:
        """The launch that starts next and where, or None: none of them has room now. Takes nothing yet.

        Raises LaunchError where one of them can never run on what is left (see ``check``).
        """
        kinds = self._kinds(waiting)
        for wanted in kinds:
            self.check(wanted)
        self._waiting = {_size(wanted.resources) for wanted in kinds}
        for size in self._waiting:
            self._overtaken.setdefault(size, 0)
        self._drain(kinds)
        for wanted in kinds:
            placement = self._place(wanted)
            if placement is not None:
                self._offered = {wanted.key: wanted}
                return wanted, placement
        return None

    def check(self, wanted: Wanted) -> None:
        """Raises LaunchError where ``wanted`` can never run on the nodes that are left, with what is missing."""
        resources = wanted.resources
        if resources.gpus % resources.nodes:
            raise LaunchError(
                f"{wanted.key}: expected the same number of GPUs on every node, found {resources.gpus} GPUs on "
                f"{resources.nodes} nodes of {resources.gpus_per_node}; choose a multiple of {resources.nodes}"
            )
        able = [state for state in self._usable() if state.node.gpus >= _on_each(resources)]
        allowed = [state for state in able if state.node.name not in wanted.avoid]
        if len(allowed) >= resources.nodes:
            return
        raise LaunchError(
            f"{wanted.key}: expected {resources.nodes} nodes with {_on_each(resources)} GPUs each, found "
            f"{len(allowed)} of {len(self._states)} ({_listed('left out', self._left_out)}; "
            f"{_listed('not to be used again for this case', wanted.avoid & self._states.keys())}); "
            f"start a session with --gpus {sum(state.node.gpus for state in allowed)}, or on a larger allocation"
        )

    def take(self, key: str, placement: Placement) -> None:
        """Hold the GPUs of ``placement`` until ``free(key)``.

        Raises LaunchError where they are not free, or where ``key`` holds some already.
        """
        wanted = self._offered.pop(key, None)
        whole = len(placement.nodes) > 1 or (wanted is not None and _is_whole(wanted.resources))
        states = [self._states[name] for name in dict.fromkeys(placement.nodes) if name in self._states]
        known = len(states) == len(placement.nodes) > 0
        free = all((state.idle or not whole) and state.free >= placement.gpus_on_each for state in states)
        if not known or not free or key in self._placed:
            raise LaunchError(
                f"{key}: expected {placement.gpus_on_each} free GPUs on each of its nodes, found "
                f"{self._told(placement.nodes)}; ask `choose` before every start, and free what has ended"
            )
        self._taken += 1
        for state in states:
            held = state.node.gpus if whole else placement.gpus_on_each
            state.free -= held
            state.held[key] = (held, self._taken)
            state.since = self._taken
        self._placed[key] = placement
        if wanted is not None and wanted.resources.exclusive:
            self._alone = key
        self._count(placement, None if wanted is None else _size(wanted.resources))

    def free(self, key: str) -> None:
        """Give back what ``key`` holds; a key that holds nothing changes nothing."""
        placement = self._placed.pop(key, None)
        for name in () if placement is None else placement.nodes:
            state = self._states[name]
            state.free += state.held.pop(key)[0]
            state.since = max((taken for _, taken in state.held.values()), default=-1)
        self._alone = None if self._alone == key else self._alone

    def leave_out(self, node: str) -> None:
        """Start nothing more on this node; what runs there is not touched. An unknown name changes nothing."""
        if node in self._states:
            self._left_out.add(node)

    def _usable(self) -> Iterable[_State]:
        return (state for name, state in self._states.items() if name not in self._left_out)

    def _kinds(self, waiting: Sequence[Wanted]) -> list[Wanted]:
        """The first launch of every size and set of avoided hosts, largest first."""
        first: dict[tuple[int, int, bool, frozenset[str]], Wanted] = {}
        for wanted in waiting:
            resources = wanted.resources
            kind = (resources.gpus, resources.gpus_per_node, resources.exclusive, wanted.avoid)
            if kind not in first:
                first[kind] = wanted
        return sorted(first.values(), key=lambda wanted: -self._weight(_size(wanted.resources)))

    def _weight(self, size: _Size) -> int:
        gpus, _, exclusive = size
        return max(gpus, self._all_gpus) if exclusive else gpus

    def _count(self, placement: Placement, own: _Size | None) -> None:
        """Count what was handed out against all that wait and are no smaller; one of its own size starts afresh."""
        gpus = len(placement.nodes) * placement.gpus_on_each
        given = gpus if own is None else self._weight(own)
        # What waits no longer is forgotten only here: a question about a part of the queue costs the others nothing.
        self._overtaken = {size: seen for size, seen in self._overtaken.items() if size in self._waiting}
        for size in self._overtaken:
            if size != own and self._weight(size) >= given:
                self._overtaken[size] += gpus
        if own is not None:
            self._overtaken.pop(own, None)
        if self._reserved is not None and self._reserved[0] == own:
            self._reserved = None

    def _drain(self, kinds: Sequence[Wanted]) -> None:
        """Keep, pick or drop the nodes that are drained: for the largest launch that was overtaken too often."""
        due = next((w for w in kinds if self._is_due(_size(w.resources))), None)
        if due is None:
            self._reserved = None
            return
        size = _size(due.resources)
        usable = [s for s in self._usable() if s.node.name not in due.avoid and s.node.gpus >= _on_each(due.resources)]
        names = {state.node.name for state in usable}
        if self._reserved is not None and self._reserved[0] == size and self._reserved[1] <= names:
            return
        if due.resources.exclusive:
            self._reserved = size, frozenset(self._states)
            return
        soonest = sorted(usable, key=lambda state: state.since)
        self._reserved = size, frozenset(state.node.name for state in soonest[: due.resources.nodes])

    def _is_due(self, size: _Size) -> bool:
        weight = self._weight(size)
        factor = max(OVERTAKEN, OVERTAKEN_BY_ALL * weight / self._all_gpus)
        return self._overtaken.get(size, 0) >= factor * weight

    def _place(self, wanted: Wanted) -> Placement | None:
        resources, size = wanted.resources, _size(wanted.resources)
        if self._alone is not None or (resources.exclusive and self._placed):
            return None
        kept = frozenset() if self._reserved is None or self._reserved[0] == size else self.draining
        room = [s for s in self._usable() if s.node.name not in wanted.avoid and s.node.name not in kept]
        on_each = _on_each(resources)
        if not _is_whole(resources):
            fitting = [state for state in room if state.free >= on_each]
            best = min(fitting, key=lambda state: state.free, default=None)
            return None if best is None else Placement((best.node.name,), on_each)
        idle = [state.node for state in room if state.idle and state.node.gpus >= on_each]
        return Placement(_together(idle, resources.nodes), on_each) if len(idle) >= resources.nodes else None

    def _told(self, names: Sequence[str]) -> str:
        free = (f"{n}: {self._states[n].free}" if n in self._states else f"{n}: no such node" for n in names)
        return ", ".join(free) or "nothing"


def _together(idle: Sequence[Node], count: int) -> tuple[str, ...]:
    """``count`` of the idle nodes on the fewest switches: the fullest first, the last one that just holds the rest.

    Nodes whose switch is not known count as one switch.
    """
    switches: dict[str | None, list[str]] = defaultdict(list)
    for node in idle:
        switches[node.switch].append(node.name)
    left, chosen = list(switches.values()), list[str]()
    while len(chosen) < count:
        missing = count - len(chosen)
        holding = [names for names in left if len(names) >= missing]
        names = min(holding, key=len) if holding else max(left, key=len)
        left.remove(names)
        chosen.extend(names[:missing])
    return tuple(chosen)


def _size(resources: Resources) -> _Size:
    return resources.gpus, resources.gpus_per_node, resources.exclusive


def _on_each(resources: Resources) -> int:
    return resources.gpus // resources.nodes


def _is_whole(resources: Resources) -> bool:
    return resources.gpus >= resources.gpus_per_node


def _listed(what: str, names: Iterable[str]) -> str:
    return f"{what}: {', '.join(sorted(names)) or 'none'}"
