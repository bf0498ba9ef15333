"""The report as one HTML file that needs no network: everything is inside it, and a policy forbids the rest."""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from pytest_scaleperf.model import FINGERPRINT_FIELDS, Decision, Metric
from pytest_scaleperf.report import numbers, views
from pytest_scaleperf.report.contents import CaseHistory, Entry, Launch, Report
from pytest_scaleperf.report.escape import lines
from pytest_scaleperf.report.sparkline import history, series

if TYPE_CHECKING:
    from pytest_scaleperf.report.pictures.album import Album

_TONES = {
    Decision.PASS: "good",
    Decision.IMPROVEMENT: "better",
    Decision.RECORDED: "calm",
    Decision.SKIPPED: "calm",
    Decision.NOT_JUDGED: "calm",
    Decision.INCONCLUSIVE: "doubt",
    Decision.MACHINE_FAILED: "doubt",
}


@dataclass(frozen=True, slots=True)
class Section:
    """One case's section: ``anchor`` is its place in the page."""

    anchor: str
    case: CaseHistory
    series: Markup | None
    histories: tuple[Markup, ...]
    picture: Markup | None


@dataclass(frozen=True, slots=True)
class SuitePart:
    """One suite's pictures, each with its title."""

    system: str
    suite: str
    pictures: tuple[tuple[str, Markup], ...]


def render(report: Report, album: Album) -> str:
    """The page. Every text is escaped by the template; only our own and matplotlib's pictures go in as they are."""
    environment = _environment()
    script = _inside(environment, "page.js")
    sections = [_section(number, case, album) for number, case in enumerate((*report.cases, *report.older))]
    anchors = {(s.case.system, s.case.id): s.anchor for s in sections}
    text: str = environment.get_template("page.html.j2").render(
        report=report,
        sections=sections,
        current=sections[: len(report.cases)],
        anchor=lambda case: anchors[case.system, case.id],
        summary=views.summary(report),
        changed=views.changed(report),
        first_measured=len(views.first_measured(report)),
        not_run=views.not_run(report),
        steps=views.ladder(report),
        suites=_suites(report, album),
        left_out=album.left_out,
        columns=views.COLUMNS,
        style=Markup(_inside(environment, "page.css")),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704 - our own file
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
    return text


def _environment() -> Any:  # noqa: ANN401 - jinja2 is imported where a page is made
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 - only a report needs it

    environment = Environment(
        loader=PackageLoader("pytest_scaleperf.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.filters |= _filters()
    return environment


def _shown(value: object) -> object:
    """What a template writes: text of logs and files without control characters, nothing for None."""
    if value is None:
        return ""
    return value if isinstance(value, Markup) or not isinstance(value, str) else lines(value)


def _filters() -> dict[str, Callable[..., object]]:
    return {
        "figure": numbers.figure,
        "change": numbers.change,
        "percent": numbers.percent,
        "hours": numbers.hours,
        "moment": numbers.moment,
        "counted": numbers.counted,
        "tone": _tone,
        "before": views.before,
        "configuration": views.configuration,
        "command": _command,
        "files": _files,
        "fingerprint": _fingerprint,
        "details": _details,
        "value": lambda entry, metric: entry.value(Metric(metric)),
        "judged": lambda entry, metric: entry.metric(Metric(metric)),
    }


def _inside(environment: Any, name: str) -> str:  # noqa: ANN401 - as above
    source: str = environment.loader.get_source(environment, name)[0]
    return source.strip()


def _section(number: int, case: CaseHistory, album: Album) -> Section:
    drawn = album.at("case", case.id)
    small = [] if drawn else [history(case, metric) for metric in views.COLUMNS]
    return Section(
        anchor=f"case-{number + 1}",
        case=case,
        series=series(case.now),
        histories=tuple(picture for picture in small if picture is not None),
        picture=Markup(drawn[0].svg()) if drawn else None,  # noqa: S704 - matplotlib escapes its texts
    )


def _suites(report: Report, album: Album) -> list[SuitePart]:
    found = []
    for system, suite in views.rungs_of(views.ladder(report)):
        pictures = [(p.title, Markup(p.svg())) for p in album.at(system, suite)]  # noqa: S704 - as above
        if pictures:
            found.append(SuitePart(system, suite, tuple(pictures)))
    return found


def _tone(entry: Entry) -> str:
    """Class of a verdict's mark."""
    return "bad" if entry.lacks_evidence or entry.is_contradicted else _TONES.get(entry.decision, "bad")


def _command(launch: Launch) -> str:
    """The command as a shell would take it."""
    return shlex.join(launch.argv)


def _files(launch: Launch) -> dict[str, str]:
    """Where the log and the script that repeats the run are."""
    folder = PurePath(launch.folder)
    return {"log": str(folder / "stdout.log"), "script": str(folder / "command.sh")}


def _fingerprint(entry: Entry) -> list[tuple[str, object]]:
    found = entry.fingerprint
    return [] if found is None else [(n, v) for n in FINGERPRINT_FIELDS if (v := getattr(found, n)) is not None]


def _details(launch: Launch) -> Sequence[tuple[str, str]]:
    """What is known of a failure beside its line."""
    failure = launch.failure
    if failure is None:
        return []
    names = ("rank", "host", "step", "line", "signal", "requested_gib")
    found = [(name, str(value)) for name in names if (value := getattr(failure, name)) is not None]
    return [*found, *((name, json.dumps(value)) for name, value in failure.details.items())]
