"""What sessions and JUnit files say of scaling tests: efficiencies that were measured."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pytest_scaleperf.baseline import MeasuredScaling, ScalingSample
from pytest_scaleperf.model import Decision, Fingerprint
from pytest_scaleperf.records import SCALING
from pytest_scaleperf.report.contents import Attempt, Fault, JUnitState

_MEASURED = frozenset(
    {
        Decision.PASS,
        Decision.IMPROVEMENT,
        Decision.REGRESSION,
        Decision.INCONCLUSIVE,
        Decision.NO_BASELINE,
        Decision.FINGERPRINT_MISMATCH,
        Decision.RECORDED,
    }
)


@dataclass(frozen=True, slots=True)
class TakenPair:
    """One pair of one session whose efficiency counts."""

    system: str
    suite: str
    measured: MeasuredScaling


@dataclass(frozen=True, slots=True)
class _Side:
    """One case of a pair, as far as it is needed."""

    case: str


@dataclass(frozen=True, slots=True)
class _Record:
    """A scaling test's file, as far as it is needed."""

    session: str
    pair: str
    suite: str
    system: str
    finished: float
    decision: Decision
    fingerprint: Fingerprint | None = None
    efficiency: float | None = None
    tolerance: float | None = None
    upper: _Side | None = None
    lower: _Side | None = None


def of_sessions(sessions: Iterable[Path], faults: list[Fault]) -> Iterator[TakenPair]:
    """The efficiencies of every session's folder."""
    for path in (path for session in sessions for path in sorted((session / SCALING).glob("*.json"))):
        try:
            record = msgspec.json.decode(path.read_bytes(), type=_Record)
        except OSError as error:
            faults.append(Fault(str(path), error.strerror or str(error)))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            faults.append(Fault(str(path), f"no record of a scaling test: {error}"))
        else:
            yield from _taken(record)


def of_tests(attempts: Iterable[Attempt], faults: list[Fault]) -> Iterator[TakenPair]:
    """The efficiencies of tests in JUnit files."""
    for attempt in attempts:
        if attempt.said("scaling") is None or attempt.time is None:
            continue
        try:
            record = _record(attempt, attempt.time)
        except (ValueError, msgspec.DecodeError) as error:
            faults.append(Fault(attempt.where, f"test {attempt.name}: a property cannot be read: {error}"))
        else:
            failed = attempt.state in (JUnitState.FAILED, JUnitState.ERROR) and record.decision.is_pass
            yield from () if failed else _taken(record)  # a test that failed by itself is no measurement


def _record(attempt: Attempt, finished: float) -> _Record:
    said = attempt.said
    efficiency, tolerance = said("efficiency"), said("efficiency.tolerance_pct")
    fingerprint, upper, lower = said("fingerprint"), said("upper"), said("lower")
    return _Record(
        session=said("session") or "",
        pair=said("scaling") or "",
        suite=said("suite") or "",
        system=said("system") or "",
        finished=finished,
        decision=Decision(said("verdict") or ""),
        fingerprint=msgspec.json.decode(fingerprint, type=Fingerprint) if fingerprint else None,
        efficiency=float(efficiency) if efficiency else None,
        tolerance=float(tolerance) / 100 if tolerance else None,
        upper=_Side(upper) if upper else None,
        lower=_Side(lower) if lower else None,
    )


def _taken(record: _Record) -> Iterator[TakenPair]:
    found, sides = (record.fingerprint, record.efficiency, record.tolerance), (record.upper, record.lower)
    fingerprint, efficiency, tolerance = found
    upper, lower = sides
    if record.decision not in _MEASURED or fingerprint is None or efficiency is None or tolerance is None:
        return
    if upper is None or lower is None or not record.session:
        return
    date = time.strftime("%Y-%m-%d", time.localtime(record.finished))
    sample = ScalingSample(date, record.session, efficiency, upper.case, lower.case)
    yield TakenPair(record.system, record.suite, MeasuredScaling(record.pair, fingerprint, sample, tolerance))
