"""A case that is expected to run out of memory: no baseline, a pass by its outcome, and it fits after all."""

from __future__ import annotations

import pytest

from tests.plugin.conftest import FULL2, NONE2, NONE4, SUITE, Finished, Project


def rows(done: Finished) -> dict[str, list[str]]:
    """The table at the end, by case id."""
    table = done.out.partition(" scaleperf ")[2]
    return {
        line.split()[0]: line.split()[1:] for line in table.splitlines() if line.startswith("demo-") and ":" not in line
    }


@pytest.fixture
def edge(bare: Project) -> Project:
    """Both cases of the lower rung are expected to run out of memory; only ``none`` does. No baseline is stored."""
    bare.suite(ladder=[SUITE["ladder"][0] | {"expect": "oom"}])
    bare.scenario({NONE2: {"fault": "oom"}})
    return bare


def test_plugin_junit_and_table_say_the_same(edge: Project) -> None:
    done = edge.run()
    assert done.returncode == 0, done.out
    assert done.kinds() == {NONE2: "passed", FULL2: "passed"}
    said = done.properties(NONE2)
    assert said["scaleperf.verdict"] == "pass"
    assert said["scaleperf.outcome"] == "oom"
    assert said["scaleperf.reason"].startswith("ended as expected: oom on rank 0: ")
    assert "2.50 GiB" in said["scaleperf.reason"]
    assert "scaleperf.tps" not in said
    better = done.properties(FULL2)
    assert better["scaleperf.verdict"] == "improvement"
    assert better["scaleperf.outcome"] == "completed"
    assert better["scaleperf.reason"] == "expected oom, but the run completed: it fits now"
    assert {name: row[0] for name, row in rows(done).items()} == {NONE2: "pass", FULL2: "improvement"}
    assert f"{FULL2}: expected oom, but the run completed: it fits now" in done.out
    assert "needs another `expect` in the suite" in done.out
    assert "stale baseline" not in done.out
    assert {name: record["decision"] for name, record in edge.records().items()} == {
        NONE2: "pass",
        FULL2: "improvement",
    }


def test_it_needs_no_baseline_and_recording_stores_none(edge: Project) -> None:
    done = edge.run("--record-baselines")
    assert done.kinds() == {NONE2: "passed", FULL2: "passed"}
    assert not edge.baseline_file.exists()


def test_another_failure_is_none_that_was_expected(edge: Project) -> None:
    edge.scenario({NONE2: {"fault": "crash"}})
    done = edge.run("-k", "none")
    assert done.kind(NONE2) == "failed"
    assert "error (expected oom)" in done.message(NONE2)


def test_a_failure_of_the_machine_is_still_an_error(edge: Project) -> None:
    edge.scenario({NONE2: {"fault": "node_failure"}})
    assert edge.run("-k", "none").kind(NONE2) == "error"


def test_an_expected_oom_is_one_launch_however_many_are_asked_for(edge: Project) -> None:
    done = edge.run("--repeats", "3", "-k", "none")
    assert done.properties(NONE2)["scaleperf.samples"] == "1"


def test_it_opens_no_gate_of_a_case_that_has_to_train(bare: Project) -> None:
    """The suite is refused: nothing could ever open that gate."""
    bare.suite(ladder=[SUITE["ladder"][0] | {"expect": "oom"}, SUITE["ladder"][1]])
    done = bare.run()
    assert done.returncode == 2
    assert NONE4 in done.out
    assert "could never run" in done.out
