"""Which cases would be launched: by the gates, with the last known verdicts in the place of those to come."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from pytest_scaleperf.model import Case, Suite
from pytest_scaleperf.plan.expected import Expected, expect
from pytest_scaleperf.plan.past import Past, Record
from pytest_scaleperf.rehearsed.gate import rehearsal_gate
from pytest_scaleperf.suite import Ladder


class State(StrEnum):
    """What is expected to happen to a case."""

    RUNS = "runs"
    SPARED = "spared"
    """A candidate of a search that needs about as many others and not this one."""
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


@dataclass(frozen=True, slots=True)
class _Opening:
    """What is expected of the gate of all cases with the same parents."""

    state: State
    reason: str
    after: tuple[str, ...] = ()
    assumed: bool = False


def forecast(suite: Suite, gpus: int, past: Past) -> tuple[Forecast, ...]:
    """Every case of the suite, lowest rung first."""
    made = _Forecaster(Ladder(suite), gpus, past)
    for rung in suite.rungs:
        families = defaultdict[str, list[Forecast]](list)
        for case in rung.cases:
            made.found[case.id] = one = made.one(case)
            if case.search is not None and one.state is State.RUNS:
                families[case.search.family].append(one)
        for family in families.values():
            made.found |= {one.case.id: one for one in _searched(family, past)}
    return tuple(made.found.values())


@dataclass(slots=True)
class _Forecaster:
    """The forecasts so far; a case's parents have to be among them before it."""

    ladder: Ladder
    gpus: int
    past: Past
    found: dict[str, Forecast] = field(default_factory=dict)
    _gates: dict[int, _Opening] = field(default_factory=dict)

    def one(self, case: Case) -> Forecast:
        parents = self.ladder.parents(case)
        expected, gated = expect(case, self.past), bool(parents)
        if case.gpus > self.gpus:
            return Forecast(case, State.BEYOND, f"needs {case.gpus} GPUs, there are {self.gpus}", expected, gated)
        closed = rehearsal_gate(case, self.past.rehearsals.get(case.id))
        if closed is not None:
            return Forecast(case, State.CLOSED, closed.reason, expected, gated)
        if not parents:
            return Forecast(case, State.RUNS, "lowest rung", expected, gated)
        opening = self._gates.get(id(parents))
        if opening is None:  # cases with the same parents share one tuple of them (the ladder keeps it), and one answer
            opening = self._gates[id(parents)] = self._opening(parents)
        return Forecast(case, opening.state, opening.reason, expected, gated, opening.after, opening.assumed)

    def _opening(self, parents: Sequence[Case]) -> _Opening:
        """What the parents' last verdicts, and what is expected of them now, say of a gate."""
        last = {parent.id: self.past.verdict(parent) for parent in parents}
        runs = [parent.id for parent in parents if self.found[parent.id].state is State.RUNS]
        passed = tuple(name for name in runs if (record := last[name]) is not None and record.decision.opens_gate)
        if passed:
            return _Opening(State.RUNS, f"{passed[0]} passed before", passed)
        unknown = tuple(name for name in runs if last[name] is None)
        if unknown:
            more = "" if len(unknown) == 1 else f" or one of {len(unknown) - 1} others"
            return _Opening(State.RUNS, f"assumes that {unknown[0]}{more} passes", unknown, assumed=True)
        told = ", ".join(_why(self.found[parent.id], last[parent.id]) for parent in parents[:3])
        more = f" and {len(parents) - 3} more" if len(parents[3:]) else ""
        return _Opening(State.CLOSED, f"by its parents: {told}{more}")


def _searched(family: Sequence[Forecast], past: Past) -> Iterator[Forecast]:
    """Which candidates of a search are counted: half of a grid (what it needs at most), around a peak all offsets.

    Those that ran before are counted first. They run one after the other, because each decides on the next.
    """
    search = family[0].case.search
    offsets = None if search is None else search.offsets
    needed = -(-len(family) // 2) if offsets is None else min(len(offsets), len(family))
    before = sorted(family, key=lambda one: past.verdict(one.case) is None)
    told = f"one of about {needed} of {len(family)} candidates that a search launches"
    previous: str | None = None
    for place, one in enumerate(before):
        if place >= needed:
            yield replace(one, state=State.SPARED, reason=f"not {told}")
            continue
        after = one.after if previous is None else (previous,)
        yield replace(one, reason=f"{told}; {one.reason}", after=after)
        previous = one.case.id


def _why(parent: Forecast, last: Record | None) -> str:
    if parent.state is not State.RUNS or last is None:
        return f"{parent.case.id} ({parent.state})"
    return f"{parent.case.id} ({last.decision} in {last.session})"
