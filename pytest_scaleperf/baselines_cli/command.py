"""The commands: show, diff, update, prune."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pytest_scaleperf.model import BaselineError, ScalePerfError

if TYPE_CHECKING:
    from pytest_scaleperf.baseline import Change, Measured, MeasuredScaling, ScalingChange
    from pytest_scaleperf.baselines_cli.efficiencies import TakenPair
    from pytest_scaleperf.baselines_cli.sources import Sources, Taken
    from pytest_scaleperf.model import Suite

_REFUSED, _FAULT = 1, 2
_RUN_DIR = Path(".scaleperf")
_SYSTEM_FILE = "system.yaml"

baselines_app = typer.Typer(
    no_args_is_help=True,
    help="Stored values: show them, compare runs with them, take runs in, remove what no suite has.",
)

Where = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[SOURCE]…",
        help="Run directory (its newest session), session, JUnit file, or a CI artifact's folder (.scaleperf).",
    ),
]
Folder = Annotated[Path, typer.Option("--baselines", metavar="DIR", help="Folder of the baselines.")]
Json = Annotated[bool, typer.Option("--json", help="For machines.")]
Cases = Annotated[
    list[str] | None,
    typer.Option("--case", metavar="PATTERN", help="Only cases of this id; * and ? as in file names; may be repeated."),
]


@baselines_app.command()
def show(
    *,
    baselines: Folder = Path("baselines"),
    system: Annotated[str, typer.Option(help="Only this system.")] = "*",
    suite: Annotated[str, typer.Option(help="Only this suite.")] = "*",
    case: Cases = None,
    as_json: Json = False,
) -> None:
    """List what is stored: values, spread between samples, age, tolerance and reasons."""
    from pytest_scaleperf.baseline import read_accepted, read_baselines, read_scaling  # noqa: PLC0415 - pydantic takes 0.1 s to load
    from pytest_scaleperf.baselines_cli import tables  # noqa: PLC0415 - as above
    from pytest_scaleperf.report.numbers import counted  # noqa: PLC0415 - as above

    with _faults_in_words():
        data: dict[str, Any] = {}
        for path in _files(baselines, system, suite):
            stored = [b for name, b in sorted(read_baselines(path).items()) if _wanted(name, case)]
            pairs = [p for name, p in sorted(read_scaling(path).items()) if _wanted(name, case)]
            accepted = read_accepted(path)
            if as_json:
                data[str(path)] = tables.as_data(stored, accepted, pairs)
                continue
            pairs_too = f", {counted(len(pairs), 'pair')} of rungs" if pairs else ""
            typer.echo(f"{path}: {counted(len(stored), 'case')}{pairs_too}")
            for line in [
                *(tables.stored_cases(stored, accepted) if stored else ()),
                *(tables.stored_scaling(pairs) if pairs else ()),
            ]:
                typer.echo(f"  {line}")
        if as_json:
            typer.echo(json.dumps(data, indent=1))


@baselines_app.command()
def diff(
    source: Where = None, *, baselines: Folder = Path("baselines"), case: Cases = None, as_json: Json = False
) -> None:
    """Compare what runs measured with what is stored, worst first. Nothing is changed.

    Exit code 0 whatever the differences are; 1 where something given could not be read.
    """
    from pytest_scaleperf.baseline import read_baselines, read_scaling, shifts, values_of  # noqa: PLC0415 - as in show
    from pytest_scaleperf.baselines_cli import tables  # noqa: PLC0415 - as in show

    with _faults_in_words():
        found, groups = _taken(source, baselines, case)
        rows = []
        for path, many in groups.items():
            stored = read_baselines(path)
            for measured in _pooled(many):
                known = stored.get(measured.case_id)
                before = {} if known is None else values_of(known.samples)
                moved = shifts(before, values_of(measured.samples), measured.bands)
                rows.append(tables.Difference(measured, known, moved))
        rows.sort(key=lambda row: (-row.severity, row.stored is None, row.case_id))
        if as_json:
            typer.echo(json.dumps([row.as_data() for row in rows], indent=1))
        else:
            for line in tables.differences(rows) if rows else ("no case completed: nothing to compare",):
                typer.echo(line)
            pairs = [
                (new, read_scaling(path).get(new.pair_id))
                for path, many in _pairs(found, baselines, case)
                for new in many
            ]
            for line in tables.efficiency_differences(pairs) if pairs else ():
                typer.echo(line)
            _say_left_out(found)
        _end(found, refused=False)


@baselines_app.command()
def update(
    source: Where = None,
    *,
    baselines: Folder = Path("baselines"),
    case: Cases = None,
    accept_regression: Annotated[
        str | None, typer.Option(metavar="WHY", help="Store what is worse too, with this reason and the old values.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would change, and change nothing.")] = False,
) -> None:
    """Take what runs measured into the stored values: cases that ran to their end, nothing worse without a reason.

    Exit code 1 where something was refused or could not be read.
    """
    from pytest_scaleperf import baseline  # noqa: PLC0415 - as in show
    from pytest_scaleperf.baselines_cli import tables  # noqa: PLC0415 - as in show

    with _faults_in_words():
        why = _reason(accept_regression)
        found, groups = _taken(source, baselines, case)
        changes: list[Change | ScalingChange] = []
        for path, many in groups.items():
            done = baseline.update(path, many, accept=why, dry_run=dry_run)
            _say_changes(path, list(tables.changes(done)))
            changes += done
        for path, pairs in _pairs(found, baselines, case):
            compared = baseline.update_scaling(path, pairs, accept=why, dry_run=dry_run)
            _say_changes(path, list(tables.efficiency_changes(compared)))
            changes += compared
        _say_left_out(found)
        refused = any(change.kind is baseline.Kind.REFUSED for change in changes)
        typer.echo(f"{tables.summary(changes)}{'; a dry run, nothing was written' if dry_run else ''}")
        if refused and not why:
            typer.echo('what is worse is stored with --accept-regression "why", best with --case for what you mean')
        _end(found, refused=refused)


@baselines_app.command()
def prune(
    source: Where = None,
    *,
    baselines: Folder = Path("baselines"),
    suites: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the suites.")] = Path("suites"),
    yes: Annotated[bool, typer.Option("--yes", help="Remove what is listed.")] = False,
) -> None:
    """Remove entries of cases that no suite has any more, after a complete run of the suite.

    Refused with exit code 1 where a case of the suite has no record: it was a selection then, or of another checkout.
    """
    from pytest_scaleperf import baseline  # noqa: PLC0415 - as in show
    from pytest_scaleperf.baselines_cli.sources import gather  # noqa: PLC0415 - as in show
    from pytest_scaleperf.suite import load_suites, pairs  # noqa: PLC0415 - as in show

    with _faults_in_words():
        loaded = {(suite.system, suite.name): suite for suite in load_suites(suites)}
        found = gather(source or [_RUN_DIR])
        refused = False
        for path in _files(baselines, "*", "*"):
            suite = loaded.get((path.parent.name, path.stem))
            if suite is None:
                typer.echo(f"{path}: no suite of that name and system in {suites}; remove the file by hand")
                continue
            cases = {case.id for case in suite.cases()}
            kept = {pair.id for pair in pairs(suite)}
            unused = sorted(
                (baseline.read_baselines(path).keys() - cases) | (baseline.read_scaling(path).keys() - kept)
            )
            if not unused:
                typer.echo(f"{path}: nothing is unused")
                continue
            missing = _missing(suite, found)
            typer.echo("\n".join([f"{path}: {len(unused)} unused", *(f"  {_printable(name)}" for name in unused)]))
            if missing:
                refused = True
                typer.echo(f"  not removed: {missing}")
            elif yes:
                baseline.prune(path, cases, kept)
                typer.echo("  removed")
            else:
                typer.echo("  nothing is removed yet; say --yes")
        _end(found, refused=refused)


def _files(folder: Path, system: str, suite: str) -> list[Path]:
    found = sorted(path for path in folder.glob(f"{system}/{suite}.yaml") if path.name != _SYSTEM_FILE)
    if not found:
        raise BaselineError(f"{folder}: expected baseline files {system}/{suite}.yaml, found none; say --baselines DIR")
    return found


def _wanted(case_id: str, patterns: Sequence[str] | None) -> bool:
    return not patterns or any(fnmatch.fnmatchcase(case_id, pattern) for pattern in patterns)


def _taken(
    source: Sequence[Path] | None, baselines: Path, patterns: Sequence[str] | None
) -> tuple[Sources, dict[Path, list[Measured]]]:
    """What the sources say, and of it what counts and is wanted, by baseline file."""
    from pytest_scaleperf.baselines_cli.sources import gather  # noqa: PLC0415 - as in show

    found = gather(source or [_RUN_DIR])
    groups: dict[Path, list[Measured]] = {}
    for each in found.taken:
        if _wanted(each.measured.case_id, patterns):
            groups.setdefault(_path_of(baselines, each), []).append(each.measured)
    return found, groups


def _pairs(found: Sources, baselines: Path, patterns: Sequence[str] | None) -> list[tuple[Path, list[MeasuredScaling]]]:
    groups: dict[Path, list[MeasuredScaling]] = {}
    for each in found.pairs:
        if _wanted(each.measured.pair_id, patterns):
            groups.setdefault(_path_of(baselines, each), []).append(each.measured)
    return list(groups.items())


def _say_changes(path: Path, lines: list[str]) -> None:
    typer.echo("\n".join([str(path), *lines]) if lines else f"{path}: as it was")


def _path_of(baselines: Path, taken: Taken | TakenPair) -> Path:
    if not (baselines / taken.system / _SYSTEM_FILE).is_file():
        raise BaselineError(
            f"{baselines}: expected a folder {taken.system} with a {_SYSTEM_FILE}, found none; say --baselines DIR"
        )
    return baselines / taken.system / f"{taken.suite}.yaml"


def _pooled(many: Sequence[Measured]) -> Iterator[Measured]:
    """One for each case, with the samples of all its sessions."""
    import dataclasses  # noqa: PLC0415 - only here

    by_case: dict[str, Measured] = {}
    for measured in many:
        before = by_case.get(measured.case_id)
        samples = measured.samples if before is None else (*before.samples, *measured.samples)
        by_case[measured.case_id] = dataclasses.replace(measured, samples=samples)
    yield from by_case.values()


def _reason(text: str | None) -> str:
    if text is None:
        return ""
    if not text.strip() or not text.strip().isprintable():
        raise BaselineError(f"--accept-regression: expected the reason, one line of text, found {text!r}")
    return text.strip()


def _missing(suite: Suite, found: Sources) -> str:
    """Why the given runs are no complete one; empty where each case of the suite has a record."""
    missing = [case.id for case in suite.cases() if (suite.system, case.id) not in found.seen]
    if not missing:
        return ""
    more = f" and {len(missing) - 3} more" if len(missing) > len(missing[:3]) else ""
    return (
        f"expected a complete run of {suite.name}, found no record of {', '.join(missing[:3])}{more} in "
        f"{', '.join(map(str, found.places))}; run pytest without a selection first"
    )


def _say_left_out(found: Sources) -> None:
    for each in found.left_out:
        if each.launched:
            typer.echo(f"left out: {_printable(each.case_id)}: {_printable(each.why)}")
    idle = sum(not each.launched for each in found.left_out)
    if idle:
        typer.echo(f"left out: {idle} that were not launched")


def _end(found: Sources, *, refused: bool) -> None:
    for fault in found.faults:
        typer.echo(f"could not be read: {_printable(fault.where)}: {_printable(fault.why)}", err=True)
    if refused or found.faults:
        raise typer.Exit(_REFUSED)


def _printable(text: str) -> str:
    from pytest_scaleperf.report.escape import plain  # noqa: PLC0415 - as in show

    return plain(text)


@contextmanager
def _faults_in_words() -> Iterator[None]:
    """A user's mistake is a sentence and exit code 2, never a traceback."""
    try:
        yield
    except ScalePerfError as error:
        typer.echo(f"scaleperf baselines: {error}", err=True)
        raise typer.Exit(_FAULT) from None
