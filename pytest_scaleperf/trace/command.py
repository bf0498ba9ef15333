"""``scaleperf trace``: read profiler traces from the command line, with or without the plugin.

numpy, msgspec and matplotlib are imported where a trace is read: other commands need none of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from pytest_scaleperf.model import ScalePerfError
from pytest_scaleperf.trace.rules import Rules

_FAULT = 2


class _ShowByDefault(TyperGroup):
    """``trace FILE…`` means ``trace show FILE…``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - click's, which newer typers bring along
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["show", *args]
        return super().parse_args(ctx, args)


trace_app = typer.Typer(
    cls=_ShowByDefault,
    no_args_is_help=True,
    help="Read Kineto traces: what is compute-bound, which communication is exposed, what got slower.",
)

Places = Annotated[list[Path], typer.Argument(help="Traces of one run, one per rank, or a folder of them.")]
Json = Annotated[bool, typer.Option("--json", help="Numbers for machines, in nanoseconds and bytes.")]
Patterns = Annotated[
    list[str] | None,
    typer.Option("--rule", metavar="KIND=REGEX", help="Adds a name: communication, compute (kernels); forward, "
                 "backward, optimizer (annotations). May be repeated."),
]  # fmt: skip


@trace_app.command()
def show(  # noqa: PLR0913, PLR0917 - each is one option of the command line
    places: Places,
    as_json: Json = False,  # noqa: FBT002 - a flag
    picture: Annotated[Path | None, typer.Option(help="Draw one step into this .svg, .png or .pdf.")] = None,
    rank: Annotated[int | None, typer.Option(help="Rank to draw (the slowest).")] = None,
    step: Annotated[int | None, typer.Option(help="Step to draw (the first whole one).")] = None,
    ranks: Annotated[int | None, typer.Option(min=1, help="How many ranks there must be.")] = None,
    exposed: Annotated[float, typer.Option(help="Per cent of a phase that may be exposed.")] = 3.0,
    idle: Annotated[float, typer.Option(help="Per cent of a phase that may be idle.")] = 5.0,
    rule: Patterns = None,
) -> None:
    """Say what the steps' time went to (the default command)."""
    from pytest_scaleperf.trace.analyse import analyse, trace_files  # noqa: PLC0415 - as said above
    from pytest_scaleperf.trace.export import to_data  # noqa: PLC0415 - as said above
    from pytest_scaleperf.trace.words import Tolerances, describe  # noqa: PLC0415 - as said above

    with _faults_in_words():
        rules = _rules(rule)
        report = analyse(trace_files(places), rules, expected_ranks=ranks)
        if picture is not None:
            from pytest_scaleperf.trace.picture import draw  # noqa: PLC0415 - matplotlib takes half a second to load

            draw(report, picture, rules, rank=rank, step=step)
        if as_json:
            typer.echo(json.dumps(to_data(report), indent=1))
        else:
            typer.echo("\n".join(describe(report, Tolerances(exposed / 100, idle / 100))))
            if picture is not None:
                typer.echo(f"\npicture: {picture}")


@trace_app.command()
def diff(
    before: Annotated[Path, typer.Argument(help="A trace, or the folder of one run's.")],
    after: Annotated[Path, typer.Argument(help="The same of the run that is compared with it.")],
    as_json: Json = False,  # noqa: FBT002 - a flag
    top: Annotated[int, typer.Option(min=1, help="Lines to show; the others are summed.")] = 15,
    rule: Patterns = None,
) -> None:
    """Say which kernels, collectives and idle times explain the difference of the step time."""
    from pytest_scaleperf.trace.analyse import analyse, trace_files  # noqa: PLC0415 - as said above
    from pytest_scaleperf.trace.diff import (  # noqa: PLC0415 - as said above
        describe_difference,
        difference,
        difference_data,
    )

    with _faults_in_words():
        rules = _rules(rule)
        found = difference(*(analyse(trace_files([place]), rules) for place in (before, after)))
        typer.echo(
            json.dumps(difference_data(found), indent=1) if as_json else "\n".join(describe_difference(found, top))
        )


def _rules(added: list[str] | None) -> Rules:
    """Our rules with the user's in front of them."""
    ours = Rules()
    kinds: dict[str, tuple[str, ...]] = {}
    for each in added or ():
        kind, _, pattern = each.partition("=")
        if kind not in ("communication", "compute", "forward", "backward", "optimizer") or not pattern:
            raise typer.BadParameter(
                f"expected KIND=REGEX with communication, compute, forward, backward or optimizer, found {each!r}"
            )
        kinds[kind] = (*kinds.get(kind, ()), pattern)
    return Rules(**{kind: (*patterns, *getattr(ours, kind)) for kind, patterns in kinds.items()})


@contextmanager
def _faults_in_words() -> Iterator[None]:
    """A user's mistake is a sentence and exit code 2, never a traceback."""
    try:
        yield
    except ScalePerfError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(_FAULT) from None
