"""The recorded H200 runs as a report: the peak of ``none`` at 92.7 % memory, and the fall at 98.8 % with retries."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_scaleperf.model import Metric, Outcome
from pytest_scaleperf.report import views
from pytest_scaleperf.report.assemble import read
from pytest_scaleperf.report.contents import Report
from pytest_scaleperf.report.grid import CellKind, Line, grid
from pytest_scaleperf.report.markdown import render
from pytest_scaleperf.report.numbers import figure
from pytest_scaleperf.report.pictures.album import album
from tests.report.h200_records import TITLE, write_records
from tests.report.test_pictures import named, texts


@pytest.fixture(scope="module")
def h200(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("h200")
    assert len(write_records(folder)) == 33
    report, _ = read([folder])
    assert report.faults == ()
    return report


def line(report: Report, suite: str, gpus: int, label: str) -> Line:
    (step,) = [s for s in views.ladder(report) if (s.suite, s.gpus) == (suite, gpus)]
    (found,) = [each for each in grid(step.cases).lines if each.label == label]
    return found


def test_none_is_best_at_92_7_per_cent_and_falls_at_98_8_with_retries(h200: Report) -> None:
    none = line(h200, "h200-a3b-8l", 2, "fsdp2-dp1 none")
    best = {batch: cell.case.now for batch, cell in none.cells.items()}
    assert [batch for batch, cell in none.cells.items() if cell.is_best] == [10]
    assert best[10].memory_pct == pytest.approx(92.74, abs=0.01)
    assert best[10].value(Metric.TPS) == pytest.approx(57_300, rel=0.005)
    assert best[10].alloc_retries == 0
    assert best[12].memory_pct == pytest.approx(98.77, abs=0.01)
    assert best[12].value(Metric.TPS) == pytest.approx(26_570, rel=0.03)
    assert best[12].alloc_retries
    assert any("time limit" in note for note in best[12].notes)


def test_the_picture_shows_it(h200: Report) -> None:
    shown = texts(named(h200, "heatmap-h200-h200-a3b-8l-2gpu").svg())
    assert "57.3k ★" in shown
    assert "92.7 ★" in shown
    assert "98.8" in shown
    assert sum(1 for text in shown if re.fullmatch(r"▲ \d+", text)) == 2


def test_the_oom_edge_of_the_rehearsed_ladder(h200: Report) -> None:
    found = line(h200, "h200-30b-a3b-rehearsed", 16, "fsdp16-dp1 selective")
    assert found.oom_from == 10
    assert [found.cells[b].kind for b in (2, 6, 10)] == [CellKind.MEASURED, CellKind.MEASURED, CellKind.OOM]
    assert "OOM" in texts(named(h200, "heatmap-h200-h200-30b-a3b-rehearsed-16gpu").svg())


def test_faults_are_named_with_their_rank(h200: Report) -> None:
    (case,) = [c for c in h200.cases if c.now.suite == "h200-a3b-2l"]
    outcomes = [e.outcome for e in (*case.earlier, case.now)]
    assert outcomes == [Outcome.NCCL_TIMEOUT, Outcome.KILLED]
    failure = case.now.launches[0].failure
    assert failure is not None
    assert (failure.rank, failure.signal) == (1, 9)


def test_a_case_that_ran_four_times_has_a_history(h200: Report) -> None:
    (case,) = [c for c in h200.cases if c.id == "h200-a3b-8l-2gpu-fsdp2-dp1-selective-lbs4"]
    values = [e.value(Metric.TPS) for e in (*case.earlier, case.now)]
    assert len(values) == 4
    assert max(v or 0 for v in values) / min(v or 0 for v in values) < 1.02


def test_the_committed_example_shows_these_numbers(h200: Report) -> None:
    """The example's form may be older than the code; what was measured is not."""
    folder = Path(__file__).parents[2] / "docs/examples/h200-report"
    page, text = ((folder / name).read_text(encoding="utf-8") for name in ("report.html", "report.md"))
    for case in h200.cases:
        tps = case.now.value(Metric.TPS)
        assert case.id in page
        if tps is not None:
            assert figure(tps) in page
            assert figure(tps) in text
    assert TITLE in page
    assert set(re.findall(r"told by <code>(.*?)/", page)) == {"run-directory"}  # no path of a machine
    drawn = {f"{picture.name}.png" for picture in album(h200).pictures}
    assert drawn == {path.name for path in folder.glob("*.png")}
    assert "GPU-hours spent" in render(h200)
