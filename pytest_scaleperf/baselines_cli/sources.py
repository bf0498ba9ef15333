"""What runs measured, from sessions, JUnit files and CI artifacts: the cases that completed; of the others, why not."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_scaleperf.baseline import Measured
from pytest_scaleperf.model import BaselineSample, Decision, Outcome, ScalePerfError
from pytest_scaleperf.report.contents import Entry, Fault

if TYPE_CHECKING:
    from pytest_scaleperf.baselines_cli.efficiencies import TakenPair

_JUDGED_BY_NUMBERS = frozenset(
    {
        Decision.PASS,
        Decision.IMPROVEMENT,
        Decision.REGRESSION,
        Decision.INCONCLUSIVE,
        Decision.NO_BASELINE,
        Decision.FINGERPRINT_MISMATCH,
        Decision.MISSING_METRIC,
        Decision.RECORDED,
    }
)
_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
_FOLDER_DEPTH = 3
"""``<session>/cases/<case>/<n>``: a launch's folder says its session."""


@dataclass(frozen=True, slots=True)
class Taken:
    """One case of one session whose numbers count."""

    system: str
    suite: str
    measured: Measured


@dataclass(frozen=True, slots=True)
class LeftOut:
    """One case of one session whose numbers do not count, and why."""

    case_id: str
    why: str
    launched: bool


@dataclass(frozen=True, slots=True)
class Sources:
    """Everything that the given paths say. ``seen`` has (system, case id) of every case with any entry at all."""

    taken: tuple[Taken, ...]
    pairs: tuple[TakenPair, ...]
    left_out: tuple[LeftOut, ...]
    seen: frozenset[tuple[str, str]]
    faults: tuple[Fault, ...]
    places: tuple[Path, ...]


def gather(paths: Sequence[Path]) -> Sources:
    """Read every path: a run directory (its newest session), a session, a JUnit file, or a folder that holds such.

    A record says more than a JUnit file (each launch, all digits), so it wins where both tell of a case's session.
    Raises ScalePerfError where a path is none of them.
    """
    from pytest_scaleperf.baselines_cli.efficiencies import of_sessions, of_tests  # noqa: PLC0415 - as below
    from pytest_scaleperf.report.junit_entry import entry_of  # noqa: PLC0415 - msgspec and junitparser, only where read
    from pytest_scaleperf.report.junit_in import read_junit  # noqa: PLC0415 - as above
    from pytest_scaleperf.report.records_in import read_folders  # noqa: PLC0415 - as above

    sessions, junit = _places(paths)
    found = read_folders(sessions)
    files, junit_faults = read_junit(junit)
    faults = [*found.faults, *junit_faults]
    entries = list(found.entries)
    attempts = [part.attempt for file in files for part in file.parts]
    for attempt in attempts:
        case_id = attempt.said("case")
        if case_id is None:
            continue
        made = entry_of(attempt, case_id, attempt.time or 0.0)
        if isinstance(made, Fault):
            faults.append(made)
        else:
            entries.append(made)
    taken, left_out = _sorted_out(entries)
    seen = frozenset((entry.system, entry.case_id) for entry in entries)
    pairs = {  # of the same session the record, which has all digits
        (pair.system, pair.measured.pair_id, pair.measured.sample.session): pair
        for pair in (*of_tests(attempts, faults), *of_sessions(sessions, faults))
        if _NAME.fullmatch(pair.system) and _NAME.fullmatch(pair.suite)
    }
    places = (*sessions, *junit)
    return Sources(tuple(taken), tuple(pairs.values()), tuple(left_out), seen, tuple(faults), places)


def _places(paths: Sequence[Path]) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    sessions: list[Path] = []
    junit: list[Path] = []
    for path in paths:
        if not path.exists():
            raise ScalePerfError(f"{path}: expected a run directory, a session's folder or a JUnit file, found nothing")
        if path.is_file():
            junit.append(path)
        elif (path / "sessions").is_dir():
            sessions += _newest(path)
        else:
            inside = _sessions_below(path)
            files = [] if (path / "records").is_dir() else sorted(path.rglob("*.xml"))
            if not inside and not files:
                raise ScalePerfError(
                    f"{path}: expected records (sessions/, records/) or JUnit files (*.xml) in this folder, found none"
                )
            sessions += inside
            junit += files
    return tuple(dict.fromkeys(sessions)), tuple(dict.fromkeys(junit))


