"""Rehearsals in the reports: beside the real case of the same build, and what a regression is put down to."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from pytest_scaleperf import records
from pytest_scaleperf.model import ActivationCheckpoint, Batch, Decision, Fingerprint, Layout, Metric, Outcome, as_plain
from pytest_scaleperf.rehearsed import Fit, RankRehearsal, Rehearsal, as_record
from pytest_scaleperf.report import records_in
from pytest_scaleperf.report.assemble import read
from pytest_scaleperf.report.escape import code, markdown
from pytest_scaleperf.report.markdown import render
from pytest_scaleperf.report.page import render as page
from pytest_scaleperf.report.pictures.album import album

NAME = "demo-512gpu-fsdp128-dp4-none-lbs2"
OLD = Fingerprint("NVIDIA H200", "580", "2.11", "2.27", "0.2.2", "aaa", "config", 9.9e14)
NEW = dataclasses.replace(OLD, torchtitan_commit="bbb")
DAY = 86_400.0


def session(run_dir: Path, number: int, files: dict[str, dict[str, Any]]) -> None:
    folder = run_dir / "sessions" / f"2026010{number}-000000-abcdef"
    for kind in ("records", "rehearsals"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    about = {"schema": 1, "session": folder.name, "started": number * DAY, "arguments": []}
    (folder / "session.json").write_text(json.dumps(about))
    for kind, record in files.items():
        whole = {"schema": 1, "session": folder.name, "case": NAME, **record, "finished": number * DAY}
        (folder / kind / f"{NAME}.json").write_text(json.dumps(whole))


def real(tps: float, decision: Decision, fingerprint: Fingerprint, baseline: float = 41_000.0) -> dict[str, Any]:
    metric = {"metric": Metric.TPS, "decision": decision, "value": tps, "baseline": baseline, "tolerance": 0.03,
              "change": tps / baseline - 1}  # fmt: skip
    measurement = {"values": {"tps": tps}, "spread": {}, "steps": [10, 20]}
    sample = {"folder": "/r/x", "outcome": "completed", "seconds": 60.0, "started": 1.0, "measurement": measurement}
    return {
        "suite": "demo", "system": "h200", "gpus": 512, "layout": as_plain(Layout(128, 4)),
        "activation_checkpoint": "none", "batch": as_plain(Batch(2, 1024, 1, 4096)), "decision": decision,
        "reason": "tps", "metrics": [metric], "samples": [sample], "fingerprint": as_plain(fingerprint),
    }  # fmt: skip


def rehearsed(
    ceiling: float | None, fingerprint: Fingerprint = NEW, fit: Fit = Fit.FITS, reason: str = "ok"
) -> dict[str, Any]:
    rank = RankRehearsal(
        0, fit, reason, peak_gib=66.66, total_gib=139.8, margin_gib=71.14, memory_pct=47.7, tps=ceiling
    )
    found = Rehearsal(
        NAME, "demo", "h200", 512, Layout(128, 4), ActivationCheckpoint.NONE, Batch(2, 1024, 1, 4096), fit, reason,
        (rank,), steps=5, reserve_gib=2.0, fingerprint=fingerprint,
    )  # fmt: skip
    return json.loads(json.dumps(as_record(found)))  # type: ignore[no-any-return]  # an object of JSON


def test_the_folder_is_the_one_that_is_written() -> None:
    assert records_in.REHEARSALS == records.REHEARSALS


def test_the_tax_of_communication_beside_the_real_run(tmp_path: Path) -> None:
    session(tmp_path, 1, {"records": real(41_374, Decision.PASS, NEW), "rehearsals": rehearsed(44_580)})
    report, _ = read([tmp_path])
    [found] = report.rehearsals
    assert found.tax == pytest.approx(1 - 41_374 / 44_580)
    assert f"| {code(NAME)} | 512 | fits | 66.66 | 47.7% | 71.14 | 44,580 | 41,374 | 7.2% |  |" in render(report)
    html = page(report, album(report))
    assert '<h2 id="rehearsals">Rehearsals</h2>' in html
    assert '<td class="number">7.2%</td>' in html


def test_a_session_that_only_rehearsed_is_of_this_report_and_no_history(tmp_path: Path) -> None:
    session(tmp_path, 1, {"records": real(41_374, Decision.PASS, NEW)})
    session(tmp_path, 2, {"rehearsals": {**rehearsed(44_580), "session": "20260102-000000-abcdef"}})
    report, _ = read([tmp_path], max_age=2 * DAY)
    assert [(told.cases, told.rehearsed, told.is_current) for told in report.sessions] == [(1, 0, True), (0, 1, True)]
    assert "UTC: 1 case rehearsed" in render(report)
    assert "older session" not in render(report)


def test_a_rehearsal_of_another_build_is_set_beside_nothing(tmp_path: Path) -> None:
    session(tmp_path, 1, {"records": real(41_374, Decision.PASS, OLD), "rehearsals": rehearsed(44_580, NEW)})
    [found] = read([tmp_path])[0].rehearsals
    assert (found.real_tps, found.tax) == (None, None)


@pytest.mark.parametrize(
    ("ceiling", "cause"), [(44_500.0, "communication: the ceiling held"), (39_100.0, "compute: the ceiling without")]
)
def test_a_regression_is_put_down_to_what_fell(tmp_path: Path, ceiling: float, cause: str) -> None:
    session(tmp_path, 1, {"records": real(41_000, Decision.PASS, OLD), "rehearsals": rehearsed(44_580, OLD)})
    session(tmp_path, 2, {"records": real(36_400, Decision.REGRESSION, NEW), "rehearsals": rehearsed(ceiling, NEW)})
    report, _ = read([tmp_path])
    [found] = report.rehearsals
    assert found.cause.startswith(cause)
    assert markdown(cause) in render(report)


def test_without_an_earlier_rehearsal_the_cause_is_not_guessed(tmp_path: Path) -> None:
    session(tmp_path, 2, {"records": real(36_400, Decision.REGRESSION, NEW), "rehearsals": rehearsed(44_580, NEW)})
    [found] = read([tmp_path])[0].rehearsals
    assert found.cause == (
        "compute or communication: not known, there is no rehearsal of before to compare the ceiling with"
    )


def test_a_session_that_only_rehearsed_has_a_report_and_is_red_where_something_does_not_fit(tmp_path: Path) -> None:
    session(tmp_path, 1, {"rehearsals": rehearsed(None, fit=Fit.DOES_NOT_FIT, reason="oom: <b>full</b>")})
    report, _ = read([tmp_path])
    assert report.is_red
    text = render(report)
    assert "1 of 1 rehearsal not well" in text
    assert "does_not_fit" in text
    html = page(report, album(report))
    assert "oom: &lt;b&gt;full&lt;/b&gt;" in html
    assert '<span class="mark bad">does_not_fit</span>' in html


def test_an_expected_end_is_not_red(tmp_path: Path) -> None:
    record = rehearsed(None, fit=Fit.DOES_NOT_FIT)
    record["expect"] = record["ranks"][0]["outcome"] = Outcome.OOM
    session(tmp_path, 1, {"rehearsals": record})
    assert not read([tmp_path])[0].is_red


def test_a_file_of_another_form_is_a_fault_with_its_path(tmp_path: Path) -> None:
    session(tmp_path, 1, {"records": real(41_374, Decision.PASS, NEW), "rehearsals": {"rehearsal": 99}})
    report, _ = read([tmp_path])
    assert [fault.why for fault in report.faults] == ["no rehearsal of form 1"]


def test_a_junit_file_of_a_rehearsal_is_no_case_and_its_failure_is_not_lost(tmp_path: Path) -> None:
    session(tmp_path, 1, {"records": real(41_374, Decision.PASS, NEW)})
    junit = tmp_path / "rehearsed.xml"
    junit.write_text(
        f'<testsuites><testsuite name="pytest" tests="1" timestamp="1970-01-02T01:00:00" time="60">'
        f'<testcase classname="suites.test_throughput" name="test_throughput[{NAME}]" time="9"><properties>'
        f'<property name="scaleperf.rehearsal" value="invalid"/>'
        f'<property name="scaleperf.rehearsal.folder" value="/elsewhere/1"/></properties>'
        f'<failure message="Invalid parallel dims">x</failure></testcase></testsuite></testsuites>'
    )
    report, _ = read([tmp_path, junit])
    [case] = report.cases
    assert case.now.decision is Decision.PASS, "the rehearsal says nothing of the real case"
    assert [other.message.splitlines()[0] for other in report.others] == ["Invalid parallel dims"]


def test_a_search_that_finds_the_edge_has_nothing_wrong(tmp_path: Path) -> None:
    skipped = real(0.0, Decision.SKIPPED, NEW) | {"metrics": [], "samples": []}
    no_room = rehearsed(None, fit=Fit.DOES_NOT_FIT, reason="out of memory")
    gate = {"state": "not_needed", "reason": "beyond the OOM edge 22", "parents": []}
    session(tmp_path, 1, {"records": skipped | {"gate": gate}, "rehearsals": no_room})
    report = read([tmp_path])[0]
    assert [each.rehearsal.fit for each in report.rehearsals] == [Fit.DOES_NOT_FIT]
    assert not report.is_red
    assert "not well" not in render(report)
    session(tmp_path, 1, {"records": skipped | {"gate": gate | {"state": "open"}}, "rehearsals": no_room})
    assert read([tmp_path])[0].is_red
