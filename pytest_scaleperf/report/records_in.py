"""Records of run directories to entries; a record that cannot be read is a fault with its path, never left out."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from pytest_scaleperf.model import (
    ActivationCheckpoint,
    Batch,
    Decision,
    Fingerprint,
    Gate,
    Layout,
    MetricVerdict,
    ScalePerfError,
)
from pytest_scaleperf.rehearsed import REHEARSAL_FORM, Rehearsal, from_record
from pytest_scaleperf.report import timeline
from pytest_scaleperf.report.contents import Entry, Fault, Launch, Scaling, ScalingTold
from pytest_scaleperf.report.timeline import SessionTimeline
from pytest_scaleperf.report.traces import Trace

SCHEMA = 1
SCALING = "scaling"
REHEARSALS = "rehearsals"
"""The form of records that this reads, and folders beside them; a test holds them equal to what is written."""

_Told = TypeVar("_Told")


@dataclass(frozen=True, slots=True)
class _Record:
    """A record's file, as far as a report needs it; further fields are not looked at."""

    schema: int
    session: str
    case: str
    suite: str
    system: str
    gpus: int
    layout: Layout
    activation_checkpoint: ActivationCheckpoint
    batch: Batch
    decision: Decision
    reason: str
    metrics: tuple[MetricVerdict, ...]
    finished: float
    gate: Gate | None = None
    notes: tuple[str, ...] = ()
    fingerprint: Fingerprint | None = None
    samples: tuple[Launch, ...] = ()
    trace: Any = None  # its form is looked at apart, for the record counts also without it


@dataclass(frozen=True, slots=True, kw_only=True)
class _ScalingRecord(ScalingTold):
    """The file of a scaling test."""

    schema: int


@dataclass(frozen=True, slots=True)
class SessionFile:
    """What a session says of itself."""

    session: str
    started: float
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """What lies under the given folders."""

    entries: tuple[Entry, ...]
    sessions: tuple[SessionFile, ...]
    scalings: tuple[Scaling, ...]
    faults: tuple[Fault, ...]
    rehearsals: tuple[Rehearsal, ...] = ()
    timelines: tuple[SessionTimeline, ...] = ()


def read_folders(folders: tuple[Path, ...]) -> Found:
    """Every record of the given run directories (``sessions/*/records/*.json``) or session folders.

    The same record in several places (an artifact that contains another's) counts once.

    Raises ScalePerfError where a folder is neither.
    """
    entries: dict[tuple[str, str, float], Entry] = {}
    scalings: dict[tuple[str, str, float], Scaling] = {}
    sessions: dict[str, SessionFile] = {}
    faults: list[Fault] = []
    given: dict[Path, Path] = {}  # a session that is given twice, by a link for example, under its first name
    for path in (path for folder in folders for path in _sessions(folder)):
        given.setdefault(path.resolve(), path)
    for session in given.values():
        about = _decoded(session / "session.json", SessionFile, faults)
        if about is not None:
            sessions.setdefault(about.session, about)
        for path in sorted((session / "records").glob("*.json")):
            entry = _entry(path, faults)
            if entry is None:
                continue
            same = entries.setdefault((entry.session, entry.case_id, entry.finished), entry)
            if _told(same) != _told(entry):
                faults.append(Fault(str(path), f"differs from {same.where}, which is of the same case and moment"))
        for path in sorted((session / SCALING).glob("*.json")):
            scaling = _scaling(path, faults)
            if scaling is not None:
                scalings.setdefault((scaling.session, scaling.pair, scaling.finished), scaling)
    rehearsals = _rehearsals(given.values(), faults)
    told = tuple(entries.values()), tuple(sessions.values()), tuple(scalings.values())
    timelines = _timelines(given.values(), faults)
    return Found(*told, tuple(faults), rehearsals, timelines)


def _timelines(sessions: Iterable[Path], faults: list[Fault]) -> tuple[SessionTimeline, ...]:
    """What each session's ``timeline.json`` tells; one without launches has no such file."""
    found: dict[str, SessionTimeline] = {}
    for path in (session / timeline.FILE for session in sessions):
        told = _decoded(path, timeline.Timeline, faults) if path.exists() else None
        if told is not None:
            found.setdefault(path.parent.name, SessionTimeline(path.parent.name, str(path), told))
    return tuple(found.values())


