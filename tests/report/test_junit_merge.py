"""JUnit files of the stages as one: the last attempt counts and says so, skips stay skips, always valid XML."""

from __future__ import annotations

import datetime as dt
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from junitparser import Error, Failure, JUnitXml

from pytest_scaleperf.report.contents import Fault
from pytest_scaleperf.report.junit_in import read_junit
from pytest_scaleperf.report.junit_merge import LONGEST_TEXT, allowed, merge, write
from tests.plugin.conftest import FULL2, FULL4, NONE2, NONE4, Finished, Project
from tests.report import build, hostile


def merged(target: Path, *paths: Path) -> Finished:
    files, faults = read_junit(paths)
    write(merge(files, faults), target)
    return Finished(0, "", target)


def stage(path: Path, cases: str, minutes: float = 0.0) -> Path:
    stamp = dt.datetime.fromtimestamp(build.T0 + 60 * minutes, dt.UTC).isoformat()
    suite = f'<testsuite name="pytest" hostname="login1" timestamp="{stamp}" time="9" tests="99">{cases}</testsuite>'
    path.write_text(f'<?xml version="1.0"?><testsuites name="pytest tests">{suite}</testsuites>')
    return path


def case(name: str, inside: str = "", properties: str = "") -> str:
    held = f"<properties>{properties}</properties>" if properties else ""
    return f'<testcase classname="suites.t" name="t[{name}]" time="1.5">{held}{inside}</testcase>'


def prop(name: str, value: str) -> str:
    return f'<property name="{name}" value="{value}"/>'


def test_the_stages_of_the_plugin_become_one_file(project: Project, tmp_path: Path) -> None:
    """2 GPUs, then 4 in a job of its own; then a second try of one case, which is slow."""
    first = project.run(gpus=2)
    second = project.run("-k", "4gpu", gpus=4)
    project.scenario({FULL2: {"tps": 700.0}})
    third = project.run("-k", "2gpu and full", gpus=2)
    assert (first.kind(NONE4), second.kind(NONE4), third.kind(FULL2)) == ("skipped", "passed", "failed")
    done = merged(tmp_path / "all.xml", first.junit, second.junit, third.junit)
    assert done.kinds() == {NONE2: "passed", FULL2: "failed", NONE4: "passed", FULL4: "passed"}
    assert done.properties(FULL2)["scaleperf.attempts"] == "2"
    said = done.properties(FULL2)["scaleperf.attempt"]
    assert said.startswith(f"attempt 2 of 2 counts, from {third.junit}")
    assert f"passed in {first.junit}" in said
    assert "scaleperf.attempts" not in done.properties(NONE2)
    for case_id, source in ((NONE2, first), (NONE4, second), (FULL2, third)):
        kept = {k: v for k, v in done.properties(case_id).items() if not k.startswith("scaleperf.attempt")}
        assert kept == source.properties(case_id)
    total = JUnitXml.fromfile(str(tmp_path / "all.xml"))
    assert (total.tests, total.failures, total.errors, total.skipped) == (4, 1, 0, 0)


def test_later_in_time_counts_whatever_the_order_of_the_files(tmp_path: Path) -> None:
    early = stage(tmp_path / "a.xml", case("x", "<failure>slow</failure>"))
    late = stage(tmp_path / "b.xml", case("x"), minutes=30)
    for order in ((early, late), (late, early)):
        assert merged(tmp_path / "all.xml", *order).kinds() == {"x": "passed"}


def test_without_times_the_last_file_counts(tmp_path: Path) -> None:
    for name, inside in (("a", "<failure>slow</failure>"), ("b", "")):
        (tmp_path / f"{name}.xml").write_text(f"<testsuite>{case('x', inside)}</testsuite>")
    assert merged(tmp_path / "all.xml", tmp_path / "a.xml", tmp_path / "b.xml").kinds() == {"x": "passed"}
    assert merged(tmp_path / "all.xml", tmp_path / "b.xml", tmp_path / "a.xml").kinds() == {"x": "failed"}


def test_a_skip_for_too_few_gpus_never_hides_a_result_and_a_closed_gate_does(tmp_path: Path) -> None:
    skip = '<skipped type="pytest.skip" message="needs 128 GPUs"/>'
    ran = stage(tmp_path / "a.xml", case("x", "<failure>slow</failure>"))
    beyond = stage(tmp_path / "b.xml", case("x", skip, prop("scaleperf.gate", "beyond")), minutes=30)
    closed = stage(tmp_path / "c.xml", case("x", skip, prop("scaleperf.gate", "closed")), minutes=60)
    done = merged(tmp_path / "all.xml", ran, beyond)
    assert done.kinds() == {"x": "failed"}
    assert done.properties("x")["scaleperf.attempt"].startswith("attempt 1 of 2 counts")
    assert merged(tmp_path / "all.xml", ran, beyond, closed).kinds() == {"x": "skipped"}
    assert merged(tmp_path / "all.xml", beyond).kinds() == {"x": "skipped"}


