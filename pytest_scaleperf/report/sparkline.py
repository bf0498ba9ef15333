"""Small pictures drawn by hand as SVG, for a page with a thousand cases: a few hundred bytes and no time each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from pytest_scaleperf.model import Decision, Metric, MetricVerdict
from pytest_scaleperf.report.contents import CaseHistory, Entry
from pytest_scaleperf.report.numbers import day, figure, moment

WIDTH, HEIGHT = 560, 110
_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 12, 8, 20
_MOST_POINTS = 200
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7")
MOST_RECORDS = 60


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where values lie: x from ``x0`` to ``x1`` and y from ``y0`` to ``y1`` fill the inside of the picture."""

    x0: float
    x1: float
    y0: float
    y1: float

    def x(self, value: float) -> float:
        """Pixels from the left."""
        return round(_LEFT + (WIDTH - _LEFT - _RIGHT) * (value - self.x0) / (self.x1 - self.x0 or 1.0), 1)

    def y(self, value: float) -> float:
        """Pixels from the top."""
        return round(HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * (value - self.y0) / (self.y1 - self.y0 or 1.0), 1)

    def line(self, points: Sequence[tuple[float, float]], colour: str) -> Markup:
        """A line through points."""
        text = " ".join(f"{self.x(x):g},{self.y(y):g}" for x, y in points)
        return Markup('<polyline points="{}" fill="none" stroke="{}" stroke-width="1.5"/>').format(text, colour)


def series(entry: Entry) -> Markup | None:
    """Seconds per step over the steady window, a line for each launch; None without step times."""
    told = [_steps(launch.measurement.steps, launch.measurement.step_times) for launch in entry.launches]
    told = [points for points in told if points]
    if not told:
        return None
    every = [point for points in told for point in points]
    frame = _frame([x for x, _ in every], [y for _, y in every])
    parts = [frame.line(points, _COLOURS[number % len(_COLOURS)]) for number, points in enumerate(told)]
    if len(every) <= _MOST_POINTS:
        parts += [
            Markup('<circle cx="{}" cy="{}" r="2.2" fill="{}"><title>step {}: {} s</title></circle>').format(
                frame.x(x), frame.y(y), _COLOURS[number % len(_COLOURS)], f"{x:g}", figure(y)
            )
            for number, points in enumerate(told)
            for x, y in points
        ]
    ends = (f"step {frame.x0:g}", f"step {frame.x1:g}")
    many = "" if len(told) == 1 else f", {len(told)} launches"
    return _picture(frame, parts, ends, f"seconds per step over the steady window{many}", "s")


def history(case: CaseHistory, metric: Metric) -> Markup | None:
    """A metric over the case's records, inside its band of the time; None with fewer than two values."""
    entries = sorted((*case.earlier, case.now), key=lambda e: e.finished)
    told = [(e, m) for e in entries if (m := e.metric(metric)) is not None and m.value is not None][-MOST_RECORDS:]
    if len(told) < 2:  # noqa: PLR2004 - one point is no history
        return None
    heights = [v for _, m in told for v in (m.value, *(_band(m) or ())) if v is not None]
    frame = _frame([-0.5, len(told) - 0.5], heights)
    parts: list[Markup] = []
    for place, (_, verdict) in enumerate(told):
        inside = _band(verdict)
        if inside is not None:
            parts.append(
                Markup('<rect x="{}" y="{}" width="{}" height="{}" fill="#56B4E9" fill-opacity="0.28"/>').format(
                    frame.x(place - 0.5),
                    frame.y(inside[1]),
                    round(frame.x(place + 0.5) - frame.x(place - 0.5), 1),
                    round(frame.y(inside[0]) - frame.y(inside[1]), 1),
                )
            )
    parts.append(frame.line([(p, m.value or 0.0) for p, (_, m) in enumerate(told)], _COLOURS[0]))
    parts += [_point(frame, place, entry, verdict) for place, (entry, verdict) in enumerate(told)]
    ends = (day(told[0][0].finished), day(told[-1][0].finished))
    left = len(entries) - len(told)
    shown = f"{metric} of {len(told)} records with its band" + (f" ({left} without it or older)" if left else "")
    return _picture(frame, parts, ends, shown, metric.unit)


def _point(frame: _Frame, place: int, entry: Entry, verdict: MetricVerdict) -> Markup:
    value = verdict.value or 0.0
    title = f"{moment(entry.finished)}: {figure(value)} {verdict.metric.unit}, {entry.verdict}"
    x, y = frame.x(place), frame.y(value)
    if verdict.decision in (Decision.REGRESSION, Decision.INCONCLUSIVE):
        return Markup('<path d="M{} {}l5 5l-5 5l-5-5z" fill="#D55E00"><title>{}</title></path>').format(x, y - 5, title)
    return Markup('<circle cx="{}" cy="{}" r="3" fill="{}"><title>{}</title></circle>').format(x, y, _COLOURS[0], title)


def _band(verdict: MetricVerdict) -> tuple[float, float] | None:
    if verdict.baseline is None or verdict.tolerance is None:
        return None
    return verdict.baseline * (1 - verdict.tolerance), verdict.baseline * (1 + verdict.tolerance)


def _steps(steps: Sequence[int], times: Sequence[float]) -> list[tuple[float, float]]:
    """Step and seconds; by order where some step of the window has no time. Of very many, one in n."""
    places: Sequence[float] = steps if len(steps) == len(times) else range(1, len(times) + 1)
    every = max(1, -(-len(times) // _MOST_POINTS))
    return list(zip(places, times, strict=True))[::every]


def _frame(xs: Sequence[float], ys: Sequence[float]) -> _Frame:
    low, high = min(ys), max(ys)
    room = 0.08 * (high - low) or 0.02 * abs(high) or 1.0
    return _Frame(min(xs), max(xs), low - room, high + room)


def _picture(frame: _Frame, parts: Sequence[Markup], ends: tuple[str, str], label: str, unit: str) -> Markup:
    axis = Markup('<path d="M{0} {1}V{2}H{3}" fill="none" stroke="#767676"/>').format(
        _LEFT, _TOP, HEIGHT - _BOTTOM, WIDTH - _RIGHT
    )
    texts = [
        (_LEFT - 5, _TOP + 9, "end", f"{figure(frame.y1)} {unit if len(unit) == 1 else ''}"),
        (_LEFT - 5, HEIGHT - _BOTTOM, "end", figure(frame.y0)),
        (_LEFT, HEIGHT - 5, "start", ends[0]),
        (WIDTH - _RIGHT, HEIGHT - 5, "end", ends[1]),
    ]
    written = [Markup('<text x="{}" y="{}" text-anchor="{}">{}</text>').format(*text) for text in texts]
    inside = Markup().join([axis, *parts, *written])
    head = Markup('<svg class="small" viewBox="0 0 {} {}" width="{}" height="{}" role="img" aria-label="{}">')
    return head.format(WIDTH, HEIGHT, WIDTH, HEIGHT, f"{label}, in {unit}") + inside + Markup("</svg>")
