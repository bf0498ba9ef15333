"""``scaleperf plan``: what a session would run and cost, what one has spent. Nothing is launched."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pytest_scaleperf.model import ScalePerfError, Suite, System

if TYPE_CHECKING:
    from pytest_scaleperf.plan.assemble import Question, SuitePlan
    from pytest_scaleperf.plan.past import Past

_FAULT = 2

plan_app = typer.Typer(add_completion=False)


@plan_app.command()
def plan(  # noqa: PLR0913 - each is one option of the command line
    suites: Annotated[
        list[Path] | None, typer.Argument(metavar="[SUITE]…", help="Suite files, or folders of them (suites).")
    ] = None,
    *,
    gpus: Annotated[int | None, typer.Option(min=1, help="GPUs of the session.")] = None,
    system: Annotated[str | None, typer.Option(help="Only suites of this system (all).")] = None,
    run_dir: Annotated[Path, typer.Option(metavar="DIR", help="Where earlier sessions are.")] = Path(".scaleperf"),
    baselines: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the baselines.")] = Path("baselines"),
    after: Annotated[
        str | None, typer.Option(metavar="SESSION", help="What this session spent and saved: a name, path, or latest.")
    ] = None,
    tokens: Annotated[str | None, typer.Option(help="A token budget, such as 20T: its time and GPU-hours.")] = None,
    parameters: Annotated[str | None, typer.Option(help="Parameters of the model, such as 30.5B.")] = None,
    layers: Annotated[int | None, typer.Option(min=1, help="Layers of the model.")] = None,
    tps: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN=VALUE", help="A case's tokens/s per GPU that you know; may be repeated."),
    ] = None,
    preflight: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A pre-flight's report: its bandwidths, not the stated ones.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Say what would run rung by rung, how long it takes, and what a larger rung will reach.

    Exit code 0, or 2 where something given cannot be used.
    """
    from pytest_scaleperf.plan.past import read_past  # noqa: PLC0415 - msgspec and pydantic take 0.1 s to load

    try:
        known = _suites(suites or [Path("suites")], baselines, system)
        if preflight is not None:
            known = _probed(known, preflight)
        past = read_past(run_dir)
        if after is not None:
            _spent(after, run_dir, known, past, as_json=as_json)
            return
        asked = _question(gpus, baselines, parameters, layers, tps)
        _planned(known, past, asked, _tokens(tokens), as_json=as_json)
    except ScalePerfError as error:
        typer.echo(f"scaleperf plan: {error}", err=True)
        raise typer.Exit(_FAULT) from None


def _suites(paths: list[Path], baselines: Path, wanted: str | None) -> list[tuple[Suite, System]]:
    from pytest_scaleperf.suite import load_suite, load_suites  # noqa: PLC0415 - as in plan
    from pytest_scaleperf.system import load_system  # noqa: PLC0415 - as in plan

    found: list[Suite] = []
    for path in paths:
        if not path.exists():
            raise ScalePerfError(f"{path}: expected a suite file or a folder of them, found nothing")
        found += load_suites(path) if path.is_dir() else [load_suite(path)]
    mine = [suite for suite in found if wanted in (None, suite.system)]
    if not mine:
        listed = ", ".join(f"{suite.name} (system {suite.system})" for suite in found) or "none"
        raise ScalePerfError(f"{', '.join(map(str, paths))}: expected suites to plan, found {listed}")
    return [(suite, load_system(baselines, suite.system)) for suite in mine]


def _probed(known: list[tuple[Suite, System]], preflight: Path) -> list[tuple[Suite, System]]:
    from pytest_scaleperf.plan.probed import probed_network  # noqa: PLC0415 - as in plan
    from pytest_scaleperf.preflight.store import load  # noqa: PLC0415 - as in plan

    report = load(preflight)
    stated = [system for _, system in known if system.network is not None]
    if not stated:
        probed_network(None, report)
    return [
        (suite, replace(system, network=probed_network(system.network, report)) if system in stated else system)
        for suite, system in known
    ]


