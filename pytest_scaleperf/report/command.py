"""``scaleperf report``: pages for people and CI, from the records of finished sessions and JUnit files alone.

jinja2, junitparser, msgspec and matplotlib are imported where a report is made: other commands need none of them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pytest_scaleperf.model import ScalePerfError
from pytest_scaleperf.report.contents import MAX_AGE_HOURS, SECONDS_PER_HOUR, TITLE

if TYPE_CHECKING:
    from pytest_scaleperf.report.contents import Report
    from pytest_scaleperf.report.junit_in import JUnitFile

_INCOMPLETE, _FAULT = 1, 2
_SUMMARY = "GITHUB_STEP_SUMMARY"

report_app = typer.Typer(
    add_completion=False, help="Show records and JUnit files as Markdown, HTML, pictures, JUnit or metrics."
)


@report_app.command()
def report(  # noqa: PLR0913 - each is one option of the command line
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH…", help="Run directories, sessions' folders, JUnit files; of several jobs too."),
    ],
    *,
    markdown: Annotated[Path | None, typer.Option(metavar="FILE", help="For a merge request; under 60 kB.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="One page that needs no network.")] = None,
    png: Annotated[Path | None, typer.Option(metavar="FOLDER", help="The pictures of the page.")] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="All given JUnit files as one.")] = None,
    merge: Annotated[
        list[Path] | None,
        typer.Option(metavar="JUNIT", help="One more JUnit file, as if it were a PATH; may be repeated."),
    ] = None,
    metrics: Annotated[Path | None, typer.Option(metavar="FILE", help="OpenMetrics, for GitLab's metrics.txt.")] = None,
    github_summary: Annotated[
        bool, typer.Option("--github-summary", help=f"Append the Markdown to the file that ${_SUMMARY} names.")
    ] = False,
    title: Annotated[str, typer.Option(metavar="TEXT", help="What the report is called.")] = TITLE,
    baselines: Annotated[
        Path,
        typer.Option(metavar="FOLDER", help="Where published values lie, which are then printed beside the ladder."),
    ] = Path("baselines"),
    max_age: Annotated[
        float, typer.Option(min=0, metavar="HOURS", help="Sessions that ended longer before the newest are history.")
    ] = MAX_AGE_HOURS,
) -> None:
    """Show what was measured; without any option, as Markdown on the screen.

    Exit code 0 whatever the verdicts are (pytest says those), 1 where something given could not be read (the report
    is made, and names it), 2 where there is nothing to report or a file cannot be written.
    """
    from pytest_scaleperf.report.assemble import read  # noqa: PLC0415 - as said above
    from pytest_scaleperf.report.beside import with_published  # noqa: PLC0415 - as said above

    try:
        found, files = read([*paths, *(merge or ())], max_age * SECONDS_PER_HOUR)
        found = with_published(found, baselines)
        text = _markdown(found, title)
        if markdown is not None:
            _write(markdown, text)
        if github_summary:
            _append_summary(text)
        if html is not None or png is not None:
            _drawn(found, title, html, png)
        if junit is not None:
            _merged(junit, files, found)
        if metrics is not None:
            from pytest_scaleperf.report import openmetrics  # noqa: PLC0415 - as said above

            _write(metrics, openmetrics.render(found))
    except ScalePerfError as error:
        typer.echo(f"scaleperf report: {error}", err=True)
        raise typer.Exit(_FAULT) from None
    if not (markdown or html or png or junit or metrics or github_summary):
        typer.echo(text)
    for fault in found.faults:
        typer.echo(f"scaleperf report: could not be read: {fault.where}: {fault.why}", err=True)
    if found.faults:
        raise typer.Exit(_INCOMPLETE)


def _markdown(found: Report, title: str) -> str:
    from pytest_scaleperf.report import markdown  # noqa: PLC0415 - as said above

    return markdown.render(found, title)


def _drawn(found: Report, title: str, html: Path | None, png: Path | None) -> None:
    from pytest_scaleperf.report.pictures.album import album  # noqa: PLC0415 - as said above

    pictures = album(found)
    if html is not None:
        from pytest_scaleperf.report import page  # noqa: PLC0415 - as said above

        _write(html, page.render(found, pictures, title))
    if png is not None:
        for picture in pictures.pictures:
            picture.png(png)


def _merged(junit: Path, files: tuple[JUnitFile, ...], found: Report) -> None:
    from pytest_scaleperf.report import junit_merge  # noqa: PLC0415 - as said above

    xml_faults = [fault for fault in found.faults if fault.where.endswith(".xml")]
    if not files and not xml_faults:
        raise ScalePerfError(f"--junit {junit}: no JUnit file was given; name those of the jobs among the paths")
    junit_merge.write(junit_merge.merge(files, xml_faults), junit)


def _append_summary(text: str) -> None:
    name = os.environ.get(_SUMMARY)
    if not name:
        raise ScalePerfError(f"--github-summary: expected ${_SUMMARY} to name a file, found nothing: not a GitHub job")
    try:
        with Path(name).open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ScalePerfError(f"{name}: cannot be written: {error.strerror or error}") from error


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ScalePerfError(f"{path}: cannot be written: {error.strerror or error}") from error
