"""Entries to one report: which entry of a case counts, which are its history, and what else must not be lost."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from pytest_scaleperf.model import Decision, ScalePerfError
from pytest_scaleperf.rehearsed import Rehearsal
from pytest_scaleperf.report import preflight
from pytest_scaleperf.report.contents import (
    MAX_AGE_HOURS,
    SECONDS_PER_HOUR,
    Attempt,
    CaseHistory,
    Entry,
    Fault,
    JUnitState,
    Report,
    Scaling,
    Session,
)
from pytest_scaleperf.report.junit_entry import entry_of, scaling_of
from pytest_scaleperf.report.junit_in import JUnitFile, read_junit
from pytest_scaleperf.report.records_in import Found, read_folders
from pytest_scaleperf.report.rehearsals import rehearsed_cases


def read(
    paths: Sequence[Path], max_age: float = MAX_AGE_HOURS * SECONDS_PER_HOUR
) -> tuple[Report, tuple[JUnitFile, ...]]:
    """The report of run directories, session folders and JUnit files; ``max_age`` in seconds.

    Raises ScalePerfError where a path is none of them, or where nothing at all could be read.
    """
    missing = [path for path in paths if not path.exists()]
    if missing:
        raise ScalePerfError(f"no such file or directory: {', '.join(map(str, missing))}")
    found = read_folders(tuple(path for path in paths if path.is_dir()))
    files, junit_faults = read_junit(tuple(path for path in paths if not path.is_dir()))
    faults = [*found.faults, *junit_faults]
    attempts = [part.attempt for file in files for part in file.parts]
    scalings, attempts = _scalings(found.scalings, attempts, faults)
    attempts, failed = _without_rehearsals(attempts, found.rehearsals)
    entries, others = _with_tests(found.entries, attempts, faults)
    others += failed
    if not entries and not found.rehearsals:
        listed = "".join(f"\n  {fault.where}: {fault.why}" for fault in faults)
        raise ScalePerfError(f"no case is recorded in {', '.join(map(str, paths))}{listed}")
    report = _report(entries, found, max_age)
    current = {session.name for session in report.sessions if session.is_current}
    shown = _newest(scalings, current, report.newest - max_age)
    probed = preflight.read_all([path for path in paths if path.is_dir()], current, faults)
    timelines = tuple(each for each in found.timelines if each.session in current)
    report = dataclasses.replace(report, preflights=probed, timelines=timelines)
    return dataclasses.replace(report, others=tuple(others), faults=tuple(faults), scalings=shown), files


def _report(entries: Sequence[Entry], found: Found, max_age: float) -> Report:
    newest = max([entry.finished for entry in entries] + [each.finished for each in found.rehearsals])
    current = _current(entries, newest - max_age)
    histories = [_history(group, current) for group in _by_case(entries)]
    cases = tuple(history for history in histories if history.recent)
    return Report(
        cases=cases,
        older=tuple(history for history in histories if not history.recent),
        sessions=tuple(_sessions(entries, found, current | _rehearsing(found.rehearsals, newest - max_age))),
        faults=(),
        others=(),
        scalings=(),
        newest=newest,
        max_age=max_age,
        gpu_seconds=sum(entry.gpu_seconds for entry in entries if _session(entry) in current),
        all_gpu_seconds=sum(entry.gpu_seconds for entry in entries),
        counts=Counter(case.now.verdict for case in cases),
        rehearsals=rehearsed_cases(found.rehearsals, cases, newest - max_age),
    )


def _current(entries: Sequence[Entry], begin: float) -> set[str]:
    """The sessions with an entry after ``begin``, whole: a long night has entries before it too."""
    return {_session(entry) for entry in entries if entry.finished >= begin}


def _rehearsing(rehearsals: Iterable[Rehearsal], begin: float) -> set[str]:
    """The sessions that rehearsed something after ``begin``."""
    return {each.session for each in rehearsals if each.finished >= begin}


def _session(entry: Entry) -> str:
    """What an entry belongs to: its session, or the JUnit file that alone tells of it."""
    return entry.session or entry.where


def _by_case(entries: Iterable[Entry]) -> list[list[Entry]]:
    groups: dict[tuple[str, str], list[Entry]] = defaultdict(list)
    for entry in sorted(entries, key=lambda e: e.finished):
        groups[entry.system, entry.case_id].append(entry)
    return [groups[key] for key in sorted(groups, key=lambda key: (key[0], _natural(key[1])))]


def _natural(case_id: str) -> list[str | int]:
    """A key that puts ``lbs10`` after ``lbs2``: texts and numbers in turn."""
    parts = re.split(r"([0-9]+)", case_id)
    return [int(part) if number % 2 else part for number, part in enumerate(parts)]


def _history(entries: Sequence[Entry], current: set[str]) -> CaseHistory:
    """``entries`` of one case, oldest first.

    The newest one counts; but one that says only that its session had too few GPUs says nothing of the case, and
    takes the place of no other of this report's time.
    """
    recent = tuple(entry for entry in entries if _session(entry) in current)
    telling = [entry for entry in recent or entries if not entry.is_beyond] or recent or entries
    now = telling[-1]
    return CaseHistory(now, tuple(entry for entry in entries if entry is not now), recent)


def _without_rehearsals(
    attempts: Sequence[Attempt], rehearsals: Sequence[Rehearsal]
) -> tuple[list[Attempt], list[Attempt]]:
    """The tests that are no rehearsals, and those rehearsals that failed and of which no record tells."""
    told = {rank.folder for each in rehearsals for rank in each.ranks}
    is_rehearsal = [attempt.said("rehearsal") is not None for attempt in attempts]
    others = [attempt for attempt, found in zip(attempts, is_rehearsal, strict=True) if not found]
    mine = [attempt for attempt, found in zip(attempts, is_rehearsal, strict=True) if found]
    return others, [each for each in mine if _is_bad(each) and each.said("rehearsal.folder") not in told]


def _scalings(
    records: Sequence[Scaling], attempts: Sequence[Attempt], faults: list[Fault]
) -> tuple[list[Scaling], list[Attempt]]:
    """The scaling tests of records and of JUnit files without them, and the attempts that are something else.

    A test that failed although its record does not stays among the others.
    """
    known = {(scaling.session, scaling.pair): scaling for scaling in records}
    found, rest = list(records), []
    for attempt in attempts:
        pair = attempt.said("scaling")
        told = known.get((attempt.said("session") or "", pair or ""))
        if pair is None or (told is not None and _is_bad(attempt) and not told.is_red):
            rest.append(attempt)
        elif told is None:
            made = scaling_of(attempt, attempt.time or 0.0)
            (faults if isinstance(made, Fault) else found).append(made)  # type: ignore[arg-type]  # each into its own
    return found, rest


def _newest(scalings: Iterable[Scaling], current: set[str], begin: float) -> tuple[Scaling, ...]:
    """The newest test of each pair of this report's time; one that was skipped gives way to any other."""
    kept: dict[tuple[str, str], Scaling] = {}
    for scaling in sorted(scalings, key=lambda s: s.finished):
        if scaling.session not in current and scaling.finished < begin:
            continue
        key = (scaling.system, scaling.pair)
        if scaling.decision is not Decision.SKIPPED or key not in kept:
            kept[key] = scaling
    return tuple(kept[key] for key in sorted(kept, key=lambda key: (key[0], _natural(key[1]))))


