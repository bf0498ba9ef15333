"""Traces arranged for the pages: which are shown, bars of phases, and the picture of a step as text inside a page."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from markupsafe import Markup

from pytest_scaleperf.model import Decision
from pytest_scaleperf.report.contents import CaseHistory, Entry, Report
from pytest_scaleperf.report.escape import plain
from pytest_scaleperf.report.numbers import milliseconds
from pytest_scaleperf.report.traces import PhaseTime, Trace

MOST_PICTURES = 12
"""Pictures of steps in one page, of 200 kB each; the others are named."""
MOST_WHOLE = 200
"""With more traces than this, one that is inside its band has only its summary and phases."""

_MOST_BYTES = 1_500_000
_SUFFIX = ".svg"
_WIDTH, _HEIGHT = 260, 14
PARTS = (
    ("compute", "compute", "#0072B2"),
    ("exposed_communication", "exposed communication", "#D55E00"),
    ("exposed_copy", "exposed copies", "#CC79A7"),
    ("idle", "idle", "#1a1a1a"),
)
"""Field, words and colour of what a phase's time goes to; the colours of a step's own picture."""


@dataclass(frozen=True, slots=True)
class TracePart:
    """A trace in a case's section. ``picture`` is the address of the picture itself, or None where it is not inside.

    ``bars`` has one for each phase and, last, one for the step. ``is_whole``: False where details would be too much.
    """

    trace: Trace
    bars: tuple[Markup, ...]
    picture: str | None
    is_whole: bool


def traced(report: Report) -> list[tuple[CaseHistory, Trace]]:
    """The cases of this report's time with a trace, those that are not inside their band first."""
    found = [(case, case.now.trace) for case in report.cases if case.now.trace is not None]
    return sorted(found, key=lambda pair: not is_news(pair[0].now))


def is_news(entry: Entry) -> bool:
    """True where a trace is to be looked at: it is outside its band, was not read, or explains a regression."""
    trace = entry.trace
    inside = (Decision.PASS, Decision.NOT_JUDGED, Decision.RECORDED)
    return trace is not None and (trace.decision not in inside or bool(trace.difference))


def parts(report: Report) -> dict[str, TracePart]:
    """What the sections of the report's cases show of their traces, by the record's place."""
    found: dict[str, TracePart] = {}
    all_of_them = traced(report)
    drawn = 0
    for case, trace in all_of_them:
        picture = _picture(case.now, trace) if drawn < MOST_PICTURES else None
        drawn += picture is not None
        is_whole = len(all_of_them) <= MOST_WHOLE or is_news(case.now)
        found[case.now.where] = TracePart(trace, tuple(_bars(trace)), picture, is_whole)
    return found


def amount(values: Sequence[int], write: Callable[[int], str] = "{:,}".format) -> str:
    """A count that is the same in every step and rank, or the smallest and largest of them."""
    if not values:
        return "-"
    return write(values[0]) if len(values) == 1 else f"{write(min(values))} to {write(max(values))}"


def pair(values: tuple[float, float], scale: float, form: str) -> str:
    """Before and after: ``134 -> 268``, or one number where they are written alike."""
    first, second = (format(value / scale, form) for value in values)
    return first if first == second else f"{first} \N{RIGHTWARDS ARROW} {second}"


def _bars(trace: Trace) -> Iterator[Markup]:
    """What each phase's time goes to, one behind the other, and below them the whole step."""
    whole = trace.step.total if trace.step is not None else 0.0
    scale, begin = (_WIDTH / whole if whole > 0 else 0.0), 0.0
    for phase in trace.phases:
        yield _bar(phase, begin, scale)
        begin += phase.total * scale
    if trace.step is not None:
        yield _bar(trace.step, 0.0, scale)


def _bar(phase: PhaseTime, at: float, scale: float) -> Markup:
    """A bar from ``at`` on; ``scale`` is pixels per nanosecond."""
    drawn = []
    for field, _, colour in PARTS:
        width = getattr(phase, field) * scale
        if width > 0:
            shape = f"M{at:.1f} 0h{width:.1f}v{_HEIGHT}h-{width:.1f}z"
            drawn.append(Markup('<path fill="{}" d="{}"/>').format(colour, shape))
            at += width
    told = ", ".join(f"{words} {milliseconds(getattr(phase, field))}" for field, words, _ in PARTS)
    head = Markup('<svg class="bar" viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img" aria-label="{2}">')
    return head.format(_WIDTH, _HEIGHT, f"{plain(phase.title)}: {told}") + Markup().join(drawn) + Markup("</svg>")


def _picture(entry: Entry, trace: Trace) -> str | None:
    """The step's picture as an address that holds the picture itself; None where there is none of ours.

    As an image a browser runs nothing in it and fetches nothing for it.
    """
    for path in _places(entry, trace):
        try:
            if path.suffix != _SUFFIX or not path.is_file() or path.stat().st_size > _MOST_BYTES:
                continue
            text = path.read_bytes()
        except (OSError, ValueError):
            continue
        if text.startswith(b"<?xml") and b"<svg" in text[:2000]:
            return f"data:image/svg+xml;base64,{base64.b64encode(text).decode()}"
    return None


def _places(entry: Entry, trace: Trace) -> list[Path]:
    """Where a picture may lie: as recorded, or in the session's folder, which may have been copied since."""
    if not trace.picture or "\0" in trace.picture:
        return []
    recorded = PurePath(trace.picture)
    places = [Path(recorded)]
    if entry.session and entry.session in recorded.parts:
        inside = recorded.parts[recorded.parts.index(entry.session) + 1 :]
        if inside and ".." not in inside:
            places.append(Path(entry.where).parent.parent.joinpath(*inside))
    return places
