"""The ladder beside what was published for it: Markdown and page, from the published file and the records alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from pytest_scaleperf import published
from pytest_scaleperf.model import BaselineError
from pytest_scaleperf.report.assemble import read
from pytest_scaleperf.report.beside import tables, with_published
from pytest_scaleperf.report.command import report_app
from tests.report import build

ROOT = Path(__file__).parent.parent.parent
BASELINES = ROOT / "baselines"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """16 GPUs are faster elsewhere than published, 128 in the published configuration, and 512 did not run."""
    records = [
        build.record(local=18, tps=28_000.0),
        build.record(local=14, tps=28_968.0, share=80.0),
        build.record(gpus=128, dp_shard=128, local=22, tps=28_000.0, share=93.0),
    ]
    build.write(tmp_path / ".scaleperf", records)
    return tmp_path / ".scaleperf"


def test_rows_set_each_rungs_optimum_beside_the_published_one(run_dir: Path) -> None:
    [table] = tables(with_published(read([run_dir])[0], BASELINES))
    small, middle, large = table.rows
    assert [row.said.gpus for row in table.rows] == [16, 128, 512]
    assert small.best is not None
    assert small.best.id.endswith("-lbs14")
    assert not small.same
    assert small.change == pytest.approx(0.02)
    assert middle.same
    assert middle.first == pytest.approx(28_000 / 28_400 - 1)
    assert middle.best_first == pytest.approx(28_000 / 28_968 - 1)
    assert (large.best, large.change, large.best_first) == (None, None, None)
    assert large.first == pytest.approx(26_700 / 28_400 - 1)


def test_markdown_and_page_print_both(run_dir: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = CliRunner().invoke(report_app, [str(run_dir), "--baselines", str(BASELINES), "--html", str(page)])
    assert done.exit_code == 0, done.output
    told = CliRunner().invoke(report_app, [str(run_dir), "--baselines", str(BASELINES)]).output
    row = next(line for line in told.splitlines() if line.startswith("| 128 | <code>"))
    assert "| 28,000 | 37.00 | 93.00 | -1.4% | the same: fsdp128-dp1, selective, local batch 22" in row
    assert "28,968 (+2.0%)" in told
    html = page.read_text()
    assert "The ladder beside what was published" in html
    assert "A Hierarchical Approach" in html
    assert html.count("not measured") == 1


def test_without_published_values_there_is_no_such_table(run_dir: Path, tmp_path: Path) -> None:
    assert with_published(read([run_dir])[0], tmp_path).published == ()
    told = CliRunner().invoke(report_app, [str(run_dir), "--baselines", str(tmp_path)]).output
    assert "what was published" not in told


def test_a_file_with_faults_is_named(run_dir: Path, tmp_path: Path) -> None:
    path = published.path_of(tmp_path, "b200", "b200-30b-a3b")
    path.parent.mkdir(parents=True)
    path.write_text("suite: b200-30b-a3b\n")
    with pytest.raises(BaselineError):
        with_published(read([run_dir])[0], tmp_path)
    done = CliRunner().invoke(report_app, [str(run_dir), "--baselines", str(tmp_path)])
    assert done.exit_code == 2
    assert "expected this key" in done.output
