"""Scaling tests in reports: from their records and from JUnit files, red where they are, in every format."""

from __future__ import annotations

import json
import re

import pytest

from pytest_scaleperf import records
from pytest_scaleperf.report import markdown, openmetrics, page, records_in, views
from pytest_scaleperf.report.assemble import read
from pytest_scaleperf.report.pictures.album import Album
from tests.plugin.conftest import FULL2, FULL4, NONE2, NONE4, Project

NONE, FULL, BEST = "demo-2to4gpu-none", "demo-2to4gpu-full", "demo-2to4gpu-optimum"


@pytest.fixture
def tested(bare: Project) -> Project:
    """A project with scaling tests and recorded baselines, of which ``none`` then loses more than it may."""
    bare.suite(scaling={"tolerance": "2 %"})
    test = "def test_scaling(scaleperf_scaling):\n    scaleperf_scaling.check()\n"
    (bare.path / "suites/test_scaling.py").write_text(test)
    bare.scenario({FULL2: {"tps": 900}, NONE4: {"tps": 986}, FULL4: {"tps": 880}})
    bare.run("--record-baselines")
    bare.scenario({FULL2: {"tps": 900}, NONE2: {"tps": 1020}, NONE4: {"tps": 966}, FULL4: {"tps": 880}})
    return bare


def test_the_folder_is_the_one_that_is_written() -> None:
    assert records_in.SCALING == records.SCALING


def test_they_are_shown_with_their_numbers(tested: Project) -> None:
    done = tested.run()
    assert done.returncode == 1
    stored = {
        told["pair"]: told
        for path in sorted(tested.run_dir.glob("sessions/*/scaling/*.json"), key=lambda p: p.stat().st_mtime_ns)
        if (told := json.loads(path.read_text()))
    }
    for paths in ([tested.run_dir], [tested.run_dir, done.junit], [done.junit]):
        report, _ = read(paths)
        assert report.faults == ()
        assert report.others == ()
        assert {s.pair: (s.decision, s.is_red) for s in report.scalings} == {
            NONE: ("regression", True),
            FULL: ("pass", False),
            BEST: ("regression", True),
        }
        assert views.headline(report) == "0 of 4 cases red, 2 of 3 scaling tests red"
        assert report.is_red
        for scaling in report.scalings:
            told = stored[scaling.pair]
            assert scaling.efficiency == pytest.approx(told["efficiency"], rel=1e-5)
            assert scaling.change == pytest.approx(told["change"], abs=1e-4)
            assert scaling.upper is not None
            assert (scaling.upper.case, scaling.suite) == (told["upper"]["case"], "demo")
    text = markdown.render(report)
    assert f"| <code>{NONE}</code> | regression | 0.9471 (-3.9%) | 0.9860 | -2.0% | 1,020 | 966.0 | " in text
    told_page = page.render(report, Album((), ()))
    assert re.search(rf'<td class="id">{NONE}</td>.*?regression.*?0\.9471 \(-3\.9%\)', told_page)
    metrics = openmetrics.render(report)
    assert re.search(rf'^scaleperf_scaling_efficiency{{.*pair="{NONE}"}} 0\.947059$', metrics, re.MULTILINE)


def test_a_record_that_cannot_be_read_is_named(tested: Project) -> None:
    tested.run()
    path = next(tested.run_dir.glob(f"sessions/*/scaling/{NONE}.json"))
    path.write_text("{")
    report, _ = read([tested.run_dir])
    assert [fault.where for fault in report.faults] == [str(path)]
    assert views.headline(report).endswith(", incomplete")


def test_a_test_that_failed_although_its_record_passes_stays_red(tested: Project) -> None:
    (tested.path / "suites/test_scaling.py").write_text("def test_scaling(scaleperf_scaling):\n    assert False\n")
    done = tested.run("-k", "full")
    report, _ = read([tested.run_dir, done.junit])
    assert [(test.state, test.name) for test in report.others] == [("failed", f"test_scaling[{FULL}]")]


def test_without_evidence_it_is_an_error_among_the_other_tests(tested: Project) -> None:
    tested.suite(scaling={"tolerance": "2 %"}, measure={"steps": 25, "warmup": 5, "log_freq": 5})  # nothing fresh
    tested.run("-k", "full2 or 2gpu-fsdp2-dp1-full", gpus=2)
    done = tested.run("-k", f"{NONE}")
    report, _ = read([tested.run_dir, done.junit])
    assert [(test.state, test.name) for test in report.others] == [("error", f"test_scaling[{NONE}]")]
    assert "Run it first" in report.others[0].message