def _newest(run_dir: Path) -> list[Path]:
    """The newest session with a record; names begin with the time."""
    named = sorted(path for path in (run_dir / "sessions").iterdir() if any(path.glob("records/*.json")))
    if not named:
        raise ScalePerfError(f"{run_dir}: expected a session with records, found none")
    return named[-1:]


def _sessions_below(folder: Path) -> list[Path]:
    return sorted({path.parent for path in folder.rglob("records") if path.is_dir() and any(path.glob("*.json"))})


def _sorted_out(entries: Iterable[Entry]) -> tuple[list[Taken], list[LeftOut]]:
    """One result for each case and session: of several, that of the last attempt, by record before by JUnit file."""
    last: dict[tuple[str, str, str], Entry] = {}
    for entry in sorted(entries, key=lambda e: (bool(e.launches), e.finished)):
        last[entry.system, entry.case_id, _session(entry)] = entry
    results = [_result(entry) for entry in sorted(last.values(), key=lambda e: (e.finished, e.case_id))]
    return [r for r in results if isinstance(r, Taken)], [r for r in results if isinstance(r, LeftOut)]


def _session(entry: Entry) -> str:
    folder = None if entry.attempt is None else entry.attempt.said("folder")
    if entry.session or folder is None:
        return entry.session
    parts = Path(folder).parts
    return parts[-_FOLDER_DEPTH - 1] if len(parts) > _FOLDER_DEPTH else ""


def _result(entry: Entry) -> Taken | LeftOut:
    why = _unusable(entry)
    if why or entry.fingerprint is None:
        return LeftOut(entry.case_id, why or "it does not say its fingerprint", entry.times > 0)
    bands = {m.metric: m.tolerance for m in entry.metrics if m.tolerance is not None}
    measured = Measured(entry.case_id, entry.fingerprint, _samples(entry), bands)
    return Taken(entry.system, entry.suite, measured)


def _unusable(entry: Entry) -> str:
    """Why an entry's numbers do not count; empty where they do."""
    ended: list[Outcome | None] = [launch.outcome for launch in entry.launches] or [entry.outcome]
    if not entry.times:
        return entry.reason.partition("\n")[0] or str(entry.decision)
    if other := [outcome for outcome in ended if outcome is not Outcome.COMPLETED]:
        return f"it ended as {other[0] or 'not said'}"
    if entry.is_contradicted:
        return "the test itself failed although the numbers hold"
    if entry.decision not in _JUDGED_BY_NUMBERS:
        return f"{entry.decision}: {entry.reason.partition(chr(10))[0]}"
    return _unsaid(entry)


def _unsaid(entry: Entry) -> str:
    """What an entry would have to say; empty where it says all."""
    judged = [m for m in entry.metrics if m.decision is not Decision.NOT_JUDGED]
    if not judged:
        return "its outcome alone is judged: it needs no baseline"
    if unclear := [m for m in judged if m.tolerance is None or m.value is None]:
        return ", ".join(f"{m.metric}: {m.decision}" for m in unclear)
    if not (_NAME.fullmatch(entry.system) and _NAME.fullmatch(entry.suite)):
        return f"expected a system and a suite, found {entry.system or 'none'!r} and {entry.suite or 'none'!r}"
    return "" if _session(entry) and entry.finished else "it does not say its session and when it ran"


def _samples(entry: Entry) -> tuple[BaselineSample, ...]:
    """Each launch of a record; the pooled values of a JUnit file are one sample."""
    date, session = time.strftime("%Y-%m-%d", time.localtime(entry.finished)), _session(entry)
    values = [launch.measurement.values for launch in entry.launches]
    if not values:
        values = [{m.metric: m.value for m in entry.metrics if m.value is not None}]
    return tuple(BaselineSample(date, session, each, number) for number, each in enumerate(values, 1))
