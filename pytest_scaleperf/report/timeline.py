"""A session's ``timeline.json``: which launch had which nodes when, and how the GPUs' time was spent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from markupsafe import Markup

from pytest_scaleperf.model import JobState
from pytest_scaleperf.report.escape import plain
from pytest_scaleperf.report.numbers import counted, hours, moment

FILE = "timeline.json"
MOST_ROWS = 64
"""Nodes of one chart; of more, the first ones."""
MOST_BARS = 5_000

_WIDTH, _LEFT, _RIGHT, _ROW, _TOP, _BOTTOM = 1_100, 150, 14, 18, 6, 22
_NAME = 20
_TICKS = 5
_SECONDS_PER_MINUTE = 60
_LOST = (JobState.NODE_FAIL, JobState.PREEMPTED, JobState.CANCELLED, JobState.UNKNOWN)
# Okabe and Ito's colours, which stay apart for every kind of colour vision.
KINDS = (("completed", "#009E73"), ("failed", "#D55E00"), ("lost to the machine", "#1a1a1a"))
_UNKNOWN = "(no host known)"


@dataclass(frozen=True, slots=True)
class Ran:
    """One launch: when it began and ended in seconds since 1970, on which nodes, and how."""

    case: str
    attempt: int
    gpus: int
    started: float
    ended: float
    state: JobState
    hosts: tuple[str, ...] = ()
    waited: float = 0.0


@dataclass(frozen=True, slots=True)
class Timeline:
    """All launches of a session. ``gpu_seconds`` are the sums busy, idle and lost that the session itself took.

    ``left_out`` names nodes that were not used any more, with the reason.
    """

    timeline: tuple[Ran, ...]
    capacity_gpus: int
    left_out: tuple[str, ...] = ()
    gpu_seconds: Mapping[str, float] | None = None

    @property
    def spent(self) -> dict[str, float]:
        """GPU-seconds busy, lost and idle, from the first start to the last end."""
        if self.gpu_seconds is not None:
            return dict(self.gpu_seconds)
        lost = sum(_gpu_seconds(ran) for ran in self.timeline if ran.state in _LOST)
        busy = sum(_gpu_seconds(ran) for ran in self.timeline) - lost
        begin, end = _span(self.timeline)
        return {"busy": busy, "lost": lost, "idle": max(0.0, self.capacity_gpus * (end - begin) - busy - lost)}


@dataclass(frozen=True, slots=True)
class SessionTimeline:
    """A timeline with the session that it is of and where it was found."""

    session: str
    where: str
    told: Timeline


def words(told: Timeline) -> str:
    """How the GPUs' time was spent, in one sentence."""
    spent = told.spent
    whole = sum(spent.values())
    parts = [
        f"{hours(seconds)} {name}" + (f" ({100 * seconds / whole:.0f} %)" if whole > 0 else "")
        for name, seconds in spent.items()
    ]
    return (
        f"{counted(len(told.timeline), 'launch', 'launches')} on up to {counted(told.capacity_gpus, 'GPU')}; "
        f"GPU-hours: {', '.join(parts)}"
    )


def not_drawn(told: Timeline) -> str:
    """What the chart leaves out, or nothing."""
    hosts, bars = len(_rows(told)), len(told.timeline)
    parts = [f"{hosts - MOST_ROWS:,} of {hosts:,} nodes"] if hosts > MOST_ROWS else []
    parts += [f"{bars - MOST_BARS:,} of {bars:,} launches"] if bars > MOST_BARS else []
    return f"Not drawn, because there are too many: {', '.join(parts)}." if parts else ""


def chart(told: Timeline) -> Markup | None:
    """A Gantt chart: a row for each node, a bar for each launch on it; None where nothing was launched."""
    rows = list(_rows(told))[:MOST_ROWS]
    if not rows:
        return None
    place = {host: number for number, host in enumerate(rows)}
    begin, end = _span(told.timeline)
    scale = (_WIDTH - _LEFT - _RIGHT) / ((end - begin) or 1.0)
    height = _TOP + _ROW * len(rows) + _BOTTOM
    parts = [_label(_LEFT - 6, _TOP + _ROW * number + 13, "end", host) for host, number in place.items()]
    for ran in told.timeline[:MOST_BARS]:
        for host in ran.hosts or (_UNKNOWN,):
            if host in place:
                x, width = _LEFT + (ran.started - begin) * scale, max(1.0, (ran.ended - ran.started) * scale)
                parts.append(_bar(ran, x, _TOP + _ROW * place[host] + 2, width))
    for number in range(_TICKS + 1):
        seconds = (end - begin) * number / _TICKS
        anchor = "end" if number == _TICKS else "middle" if number else "start"
        parts.append(_label(_LEFT + seconds * scale, height - 6, anchor, _clock(seconds)))
    axis = Markup('<path class="axis" d="M{} {}V{}H{}"/>').format(_LEFT, _TOP, height - _BOTTOM, _WIDTH - _RIGHT)
    label = f"which launch had which node when, from {moment(begin)}"
    head = Markup(
        '<svg class="small chart" viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img" aria-label="{2}">'
    )
    return head.format(_WIDTH, height, label) + Markup().join([axis, *parts]) + Markup("</svg>")


def _bar(ran: Ran, x: float, y: float, width: float) -> Markup:
    used = f"{counted(ran.gpus, 'GPU')}, {ran.ended - ran.started:,.0f} s"
    told = f"{plain(ran.case)}, launch {ran.attempt}: {ran.state}, {used}"
    text = Markup('<rect x="{:.1f}" y="{:.0f}" width="{:.1f}" height="{}" fill="{}"><title>{}</title></rect>')
    return text.format(x, y, width, _ROW - 4, dict(KINDS)[_kind(ran.state)], told)


def _label(x: float, y: float, anchor: str, text: str) -> Markup:
    shown = plain(text, _NAME)
    return Markup('<text x="{:.0f}" y="{:.0f}" text-anchor="{}">{}</text>').format(x, y, anchor, shown)


def _kind(state: JobState) -> str:
    if state in _LOST:
        return "lost to the machine"
    return "completed" if state is JobState.COMPLETED else "failed"


def _clock(seconds: float) -> str:
    """Time since the session's first start: ``45 s``, ``12 min``, ``3.5 h``."""
    minutes = seconds / _SECONDS_PER_MINUTE
    if minutes < 2:  # noqa: PLR2004 - below that, seconds say more
        return f"{seconds:.0f} s"
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"  # noqa: PLR2004 - two hours


def _rows(told: Timeline) -> dict[str, None]:
    """The nodes in order of name; launches of no known node have a row of their own, the last."""
    hosts = {host for ran in told.timeline for host in ran.hosts}
    unknown = [_UNKNOWN] if any(not ran.hosts for ran in told.timeline) else []
    return dict.fromkeys([*sorted(hosts), *unknown])


def _span(ran: tuple[Ran, ...]) -> tuple[float, float]:
    return min((each.started for each in ran), default=0.0), max((each.ended for each in ran), default=0.0)


def _gpu_seconds(ran: Ran) -> float:
    return ran.gpus * (ran.ended - ran.started)