def _is_bad(attempt: Attempt) -> bool:
    return attempt.state in (JUnitState.FAILED, JUnitState.ERROR)


def _with_tests(
    records: Sequence[Entry], attempts: Sequence[Attempt], faults: list[Fault]
) -> tuple[list[Entry], list[Attempt]]:
    """The entries of the records, each with the test that tells of the same event; and tests that none tells of."""
    entries = list(records)
    places: dict[str, list[int]] = defaultdict(list)
    for number in sorted(range(len(entries)), key=lambda i: entries[i].finished):
        places[entries[number].case_id].append(number)
    newest = max((entry.finished for entry in entries), default=0.0)
    newest = max([newest, *(attempt.time for attempt in attempts if attempt.time is not None)])
    alone: list[Entry] = []
    others: list[Attempt] = []
    for attempt in attempts:
        case_id = attempt.case_id
        if case_id is None or (case_id not in places and attempt.said("case") is None):
            others.append(attempt)
            continue
        known = places.get(case_id, [])
        place = _same_event(attempt, [(p, entries[p]) for p in known])
        if place is not None:
            entries[place] = _with_attempt(entries[place], attempt)
            continue
        made = entry_of(attempt, case_id, newest if attempt.time is None else attempt.time)
        if isinstance(made, Fault):
            faults.append(made)
        else:
            alone.append(_placed(made, [entries[p] for p in known]))
    return [*entries, *alone], [attempt for attempt in others if _is_bad(attempt)]


def _same_event(attempt: Attempt, entries: Sequence[tuple[int, Entry]]) -> int | None:
    """The place of the record that was written during this very test, or None.

    A test that launched something names the folder of its last launch. Another is told by the time: its suite ran
    while the record was written.
    """
    folder = attempt.said("folder")
    if folder is not None:
        return next((p for p, entry in entries if entry.launches and entry.launches[-1].folder == folder), None)
    for place, entry in entries:
        if entry.attempt is None and _unfinished(entry) and attempt.ran_at(entry.finished):
            return place
    return None


def _with_attempt(entry: Entry, attempt: Attempt) -> Entry:
    """The entry with the test that tells of it; of two (a resumed session replays a case) the later one."""
    told = entry.attempt
    if told is not None and (told.time or 0.0) > (attempt.time or 0.0):
        return entry
    return dataclasses.replace(entry, attempt=attempt)


def _unfinished(entry: Entry) -> bool:
    """True for a record of a case that was not launched, or not to its end: its test then names no folder."""
    return not entry.times or entry.decision is Decision.MACHINE_FAILED


def _placed(entry: Entry, records: Sequence[Entry]) -> Entry:
    """An entry of a JUnit file with what its properties do not say and the records of the case do."""
    if not records:
        return entry
    known = records[-1]
    return dataclasses.replace(
        entry,
        system=entry.system or known.system,
        suite=entry.suite or known.suite,
        gpus=entry.gpus or known.gpus,
        layout=entry.layout or known.layout,
        activation_checkpoint=entry.activation_checkpoint or known.activation_checkpoint,
        batch=entry.batch or known.batch,
    )


def _sessions(entries: Sequence[Entry], found: Found, current: set[str]) -> list[Session]:
    """Every session, oldest first; one without a file of its own is known by its records."""
    told = {file.session: file for file in found.sessions}
    rehearsed = Counter(each.session for each in found.rehearsals)
    mine: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        if entry.session:
            mine[entry.session].append(entry)
    return [
        Session(
            name=name,
            started=told[name].started if name in told else None,
            arguments=told[name].arguments if name in told else (),
            cases=len({entry.case_id for entry in mine[name] if entry.decision is not Decision.SKIPPED}),
            gpu_seconds=sum(entry.gpu_seconds for entry in mine[name]),
            is_current=name in current,
            rehearsed=rehearsed[name],
        )
        for name in sorted(told.keys() | mine.keys())
    ]
