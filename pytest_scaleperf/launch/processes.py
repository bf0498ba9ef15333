"""Processes as /proc shows them: who descends from whom, whose job they are, and signals that cannot hit a stranger.

Standard library only: the guardian imports this without site-packages. Linux only.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MARKER = "SCALEPERF_JOB"
"""Environment variable that every process of a job inherits; its value is ``<session>.<job number>``."""

_GONE = (FileNotFoundError, ProcessLookupError)
_EXEC_READS = 5
_EXEC_PAUSE = 0.001
"""While a process is inside exec its environment reads as empty: so often, and so many seconds apart, it is read."""

_LOOK_AGAIN = 0.02

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_PF_KTHREAD = 0x00200000  # linux/sched.h


@dataclass(frozen=True, slots=True)
class Process:
    """One process. ``pid`` and ``start`` (ticks since boot) together name it; ``state`` is a letter of proc(5)."""

    pid: int
    start: int
    state: str
    parent: int
    session: int
    name: str
    kernel: bool

    @property
    def identity(self) -> tuple[int, int]:
        """What tells this process from a later one that has the same pid."""
        return self.pid, self.start


def look(pid: int) -> Process | None:
    """What /proc says of a process now (zombies included), or None where there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except _GONE:
        return None
    # The name stands in parentheses and may itself hold spaces and parentheses: fields resume after the last one.
    head, _, tail = text.rpartition(b")")
    fields = tail.split()
    return Process(
        pid=pid,
        start=int(fields[19]),
        state=fields[0].decode(),
        parent=int(fields[1]),
        session=int(fields[3]),
        name=head.partition(b"(")[2].decode("utf-8", "replace"),
        kernel=bool(int(fields[6]) & _PF_KTHREAD),
    )


def everyone() -> list[int]:
    """The pid of every process in /proc, zombies included."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def children(pid: int) -> list[int]:
    """Direct children of a process, zombies included; empty where the process is gone."""
    found: list[int] = []
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
    except _GONE:
        return found
    for task in tasks:
        try:
            found += map(int, (task / "children").read_bytes().split())
        except _GONE:
            # Either this thread has just ended, or the kernel was built without CONFIG_PROC_CHILDREN.
            if not Path(f"/proc/self/task/{os.getpid()}/children").exists():
                return children_by_scan(pid)
    return found


def children_by_scan(pid: int) -> list[int]:
    """As ``children``, by the parent that every process names: slower, works on every Linux."""
    return [seen.pid for seen in map(look, everyone()) if seen is not None and seen.parent == pid]


def tree(roots: Iterable[int]) -> list[Process]:
    """The given processes and all their descendants, parents before their children."""
    found: dict[int, Process] = {}
    queue = list(roots)
    for pid in queue:
        seen = None if pid in found else look(pid)
        if seen is not None:
            found[pid] = seen
            queue += children(pid)
    return list(found.values())


def marker_of(pid: int) -> str | None:
    """The job marker in a process's environment; None without one, for a zombie, or where it may not be read."""
    prefix = f"{MARKER}=".encode()
    for _ in range(_EXEC_READS):
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except (*_GONE, PermissionError):
            return None
        if environment:
            values = (entry for entry in environment.split(b"\0") if entry.startswith(prefix))
            return next((value[len(prefix) :].decode("utf-8", "replace") for value in values), None)
        seen = look(pid)
        if seen is None or seen.kernel or seen.state in "ZX":
            return None
        time.sleep(_EXEC_PAUSE)
    return None


def marked(marker: str) -> list[int]:
    """Pids alive (no zombies) whose marker is this one, or a job's of this session (``marker.<number>``)."""
    values = ((pid, marker_of(pid)) for pid in everyone())
    return [pid for pid, value in values if value is not None and (value == marker or value.startswith(f"{marker}."))]


def send(process: Process, signum: int) -> bool:
    """Send a signal to exactly that process; False where it is gone or may not be signalled.

    A pid can be given to a stranger between the look and the signal. A pidfd, once opened, stays with its
    process; that it is the right one is checked after opening it.
    """
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    except OSError:
        # Old kernels and some container filters refuse pidfds.
        handle = -1
    try:
        seen = look(process.pid)
        if seen is None or seen.identity != process.identity:
            return False
        if handle >= 0:
            signal.pidfd_send_signal(handle, signum)
        else:
            os.kill(process.pid, signum)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        if handle >= 0:
            os.close(handle)
    return True


def end_marked(marker: str, patience: float) -> list[Process]:
    """SIGKILL everything marked, and what descends from it, until none is left; return what would not die.

    ``patience`` is in seconds. A process that removed the marker and lost its parent is not found.
    """
    deadline = time.monotonic() + patience
    clean_looks = 0
    while True:
        left = [process for process in tree(marked(marker)) if process.state not in "ZX"]
        # Looked at twice: between fork and exec a new job does not show its marker yet.
        clean_looks = 0 if left else clean_looks + 1
        if clean_looks > 1 or time.monotonic() > deadline:
            return left
        for process in left:
            send(process, signal.SIGKILL)
        time.sleep(_LOOK_AGAIN)


def describe(processes: Iterable[Process]) -> str:
    """Short text for messages: ``pid 12 (python, state D), pid 13 (sh, state S)``."""
    return ", ".join(f"pid {seen.pid} ({seen.name}, state {seen.state})" for seen in processes)


def become_subreaper() -> None:
    """Make orphans among this process's descendants its children instead of init's.

    Raises OSError where the kernel refuses, ImportError where Python has no ctypes.
    """
    import ctypes  # noqa: PLC0415 (only the guardian needs it; the launching process does not load it)

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(number)}")
