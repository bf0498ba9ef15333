"""One JSON file for each finished case, written atomically when it ends; looked up as evidence and to resume."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_scaleperf.model import Decision, Evidence, Fingerprint, LaunchError

SCHEMA = 1
_SESSIONS = "sessions"


@dataclass(slots=True)
class SessionFolder:
    """One session's folder under the run directory; its lock is held as long as the session lives."""

    path: Path
    id: str
    resumed: bool
    _lock: int

    @classmethod
    def create(cls, run_dir: Path, about: Mapping[str, Any]) -> SessionFolder:
        """Make a new folder that no other session has, so that nothing is ever overwritten.

        Raises LaunchError where the run directory cannot be written.
        """
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        path = run_dir / _SESSIONS / name
        try:
            path.mkdir(parents=True)
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
        """A new, empty folder for one launch of a case: ``cases/<id>/<n>``."""
        parent = self.path / "cases" / case_id
        parent.mkdir(parents=True, exist_ok=True)
        number = 1
        while True:
            try:
                (parent / str(number)).mkdir()
            except FileExistsError:
                number += 1
            else:
                return parent / str(number)

    def write(self, case_id: str, record: Mapping[str, Any]) -> Path:
        """Write a case's record under a new name; an earlier one of the same session stays beside it."""
        folder = self.path / "records"
        folder.mkdir(exist_ok=True)
        path = folder / f"{case_id}.json"
        number = 1
        while path.exists():
            number += 1
            path = folder / f"{case_id}.{number}.json"
        write_json(path, {"schema": SCHEMA, "session": self.id, "case": case_id, **record})
        return path

    def latest(self, case_id: str) -> Mapping[str, Any] | None:
        """The newest record of a case in this session, or None."""
        return _latest(self.path / "records", case_id)

    def close(self) -> None:
        """Give the session's lock back."""
        os.close(self._lock)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file so that a reader sees either nothing or all of it, even after a power cut."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    text = json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    try:
        with temporary.open("wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def session_names(run_dir: Path) -> list[str]:
    """Names of the sessions under a run directory, oldest first (the name begins with the time)."""
    folder = run_dir / _SESSIONS
    return sorted(p.name for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []


def evidence(run_dir: Path, case_id: str) -> Iterator[Evidence]:
    """Every readable earlier verdict of a case, newest first; a record that cannot be read is no evidence."""
    for name in reversed(session_names(run_dir)):
        folder = run_dir / _SESSIONS / name / "records"
        record = _latest(folder, case_id)
        found = None if record is None else _evidence_of(case_id, record, str(folder / f"{case_id}.json"))
        if found is not None and found.decision is not Decision.SKIPPED:
            yield found


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


def _latest(folder: Path, case_id: str) -> Mapping[str, Any] | None:
    newest = folder / f"{case_id}.json"
    if not newest.exists():
        return None
    number = 2
    while (follower := folder / f"{case_id}.{number}.json").exists():
        newest = follower
        number += 1
    try:
        record = json.loads(newest.read_bytes())
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
