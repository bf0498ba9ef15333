"""TPS against memory: where each kind of checkpointing is at its best, and where memory begins to cost speed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pytest_scaleperf.model import ActivationCheckpoint, Metric
from pytest_scaleperf.report.contents import Entry
from pytest_scaleperf.report.escape import plain
from pytest_scaleperf.report.grid import Grid, Line
from pytest_scaleperf.report.pictures.style import GREY, INK, MODES, VERMILLION, calm
from pytest_scaleperf.report.views import optimum

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDE = 3
_LABELS_UP_TO = 14
_NAMED_LINES = 6
_STYLES: tuple[Literal["-", "--", ":", "-."], ...] = ("-", "--", ":", "-.")
# Where a point's number stands, by its line's mode: points of several lines are often close to each other.
_BESIDE: dict[ActivationCheckpoint, tuple[int, int, Literal["left", "center", "right"]]] = {
    ActivationCheckpoint.NONE: (6, -4, "left"),
    ActivationCheckpoint.SELECTIVE: (0, -11, "center"),
    ActivationCheckpoint.FULL: (-6, -4, "right"),
    ActivationCheckpoint.MEMORY_BUDGET: (0, 6, "center"),
}


def draw(grids: Sequence[tuple[str, Grid]], title: str) -> Figure:
    """One panel for each rung, named; a line for each layout with its checkpointing, a point for each local batch."""
    columns = min(_WIDE, len(grids))
    rows = math.ceil(len(grids) / columns)
    figure = Figure(figsize=(max(5.4, 4.6 * columns), 0.9 + 3.4 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharey=True).flatten()
    figure.suptitle(plain(title), fontsize=11, x=0.01, ha="left")
    shares = all(
        cell.case.now.memory_pct is not None
        for _, grid in grids
        for cell in grid.cells()
        if cell.case.now.value(Metric.PEAK_MEMORY) is not None
    )
    speeds = [tps for _, grid in grids for line in grid.lines for _, tps, _, _ in _points(line, shares=shares)]
    room = 0.15 * (max(speeds) - min(speeds)) or 0.1 * max(speeds)
    panels[0].set_ylim(max(0.0, min(speeds) - room), max(speeds) + room)
    for axes, (name, grid) in zip(panels, grids, strict=False):
        _panel(axes, name, grid, shares=shares)
    for axes in panels[len(grids) :]:
        axes.set_axis_off()
    figure.legend(handles=_legend([grid for _, grid in grids]), loc="outside lower left", ncols=3, fontsize=8)
    return figure


def _panel(axes: Axes, name: str, grid: Grid, *, shares: bool) -> None:
    calm(axes)
    layouts = list(dict.fromkeys(line.layout for line in grid.lines))
    few, best = len(grid.cells()) <= _LABELS_UP_TO, optimum([cell.case for cell in grid.cells()])
    sparse = len(grid.lines) <= _NAMED_LINES
    for line in grid.lines:
        colour, marker = MODES[line.mode]
        style = _STYLES[layouts.index(line.layout) % len(_STYLES)]
        points = _points(line, shares=shares)
        axes.plot(
            [x for x, _, _, _ in points],
            [y for _, y, _, _ in points],
            color=colour,
            marker=marker,
            markersize=4.5 if sparse else 2.5,
            linewidth=1.2 if sparse else 0.8,
            linestyle=style,
        )
        named = _named(points)
        for x, y, batch, entry in points:
            if entry.alloc_retries:
                axes.plot([x], [y], marker="^", color=VERMILLION, markersize=9, zorder=4)
            if few or (sparse and batch in named) or (best is not None and entry is best.now):
                right, up, side = _BESIDE[line.mode]
                axes.annotate(
                    str(batch), (x, y), xytext=(right, up), textcoords="offset points", ha=side, fontsize=7, color=INK
                )
    axes.set_title(plain(name) + " (numbers: local batch)", loc="left")
    if shares:
        axes.set_xlim(0, 103)
        axes.axvline(100, color=GREY, linewidth=0.8)
    axes.set_xlabel(f"peak reserved memory, {'% of the device' if shares else 'GiB'}")
    axes.set_ylabel(f"TPS, {Metric.TPS.unit}")
    axes.yaxis.set_major_formatter("{x:,.0f}")


def _points(line: Line, *, shares: bool) -> list[tuple[float, float, int, Entry]]:
    """Memory, TPS, local batch and entry of each measured case of a line, by rising batch."""
    found = []
    for batch in sorted(line.cells):
        entry = line.cells[batch].case.now
        memory = entry.memory_pct if shares else entry.value(Metric.PEAK_MEMORY)
        tps = entry.value(Metric.TPS)
        if memory is not None and tps is not None:
            found.append((memory, tps, batch, entry))
    return found


def _named(points: Sequence[tuple[float, float, int, Entry]]) -> set[int]:
    """The batches that are named where there are too many for all: a line's first, its best and its last."""
    if not points:
        return set()
    return {points[0][2], max(points, key=lambda point: point[1])[2], points[-1][2]}


def _legend(grids: Sequence[Grid]) -> list[Line2D]:
    lines = [line for grid in grids for line in grid.lines]
    handles = [
        Line2D([], [], color=colour, marker=marker, markersize=5, label=f"checkpointing: {mode}")
        for mode, (colour, marker) in MODES.items()
        if any(line.mode is mode for line in lines)
    ]
    layouts = list(dict.fromkeys(line.layout for line in lines))
    if 1 < len(layouts) <= len(_STYLES):
        handles += [
            Line2D([], [], color=GREY, linestyle=style, label=plain(layout))
            for layout, style in zip(layouts, _STYLES, strict=False)
        ]
    if any(cell.case.now.alloc_retries for grid in grids for cell in grid.cells()):
        handles.append(
            Line2D([], [], color=VERMILLION, marker="^", linestyle="none", markersize=8, label="allocation retries")
        )
    return handles
