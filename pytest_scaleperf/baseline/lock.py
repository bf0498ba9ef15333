"""Keep other sessions out while a file is read and replaced."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from pytest_scaleperf.model import BaselineError

LOCK_SECONDS = 30.0
_POLL_SECONDS = 0.02


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of ``path`` among all sessions, on this host and on others that share the file system.

    The file itself is replaced, so the lock is on a sibling that is removed again. Whoever waited for a lock file
    that was removed meanwhile holds a lock that nobody else sees, so it starts again with the new one. A session
    that is killed leaves the sibling behind, but no lock on it: the kernel gives that back.
    Raises BaselineError where the lock is not had within half a minute, or the file system has none.
    """
    lock = path.with_name(f".{path.name}.lock")
    deadline = time.monotonic() + LOCK_SECONDS
    while (handle := _acquire(lock)) is None:
        if time.monotonic() > deadline:
            raise BaselineError(
                f"{lock}: expected the lock within {LOCK_SECONDS:g} s, found it held by another session; "
                "wait for that session, or end it"
            )
        time.sleep(_POLL_SECONDS)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)  # while the lock is still held: see above
        os.close(handle)


def _acquire(lock: Path) -> int | None:
    """A handle that holds the lock, or None where another session has it or has just removed its file."""
    handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
    taken = False
    try:
        taken = _try_lock(handle, lock) and _is_current(handle, lock)
    finally:
        if not taken:
            os.close(handle)
    return handle if taken else None


def _try_lock(handle: int, lock: Path) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise BaselineError(
            f"{lock}: expected a file system with locks, found: {error.strerror}; mount it with them (Lustre: -o "
            "flock), or say where the baselines are with the ini option scaleperf_baselines"
        ) from error
    return True


def _is_current(handle: int, lock: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), lock.stat())
    except FileNotFoundError:
        return False
