"""Which cases would be launched: by the gates, with the last known verdicts in the place of those to come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pytest_scaleperf.model import Case, Suite
from pytest_scaleperf.plan.expected import Expected, expect
from pytest_scaleperf.plan.past import Past
from pytest_scaleperf.rehearsed.gate import rehearsal_gate
from pytest_scaleperf.suite import Ladder


class State(StrEnum):
    """What is expected to happen to a case."""

    RUNS = "runs"
    CLOSED = "closed"
    BEYOND = "beyond"


@dataclass(frozen=True, slots=True)
class Forecast:
    """One case. ``gated`` says whether anything has to pass before it, ``after`` which of its parents may open it."""

    case: Case
    state: State
    reason: str
    expected: Expected
    gated: bool
    after: tuple[str, ...] = ()
    assumed: bool = False

    @property
    def gpu_seconds(self) -> float:
        """GPUs x expected seconds."""
        return self.case.gpus * self.expected.seconds


def forecast(suite: Suite, gpus: int, past: Past) -> tuple[Forecast, ...]:
    """Every case of the suite, lowest rung first."""
    ladder, found = Ladder(suite), dict[str, Forecast]()
    for case in suite.cases():
        found[case.id] = _one(case, gpus, past, ladder.parents(case), found)
    return tuple(found.values())


def _one(case: Case, gpus: int, past: Past, parents: Sequence[Case], found: dict[str, Forecast]) -> Forecast:
    expected, gated = expect(case, past), bool(parents)
    if case.gpus > gpus:
        return Forecast(case, State.BEYOND, f"needs {case.gpus} GPUs, there are {gpus}", expected, gated)
    closed = rehearsal_gate(case, past.rehearsals.get(case.id))
    if closed is not None:
        return Forecast(case, State.CLOSED, closed.reason, expected, gated)
    if not parents:
        return Forecast(case, State.RUNS, "lowest rung", expected, gated)
    last = {parent.id: past.verdict(parent) for parent in parents}
    runs = [parent.id for parent in parents if found[parent.id].state is State.RUNS]
    passed = tuple(name for name in runs if (record := last[name]) is not None and record.decision.opens_gate)
    if passed:
        return Forecast(case, State.RUNS, f"{passed[0]} passed before", expected, gated, passed)
    unknown = tuple(name for name in runs if last[name] is None)
    if unknown:
        more = "" if len(unknown) == 1 else f" or one of {len(unknown) - 1} others"
        reason = f"assumes that {unknown[0]}{more} passes"
        return Forecast(case, State.RUNS, reason, expected, gated, unknown, assumed=True)
    told = ", ".join(_why(parent.id, found, past) for parent in parents[:3])
    more = f" and {len(parents) - 3} more" if len(parents[3:]) else ""
    return Forecast(case, State.CLOSED, f"by its parents: {told}{more}", expected, gated)


def _why(name: str, found: dict[str, Forecast], past: Past) -> str:
    forecasted = found[name]
    record = past.verdict(forecasted.case)
    if forecasted.state is not State.RUNS or record is None:
        return f"{name} ({forecasted.state})"
    return f"{name} ({record.decision} in {record.session})"
