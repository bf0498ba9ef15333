"""Which pictures a report has, and what is not drawn because there are too many."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from pytest_scaleperf.model import Decision
from pytest_scaleperf.report import views
from pytest_scaleperf.report.contents import Report
from pytest_scaleperf.report.grid import grid
from pytest_scaleperf.report.numbers import counted
from pytest_scaleperf.report.pictures import heatmap, history, memory, scaling
from pytest_scaleperf.report.pictures.style import Picture, file_name

MOST_PICTURES = 40
"""A picture takes about half a second and up to 100 kB; a page with more is slow to make and to read."""
_HISTORIES = 8
_LONG_ENOUGH = 2


@dataclass(frozen=True, slots=True)
class Album:
    """The pictures, and the titles of those that were left out."""

    pictures: tuple[Picture, ...]
    left_out: tuple[str, ...]

    def at(self, *place: str) -> list[Picture]:
        """The pictures of one place: (system, suite) or ("case", id)."""
        return [picture for picture in self.pictures if picture.place == place]


def album(report: Report) -> Album:
    """Of every suite the scaling curve, a heatmap for each rung and TPS against memory; histories of what changed."""
    found = [*_suites(report), *_histories(report)]
    return Album(tuple(found[:MOST_PICTURES]), tuple(picture.title for picture in found[MOST_PICTURES:]))


def _suites(report: Report) -> Iterator[Picture]:
    unit = "CPU rank" if report.measures_cpu else "GPU"
    for (system, suite), steps in views.rungs_of(views.ladder(report)).items():
        place = (system, suite)
        measured = [step for step in steps if step.best is not None]
        if len(measured) >= _LONG_ENOUGH:
            title = f"{suite} on {system}: scaling"
            yield Picture(
                file_name("scaling", system, suite), title, place, partial(scaling.draw, measured, title, f"{unit}s")
            )
        grids = [(step, grid(step.cases)) for step in steps]
        for step, cells in grids:
            if heatmap.is_worth_it(cells):
                title = f"{suite} on {system}, {counted(step.gpus, unit)}"
                name = file_name("heatmap", system, suite, f"{step.gpus}gpu")
                yield Picture(name, title, place, partial(heatmap.draw, cells, title))
        shown = [(counted(step.gpus, unit), cells) for step, cells in grids if step.best is not None and cells.lines]
        if any(len(cells.cells()) > 1 for _, cells in shown):
            title = f"{suite} on {system}: TPS against memory"
            yield Picture(file_name("memory", system, suite), title, place, partial(memory.draw, shown, title))


def _histories(report: Report) -> Iterator[Picture]:
    drawn = 0
    for case in views.changed(report):
        if case.now.decision is Decision.RECORDED or len(history.told(case)) < _LONG_ENOUGH:
            continue
        drawn += 1
        if drawn > _HISTORIES:
            return
        name = file_name("history", case.system, case.id)
        yield Picture(name, f"history of {case.id}", ("case", case.id), partial(history.draw, case))