def test_a_failure_and_an_error_of_one_test_are_one_attempt(tmp_path: Path) -> None:
    """pytest writes a second element where the body failed and the teardown had an error."""
    both = case("x", "<failure>slow</failure>") + case("x", "<error>teardown</error>")
    first = stage(tmp_path / "a.xml", both)
    done = JUnitXml.fromfile(str(merged(tmp_path / "all.xml", first).junit))
    found = [type(result) for suite in done for test in suite for result in test.result]
    assert found == [Failure, Error]
    again = merged(tmp_path / "all.xml", first, stage(tmp_path / "b.xml", case("x"), minutes=5))
    assert again.kinds() == {"x": "passed"}


def test_what_belongs_to_a_suite_is_kept_and_counts_are_made_anew(tmp_path: Path) -> None:
    extra = "<properties><property name='run' value='7'/></properties><system-out>suite says</system-out>"
    one = stage(tmp_path / "a.xml", extra + case("x") + case("y", "<skipped message='no'/>"))
    done = JUnitXml.fromfile(str(merged(tmp_path / "all.xml", one).junit))
    (suite,) = list(done)
    assert (suite.name, suite.hostname, suite.tests, suite.skipped, suite.time) == ("pytest", "login1", 2, 1, 3.0)
    assert [(p.name, p.value) for p in suite.properties()] == [("run", "7")]
    assert "suite says" in ET.tostring(suite._elem, encoding="unicode")


def test_suites_inside_suites_are_found(tmp_path: Path) -> None:
    inner = f'<testsuite name="inner">{case("deep")}</testsuite>'
    (tmp_path / "a.xml").write_text(f'<testsuites><testsuite name="outer">{case("x")}{inner}</testsuite></testsuites>')
    assert merged(tmp_path / "all.xml", tmp_path / "a.xml").kinds() == {"x": "passed", "deep": "passed"}


def test_a_file_that_cannot_be_read_is_an_error_in_the_result(tmp_path: Path) -> None:
    torn = tmp_path / "stage-128.xml"
    torn.write_text("<testsuites><testsuite><testcase name='x'>")
    done = JUnitXml.fromfile(str(merged(tmp_path / "all.xml", stage(tmp_path / "a.xml", case("x")), torn).junit))
    assert (done.tests, done.errors) == (2, 1)
    (test,) = [test for suite in done for test in suite if test.is_error]
    assert test.name == str(torn)
    assert "no JUnit file" in test.result[0].text


@pytest.mark.parametrize("text", hostile.TEXTS)
def test_valid_xml_whatever_was_said(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.xml"
    suite = ET.fromstring(f"<testsuites><testsuite>{case('x', '<failure/>')}</testsuite></testsuites>")  # noqa: S314
    test = suite[0][0]
    test[0].text = test[0].attrib["message"] = allowed(text)
    ET.ElementTree(suite).write(path)
    files, _ = read_junit((path,))
    target = tmp_path / "all.xml"
    write(merge(files, [Fault(f"/x/{text}", text)]), target)
    done = JUnitXml.fromfile(str(target))
    told = {test.name: test.result[0].text for suite in done for test in suite}
    assert told["t[x]"] == allowed(text).replace("\r", "\n")
    assert done.tests == 2


def test_what_xml_cannot_hold_is_written_out() -> None:
    assert allowed("a\x00b\x1b[31m\ud800\ufffe\t\n\U0001f600") == "a\\x00b\\x1b[31m\\ud800\\ufffe\t\n\U0001f600"


def test_long_logs_are_cut_in_the_middle(tmp_path: Path) -> None:
    long = "first line\n" + "noise\n" * 100_000 + "last line"
    one = stage(tmp_path / "a.xml", case("x", f"<failure>{long}</failure><system-out>{long}</system-out>"))
    target = merged(tmp_path / "all.xml", one).junit
    assert target.stat().st_size < 3 * LONGEST_TEXT
    (test,) = [test for suite in JUnitXml.fromfile(str(target)) for test in suite]
    for text in (test.result[0].text, test.system_out):
        assert text.startswith("first line\n")
        assert text.endswith("last line")
        assert "characters left out" in text


def test_the_given_files_are_not_changed(tmp_path: Path) -> None:
    one = stage(tmp_path / "a.xml", case("x", "<failure>slow</failure>"))
    two = stage(tmp_path / "b.xml", case("x"), minutes=5)
    before = (one.read_bytes(), two.read_bytes())
    files, _ = read_junit((one, two))
    held = [ET.tostring(file.xml._elem) for file in files]
    merge(files)
    assert [ET.tostring(file.xml._elem) for file in files] == held
    assert (one.read_bytes(), two.read_bytes()) == before


def test_merging_a_merge_changes_nothing(tmp_path: Path) -> None:
    one = stage(tmp_path / "a.xml", case("x", "<failure>slow</failure>") + case("y", "<skipped message='no'/>"))
    once = merged(tmp_path / "once.xml", one).junit
    twice = merged(tmp_path / "twice.xml", once).junit
    assert ET.canonicalize(once.read_text()) == ET.canonicalize(twice.read_text())
