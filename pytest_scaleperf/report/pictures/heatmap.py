"""The heatmap of a rung: TPS and memory over (layout, activation checkpointing) by local batch, with the OOM edge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter

from pytest_scaleperf.model import Metric
from pytest_scaleperf.report import numbers
from pytest_scaleperf.report.escape import plain
from pytest_scaleperf.report.grid import Cell, CellKind, Grid
from pytest_scaleperf.report.pictures.style import GREY, INK, PALE, VERMILLION, compact, ink_on

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SIDE_BY_SIDE = 8
_NUMBERS_UP_TO = 40
_CELL_WIDTH, _CELL_HEIGHT = 0.62, 0.44
_LEVELS = 48
_WHOLE_NUMBERS_FROM = 10.0
_OOM = "#262626"
_NOT_RUN = "\N{EN DASH}"


_Paint = Callable[[float], tuple[float, float, float, float]]


@dataclass(frozen=True, slots=True)
class _Shown:
    """What one panel shows; ``metric`` None is the share of the device's memory. ``scale``: its two ends."""

    metric: Metric | None
    title: str
    colours: str
    scale: tuple[float, float] | None = None


_TPS = _Shown(Metric.TPS, f"TPS, {Metric.TPS.unit}", "viridis")
_SHARE = _Shown(None, "peak reserved memory, % of the device", "OrRd", (0.0, 100.0))
_GIB = _Shown(Metric.PEAK_MEMORY, "peak reserved memory, GiB", "OrRd")


def draw(grid: Grid, title: str) -> Figure:
    """Two panels, side by side or (many columns) one above the other."""
    columns, rows = len(grid.batches), len(grid.lines)
    beside = columns <= _SIDE_BY_SIDE
    labels = 0.085 * max(len(line.label) for line in grid.lines)
    width = max(2.2, _CELL_WIDTH * columns)
    height = max(0.9, _CELL_HEIGHT * rows)
    panels = (1, 2) if beside else (2, 1)
    figure = Figure(
        figsize=(labels + (width + 1.1) * panels[1], 1.35 + (height + 0.75) * panels[0]), layout="constrained"
    )
    both = figure.subplots(*panels, sharey=True, squeeze=False).flatten()
    figure.suptitle(plain(title), fontsize=11, x=0.01, ha="left")
    shares = any(cell.case.now.memory_pct is not None for cell in grid.cells())
    for axes, shown in zip(both, (_TPS, _SHARE if shares else _GIB), strict=True):
        _panel(figure, axes, grid, shown)
    for axes in both if not beside else both[:1]:
        axes.set_yticks(range(rows), [plain(line.label) for line in grid.lines])
    figure.legend(handles=_legend(grid), loc="outside lower left", ncols=3, fontsize=8)
    return figure


def _panel(figure: Figure, axes: Axes, grid: Grid, shown: _Shown) -> None:
    values = [value for cell in grid.cells() if (value := _value(cell, shown)) is not None]
    low, high = shown.scale or (min(values, default=0.0), max(values, default=1.0))
    scale = Normalize(low, high if high > low else low + 1.0)
    # So few levels that the bar is drawn as shapes; with more it is an image inside the SVG.
    colours = colormaps[shown.colours].resampled(_LEVELS)

    def paint(value: float) -> tuple[float, float, float, float]:
        return colours(float(scale(value)))

    column_of = {batch: place for place, batch in enumerate(grid.batches)}
    written = len(grid.batches) <= _NUMBERS_UP_TO
    for row, line in enumerate(grid.lines):
        for batch, cell in line.cells.items():
            _cell(axes, (column_of[batch], row), cell, _value(cell, shown), paint, written=written)
        if line.oom_from is not None:
            edge = column_of[line.oom_from] - 0.5
            axes.plot([edge, edge], [row - 0.5, row + 0.5], color=VERMILLION, linewidth=4, solid_capstyle="butt")
    axes.set_title(shown.title, loc="left")
    axes.set_xlim(-0.5, len(grid.batches) - 0.5)
    axes.set_ylim(len(grid.lines) - 0.5, -0.5)
    axes.set_xticks(range(len(grid.batches)), [str(batch) for batch in grid.batches])
    axes.set_xlabel("local batch, sequences per GPU")
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    if values:
        bar = figure.colorbar(ScalarMappable(scale, colours), ax=axes, shrink=0.9, aspect=18, pad=0.02)
        if bar.solids is not None:
            bar.solids.set_edgecolor("face")  # else the page below shines through between two levels
        few = FuncFormatter(lambda value, _: numbers.figure(value))  # never an exponent
        bar.ax.yaxis.set_major_formatter("{x:,.0f}" if high - low > _WHOLE_NUMBERS_FROM else few)


