"""A plan, and what a session spent, as plain values for ``--json``: seconds and GPU-seconds, tokens/s per GPU."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pytest_scaleperf.model import as_plain
from pytest_scaleperf.plan.assemble import SuitePlan
from pytest_scaleperf.plan.budget import Budget
from pytest_scaleperf.plan.forecast import Forecast
from pytest_scaleperf.plan.outlook import Outlook
from pytest_scaleperf.plan.spent import Spent


def plan_data(plan: SuitePlan, tokens: float | None) -> dict[str, Any]:
    """One suite's plan."""
    wall = plan.wall
    return {
        "suite": plan.suite.name,
        "system": plan.system.name,
        "gpus": plan.gpus,
        "gpu_seconds": plan.expected,
        "wall_seconds": wall.seconds,
        "wall_seconds_one_by_one": plan.serial,
        "rungs": [as_plain(rung) for rung in plan.rungs],
        "grid": None if plan.grid is None else as_plain(plan.grid),
        "share_of_grid": None if plan.grid is None else plan.expected / plan.grid.gpu_seconds,
        "cases": [_case(one) for one in plan.forecasts],
        "projections": [_outlook(one) for one in plan.outlooks],
        "no_projection": plan.why_no_outlook or None,
        "budget": [] if tokens is None else [_budget(tokens, c.gpus, c.tps, c.source) for c in plan.costs],
    }


def spent_data(spent: Spent) -> dict[str, Any]:
    """What a session spent."""
    return {**asdict(spent), "gpu_seconds": spent.gpu_seconds, "unreadable": [str(path) for path in spent.unreadable]}


def _case(one: Forecast) -> dict[str, Any]:
    return {
        "case": one.case.id,
        "gpus": one.case.gpus,
        "state": one.state,
        "reason": one.reason,
        "assumed": one.assumed,
        "seconds": one.expected.seconds,
        "from": one.expected.basis,
    }


def _outlook(one: Outlook) -> dict[str, Any]:
    return {
        "case": one.case.id,
        "below": one.below.id,
        "below_tps": one.measured.tps,
        "below_from": one.measured.source,
        **as_plain(one.projection),
        "measured_tps": None if one.real is None else one.real.tps,
        "error": one.error,
    }


def _budget(tokens: float, gpus: int, tps: float, source: str) -> dict[str, Any]:
    found = Budget(tokens, gpus, tps)
    return {"gpus": gpus, "tps": tps, "from": source, "days": found.days, "gpu_hours": found.gpu_hours}
