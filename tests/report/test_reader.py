"""What counts as a case's newest entry, what is history, and that nothing which was given is left out silently."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pytest_scaleperf import history, records
from pytest_scaleperf.history import EXTRA
from pytest_scaleperf.model import Decision, LevelChange, Metric, ScalePerfError
from pytest_scaleperf.report import markdown, records_in, views
from pytest_scaleperf.report.assemble import read
from pytest_scaleperf.report.contents import JUnitState, Report
from tests.plugin.conftest import FULL2, FULL4, NONE2, NONE4, Project
from tests.report import build

HOUR = 3600.0


def shape(value: Any) -> Any:
    """Names and nesting of a record; lists by their first element."""
    if isinstance(value, dict):
        return {name: shape(inside) for name, inside in value.items()}
    return [shape(value[0])] if isinstance(value, list) and value else None


def only(report: Report) -> Any:
    (case,) = report.cases
    return case


def test_reads_the_form_that_is_written() -> None:
    assert records_in.SCHEMA == records.SCHEMA


def test_the_records_of_these_tests_have_the_form_of_the_plugins(project: Project) -> None:
    assert project.run("-k", "none", gpus=2).returncode == 0
    told = project.records()[NONE2]
    made = json.loads(json.dumps(build.record(baseline=28_000.0)))
    for each in (told, made):
        sample, *_ = each["samples"]
        each["samples"] = [sample | {"sources": None}]  # which numbers there were differs
        sample["measurement"]["step_times"] = []
    plain = shape(made)
    assert set(plain) <= set(shape(told))
    for part in ("layout", "batch", "gate", "fingerprint"):
        assert set(made[part]) == set(told[part]), part
    assert set(made["samples"][0]) <= set(told["samples"][0])
    assert set(made["metrics"][0]) <= set(told["metrics"][0])
    assert set(made["samples"][0]["measurement"]) <= set(told["samples"][0]["measurement"])


def test_the_plugins_own_records_are_read_whole(project: Project) -> None:
    project.scenario({"*none*2gpu*": {"tps": 1000.0}, NONE2: {"tps": 800.0}, FULL4: {"fault": "oom", "at": 10}})
    done = project.run()
    assert done.returncode == 1
    report, _ = read([project.run_dir, done.junit])
    assert report.faults == ()
    found = {case.id: case.now for case in report.cases}
    assert set(found) == {NONE2, FULL2, NONE4, FULL4}
    assert [found[c].verdict for c in (NONE2, FULL2, NONE4, FULL4)] == ["regression", "pass", "skipped", "run_failed"]
    gate, failure = found[NONE4].gate, found[FULL4].launches[0].failure
    assert gate is not None
    assert gate.parents == (NONE2,)
    assert failure is not None
    assert failure.requested_gib == 2.5
    assert found[NONE2].launches[0].argv
    stored = project.records()
    for case_id, entry in found.items():
        told = stored[case_id]
        assert {m.metric: m.value for m in entry.metrics} == {m["metric"]: m["value"] for m in told["metrics"]}
        assert entry.gpu_seconds == told["gpus"] * sum(s["seconds"] for s in told["samples"])
        assert entry.attempt is not None
        assert entry.attempt.case_id == case_id
        assert not entry.is_contradicted


def test_the_newest_record_counts_and_the_others_are_history(tmp_path: Path) -> None:
    told = [
        build.record(tps=27_000, finished=build.T0 - 9 * HOUR, session="a"),
        build.record(tps=28_000, finished=build.T0, session="b"),
        build.record(tps=26_000, finished=build.T0 - 90 * HOUR, session="c"),
    ]
    report, _ = read([build.write(tmp_path, told)])
    case = only(report)
    assert case.now.value(Metric.TPS) == 28_000
    assert [entry.value(Metric.TPS) for entry in case.earlier] == [26_000, 27_000]
    assert [entry.session for entry in case.recent] == ["a", "b"]
    assert report.gpu_seconds == 2 * 16 * 300
    assert report.all_gpu_seconds == 3 * 16 * 300


def test_a_long_session_is_of_one_time_as_a_whole_and_the_night_before_is_not(tmp_path: Path) -> None:
    told = [
        build.record(local=2, finished=build.T0 - 20 * HOUR, session="tonight"),
        build.record(local=4, finished=build.T0, session="tonight"),
        build.record(local=4, finished=build.T0 - 24 * HOUR, session="before"),
        build.record(local=6, finished=build.T0 - 24.5 * HOUR, session="before"),
    ]
    report, _ = read([build.write(tmp_path, told)])
    assert [case.now.batch.local for case in report.cases if case.now.batch] == [2, 4]
    assert [case.now.batch.local for case in report.older if case.now.batch] == [6]
    assert [session.is_current for session in report.sessions] == [False, True]


def test_stages_that_ran_as_separate_jobs_are_one_ladder(tmp_path: Path) -> None:
    """Each job skips what is beyond its GPUs; that says nothing of the cases, also where that job ended last."""
    beyond = "needs 128 GPUs, this session has 16 (--gpus 16)"
    first = [
        build.record(finished=build.T0 + 60, session="s16"),
        build.skipped("beyond", beyond, gpus=128, dp_shard=128, finished=build.T0 + 61, session="s16"),
        build.skipped("beyond", beyond, gpus=512, dp_shard=128, finished=build.T0 + 62, session="s16"),
    ]
    second = [build.record(gpus=128, dp_shard=128, tps=28_000, finished=build.T0, session="s128")]
    report, _ = read([build.write(tmp_path / "16", first), build.write(tmp_path / "128", second)])
    assert [(c.now.gpus, c.now.verdict) for c in report.cases] == [
        (16, "no_baseline"),
        (128, "no_baseline"),
        (512, "skipped"),
    ]
    assert [(step.gpus, step.below) for step in views.ladder(report)] == [
        (16, None),
        (128, pytest.approx(28_000 / 28_400 - 1)),
        (512, None),
    ]


def test_a_skip_by_a_failed_parent_is_news_and_counts(tmp_path: Path) -> None:
    told = [
        build.record(gpus=128, dp_shard=128, finished=build.T0 - HOUR, session="a"),
        build.skipped("closed", "closed by its parent: x (regression)", ["x"], gpus=128, dp_shard=128, session="b"),
    ]
    assert only(read([build.write(tmp_path, told)])[0]).now.decision is Decision.SKIPPED


def test_an_artifact_that_contains_another_counts_once(tmp_path: Path) -> None:
    inner = build.write(tmp_path / "16", [build.record()])
    shutil.copytree(inner, tmp_path / "128")
    link = tmp_path / "link"
    link.symlink_to(inner)
    report, _ = read([inner, tmp_path / "128", link, inner / "sessions" / build.SESSION])
    assert report.faults == ()
    assert only(report).earlier == ()
    assert report.gpu_seconds == 16 * 300


def test_two_different_records_of_the_same_moment_are_named(tmp_path: Path) -> None:
    one = build.write(tmp_path / "one", [build.record(tps=28_000)])
    two = build.write(tmp_path / "two", [build.record(tps=20_000)])
    report, _ = read([one, two])
    (fault,) = report.faults
    assert str(two) in fault.where
    assert str(one) in fault.why


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no record"),
        ('{"schema":1,"session":"s"', "no record"),
        ("[1]", "no record"),
        ('{"schema":1}', "missing required field"),
        (json.dumps(build.record() | {"schema": 2}), "schema 2"),
        (json.dumps(build.record() | {"gpus": 0}), "0 GPUs"),
        (json.dumps(build.record() | {"gpus": "many"}), "gpus"),
        (json.dumps(build.record() | {"decision": "great"}), "great"),
        ("[" * 100_000, "no record"),
        ("\xff\xfe", "no record"),
    ],
    ids=["empty", "cut", "list", "fields", "schema", "no-gpus", "type", "enum", "deep", "bytes"],
)
def test_a_record_that_cannot_be_read_is_named(tmp_path: Path, text: str, why: str) -> None:
    run_dir = build.write(tmp_path, [build.record(local=2)])
    bad = run_dir / "sessions" / build.SESSION / "records" / "bad.json"
    bad.write_bytes(text.encode("latin-1"))
    report, _ = read([run_dir])
    (fault,) = report.faults
    assert fault.where == str(bad)
    assert why in fault.why
    assert len(report.cases) == 1
    assert report.is_red


def test_a_lone_surrogate_in_a_record_is_named_or_read_but_never_a_crash(tmp_path: Path) -> None:
    run_dir = build.write(tmp_path, [build.record(local=2), build.record(local=4, reason="half \ud800 a character")])
    report, _ = read([run_dir])
    assert len(report.cases) + len(report.faults) == 2


def test_a_record_that_is_no_file_is_named(tmp_path: Path) -> None:
    run_dir = build.write(tmp_path, [build.record()])
    bad = run_dir / "sessions" / build.SESSION / "records" / "folder.json"
    bad.mkdir()
    (fault,) = read([run_dir])[0].faults
    assert (fault.where, fault.why) == (str(bad), "Is a directory")


def test_a_session_without_a_readable_file_is_named_and_its_records_count(tmp_path: Path) -> None:
    run_dir = build.write(tmp_path, [build.record()])
    (run_dir / "sessions" / build.SESSION / "session.json").write_text("{")
    report, _ = read([run_dir])
    assert [Path(fault.where).name for fault in report.faults] == ["session.json"]
    assert len(report.cases) == 1
    assert report.sessions[0].started is None


@pytest.mark.parametrize("kind", ["missing", "neither", "empty"])
def test_what_holds_no_record_is_refused(tmp_path: Path, kind: str) -> None:
    paths = {"missing": tmp_path / "nowhere", "neither": tmp_path, "empty": tmp_path / "run"}
    (tmp_path / "run" / "sessions").mkdir(parents=True)
    expected = {"missing": "no such file", "neither": "expected a run directory", "empty": "no case is recorded"}
    with pytest.raises(ScalePerfError, match=expected[kind]):
        read([paths[kind]])


def junit(path: Path, cases: str, time: float = build.T0 - 100, seconds: float = 200) -> Path:
    import datetime as dt  # noqa: PLC0415 - one use

    stamp = dt.datetime.fromtimestamp(time, dt.UTC).isoformat()
    path.write_text(
        f'<testsuites><testsuite name="pytest" timestamp="{stamp}" time="{seconds}">{cases}</testsuite></testsuites>'
    )
    return path


def test_a_junit_file_alone_gives_the_numbers(project: Project) -> None:
    project.scenario({NONE2: {"tps": 800.0}, FULL2: {"memory": 41.5}})
    done = project.run(gpus=2)
    both, alone = read([project.run_dir, done.junit])[0], read([done.junit])[0]
    for one, two in zip(both.cases, alone.cases, strict=True):
        assert (one.id, one.system, one.now.suite, one.now.gpus) == (two.id, two.system, two.now.suite, two.now.gpus)
        assert (one.now.verdict, one.now.is_red, one.now.times) == (two.now.verdict, two.now.is_red, two.now.times)
        assert (one.now.layout, one.now.batch) == (two.now.layout, two.now.batch)
        assert one.now.fingerprint == two.now.fingerprint
        assert two.now.gpu_seconds == pytest.approx(one.now.gpu_seconds, rel=1e-5)
        for a, b in zip(one.now.metrics, two.now.metrics, strict=True):
            assert (a.metric, a.decision) == (b.metric, b.decision)
            assert b.value == pytest.approx(a.value, rel=1e-5)
            assert (a.change is None) == (b.change is None)
    assert views.not_run(both)[0].reason == views.not_run(alone)[0].reason


def test_an_error_in_a_setup_that_left_no_record_is_the_newest_word(tmp_path: Path) -> None:
    told = build.record(finished=build.T0 - HOUR)
    name = (
        f'<testcase classname="suites.t" name="test_throughput[{told["case"]}]"><error message="cannot start">x</error>'
    )
    report, _ = read([build.write(tmp_path, [told]), junit(tmp_path / "j.xml", f"{name}</testcase>")])
    case = only(report)
    assert case.now.decision is Decision.MACHINE_FAILED
    assert case.now.layout == case.earlier[0].layout
    assert case.now.is_red


def test_a_test_that_failed_although_its_record_passes_stays_red(tmp_path: Path) -> None:
    told = build.record(baseline=28_400.0)
    inside = (
        f'<testcase classname="t" name="test_throughput[{told["case"]}]"><properties>'
        f'<property name="scaleperf.case" value="{told["case"]}"/>'
        f'<property name="scaleperf.folder" value="{told["samples"][0]["folder"]}"/></properties>'
        '<error message="teardown of the user\'s fixture">boom</error></testcase>'
    )
    report, _ = read([build.write(tmp_path, [told]), junit(tmp_path / "j.xml", inside)])
    entry = only(report).now
    assert entry.decision is Decision.PASS
    assert (entry.is_contradicted, entry.is_red) == (True, True)
    assert entry.verdict == "pass, but test error"
    assert [case.id for case in views.changed(report)] == [told["case"]]


def test_other_failed_tests_of_a_junit_file_are_kept(tmp_path: Path) -> None:
    inside = (
        '<testcase classname="" name="suites.test_throughput"><error message="collection failure">bad</error>'
        '</testcase><testcase classname="t" name="test_other[1]"/>'
        '<testcase classname="t" name="test_bad"><failure>no</failure></testcase>'
    )
    report, _ = read([build.write(tmp_path, [build.record()]), junit(tmp_path / "j.xml", inside)])
    assert [(test.name, test.state) for test in report.others] == [
        ("suites.test_throughput", JUnitState.ERROR),
        ("test_bad", JUnitState.FAILED),
    ]
    assert report.is_red


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("<testsuites><testsuite>", "no JUnit file"),
        ("", "no JUnit file"),
        ("<html/>", "Invalid format"),
        ('<!DOCTYPE x [<!ENTITY a "b">]><testsuites>&a;</testsuites>', "DOCTYPE"),
    ],
)
def test_a_junit_file_that_cannot_be_read_is_named(tmp_path: Path, text: str, why: str) -> None:
    bad = tmp_path / "bad.xml"
    bad.write_text(text)
    report, files = read([build.write(tmp_path / "run", [build.record()]), bad])
    (fault,) = report.faults
    assert (fault.where, files) == (str(bad), ())
    assert why in fault.why


def test_a_property_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    inside = (
        '<testcase classname="t" name="test_throughput[x]"><properties><property name="scaleperf.case" value="x"/>'
        '<property name="scaleperf.gpus" value="many"/></properties></testcase>'
    )
    report, _ = read([build.write(tmp_path, [build.record()]), junit(tmp_path / "j.xml", inside)])
    assert len(report.cases) == 1
    assert "many" in report.faults[0].why


def test_worst_first_and_what_it_was_before(ladder: Report, tmp_path: Path) -> None:
    told = [
        build.record(local=2, tps=27_500, baseline=28_400.0),
        build.record(local=4, tps=20_000, baseline=28_400.0),
        build.oom(local=6),
        build.record(local=8, tps=31_000, baseline=28_400.0),
        build.record(local=10, tps=28_400, baseline=28_400.0),
        build.oom(local=10, finished=build.T0 - 24 * HOUR, session="before"),
        build.record(local=12, tps=28_400, baseline=28_400.0),
    ]
    report, _ = read([build.write(tmp_path, told)])
    cases = views.changed(report)
    assert [case.now.batch.local for case in cases if case.now.batch] == [6, 4, 2, 8, 10]
    assert views.before(cases[-1]) == "run_failed"
    slow = views.changed(ladder)[0]
    assert views.before(slow) == "the same, 4 times since 2026-11-27"


def test_a_creeping_level_is_picked_out_of_the_notes(tmp_path: Path) -> None:
    """The sentence is the one that the room of histories makes."""
    nights = 20
    day = [f"2026-11-{night + 1:02d}" for night in range(nights)]
    level = LevelChange(Metric.TPS, day[10], "s", 28_400.0, 28_000.0, 10)
    better = LevelChange(Metric.PEAK_MEMORY, day[10], "s", 100.0, 90.0, 10)
    worse, faster = (history.sentence([change]) for change in (level, better))
    told = [
        build.record(local=2, baseline=28_400.0) | {"notes": [faster, "something else"]},
        build.record(local=4, baseline=28_400.0) | {"notes": [worse, f"history: 20 nights, not looked at: {EXTRA}"]},
    ]
    report, _ = read([build.write(tmp_path, told)])
    assert [note for _, note in views.levels(report)] == [worse, faster]
    assert [note for note, _ in views.notes(report)] == [
        f"history: 20 nights, not looked at: {EXTRA}",
        "something else",
    ]
    assert "### Levels that changed" in markdown.render(report)


def test_efficiency_is_the_published_one(ladder: Report) -> None:
    steps = views.ladder(ladder)
    assert [(s.gpus, s.best.now.value(Metric.TPS) if s.best else None) for s in steps] == [
        (16, 28_400),
        (128, 28_000),
        (512, 26_700),
        (768, None),
    ]
    assert [None if s.first is None else round(100 * s.first, 1) for s in steps] == [None, -1.4, -6.0, None]
    assert [None if s.below is None else round(100 * s.below, 1) for s in steps] == [None, -1.4, -4.6, None]
    assert ladder.gpu_seconds == 21 * 16 * 300 + 3 * 128 * 420 + 2 * 512 * 500
