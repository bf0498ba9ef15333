"""Rule 1: green means that every selected case was launched, observed to its last step and judged, or skipped."""

from __future__ import annotations

import pytest
import yaml

from tests.plugin.conftest import FULL2, FULL4, NONE2, NONE4, SUITE, Project


def test_all_cases_pass_with_numbers_in_junit(project: Project) -> None:
    done = project.run()
    assert done.returncode == 0, done.out
    assert done.kinds() == dict.fromkeys((NONE2, FULL2, NONE4, FULL4), "passed")
    said = done.properties(NONE4)
    assert said["scaleperf.verdict"] == "pass"
    assert float(said["scaleperf.tps"]) == pytest.approx(1000)
    assert float(said["scaleperf.tps.baseline"]) == pytest.approx(1000)
    assert float(said["scaleperf.mfu"]) == pytest.approx(100 * 1000 * 2.0e10 / 1.0e14)
    assert float(said["scaleperf.peak_memory"]) == pytest.approx(40)
    assert said["scaleperf.tps.change_pct"] == "+0.00"
    assert all(record["decision"] == "pass" for record in project.records().values())


def test_missing_baseline_fails_and_says_how_to_record(bare: Project) -> None:
    done = bare.run("-k", "2gpu")
    assert done.returncode == 1
    assert done.kind(NONE2) == "failed"
    assert "no_baseline" in done.message(NONE2)
    assert "--record-baselines" in done.message(NONE2)


def test_unreadable_baseline_is_an_error_that_names_file_and_line(project: Project) -> None:
    project.baseline_file.write_text("suite: demo\nsystem: lab\ncases: {x: [\n")
    done = project.run("-k", "2gpu")
    assert done.returncode == 1
    assert done.kind(NONE2) == "error"
    assert "demo.yaml:" in done.message(NONE2)


@pytest.mark.parametrize("omitted", ["no_tps"])
def test_missing_metric_fails(project: Project, omitted: str) -> None:
    project.scenario({NONE2: {omitted: True}})
    done = project.run("-k", "2gpu")
    assert done.returncode == 1
    assert done.kind(NONE2) == "failed"
    assert "missing_metric" in done.message(NONE2)
    assert "tps" in done.message(NONE2)


def test_exit_0_before_the_last_step_fails(project: Project) -> None:
    project.scenario({NONE2: {"fault": "early", "at": 22}})
    done = project.run("-k", "2gpu")
    assert done.returncode == 1
    assert done.kind(NONE2) == "failed"
    assert "incomplete" in done.message(NONE2)
    assert "scaleperf.tps" not in done.properties(NONE2)


def test_empty_matrix_is_an_error_at_collection(project: Project) -> None:
    project.suite(ladder=[{"gpus": 2, "dp_shard": 3, "activation_checkpoint": "none", "local_batch": 2}])
    done = project.run()
    assert done.returncode == 2
    assert "demo.yaml" in done.out
    assert "Traceback" not in done.out


def test_no_suite_for_this_system_is_an_error(project: Project) -> None:
    project.suite(system="other")
    done = project.run()
    assert done.returncode == 2
    assert "no suite for system lab" in done.out


def test_a_session_that_only_skips_is_not_green(project: Project) -> None:
    done = project.run(gpus=1)
    assert done.returncode == 5
    assert set(done.kinds().values()) == {"skipped"}
    assert "needs 2 GPUs, this session has 1" in done.message(NONE2)
    assert "NOTHING WAS MEASURED" in done.out


def test_larger_rungs_are_skipped_with_that_reason(project: Project) -> None:
    done = project.run(gpus=2)
    assert done.returncode == 0
    assert done.kinds() == {NONE2: "passed", FULL2: "passed", NONE4: "skipped", FULL4: "skipped"}
    assert "needs 4 GPUs, this session has 2" in done.message(NONE4)


def test_a_test_that_never_checks_its_verdict_is_an_error(project: Project) -> None:
    (project.path / "suites/test_throughput.py").write_text("def test_throughput(scaleperf):\n    pass\n")
    done = project.run("-k", "2gpu")
    assert done.returncode == 1
    assert "never called scaleperf.check()" in done.out
    assert project.records()[NONE2]["decision"] == "run_failed"


def test_gpus_must_be_said(project: Project) -> None:
    done = project.run_raw()
    assert done.returncode == 4
    assert "--gpus N" in done.out


@pytest.mark.parametrize("wrong", ["0", "-3", "many"])
def test_gpus_must_be_a_count(project: Project, wrong: str) -> None:
    done = project.run_raw(f"--gpus={wrong}")
    assert done.returncode == 4
    assert "expected a whole number of GPUs" in done.out


def test_recorded_cases_skip_and_open_gates(bare: Project) -> None:
    done = bare.run("--record-baselines")
    assert done.returncode == 0
    assert set(done.kinds().values()) == {"skipped"}
    assert NONE4 in bare.baseline_file.read_text()


def test_recording_never_lowers_a_baseline(project: Project) -> None:
    before = project.baseline_file.read_text()
    project.scenario({NONE2: {"tps": 900}})
    done = project.run("--record-baselines", "-k", "2gpu and none")
    assert done.kind(NONE2) == "failed"
    assert project.baseline_file.read_text() == before


def test_suite_of_another_system_is_one_skip(project: Project) -> None:
    other = SUITE | {"name": "other", "system": "b200"}
    (project.path / "suites/other.yaml").write_text(yaml.safe_dump(other))
    done = project.run("-k", "2gpu or other")
    assert done.kind("other") == "skipped"
    assert done.kind(NONE2) == "passed"
