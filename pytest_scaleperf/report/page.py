"""The report as one HTML file that needs no network: everything is inside it, and a policy forbids the rest."""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from pytest_scaleperf.model import FINGERPRINT_FIELDS, Decision, Metric
from pytest_scaleperf.report import beside, numbers, preflight, rehearsals, timeline, trace_view, views
from pytest_scaleperf.report.contents import TITLE, CaseHistory, Entry, Launch, Report, Scaling
from pytest_scaleperf.report.escape import lines
from pytest_scaleperf.report.sparkline import colour, history, series
from pytest_scaleperf.report.traces import Trace

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

_LISTED = 8
"""Records that a case's section lists; its pictures show more."""
_TIMELINES = 4
"""Sessions, the newest, whose launches are drawn over time."""
_DRAWN = (Metric.TPS, Metric.PEAK_MEMORY)
"""Metrics whose history is drawn for each case; MFU goes with TPS."""
MOST_DRAWN = 1_000
"""With more cases only those that changed have small pictures: the page stays under 10 MB for as long as it can."""


@dataclass(frozen=True, slots=True)
class Section:
    """One case's section: ``anchor`` is its place in the page, ``records`` the newest of its history, newest first."""

    anchor: str
    case: CaseHistory
    series: Markup | None
    histories: tuple[tuple[str, Markup], ...]
    picture: Markup | None
    records: tuple[Entry, ...]
    older_records: int
    trace: trace_view.TracePart | None


@dataclass(frozen=True, slots=True)
class SuitePart:
    """One suite's pictures, each with its title."""

    system: str
    suite: str
    pictures: tuple[tuple[str, Markup], ...]


def render(report: Report, album: Album, title: str = TITLE) -> str:
    """The page under a title. The template escapes every text; our own and matplotlib's pictures go in as they are."""
    environment = _environment()
    script = _inside(environment, "page.js")
    cases, changed = (*report.cases, *report.older), views.changed(report)
    drawn = {(case.system, case.id) for case in (cases if len(cases) <= MOST_DRAWN else changed)}
    traces = trace_view.parts(report)
    sections = [
        _section(number, case, album, traces, is_drawn=(case.system, case.id) in drawn)
        for number, case in enumerate(cases)
    ]
    anchors = {(s.case.system, s.case.id): s.anchor for s in sections}
    text: str = environment.get_template("page.html.j2").render(
        report=report,
        title=title,
        headline=views.headline(report),
        scalings=sorted(report.scalings, key=lambda scaling: not scaling.is_red),
        preflights=preflight.parts(report),
        preflight_titles=preflight.GPU_TITLES,
        sections=sections,
        current=sections[: len(report.cases)],
        anchor=lambda case: anchors[case.system, case.id],
        summary=views.summary(report),
        changed=changed,
        nothing_changed=views.nothing_changed(report),
        first_measured=len(views.first_measured(report)),
        not_run=views.not_run(report),
        levels=views.levels(report),
        notes=views.notes(report),
        steps=views.ladder(report),
        published=beside.tables(report),
        traced=trace_view.traced(report),
        timelines=[(each, timeline.chart(each.told)) for each in report.timelines[-_TIMELINES:]],
        rehearsed=[(not each.is_bad, rehearsals.cells(each)) for each in report.rehearsals],
        rehearsal_titles=rehearsals.TITLES,
        rehearsal_sides=rehearsals.SIDES,
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
    environment.globals |= {"trace_parts": trace_view.PARTS, "timeline_kinds": timeline.KINDS}
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
        "points": numbers.points,
        "hours": numbers.hours,
        "moment": numbers.moment,
        "counted": numbers.counted,
        "tone": _tone,
        "before": views.before,
        "efficiency": views.efficiency,
        "configuration": views.configuration,
        "command": _command,
        "milliseconds": numbers.milliseconds,
        "amount": trace_view.amount,
        "amount_of_bytes": lambda values: trace_view.amount(values, numbers.size),
        "pair": trace_view.pair,
        "again": _again,
        "gpu_time": timeline.words,
        "not_drawn": timeline.not_drawn,
        "colour": colour,
        "fingerprint": _fingerprint,
        "details": _details,
        "value": lambda entry, metric: entry.value(Metric(metric)),
        "judged": lambda entry, metric: entry.metric(Metric(metric)),
    }


def _inside(environment: Any, name: str) -> str:  # noqa: ANN401 - as above
    source: str = environment.loader.get_source(environment, name)[0]
    return source.strip()


def _section(
    number: int, case: CaseHistory, album: Album, traces: Mapping[str, trace_view.TracePart], *, is_drawn: bool
) -> Section:
    drawn = album.at("case", case.id)
    small = [(f"{m}, {m.unit}", history(case, m)) for m in _DRAWN] if is_drawn and not drawn else []
    records = sorted((*case.earlier, case.now), key=lambda entry: -entry.finished)
    return Section(
        anchor=f"case-{number + 1}",
        case=case,
        series=series(case.now) if is_drawn else None,
        histories=tuple((title, picture) for title, picture in small if picture is not None),
        picture=Markup(drawn[0].svg()) if drawn else None,  # noqa: S704 - matplotlib escapes its texts
        records=tuple(records[:_LISTED]),
        older_records=max(0, len(records) - _LISTED),
        trace=traces.get(case.now.where),
    )


def _suites(report: Report, album: Album) -> list[SuitePart]:
    found = []
    for system, suite in views.rungs_of(views.ladder(report)):
        pictures = [(p.title, Markup(p.svg())) for p in album.at(system, suite)]  # noqa: S704 - as above
        if pictures:
            found.append(SuitePart(system, suite, tuple(pictures)))
    return found


def _tone(entry: Entry | Scaling | Decision) -> str:
    """Class of a verdict's mark."""
    if isinstance(entry, Decision):
        return _TONES.get(entry, "bad")
    if isinstance(entry, Scaling):
        return _TONES.get(entry.decision, "bad")
    return "bad" if entry.lacks_evidence or entry.is_contradicted else _TONES.get(entry.decision, "bad")


def _command(launch: Launch) -> str:
    """The command as a shell would take it."""
    return shlex.join(launch.argv)


def _again(trace: Trace) -> str:
    """The command that reads a trace once more."""
    return shlex.join(["scaleperf", "trace", str(PurePath(trace.files[0]).parent)])


def _fingerprint(entry: Entry) -> list[tuple[str, str]]:
    found = entry.fingerprint
    told = [] if found is None else [(name, getattr(found, name)) for name in FINGERPRINT_FIELDS]
    return [(name, f"{v:g} FLOP/s" if isinstance(v, float) else str(v)) for name, v in told if v is not None]


def _details(launch: Launch) -> Sequence[tuple[str, str]]:
    """What is known of a failure beside its line."""
    failure = launch.failure
    if failure is None:
        return []
    names = ("rank", "host", "step", "line", "signal", "requested_gib")
    found = [(name, str(value)) for name in names if (value := getattr(failure, name)) is not None]
    return [*found, *((name, json.dumps(value)) for name, value in failure.details.items())]
