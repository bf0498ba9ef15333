"""One JSON file for each finished case, written atomically when it ends; looked up as evidence and to resume."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from pytest_scaleperf.model import Decision, Evidence, Fingerprint, GateState, LaunchError

SCHEMA = 1
_SESSIONS = "sessions"
_RECORDS = "records"
SCALING = "scaling"
"""Folder of a session's scaling tests, beside that of the cases' records."""
REHEARSALS = "rehearsals"
"""Folder of a session's rehearsals: no evidence that a real case passed, so they lie apart."""


class Syncer:
    """Brings written files to the disk in the background, so that a power cut takes a second's results at most.

    A record is whole as soon as it has its name: it survives the end of this process, however it ends. Only a power
    cut could still empty it; an emptied record is no evidence and its case runs again. Waiting for the disk in
    every case costs 0.3 to 5 ms on a local disk, more on shared storage.
    """

    def __init__(self, every: float = 1.0) -> None:
        self._every = every
        self._pending: list[Path] = []
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, path: Path) -> None:
        """Have this file on the disk soon."""
        self._pending.append(path)
        if self._closing.is_set() or sys.is_finalizing():  # a thread that is started now never runs: start() hangs
            self._sync()
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="scaleperf-sync", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Return once everything that was added is on the disk."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
        self._sync()

    def _work(self) -> None:
        while not self._closing.wait(self._every):
            self._sync()

    def _sync(self) -> None:
        taken, self._pending = self._pending, []
        for path in taken:
            with contextlib.suppress(OSError):  # moved away or unreadable: nothing that could be made durable
                descriptor = os.open(path, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)


