"""Each rung's optimum beside what was published for that rung; pure, ratios only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_scaleperf import published
from pytest_scaleperf.model import Metric
from pytest_scaleperf.published import Published, PublishedCase
from pytest_scaleperf.report import views
from pytest_scaleperf.report.contents import CaseHistory, Report


@dataclass(frozen=True, slots=True)
class Row:
    """One rung: what was published of it, and the fastest case that was measured here (None: none was).

    ``first`` and ``best_first`` are the TPS against the lowest published rung's, each in its own column, ``change`` is
    the optimum's TPS against the published; all three are fractions. ``same``: it is the published configuration.
    """

    said: PublishedCase
    first: float | None
    best: CaseHistory | None
    change: float | None
    best_first: float | None
    same: bool


@dataclass(frozen=True, slots=True)
class Table:
    """The rungs of one suite, lowest first."""

    said: Published
    rows: tuple[Row, ...]


def with_published(report: Report, baselines: Path) -> Report:
    """The report with what was published for its suites, as far as ``baselines`` has it.

    Raises BaselineError where such a file has faults.
    """
    suites = {(case.system, case.now.suite): None for case in report.cases}
    found = (published.read(published.path_of(baselines, system, suite)) for system, suite in suites)
    return replace(report, published=tuple(each for each in found if each is not None))


def tables(report: Report) -> list[Table]:
    """A table for each suite of which something was published."""
    steps = views.ladder(report)
    return [Table(said, _rows(said, steps)) for said in report.published if said.cases]


def _rows(said: Published, steps: Sequence[views.Step]) -> tuple[Row, ...]:
    best = {step.gpus: step.best for step in steps if (step.system, step.suite) == (said.system, said.suite)}
    ordered = sorted(said.cases.values(), key=lambda row: row.gpus)
    first, lowest = ordered[0].tps, _tps(best.get(ordered[0].gpus))
    return tuple(
        Row(
            said=row,
            first=_ratio(row.tps, first) if row.gpus != ordered[0].gpus else None,
            best=best.get(row.gpus),
            change=_ratio(_tps(best.get(row.gpus)), row.tps),
            best_first=_ratio(_tps(best.get(row.gpus)), lowest) if row.gpus != ordered[0].gpus else None,
            same=(found := best.get(row.gpus)) is not None and found.id == row.case_id,
        )
        for row in ordered
    )


def _tps(case: CaseHistory | None) -> float | None:
    return None if case is None else case.now.value(Metric.TPS)


def _ratio(value: float | None, base: float | None) -> float | None:
    return None if value is None or not base else value / base - 1
