"""What the records of a run directory say of earlier launches: their seconds, speeds, verdicts and rehearsals.

Fingerprints are not compared: a plan starts nothing, also not the interpreter whose versions they hold.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from pytest_scaleperf.model import Case, Decision, Outcome, ScalePerfError
from pytest_scaleperf.records import SCHEMA, session_names
from pytest_scaleperf.rehearsed.stored import from_record
from pytest_scaleperf.rehearsed.words import Rehearsal

_TIMELINE = "timeline.json"
_SAYS_NOTHING = (Decision.SKIPPED, Decision.MACHINE_FAILED, Decision.NOT_JUDGED)


@dataclass(frozen=True, slots=True)
class Values:
    """The metrics of a measurement that a plan needs."""

    tps: float | None = None


@dataclass(frozen=True, slots=True)
class Numbers:
    """A measurement, as far as a plan needs it."""

    values: Values = Values()
    spread: Values = Values()


@dataclass(frozen=True, slots=True)
class Launched:
    """One launch of a record."""

    seconds: float = 0.0
    outcome: Outcome = Outcome.ERROR
    measurement: Numbers = Numbers()


@dataclass(frozen=True, slots=True)
class Told:
    """Why a gate was as it was."""

    state: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """One record, as far as a plan needs it; further fields are not looked at."""

    schema: int
    session: str
    case: str
    suite: str
    gpus: int
    decision: Decision
    reason: str = ""
    samples: tuple[Launched, ...] = ()
    gate: Told | None = None
    finished: float = 0.0

    @property
    def tps(self) -> float | None:
        """Median over the launches that said a speed, in tokens/s per GPU."""
        told = [s.measurement.values.tps for s in self.samples if s.measurement.values.tps is not None]
        return median(told) if told else None

    @property
    def spread(self) -> float:
        """The largest standard error of a launch's speed, as a fraction of it."""
        return max((s.measurement.spread.tps or 0.0 for s in self.samples), default=0.0)


@dataclass(slots=True)
class Past:
    """Records by case, newest session first, of all sessions or of one; files that could not be read are named."""

    by_case: dict[str, list[Record]] = field(default_factory=lambda: defaultdict(list))
    rehearsals: dict[str, Rehearsal] = field(default_factory=dict)
    unreadable: list[Path] = field(default_factory=list)
    _by_rung: dict[tuple[str, int], list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, session: Path) -> None:
        """Take in one session; the newest has to be added first."""
        for path in sorted((session / "records").glob("*.json"), key=_number, reverse=True):
            record = self._read(path)
            if record is not None:
                self.by_case[record.case].append(record)
                whole = [s.seconds for s in record.samples if s.outcome is Outcome.COMPLETED and s.seconds > 0]
                self._by_rung[record.suite, record.gpus] += whole
        for path in sorted((session / "rehearsals").glob("*.json"), key=_number, reverse=True):
            found = self._rehearsal(path)
            if found is not None:
                self.rehearsals.setdefault(found.case_id, found)

    def verdict(self, case: Case) -> Record | None:
        """The newest record that says something of the case, or None."""
        return next((r for r in self.by_case.get(case.id, ()) if r.decision not in _SAYS_NOTHING), None)

    def seconds(self, case: Case) -> float | None:
        """Median over all launches of the case, as long as they took whatever came of them; None without any."""
        launched = [s.seconds for r in self.by_case.get(case.id, ()) for s in r.samples if s.seconds > 0]
        return median(launched) if launched else None

    def rung_seconds(self, case: Case) -> float | None:
        """Median over all completed launches of the case's rung; None without any."""
        launched = self._by_rung.get((case.suite.name, case.gpus))
        return median(launched) if launched else None

    def _read(self, path: Path) -> Record | None:
        try:
            record = msgspec.json.decode(path.read_bytes(), type=Record)
        except (OSError, msgspec.MsgspecError):
            self.unreadable.append(path)
            return None
        return record if record.schema == SCHEMA else None

    def _rehearsal(self, path: Path) -> Rehearsal | None:
        try:
            found = from_record(json.loads(path.read_bytes()), str(path))
        except (OSError, ValueError):
            found = None
        if found is None:
            self.unreadable.append(path)
        return found


def read_past(run_dir: Path) -> Past:
    """Everything that lies under a run directory; a directory that is not there has no past."""
    return read_sessions(run_dir / "sessions" / name for name in reversed(session_names(run_dir)))


def read_sessions(folders: Iterable[Path]) -> Past:
    """The given sessions, newest first."""
    past = Past()
    for folder in folders:
        past.add(folder)
    return past


def find_session(run_dir: Path, wanted: str) -> Path:
    """The folder of a session: its path, its name, or ``latest``.

    Raises ScalePerfError where there is none, with the newest there are.
    """
    names = session_names(run_dir)
    if (Path(wanted) / "records").is_dir():
        return Path(wanted)
    name = names[-1] if wanted == "latest" and names else wanted
    if name in names:
        return run_dir / "sessions" / name
    known = ", ".join(names[-5:]) or "none"
    raise ScalePerfError(f"--after {wanted}: expected a session under {run_dir}, found none; the newest are: {known}")


def read_timeline(session: Path) -> Mapping[str, Any] | None:
    """How the session's GPUs were used, or None where it wrote nothing of it (or nothing that can be read)."""
    try:
        found = json.loads((session / _TIMELINE).read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("gpu_seconds"), dict) else None


def _number(path: Path) -> tuple[str, int]:
    """``<case>.json`` comes before ``<case>.2.json``, that before ``<case>.10.json``."""
    stem, dot, last = path.stem.rpartition(".")
    return (stem, int(last)) if dot and last.isdigit() else (path.stem, 1)