def _question(
    gpus: int | None, baselines: Path, parameters: str | None, layers: int | None, tps: list[str] | None
) -> Question:
    from pytest_scaleperf.plan.assemble import Question  # noqa: PLC0415 - as in plan
    from pytest_scaleperf.plan.budget import count  # noqa: PLC0415 - as in plan
    from pytest_scaleperf.plan.communication import ModelSize  # noqa: PLC0415 - as in plan

    if gpus is None:
        raise ScalePerfError("expected --gpus N, the GPUs of the session to plan (or --after SESSION)")
    if (parameters is None) != (layers is None):
        raise ScalePerfError("expected both --parameters and --layers, or neither")
    model = None
    if parameters is not None and layers is not None:
        model = ModelSize(count(parameters, "--parameters"), layers)
    return Question(gpus, baselines, model, tuple(tps or ()))


def _tokens(text: str | None) -> float | None:
    from pytest_scaleperf.plan.budget import count  # noqa: PLC0415 - as in plan

    return None if text is None else count(text, "--tokens")


def _planned(
    known: list[tuple[Suite, System]], past: Past, asked: Question, tokens: float | None, *, as_json: bool
) -> None:
    from pytest_scaleperf.plan.assemble import make_plan  # noqa: PLC0415 - as in plan
    from pytest_scaleperf.plan.data import plan_data  # noqa: PLC0415 - as in plan
    from pytest_scaleperf.plan.show import plan_lines  # noqa: PLC0415 - as in plan
    from pytest_scaleperf.plan.speeds import given_by_suite  # noqa: PLC0415 - as in plan

    given = given_by_suite(asked.tps, [suite for suite, _ in known])
    plans = [make_plan(suite, system, past, asked, given[suite.name]) for suite, system in known]
    if as_json:
        found: dict[str, Any] = {
            "plans": [plan_data(one, tokens) for one in plans],
            "unreadable": [str(path) for path in past.unreadable],
        }
        typer.echo(json.dumps(found, indent=1, allow_nan=False))
        return
    for one in plans:
        for line in (*plan_lines(one, tokens), ""):
            typer.echo(line)
    for line in _together(plans):
        typer.echo(line)
    for path in past.unreadable:
        typer.echo(f"cannot be read, and is not counted: {path}", err=True)


def _together(plans: list[SuitePlan]) -> list[str]:
    from pytest_scaleperf.plan.assemble import tasks  # noqa: PLC0415 - as in plan
    from pytest_scaleperf.plan.show import total_lines  # noqa: PLC0415 - as in plan
    from pytest_scaleperf.plan.simulate import simulate  # noqa: PLC0415 - as in plan

    lines: list[str] = []
    by_system = itertools.groupby(sorted(plans, key=lambda one: one.system.name), key=lambda one: one.system)
    for system, group in by_system:
        mine = list(group)
        if len(mine) > 1:
            every = [task for one in mine for task in tasks(one.forecasts)]
            lines += total_lines(mine, simulate(every, mine[0].gpus, system.gpus_per_node))
    return lines


def _spent(after: str, run_dir: Path, known: list[tuple[Suite, System]], past: Past, *, as_json: bool) -> None:
    from pytest_scaleperf.plan.data import spent_data  # noqa: PLC0415 - as in plan
    from pytest_scaleperf.plan.forecast import forecast  # noqa: PLC0415 - as in plan
    from pytest_scaleperf.plan.past import find_session  # noqa: PLC0415 - as in plan
    from pytest_scaleperf.plan.show import spent_lines  # noqa: PLC0415 - as in plan
    from pytest_scaleperf.plan.spent import spent  # noqa: PLC0415 - as in plan

    session = find_session(run_dir, after)
    every = {one.case.id: one for suite, _ in known for one in forecast(suite, suite.rungs[-1].gpus, past)}
    found = spent(session, every)
    if as_json:
        typer.echo(json.dumps(spent_data(found), indent=1, allow_nan=False))
        return
    for line in spent_lines(found):
        typer.echo(line)