def _value(cell: Cell, shown: _Shown) -> float | None:
    entry = cell.case.now
    if cell.kind is not CellKind.MEASURED:
        return None
    return entry.memory_pct if shown.metric is None else entry.value(shown.metric)


def _cell(  # noqa: PLR0913 - one cell: where it is, what is in it, how that is shown
    axes: Axes, at: tuple[int, int], cell: Cell, value: float | None, paint: _Paint, *, written: bool
) -> None:
    entry = cell.case.now
    face, ink, hatch, text = PALE, INK, None, _NOT_RUN
    if cell.kind is CellKind.OOM:
        face, ink, text = _OOM, "#ffffff", "OOM"
    elif cell.kind is CellKind.FAILED:
        face, hatch, text = "#ffffff", "////", (entry.outcome or entry.decision).replace("_", "\n")
    elif value is not None:
        red, green, blue, _ = paint(value)
        face, ink = to_hex((red, green, blue)), ink_on(red, green, blue)
        text = compact(value) + (" ★" if cell.is_best else "")
    elif cell.kind is CellKind.MEASURED:
        text = "?"
    retried = bool(entry.alloc_retries) and cell.kind is CellKind.MEASURED
    shape = Rectangle((at[0] - 0.48, at[1] - 0.46), 0.96, 0.92, facecolor=face, hatch=hatch)
    shape.set_edgecolor(VERMILLION if retried else GREY if hatch else "none")
    shape.set_linewidth(2.0 if retried else 0.6)
    shape.set_in_layout(False)  # it lies inside its axes; measuring a thousand cells takes seconds
    axes.add_patch(shape)
    if retried and written:
        text += f"\n▲ {entry.alloc_retries}"
    if written or cell.kind is not CellKind.MEASURED or cell.is_best:
        small = 7 if "\n" in text or len(text) > len("57.3k ★") else 8
        label = text if written else text.rpartition(" ")[2]
        box = {"facecolor": "#ffffff", "edgecolor": "none", "pad": 0.8} if hatch else None
        shown = axes.text(*at, label, color=ink, ha="center", va="center", fontsize=small, linespacing=1.1, bbox=box)
        shown.set_in_layout(False)


def _legend(grid: Grid) -> list[Patch | Line2D]:
    """Only what occurs in the picture."""
    cells = grid.cells()
    handles: list[Patch | Line2D] = []
    if any(cell.is_best for cell in cells):
        handles.append(Line2D([], [], color=INK, marker="*", linestyle="none", label="most TPS of its line"))
    if any(cell.case.now.alloc_retries and cell.kind is CellKind.MEASURED for cell in cells):
        handles.append(
            Patch(facecolor="none", edgecolor=VERMILLION, linewidth=2, label="▲ allocation retries in the window")
        )
    if any(cell.kind is CellKind.OOM for cell in cells):
        handles.append(Patch(facecolor=_OOM, label="out of memory"))
        handles.append(Line2D([], [], color=VERMILLION, linewidth=4, label="OOM edge: memory ends here"))
    if any(cell.kind is CellKind.FAILED for cell in cells):
        handles.append(Patch(facecolor="#ffffff", edgecolor=GREY, hatch="////", label="failed otherwise"))
    if any(cell.kind is CellKind.NOT_RUN for cell in cells):
        handles.append(Patch(facecolor=PALE, label=f"{_NOT_RUN} not run"))
    return handles


def is_worth_it(grid: Grid) -> bool:
    """Whether there is something to see: a rung of which nothing ran, or one case alone, needs no picture."""
    cells = grid.cells()
    return len(cells) > 1 and any(cell.kind is not CellKind.NOT_RUN for cell in cells)