def _sessions(folder: Path) -> list[Path]:
    """The sessions of a run directory, or the one session that the folder is."""
    if (folder / "sessions").is_dir():
        return sorted(path for path in (folder / "sessions").iterdir() if path.is_dir())
    if (folder / "session.json").is_file() or (folder / "records").is_dir():
        return [folder]
    raise ScalePerfError(
        f"{folder}: expected a run directory (with sessions/), a session's folder or a JUnit file, found none of them"
    )


def _decoded(path: Path, form: type[_Told], faults: list[Fault]) -> _Told | None:
    """What a file holds, or None with a fault that says why not."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=form)
    except OSError as error:
        faults.append(Fault(str(path), error.strerror or str(error)))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        kind = {SessionFile: "session's file", timeline.Timeline: "timeline"}.get(form, "record")
        faults.append(Fault(str(path), f"no {kind}: {error}"))
    return None


def _entry(path: Path, faults: list[Fault]) -> Entry | None:
    record = _decoded(path, _Record, faults)
    return _seen(record, path, faults) if record is not None and _usable(record, path, faults) else None


def _scaling(path: Path, faults: list[Fault]) -> Scaling | None:
    told = _decoded(path, _ScalingRecord, faults)
    if told is None or not _usable(told, path, faults):
        return None
    kept = {each.name: getattr(told, each.name) for each in fields(ScalingTold)}
    return Scaling(**kept, where=str(path))


def _rehearsals(sessions: Iterable[Path], faults: list[Fault]) -> tuple[Rehearsal, ...]:
    kept: dict[tuple[str, str, float], Rehearsal] = {}
    for path in (path for session in sessions for path in sorted((session / REHEARSALS).glob("*.json"))):
        found = _rehearsal(path, faults)
        if found is not None:
            kept.setdefault((found.session, found.case_id, found.finished), found)
    return tuple(kept.values())


def _rehearsal(path: Path, faults: list[Fault]) -> Rehearsal | None:
    record = _decoded(path, dict, faults)
    found = None if record is None else from_record(record, str(path))
    if record is not None and found is None:
        faults.append(Fault(str(path), f"no rehearsal of form {REHEARSAL_FORM}"))
    return found


def _usable(record: _Record | _ScalingRecord, path: Path, faults: list[Fault]) -> bool:
    if record.schema == SCHEMA and record.gpus > 0:
        return True
    found = f"schema {record.schema} and {record.gpus} GPUs"
    faults.append(Fault(str(path), f"expected a record of schema {SCHEMA} and at least one GPU, found {found}"))
    return False


def _trace(record: _Record, path: Path, faults: list[Fault]) -> Trace | None:
    """What its trace showed; a trace of another form is a fault of its own, and the record counts without it."""
    try:
        return msgspec.convert(record.trace, type=Trace | None)
    except (msgspec.ValidationError, RecursionError) as error:
        faults.append(Fault(str(path), f"its trace is left out: {error}"))
    return None


def _seen(record: _Record, path: Path, faults: list[Fault]) -> Entry:
    trace = _trace(record, path, faults)
    seconds = sum(sample.seconds for sample in record.samples)
    seconds += 0.0 if trace is None or trace.run is None else trace.run.seconds
    shares = [s.measurement.memory_pct for s in record.samples if s.measurement.memory_pct is not None]
    retries = [s.measurement.alloc_retries for s in record.samples if s.measurement.alloc_retries is not None]
    return Entry(
        system=record.system,
        suite=record.suite,
        case_id=record.case,
        session=record.session,
        finished=record.finished,
        gpus=record.gpus,
        decision=record.decision,
        reason=record.reason,
        where=str(path),
        times=len(record.samples),
        gpu_seconds=record.gpus * seconds,
        layout=record.layout,
        activation_checkpoint=record.activation_checkpoint,
        batch=record.batch,
        metrics=record.metrics,
        memory_pct=statistics.median(shares) if shares else None,
        alloc_retries=max(retries) if retries else None,
        outcome=record.samples[-1].outcome if record.samples else None,
        gate=record.gate,
        notes=record.notes,
        fingerprint=record.fingerprint,
        launches=record.samples,
        trace=trace,
    )


def _told(entry: Entry) -> tuple[object, ...]:
    """What two copies of one record must agree in."""
    return (entry.decision, entry.reason, entry.metrics, entry.launches, entry.gate, entry.fingerprint, entry.trace)
