"""The scaling curve of a suite: each rung's optimum against what it would be without loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from pytest_scaleperf.model import Metric
from pytest_scaleperf.report.escape import plain
from pytest_scaleperf.report.numbers import change
from pytest_scaleperf.report.pictures.style import BLUE, GREY, INK, calm, compact
from pytest_scaleperf.report.views import Step

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(steps: Sequence[Step], title: str, unit: str) -> Figure:
    """All tokens per second (both axes logarithmic) and, beside it, tokens per second of one GPU.

    ``steps`` are rungs with an optimum, lowest first; ``unit`` is what one rank is called (GPUs, CPU ranks).
    """
    found = [(s.gpus, s.best.now.value(Metric.TPS) or 0.0, s) for s in steps if s.best is not None]
    figure = Figure(figsize=(9.6, 3.7), layout="constrained")
    total, single = figure.subplots(1, 2)
    figure.suptitle(plain(title), fontsize=11, x=0.01, ha="left")
    gpus = [g for g, _, _ in found]
    first = found[0][1]
    total.loglog(gpus, [first * g for g in gpus], color=GREY, linestyle="--", linewidth=1.2, label="ideal")
    total.loglog(gpus, [t * g for g, t, _ in found], color=BLUE, marker="o", label="each rung's optimum")
    total.set_ylabel("all tokens/s")
    total.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    total.yaxis.set_minor_locator(NullLocator())
    total.yaxis.set_major_formatter(FuncFormatter(lambda value, _: compact(value)))
    single.semilogx(gpus, [first] * len(gpus), color=GREY, linestyle="--", linewidth=1.2)
    single.semilogx(gpus, [t for _, t, _ in found], color=BLUE, marker="o")
    single.set_ylabel(f"TPS, {Metric.TPS.unit}")
    single.set_ylim(0, 1.1 * max(t for _, t, _ in found))
    single.yaxis.set_major_formatter("{x:,.0f}")
    for number, (g, tps, step) in enumerate(found):
        lost = "" if step.first is None else f"\n{change(step.first)}"
        # The last number stands left of its point, so that it stays inside the panel.
        side: Literal["left", "right"] = "right" if number == len(found) - 1 and number else "left"
        at, text = (g, tps), compact(tps) + lost
        single.annotate(text, at, (0, -8), textcoords="offset points", ha=side, va="top", fontsize=8, color=INK)
    for axes in (total, single):
        _gpus(axes, gpus, unit)
    figure.legend(loc="outside lower left", ncols=2, fontsize=8)
    return figure


def _gpus(axes: Axes, gpus: Sequence[int], unit: str) -> None:
    calm(axes)
    axes.set_xlabel(unit)
    axes.xaxis.set_major_locator(FixedLocator(list(gpus)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlim(gpus[0] / 1.25, gpus[-1] * 1.25)
