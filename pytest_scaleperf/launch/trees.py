"""The process trees that a guardian owns: started, reaped, and ended to the last process.

Standard library only. Works in a process that is a child subreaper and has one thread, so that every orphan of
a job becomes a direct child of this process, and no direct child's pid is reused before ``reap`` has seen it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from pytest_scaleperf.launch import processes
from pytest_scaleperf.launch.processes import Process
from pytest_scaleperf.launch.spawn import Order, spawn

LINGER = 1.0
"""Seconds that what a job left behind has to end by itself, before SIGKILL: loggers, resource trackers."""

_KILL_AGAIN = 0.02
_TICKS = os.sysconf("SC_CLK_TCK")


class Phase(StrEnum):
    """What happens to a tree: it runs; its main process ended by itself; it was asked to end; it is killed."""

    RUNNING = "running"
    LINGERING = "lingering"
    TERMINATING = "terminating"
    KILLING = "killing"


@dataclass(frozen=True, slots=True)
class Ended:
    """How one tree ended. ``code`` is the main process's (negative: signal), None where it could not be ended.

    ``seconds`` run from the start to the end of the main process. ``leftovers`` had to be killed after the main
    process had ended by itself. ``stuck`` describes what SIGKILL did not end, empty where nothing is left.
    """

    job: int
    code: int | None
    seconds: float
    leftovers: int
    stopped: bool
    stuck: str


@dataclass(slots=True)
class _Tree:
    """One job as it goes through its phases."""

    job: int
    marker: str
    pid: int
    began: float
    ticks: int
    phase: Phase = Phase.RUNNING
    code: int | None = None
    seconds: float | None = None
    stopped: bool = False
    deadline: float | None = None
    asked: set[tuple[int, int]] = field(default_factory=set)
    killed: set[tuple[int, int]] = field(default_factory=set)


class Trees:
    """All trees of one guardian; what lives ``kill_limit`` seconds after SIGKILL is reported as stuck."""

    def __init__(self, kill_limit: float) -> None:
        self._kill_limit = kill_limit
        self._trees: dict[int, _Tree] = {}
        self._childless = True
        self._given_up: set[tuple[int, int]] = set()

    def __len__(self) -> int:
        """Trees that have not been reported as ended."""
        return len(self._trees)

    def spawn(self, order: Order) -> int:
        """Start a job in its own session and return its pid.

        Raises RefusedError where the system does not start it.
        """
        # Before the start, so that nothing of this job can look older than it.
        ticks = int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS)
        began = time.monotonic()
        pid = spawn(order)
        self._trees[order.job] = _Tree(order.job, order.marker, pid, began, ticks)
        self._childless = False
        return pid

    def stop(self, job: int, grace: float) -> None:
        """Ask a tree to end; after ``grace`` seconds it is killed. A second request can only shorten the first."""
        tree = self._trees.get(job)
        if tree is None or tree.phase is Phase.KILLING:
            return
        deadline = time.monotonic() + grace
        tree.deadline = deadline if tree.deadline is None else min(tree.deadline, deadline)
        if tree.phase is Phase.RUNNING:
            tree.phase = Phase.TERMINATING
            tree.stopped = True

    def stop_all(self, grace: float) -> None:
        """As ``stop``, for every tree."""
        for job in list(self._trees):
            self.stop(job, grace)

    def reap(self) -> None:
        """Collect every child that has ended: main processes, and orphans that came to us."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._childless = True
                return
            if pid == 0:
                self._childless = False
                return
            for tree in self._trees.values():
                if tree.pid == pid and tree.code is None:
                    _main_ended(tree, os.waitstatus_to_exitcode(status))

    def next_check(self) -> float | None:
        """Seconds until ``advance`` has something to do that no SIGCHLD announces; None: nothing."""
        now = time.monotonic()
        waits = [
            _KILL_AGAIN if tree.phase is Phase.KILLING else max(0.0, tree.deadline - now)
            for tree in self._trees.values()
            if tree.deadline is not None
        ]
        return min(waits, default=None)

    def advance(self) -> Iterator[Ended]:
        """Take every tree that is ending one step further; yield those of which nothing is left."""
        ending = [tree for tree in self._trees.values() if tree.phase is not Phase.RUNNING]
        if not ending:
            return
        # No child at all: nothing can be left of any tree. This is the usual end, and it reads no /proc.
        members = {} if self._childless else self._members(ending)
        now = time.monotonic()
        for tree in ending:
            left = members.get(tree.job, [])
            stuck = "" if tree.code is not None and not left else self._press(tree, left, now)
            if stuck is not None:
                del self._trees[tree.job]
                yield _ended(tree, stuck)

    def kill_everything(self) -> None:
        """The last resort of a guardian that fails itself: SIGKILL to every descendant until none is left."""
        deadline = time.monotonic() + self._kill_limit
        self.reap()
        while not self._childless and time.monotonic() < deadline:
            for process in processes.tree(processes.children(os.getpid())):
                processes.send(process, signal.SIGKILL)
            time.sleep(_KILL_AGAIN)
            self.reap()

    def _press(self, tree: _Tree, left: list[Process], now: float) -> str | None:
        """Signal what is left of a tree; a description once it cannot be ended, None while there is hope."""
        over = tree.deadline is not None and now >= tree.deadline
        if tree.phase is Phase.KILLING and over:
            self._given_up.update(process.identity for process in left)
            return processes.describe(left) or f"pid {tree.pid}"
        if over:
            tree.phase = Phase.KILLING
            tree.deadline = now + self._kill_limit
        for process in left:
            if tree.phase is Phase.KILLING:
                if processes.send(process, signal.SIGKILL) and process.state != "Z":
                    tree.killed.add(process.identity)
            elif tree.phase is Phase.TERMINATING and process.identity not in tree.asked:
                processes.send(process, signal.SIGTERM)
                # A stopped process takes SIGTERM only once it continues.
                processes.send(process, signal.SIGCONT)
                tree.asked.add(process.identity)
        return None

    def _members(self, ending: list[_Tree]) -> dict[int, list[Process]]:
        """What is left of each ending tree, by job number, parents before children."""
        mains = {tree.pid for tree in self._trees.values() if tree.code is None}
        roots: dict[int, list[int]] = {tree.job: [tree.pid] for tree in ending if tree.code is None}
        for pid in processes.children(os.getpid()):
            orphan = None if pid in mains else processes.look(pid)
            owner = None if orphan is None or orphan.identity in self._given_up else self._owner(orphan)
            if owner is not None and owner.phase is not Phase.RUNNING:
                roots.setdefault(owner.job, []).append(pid)
        return {job: processes.tree(pids) for job, pids in roots.items()}

    def _owner(self, orphan: Process) -> _Tree | None:
        """The tree that an orphan belongs to; None while that cannot be told.

        Told by its marker, else by its session. One that has removed both belongs to a job that began before it:
        it is ended with the last of those.
        """
        marker = processes.marker_of(orphan.pid)
        trees = list(self._trees.values())
        named = [tree for tree in trees if tree.marker == marker] or [
            tree for tree in trees if tree.pid == orphan.session
        ]
        if named:
            return named[0]
        older = [tree for tree in trees if tree.ticks <= orphan.start]
        if any(tree.phase is Phase.RUNNING for tree in older):
            return None
        return next((tree for tree in older or trees if tree.phase is not Phase.RUNNING), None)


def _main_ended(tree: _Tree, code: int) -> None:
    tree.code = code
    tree.seconds = time.monotonic() - tree.began
    if tree.phase is Phase.RUNNING:
        tree.phase = Phase.LINGERING
        tree.deadline = time.monotonic() + LINGER


def _ended(tree: _Tree, stuck: str) -> Ended:
    seconds = time.monotonic() - tree.began if tree.seconds is None else tree.seconds
    leftovers = 0 if tree.stopped else len(tree.killed)
    return Ended(tree.job, tree.code, seconds, leftovers, tree.stopped, stuck)