@dataclass(slots=True)
class SessionFolder:
    """One session's folder under the run directory; its lock is held as long as the session lives."""

    path: Path
    id: str
    resumed: bool
    _lock: int
    _syncer: Syncer = field(default_factory=Syncer)

    @classmethod
    def create(cls, run_dir: Path, about: Mapping[str, Any]) -> SessionFolder:
        """Make a new folder that no other session has, so that nothing is ever overwritten.

        Raises LaunchError where the run directory cannot be written.
        """
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        path = run_dir / _SESSIONS / name
        try:
            (path / _RECORDS).mkdir(parents=True)
            _ignore_in_git(run_dir)
            lock = _lock(path)
            write_json(path / "session.json", {"schema": SCHEMA, "session": name, "started": time.time(), **about})
        except OSError as error:
            raise LaunchError(
                f"{run_dir}: expected a run directory that can be written, found: {error.strerror}; say --run-dir PATH"
            ) from error
        return cls(path, name, resumed=False, _lock=lock)

    @classmethod
    def resume(cls, run_dir: Path, wanted: str) -> SessionFolder:
        """Open an earlier session again: ``wanted`` is its name, or ``latest``.

        Raises LaunchError where there is none, or where it is still running.
        """
        names = session_names(run_dir)
        name = names[-1] if wanted == "latest" and names else wanted
        if name not in names:
            known = ", ".join(names[-5:]) or "none"
            raise LaunchError(f"--resume {wanted}: no such session under {run_dir}; the newest are: {known}")
        path = run_dir / _SESSIONS / name
        return cls(path, name, resumed=True, _lock=_lock(path))

    def attempt_folder(self, case_id: str) -> Path:
        """A new, empty folder for one launch of a case: ``cases/<id>/<n>``.

        Raises LaunchError where it cannot be made.
        """
        parent = self.path / "cases" / case_id
        number = 1
        with writing(parent):
            while True:
                folder = parent / str(number)
                try:
                    folder.mkdir()
                except FileNotFoundError:
                    parent.mkdir(parents=True, exist_ok=True)
                except FileExistsError:
                    number += 1
                else:
                    return folder

    def write(self, case_id: str, record: Mapping[str, Any], *, over: Path | None = None) -> Path:
        """Write a case's record under a new name; an earlier one of the same session stays beside it.

        ``over``: in the place of that file, a provisional record of the same run.
        Raises LaunchError where it cannot be written.
        """
        path = self._free(case_id) if over is None else over
        whole = {"schema": SCHEMA, "session": self.id, "case": case_id, **record}
        with writing(path):
            try:
                write_json(path, whole)
            except FileNotFoundError:  # a job removed what it should not: the folder is made once, not looked for
                path.parent.mkdir(parents=True, exist_ok=True)
                write_json(path, whole)
        self._syncer.add(path)
        return path

    def _free(self, case_id: str) -> Path:
        return next(path for path in _names(self.path / _RECORDS, case_id) if not path.exists())

    def latest(self, case_id: str) -> Mapping[str, Any] | None:
        """The newest record of a case in this session, or None."""
        return _latest(self.path / _RECORDS, case_id)

    def write_rehearsal(self, case_id: str, record: Mapping[str, Any]) -> Path:
        """Write what a rehearsal of a case showed under a new name, beside the records."""
        folder = self.path / REHEARSALS
        folder.mkdir(exist_ok=True)
        path = next(path for path in _names(folder, case_id) if not path.exists())
        write_json(path, {"schema": SCHEMA, "session": self.id, "case": case_id, **record})
        self._syncer.add(path)
        return path

    def close(self) -> None:
        """Wait for the disk, and give the session's lock back."""
        self._syncer.close()
        os.close(self._lock)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """A disk that is full or has gone is told as an error of the machine.

    Raises LaunchError in the place of an OSError.
    """
    try:
        yield
    except OSError as error:
        raise LaunchError(
            f"{path}: expected to be written, found: {error.strerror}; make room, and go on with --resume latest"
        ) from error


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file so that a reader sees either nothing or all of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    text = json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    try:
        with temporary.open("wb") as file:
            file.write(text)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def session_names(run_dir: Path) -> list[str]:
    """Names of the sessions under a run directory, oldest first (the name begins with the time)."""
    folder = run_dir / _SESSIONS
    return sorted(p.name for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []


def evidence(run_dir: Path, case_id: str) -> Iterator[Evidence]:
    """Every readable earlier verdict of a case, newest first; a record that cannot be read is no evidence.

    Also that its search did not need it, or found it beyond the OOM edge; no other skip says anything of a case.
    """
    return (found for found, _ in earlier(run_dir, case_id, searched=True))


def earlier(run_dir: Path, case_id: str, *, searched: bool = False) -> Iterator[tuple[Evidence, Mapping[str, Any]]]:
    """Earlier verdicts as ``evidence``, each with its whole record; what a search said only with ``searched``."""
    for name in reversed(session_names(run_dir)):
        folder = run_dir / _SESSIONS / name / _RECORDS
        record = _latest(folder, case_id)
        if record is None:
            continue
        found = _evidence_of(case_id, record, str(folder / f"{case_id}.json"))
        if found is not None and (found.decision is not Decision.SKIPPED or (searched and _by_search(record))):
            yield found, record


def rehearsals(run_dir: Path, case_id: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every readable rehearsal of a case with its path, newest first: of each session the last."""
    for name in reversed(session_names(run_dir)):
        folder = run_dir / _SESSIONS / name / REHEARSALS
        found = _newest(folder, case_id)
        record = None if found is None else _read(found)
        if record is not None:
            yield str(found), record


def _by_search(record: Mapping[str, Any]) -> bool:
    gate = record.get("gate")
    state = gate.get("state") if isinstance(gate, Mapping) else None
    return state == GateState.NOT_NEEDED or bool(record.get("samples"))


def has_rehearsals(run_dir: Path) -> bool:
    """Whether any session under a run directory rehearsed something."""
    return any((run_dir / _SESSIONS / name / REHEARSALS).is_dir() for name in session_names(run_dir))


def _evidence_of(case_id: str, record: Mapping[str, Any], where: str) -> Evidence | None:
    try:
        return Evidence(
            case_id=case_id,
            decision=Decision(record["decision"]),
            fingerprint=Fingerprint(**record["fingerprint"]),
            finished=float(record["finished"]),
            where=where,
        )
    except (KeyError, TypeError, ValueError):
        return None


def _names(folder: Path, case_id: str) -> Iterator[Path]:
    """The names of a case's records in one session, in the order in which they are taken."""
    yield folder / f"{case_id}.json"
    for number in count(2):
        yield folder / f"{case_id}.{number}.json"


def _latest(folder: Path, case_id: str) -> Mapping[str, Any] | None:
    newest = _newest(folder, case_id)
    return None if newest is None else _read(newest)


def _newest(folder: Path, case_id: str) -> Path | None:
    newest = None
    for path in takewhile(Path.exists, _names(folder, case_id)):
        newest = path
    return newest


def _read(path: Path) -> Mapping[str, Any] | None:
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and record.get("schema") == SCHEMA else None


def _lock(path: Path) -> int:
    descriptor = os.open(path / "lock", os.O_CREAT | os.O_RDWR, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise LaunchError(
            f"{path}: this session is still running in another process; wait for it, or start without --resume"
        ) from error
    return descriptor


def _ignore_in_git(run_dir: Path) -> None:
    marker = run_dir / ".gitignore"
    if not marker.exists():
        marker.write_text("*\n")
