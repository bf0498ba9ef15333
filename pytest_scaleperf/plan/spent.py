"""What a finished session spent, and what its gates and rehearsals saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_scaleperf.model import Decision, GateState
from pytest_scaleperf.plan.forecast import Forecast
from pytest_scaleperf.plan.past import Record, read_sessions, read_timeline

_BY_REHEARSAL = "OOM in rehearsal"
"""How the reason of a gate begins that a rehearsal closed; a test holds it equal to what is written."""


@dataclass(frozen=True, slots=True)
class RungSpent:
    """What the launches of one rung took."""

    gpus: int
    cases: int
    launches: int
    gpu_seconds: float


@dataclass(frozen=True, slots=True)
class Saved:
    """Cases that were not launched, what they would have taken, and how many of them no suite knows any more."""

    cases: int
    gpu_seconds: float
    unknown: int


@dataclass(frozen=True, slots=True)
class Used:
    """GPU-seconds of the session's GPUs, from its first start to its last end."""

    gpus: int
    busy: float
    idle: float
    lost: float


@dataclass(frozen=True, slots=True)
class Spent:
    """One session, and what was not launched: closed by a parent, by a rehearsal, or not needed by a search.

    ``rehearsed`` are the device-seconds of its rehearsals; ``used`` is None where it said nothing of that.
    """

    session: str
    rungs: tuple[RungSpent, ...]
    gates: Saved
    rehearsals: Saved
    searches: Saved
    rehearsed: float
    used: Used | None
    unreadable: tuple[Path, ...]

    @property
    def gpu_seconds(self) -> float:
        """Over all rungs."""
        return sum(rung.gpu_seconds for rung in self.rungs)


def spent(session: Path, forecasts: Mapping[str, Forecast]) -> Spent:
    """Read the session; what was not launched is counted with the expected times of ``forecasts``, by case id."""
    past = read_sessions([session])
    last = [records[0] for records in past.by_case.values()]
    launched = [record for records in past.by_case.values() for record in records if record.samples]
    skipped = [r for r in last if r.decision is Decision.SKIPPED and r.gate is not None]
    closed = [r for r in skipped if r.gate is not None and r.gate.state == GateState.CLOSED]
    not_needed = [r for r in skipped if r.gate is not None and r.gate.state == GateState.NOT_NEEDED]
    by_rehearsal = [r for r in closed if r.gate is not None and r.gate.reason.startswith(_BY_REHEARSAL)]
    return Spent(
        session=session.name,
        rungs=tuple(_rung(gpus, launched) for gpus in sorted({r.gpus for r in launched})),
        gates=_saved([r for r in closed if r not in by_rehearsal], forecasts),
        rehearsals=_saved(by_rehearsal, forecasts),
        searches=_saved(not_needed, forecasts),
        rehearsed=sum(rank.seconds for found in past.rehearsals.values() for rank in found.ranks),
        used=_used(session),
        unreadable=tuple(past.unreadable),
    )


def _rung(gpus: int, launched: list[Record]) -> RungSpent:
    mine = [record for record in launched if record.gpus == gpus]
    samples = [sample for record in mine for sample in record.samples]
    seconds = gpus * sum(sample.seconds for sample in samples)
    return RungSpent(gpus, len({record.case for record in mine}), len(samples), seconds)


def _saved(records: list[Record], forecasts: Mapping[str, Forecast]) -> Saved:
    known = [forecasts[record.case].gpu_seconds for record in records if record.case in forecasts]
    return Saved(len(records), sum(known), len(records) - len(known))


def _used(session: Path) -> Used | None:
    found = read_timeline(session)
    if found is None:
        return None
    told = found["gpu_seconds"]
    try:
        return Used(int(found["capacity_gpus"]), float(told["busy"]), float(told["idle"]), float(told["lost"]))
    except (KeyError, TypeError, ValueError):
        return None
