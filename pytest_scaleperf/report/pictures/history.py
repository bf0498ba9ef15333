"""The history of one case: each metric over its records, inside the band of each time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator

from pytest_scaleperf.model import Decision, Direction, Metric, MetricVerdict
from pytest_scaleperf.report.contents import CaseHistory, Entry
from pytest_scaleperf.report.escape import plain
from pytest_scaleperf.report.numbers import moment
from pytest_scaleperf.report.pictures.style import BLUE, GREY, SKY, VERMILLION, calm
from pytest_scaleperf.report.views import COLUMNS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_RECORDS = 60
_DATES = 5


def told(case: CaseHistory) -> list[Entry]:
    """The entries with a number, oldest first, the newest ``MOST_RECORDS``."""
    entries = sorted((*case.earlier, case.now), key=lambda e: e.finished)
    return [e for e in entries if any(m.value is not None for m in e.metrics)][-MOST_RECORDS:]


def band(verdict: MetricVerdict) -> tuple[float, float] | None:
    """The lowest and highest value that pass unremarked, or None without baseline or tolerance."""
    if verdict.baseline is None or verdict.tolerance is None:
        return None
    return verdict.baseline * (1 - verdict.tolerance), verdict.baseline * (1 + verdict.tolerance)


def draw(case: CaseHistory) -> Figure:
    """One panel for each metric that was measured at least once."""
    entries = told(case)
    metrics = [m for m in COLUMNS if any(e.value(m) is not None for e in entries)]
    figure = Figure(figsize=(8.4, 0.9 + 1.9 * len(metrics)), layout="constrained")
    figure.suptitle(plain(case.id), fontsize=11, x=0.01, ha="left")
    panels = figure.subplots(len(metrics), 1, sharex=True, squeeze=False).flatten()
    for axes, metric in zip(panels, metrics, strict=True):
        _panel(axes, metric, entries)
    step = max(1, -(-len(entries) // _DATES))
    places = list(range(0, len(entries), step))
    panels[-1].xaxis.set_major_locator(FixedLocator(places))
    panels[-1].set_xticklabels([moment(entries[p].finished).removesuffix(" UTC") for p in places], fontsize=8)
    panels[-1].set_xlabel("records of the case, oldest first (UTC)")
    panels[-1].set_xlim(-0.6, len(entries) - 0.4)
    figure.legend(handles=_legend(), loc="outside lower left", ncols=4, fontsize=8)
    return figure


def _panel(axes: Axes, metric: Metric, entries: Sequence[Entry]) -> None:
    calm(axes)
    for place, entry in enumerate(entries):
        verdict = entry.metric(metric)
        inside = None if verdict is None else band(verdict)
        if inside is not None and verdict is not None and verdict.baseline is not None:
            axes.fill_between([place - 0.5, place + 0.5], *inside, color=SKY, alpha=0.3, linewidth=0)
            axes.plot([place - 0.5, place + 0.5], [verdict.baseline] * 2, color=SKY, linewidth=1.2)
    points = [(p, e.value(metric), e.metric(metric)) for p, e in enumerate(entries)]
    known = [(p, v, m) for p, v, m in points if v is not None and m is not None]
    axes.plot([p for p, _, _ in known], [v for _, v, _ in known], color=BLUE, marker="o", markersize=4, linewidth=1)
    bad = [(p, v) for p, v, m in known if m.decision in (Decision.REGRESSION, Decision.INCONCLUSIVE)]
    axes.plot([p for p, _ in bad], [v for _, v in bad], color=VERMILLION, marker="D", markersize=7, linestyle="none")
    better = "higher is better" if metric.direction is Direction.HIGHER_IS_BETTER else "lower is better"
    axes.set_title(f"{metric}, {metric.unit} ({better})", loc="left")
    axes.margins(y=0.25)
    axes.yaxis.set_major_formatter("{x:,.4g}" if max(v for _, v, _ in known) < 1000 else "{x:,.0f}")  # noqa: PLR2004


def _legend() -> list[Line2D | Patch]:
    return [
        Line2D([], [], color=BLUE, marker="o", markersize=4, label="measured"),
        Line2D([], [], color=VERMILLION, marker="D", linestyle="none", label="regression or inconclusive"),
        Line2D([], [], color=SKY, label="baseline"),
        Patch(facecolor=SKY, alpha=0.3, edgecolor=GREY, linewidth=0, label="its band"),
    ]
