"""Small pictures drawn by hand as SVG, for a page with a thousand cases: a few hundred bytes and no time each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from pytest_scaleperf.model import Decision, Metric, MetricVerdict
from pytest_scaleperf.report.contents import CaseHistory, Entry
from pytest_scaleperf.report.numbers import day, figure

WIDTH, HEIGHT = 560, 110
MOST_RECORDS = 60
_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 12, 8, 20
_MOST_POINTS = 200
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7")

_OUTSIDE = (Decision.REGRESSION, Decision.INCONCLUSIVE)

_Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where values lie: x from ``x0`` to ``x1`` and y from ``y0`` to ``y1`` fill the inside of the picture."""

    x0: float
    x1: float
    y0: float
    y1: float

    def x(self, value: float) -> str:
        """Pixels from the left."""
        return f"{_LEFT + (WIDTH - _LEFT - _RIGHT) * (value - self.x0) / (self.x1 - self.x0 or 1.0):.0f}"

    def y(self, value: float) -> str:
        """Pixels from the top."""
        return f"{HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * (value - self.y0) / (self.y1 - self.y0 or 1.0):.0f}"

    def line(self, points: Iterable[_Point], stroke: str) -> Markup:
        """A line through points."""
        text = " ".join(f"{self.x(x)},{self.y(y)}" for x, y in points)
        return Markup('<polyline points="{}" stroke="{}"/>').format(text, stroke)

    def dots(self, points: Iterable[_Point], stroke: str) -> Markup:
        """Points, as strokes of no length with round ends: a tenth of what circles take."""
        text = "".join(f"M{self.x(x)} {self.y(y)}h0" for x, y in points)
        return Markup('<path class="dots" d="{}" stroke="{}"/>').format(text, stroke)

    def diamonds(self, points: Sequence[_Point]) -> Markup:
        """Points to look at; nothing where there are none."""
        if not points:
            return Markup()
        text = "".join(f"M{self.x(x)} {self.y(y)}m0-5l5 5l-5 5l-5-5z" for x, y in points)
        return Markup('<path d="{}" fill="#D55E00"/>').format(text)

    def bands(self, bands: Sequence[tuple[int, int, _Point]]) -> Markup:
        """Bands (from record, to record, lowest and highest value), each half a record wider at both ends."""
        text = "".join(
            f"M{self.x(first - 0.5)} {self.y(low)}H{self.x(last + 0.5)}V{self.y(high)}H{self.x(first - 0.5)}z"
            for first, last, (low, high) in bands
        )
        return Markup('<path d="{}" fill="#56B4E9" fill-opacity=".28"/>').format(text)


def colour(number: int) -> str:
    """The colour of a launch's line, from 0."""
    return _COLOURS[number % len(_COLOURS)]


def series(entry: Entry) -> Markup | None:
    """Seconds per step over the steady window, a line for each launch; None without step times."""
    told = [_steps(launch.measurement.steps, launch.measurement.step_times) for launch in entry.launches]
    told = [points for points in told if points]
    if not told:
        return None
    every = [point for points in told for point in points]
    frame = _frame([x for x, _ in every], [y for _, y in every])
    parts = [frame.line(points, colour(number)) for number, points in enumerate(told)]
    many = "" if len(told) == 1 else f", {len(told)} launches"
    return _picture(frame, parts, (f"step {frame.x0:g}", f"step {frame.x1:g}"), f"seconds per step{many}")


def history(case: CaseHistory, metric: Metric) -> Markup | None:
    """A metric over the case's records, inside its band of the time; None with fewer than two values."""
    entries = sorted((*case.earlier, case.now), key=lambda e: e.finished)
    told = [(e, m) for e in entries if (m := e.metric(metric)) is not None and m.value is not None][-MOST_RECORDS:]
    if len(told) < 2:  # noqa: PLR2004 - one point is no history
        return None
    points = [(float(place), m.value or 0.0) for place, (_, m) in enumerate(told)]
    bands = _bands([m for _, m in told])
    frame = _frame([-0.5, len(told) - 0.5], [y for _, y in points] + [y for _, _, both in bands for y in both])
    bad = [p for p, (_, m) in zip(points, told, strict=True) if m.decision in _OUTSIDE]
    parts = [frame.bands(bands), frame.line(points, _COLOURS[0]), frame.dots(points, _COLOURS[0]), frame.diamonds(bad)]
    ends = (day(told[0][0].finished), day(told[-1][0].finished))
    return _picture(frame, parts, ends, f"{metric} of {len(told)} records with its band, in {metric.unit}")


def _bands(verdicts: Sequence[MetricVerdict]) -> list[tuple[int, int, _Point]]:
    """The band of each record; neighbours with the same one together."""
    found: list[tuple[int, int, _Point]] = []
    for place, verdict in enumerate(verdicts):
        if verdict.baseline is None or verdict.tolerance is None:
            continue
        both = (verdict.baseline * (1 - verdict.tolerance), verdict.baseline * (1 + verdict.tolerance))
        if found and found[-1][1] == place - 1 and found[-1][2] == both:
            found[-1] = (found[-1][0], place, both)
        else:
            found.append((place, place, both))
    return found


def _steps(steps: Sequence[int], times: Sequence[float]) -> list[_Point]:
    """Step and seconds; by order where some step of the window has no time. Of very many, one in n."""
    places: Sequence[float] = steps if len(steps) == len(times) else range(1, len(times) + 1)
    every = max(1, -(-len(times) // _MOST_POINTS))
    return list(zip(places, times, strict=True))[::every]


def _frame(xs: Sequence[float], ys: Sequence[float]) -> _Frame:
    low, high = min(ys), max(ys)
    room = 0.08 * (high - low) or 0.02 * abs(high) or 1.0
    return _Frame(min(xs), max(xs), low - room, high + room)


def _picture(frame: _Frame, parts: Sequence[Markup], ends: tuple[str, str], label: str) -> Markup:
    axis = Markup('<path class="axis" d="M{0} {1}V{2}H{3}"/>').format(_LEFT, _TOP, HEIGHT - _BOTTOM, WIDTH - _RIGHT)
    texts = [
        (_LEFT - 5, _TOP + 9, "end", figure(frame.y1)),
        (_LEFT - 5, HEIGHT - _BOTTOM, "end", figure(frame.y0)),
        (_LEFT, HEIGHT - 5, "start", ends[0]),
        (WIDTH - _RIGHT, HEIGHT - 5, "end", ends[1]),
    ]
    written = [Markup('<text x="{}" y="{}" text-anchor="{}">{}</text>').format(*text) for text in texts]
    head = Markup('<svg class="small" viewBox="0 0 {} {}" width="{}" height="{}" role="img" aria-label="{}">')
    inside = Markup().join([axis, *parts, *written])
    return head.format(WIDTH, HEIGHT, WIDTH, HEIGHT, label) + inside + Markup("</svg>")
