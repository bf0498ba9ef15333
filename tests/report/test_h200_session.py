"""The example of two calls on two H200s: what is committed is whole, and its pages say what its records say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from junitparser import JUnitXml

from pytest_scaleperf.model import Decision, Metric
from pytest_scaleperf.preflight import Severity, load
from pytest_scaleperf.report.assemble import read
from pytest_scaleperf.report.contents import Report
from pytest_scaleperf.report.markdown import render
from pytest_scaleperf.report.views import ladder

EXAMPLE = Path(__file__).parents[2] / "docs/examples/h200-session"
SESSIONS = EXAMPLE / "run/sessions"
RECORD, GREEN, SLOWER, FATTER, REHEARSE = sorted(path.name for path in SESSIONS.iterdir())
LBS4, LBS6 = (f"h200-30b-a3b-8l-2gpu-fsdp2-dp1-{case}" for case in ("selective-lbs4", "none-lbs6"))


@pytest.fixture(scope="module")
def measured() -> Report:
    sessions = [SESSIONS / name for name in (RECORD, GREEN, REHEARSE)]
    junit = [EXAMPLE / f"junit/{name}.xml" for name in ("record", "green", "rehearse")]
    return read([*sessions, *junit])[0]


def test_nothing_of_it_is_a_fault_or_stands_alone(measured: Report) -> None:
    assert measured.faults == ()
    assert measured.others == ()
    assert len(measured.cases) == 12


def test_the_ladder_has_both_rungs(measured: Report) -> None:
    steps = {(step.suite, step.gpus): step for step in ladder(measured)}
    best = steps["h200-30b-a3b-8l", 2].best
    assert best is not None
    assert best.id == "h200-30b-a3b-8l-2gpu-fsdp2-dp1-none-lbs10"
    assert best.now.value(Metric.TPS) == pytest.approx(57_730, abs=1)
    assert steps["h200-30b-a3b-8l", 2].below == pytest.approx(0.606, abs=0.001)


def test_the_communication_tax_is_that_of_the_real_run_and_its_rehearsal(measured: Report) -> None:
    found = {each.rehearsal.case_id: each for each in measured.rehearsals}
    assert set(found) == {LBS4, LBS6}
    for name, real, ceiling in ((LBS4, 38_344, 41_413), (LBS6, 51_251, 55_006)):
        assert found[name].real_tps == pytest.approx(real, abs=1)
        assert found[name].rehearsal.ceiling == pytest.approx(ceiling, abs=1)
        assert found[name].tax == pytest.approx(1 - real / ceiling, abs=1e-4)


def test_the_rehearsed_memory_is_the_real_one(measured: Report) -> None:
    real = {case.id: case.now.value(Metric.PEAK_MEMORY) for case in measured.cases}
    for each in measured.rehearsals:
        fullest = each.rehearsal.fullest
        assert fullest is not None
        assert fullest.peak_gib == pytest.approx(real[each.rehearsal.case_id], rel=0.001)


def test_what_was_made_slower_and_fatter_is_red_for_that_and_nothing_else() -> None:
    for session, metric, change in ((SLOWER, Metric.TPS, -0.028), (FATTER, Metric.PEAK_MEMORY, 0.022)):
        record = json.loads((SESSIONS / session / "records" / f"{LBS4}.json").read_text())
        red = {m["metric"]: m["change"] for m in record["metrics"] if m["decision"] == Decision.REGRESSION}
        assert red[metric] == pytest.approx(change, abs=0.001)
        assert set(red) <= {metric, *({Metric.MFU} if metric is Metric.TPS else ())}


def test_the_pre_flights_are_those_of_the_sessions_and_one_had_our_fault(measured: Report) -> None:
    first, second = (load(EXAMPLE / f"preflight-{number}.json") for number in (1, 2))
    assert {report.when for _, report in measured.preflights} == {first.when, second.when}
    assert [finding.severity for finding in second.findings] == [Severity.NOTE, Severity.NOTE]
    assert any("cannot be accessed from Triton" in finding.text for finding in first.findings)


def test_the_faults_were_all_told_right() -> None:
    found = JUnitXml.fromfile(str(EXAMPLE / "junit/faults.xml"))
    assert (found.tests, found.failures, found.errors, found.skipped) == (6, 0, 0, 0)


def test_the_committed_page_is_what_these_files_give(measured: Report) -> None:
    assert (EXAMPLE / "report.md").read_text() == render(measured, "two H200s").rstrip("\n") + "\n"
    html = (EXAMPLE / "report.html").read_text()
    assert '<td class="number">7.4%</td>' in html
    assert "h200-30b-a3b-8l on h200, 2 GPUs" in html  # the heatmap
