"""What to expect of the gated rungs: each case projected from the fastest known case below, the real one beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_scaleperf.model import Case, Suite
from pytest_scaleperf.plan.communication import not_modelled
from pytest_scaleperf.plan.past import Past
from pytest_scaleperf.plan.projection import Configuration, Machine, Measured, Projection, project
from pytest_scaleperf.plan.speeds import Speed
from pytest_scaleperf.suite import Ladder

_RESHARD = "--parallelism.fsdp_reshard_after_forward"


@dataclass(frozen=True, slots=True)
class Outlook:
    """One case of a gated rung: what it is projected from and to; ``real`` where its speed is known."""

    case: Case
    below: Case
    measured: Speed
    projection: Projection
    real: Speed | None

    @property
    def error(self) -> float | None:
        """(projected - real) / real, where the real is known."""
        return None if self.real is None else self.projection.tps / self.real.tps - 1


@dataclass(frozen=True, slots=True)
class Cost:
    """The speed that a token budget is counted with at one GPU count, and where it is from."""

    gpus: int
    tps: float
    source: str


def outlooks(suite: Suite, speeds: Mapping[str, Speed], past: Past, machine: Machine) -> tuple[Outlook, ...]:
    """Every case that can be projected; those with parallelism that is not modelled are left out."""
    ladder, found = Ladder(suite), list[Outlook]()
    for case in suite.cases():
        below = _fastest_below(case, ladder, speeds)
        if below is None or not_modelled(case.layout) or not_modelled(below.layout):
            continue
        known = speeds[below.id]
        measured = Measured(_configuration(below, past), known.tps, known.spread)
        projection = project(measured, _configuration(case, past), machine)
        found.append(Outlook(case, below, known, projection, speeds.get(case.id)))
    return tuple(found)


def costs(suite: Suite, speeds: Mapping[str, Speed], projected: Sequence[Outlook], gpus: int) -> tuple[Cost, ...]:
    """The fastest known speed of each rung, else the fastest projected; the largest rung's at ``gpus`` too, if more."""
    found: list[Cost] = []
    for rung in suite.rungs:
        known = [
            (speeds[case.id].tps, f"{case.id}, {speeds[case.id].source}") for case in rung.cases if case.id in speeds
        ]
        expected = [(o.projection.tps, f"{o.case.id}, projected") for o in projected if o.case.gpus == rung.gpus]
        best = max(known or expected, default=None)
        if best is not None:
            found.append(Cost(rung.gpus, *best))
    if found and gpus > found[-1].gpus:
        found.append(Cost(gpus, found[-1].tps, f"assumes the speed of {found[-1].gpus} GPUs"))
    return tuple(found)


def _fastest_below(case: Case, ladder: Ladder, speeds: Mapping[str, Speed]) -> Case | None:
    """The fastest case of the nearest rung below, along the gates, of which a speed is known."""
    parents = list(ladder.parents(case))
    while parents:
        known = [parent for parent in parents if parent.id in speeds]
        if known:
            return max(known, key=lambda parent: speeds[parent.id].tps)
        parents = list({p.id: p for parent in parents for p in ladder.parents(parent)}.values())
    return None


def _configuration(case: Case, past: Past) -> Configuration:
    rehearsed = past.rehearsals.get(case.id)
    arguments = " ".join(case.suite.trainer.args).replace("=", " ")
    reshard = f"{_RESHARD} never" not in arguments
    return Configuration(case.layout, case.batch, None if rehearsed is None else rehearsed.ceiling, reshard)
