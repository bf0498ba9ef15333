"""``scaleperf rehearse``: does it fit, is it valid, how fast could it be; of any GPU count, on this machine's devices.

What a rehearsal needs is imported where one is made: other commands need none of it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pytest_scaleperf.model import Case, ScalePerfError, Settings, Suite, System
from pytest_scaleperf.printable import one_line
from pytest_scaleperf.rehearse_cli.select import selection

if TYPE_CHECKING:
    from pytest_scaleperf.rehearsed import Rehearsal

_NOT_WELL, _FAULT = 1, 2
_ONE_DAY = 86_400.0
_WIDEST = 1_000


def rehearse(  # noqa: PLR0913 - each is one option of the command line
    paths: Annotated[list[Path], typer.Argument(metavar="SUITE…", help="Suite files, or folders of them.")],
    *,
    keyword: Annotated[
        str, typer.Option("-k", metavar="EXPR", help="Only cases whose id this means, as pytest's -k.")
    ] = "",
    case: Annotated[list[str] | None, typer.Option(metavar="ID", help="Only this case; may be repeated.")] = None,
    rank: Annotated[
        list[int] | None, typer.Option(help="Rehearse this rank, not the suite's; negative from the end; repeatable.")
    ] = None,
    devices: Annotated[
        int | None, typer.Option(min=1, help="Processes side by side (all GPUs; cores on a CPU).")
    ] = None,
    system: Annotated[str, typer.Option(help="A folder of the baselines, or auto.")] = "auto",
    run_dir: Annotated[Path, typer.Option(metavar="DIR", help="Folder for runs and records.")] = Path(".scaleperf"),
    baselines: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the baselines.")] = Path("baselines"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list.")] = False,
) -> None:
    """Rehearse cases: one process on one device stands for one rank of each, and nothing is compared but memory.

    Exit code 0 where everything that could be rehearsed is valid and fits, 1 where something does not or where nothing
    could be rehearsed, 2 where something given cannot be used, 130 after Ctrl-C.
    """
    from pytest_scaleperf.system import choose_system  # noqa: PLC0415 - as said above

    try:
        kind = choose_system(baselines, system)
        cases = _chosen(_suites(paths), kind, keyword, case or [], rank or [])
        settings = Settings(None, kind.name, "local", run_dir, baselines, False, _ONE_DAY, None, rehearse=True)
        found = _tell(_rehearsed(cases, settings, kind, devices), len(cases))
    except ScalePerfError as error:
        typer.echo(f"scaleperf rehearse: {error}", err=True)
        raise typer.Exit(_FAULT) from None
    _print(found, as_json=as_json)
    if any(not each.is_well for each in found) or not any(each.fit.is_known for each in found):
        raise typer.Exit(_NOT_WELL)


def _suites(paths: Sequence[Path]) -> list[Suite]:
    from pytest_scaleperf.suite import load_suite, load_suites  # noqa: PLC0415 - as said above

    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        raise ScalePerfError(f"no such file or directory: {', '.join(missing)}")
    return [suite for path in paths for suite in (load_suites(path) if path.is_dir() else [load_suite(path)])]


def _chosen(
    suites: Sequence[Suite], system: System, keyword: str, names: Sequence[str], ranks: Sequence[int]
) -> list[Case]:
    """The cases that are meant, lowest rung first, with the ranks that are meant."""
    meant = selection(keyword) if keyword else lambda _: True
    known = [case for suite in suites if suite.system == system.name for case in suite.cases()]
    unknown = [name for name in names if name not in {case.id for case in known}]
    if unknown:
        raise ScalePerfError(f"--case {unknown[0]}: expected the id of a case of system {system.name}, found none such")
    chosen = [case for case in known if meant(case.id) and (not names or case.id in names)]
    if not chosen:
        listed = ", ".join(f"{suite.name} (system {suite.system})" for suite in suites) or "no suite"
        raise ScalePerfError(f"no case of system {system.name} is meant; there is: {listed}. Say --system NAME or -k")
    return [_with_ranks(case, tuple(ranks)) for case in sorted(chosen, key=lambda case: case.gpus)]


def _with_ranks(case: Case, ranks: tuple[int, ...]) -> Case:
    beyond = [rank for rank in ranks if not -case.gpus <= rank < case.gpus]
    if beyond:
        raise ScalePerfError(
            f"--rank {beyond[0]}: expected a rank of {case.id}, from {-case.gpus} (the first) to {case.gpus - 1}"
        )
    if not ranks:
        return case
    return replace(case, suite=replace(case.suite, rehearse=replace(case.suite.rehearse, ranks=ranks)))


def _rehearsed(cases: Sequence[Case], settings: Settings, system: System, devices: int | None) -> Iterator[Rehearsal]:
    """Each case's rehearsal, in order. Whatever is started is ended on every way out."""
    from pytest_scaleperf.campaign import Campaign  # noqa: PLC0415 - as said above
    from pytest_scaleperf.campaign.rehearsal import Rehearser  # noqa: PLC0415
    from pytest_scaleperf.launch.devices import slots  # noqa: PLC0415
    from pytest_scaleperf.launch.local import LocalLauncher  # noqa: PLC0415
    from pytest_scaleperf.records import SessionFolder  # noqa: PLC0415

    found = slots(system.device, os.environ)
    session = SessionFolder.create(settings.run_dir, {"arguments": sys.argv[1:], "system": system.name})
    campaign = Campaign(settings, system, session, LocalLauncher())
    used = min(found, devices or found)
    rehearser = Rehearser(campaign, LocalLauncher(slots=used), devices=used)
    try:
        rehearser.take_up(cases)
        for case in cases:
            yield rehearser.result(case, lambda _now: None)
    finally:
        try:
            rehearser.close()
        finally:
            campaign.close()


def _tell(rehearsals: Iterator[Rehearsal], number: int) -> list[Rehearsal]:
    """All of them; each said on stderr as it ends, as that may take minutes."""
    found = []
    for each in rehearsals:
        found.append(each)
        typer.echo(f"{len(found)} of {number}: {each.case_id}: {each.fit} ({each.seconds:.0f} s)", err=True)
    return found


def _print(found: Sequence[Rehearsal], *, as_json: bool) -> None:
    from rich.console import Console  # noqa: PLC0415 - as said above
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from pytest_scaleperf.report import rehearsed_text  # noqa: PLC0415

    if as_json:
        typer.echo(json.dumps([rehearsed_text.as_json(each) for each in found], indent=1, allow_nan=False))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, title in enumerate(rehearsed_text.TITLES):
        table.add_column(title, justify="left" if column in rehearsed_text.WORDS else "right", no_wrap=column == 0)
    for each in found:
        style = "" if each.is_well else "red"
        table.add_row(*(Text(one_line(cell)) for cell in rehearsed_text.row(each)), style=style)
    screen = Console(highlight=False, soft_wrap=True)
    screen.width = max(screen.width, screen.measure(table, options=screen.options.update(width=_WIDEST)).maximum)
    screen.print(table)  # a narrow screen wraps lines; rich would cut the numbers
    for line in rehearsed_text.reasons(found):
        screen.print(Text(line))
