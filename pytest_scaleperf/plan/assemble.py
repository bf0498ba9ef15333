"""A suite's plan from its parts: rung by rung, on the allocation, against the exhaustive grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from pytest_scaleperf.model import Metric, Suite, System
from pytest_scaleperf.plan.communication import ModelSize
from pytest_scaleperf.plan.expected import Basis
from pytest_scaleperf.plan.forecast import Forecast, State, forecast
from pytest_scaleperf.plan.grid import Grid, exhaustive
from pytest_scaleperf.plan.outlook import Cost, Outlook, costs, outlooks
from pytest_scaleperf.plan.past import Past
from pytest_scaleperf.plan.projection import Machine
from pytest_scaleperf.plan.simulate import Simulated, Task, simulate
from pytest_scaleperf.plan.speeds import known_speeds


@dataclass(frozen=True, slots=True)
class RungPlan:
    """One rung. GPU-seconds: expected, if no gate opens, if all open. ``each`` is the median of its cases' seconds."""

    gpus: int
    cases: int
    runs: int
    spared: int
    closed: int
    beyond: int
    each: float
    bases: tuple[Basis, ...]
    expected: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class SuitePlan:
    """One suite on one allocation. ``grid`` is None where nothing is gated: then the suite is the grid.

    ``why_no_outlook`` says what is missing for projections; empty where there are some, nothing is gated, or the
    system judges no speed.
    """

    suite: Suite
    system: System
    gpus: int
    forecasts: tuple[Forecast, ...]
    rungs: tuple[RungPlan, ...]
    wall: Simulated
    grid: Grid | None
    outlooks: tuple[Outlook, ...]
    costs: tuple[Cost, ...]
    why_no_outlook: str

    @property
    def expected(self) -> float:
        """GPU-seconds of all cases that are expected to run."""
        return sum(rung.expected for rung in self.rungs)

    @property
    def serial(self) -> float:
        """Seconds if the cases ran one after the other, as they do on one machine."""
        return sum(one.expected.seconds for one in self.forecasts if one.state is State.RUNS)


@dataclass(frozen=True, slots=True)
class Question:
    """What the user asked for. ``tps`` are texts PATTERN=VALUE, ``model`` is None where its size was not said."""

    gpus: int
    baselines: Path
    model: ModelSize | None = None
    tps: tuple[str, ...] = ()


def make_plan(
    suite: Suite, system: System, past: Past, asked: Question, given: Mapping[str, float] | None = None
) -> SuitePlan:
    """Plan one suite; ``given`` are speeds by case id that the user knows.

    Raises ScalePerfError where something given cannot be used, or a case can never run on the allocation.
    """
    found = forecast(suite, asked.gpus, past)
    speeds = known_speeds(suite, past, asked.baselines, given or {})
    gated = any(one.gated for one in found)
    missing = _missing(system, asked.model, known=bool(speeds)) if gated and Metric.TPS in system.judge else ""
    projected: tuple[Outlook, ...] = ()
    if gated and not missing and asked.model is not None and system.network is not None:
        projected = outlooks(suite, speeds, past, Machine(asked.model, system.network, system.gpus_per_node))
    target = max((one.case.gpus for one in found if one.state is not State.BEYOND), default=0)
    above = any(one.gated and one.case.gpus == target for one in found)
    return SuitePlan(
        suite=suite,
        system=system,
        gpus=asked.gpus,
        forecasts=found,
        rungs=tuple(_rung([one for one in found if one.case.gpus == rung.gpus]) for rung in suite.rungs),
        wall=simulate(tasks(found), asked.gpus, system.gpus_per_node),
        grid=exhaustive(found, target) if above else None,
        outlooks=projected,
        costs=costs(suite, speeds, projected, asked.gpus),
        why_no_outlook=missing,
    )


def tasks(forecasts: Sequence[Forecast]) -> list[Task]:
    """What would run, for the simulation; a case waits for the parents that may open its gate."""
    return [
        Task(one.case.id, one.case.gpus, one.expected.seconds, one.after, one.case.suite.measure.exclusive)
        for one in forecasts
        if one.state is State.RUNS
    ]


def _rung(mine: Sequence[Forecast]) -> RungPlan:
    runs = [one for one in mine if one.state is State.RUNS]
    within = [one for one in mine if one.state is not State.BEYOND]
    return RungPlan(
        gpus=mine[0].case.gpus,
        cases=len(mine),
        runs=len(runs),
        spared=sum(one.state is State.SPARED for one in mine),
        closed=sum(one.state is State.CLOSED for one in mine),
        beyond=sum(one.state is State.BEYOND for one in mine),
        each=median(one.expected.seconds for one in mine),
        bases=tuple(dict.fromkeys(one.expected.basis for one in mine)),
        expected=sum(one.gpu_seconds for one in runs),
        least=sum(one.gpu_seconds for one in runs if not one.gated),
        most=sum(one.gpu_seconds for one in within if not _never(one)),
    )


def _never(one: Forecast) -> bool:
    """Whether a candidate is one too many: around a peak as many are launched as there are offsets."""
    search = one.case.search
    return one.state is State.SPARED and search is not None and search.offsets is not None


def _missing(system: System, model: ModelSize | None, *, known: bool) -> str:
    """What a projection lacks, with what to do about each."""
    parts = []
    if system.network is None:
        parts.append(f"network in the system file of {system.name}")
    if model is None:
        parts.append("the model's size (--parameters 30.5B --layers 48)")
    if not known:
        parts.append("a speed of a lower rung (records, baselines, or --tps PATTERN=VALUE)")
    return "; ".join(parts)
