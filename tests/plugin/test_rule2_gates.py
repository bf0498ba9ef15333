"""Rule 2: a failed parent closes the gate by name; no evidence is an error; -k, --lf and -n never hide that."""

from __future__ import annotations

from tests.plugin.conftest import FULL2, FULL4, NONE2, NONE4, SUITE, Project


def test_a_failed_parent_closes_its_child_by_name(project: Project) -> None:
    project.scenario({NONE2: {"tps": 500}})
    done = project.run()
    assert done.returncode == 1
    assert done.kinds() == {NONE2: "failed", FULL2: "passed", NONE4: "skipped", FULL4: "passed"}
    assert NONE2 in done.message(NONE4)
    assert "regression" in done.message(NONE4)
    assert done.properties(NONE4)["scaleperf.parent"] == NONE2
    assert project.records()[NONE4]["gate"]["state"] == "closed"


def test_closed_gates_close_the_rungs_above(project: Project) -> None:
    third = SUITE["ladder"][1] | {"gpus": 8, "dp_shard": 8, "requires": {"gpus": 4, "same": ["activation_checkpoint"]}}
    project.suite(ladder=[*SUITE["ladder"], third])
    project.scenario({NONE2: {"fault": "crash"}})
    done = project.run("-k", "none", gpus=8)
    kinds = done.kinds()
    assert kinds[NONE4] == "skipped"
    assert kinds["demo-8gpu-fsdp8-dp1-none-lbs2"] == "skipped"
    assert NONE4 in done.message("demo-8gpu-fsdp8-dp1-none-lbs2")


def test_what_failed_two_sessions_ago_closes_the_gate_by_its_name(project: Project) -> None:
    """The session between skipped the parent: that is no verdict, but what closed its gate closes this one too."""
    third = SUITE["ladder"][1] | {"gpus": 8, "dp_shard": 8, "requires": {"gpus": 4, "same": ["activation_checkpoint"]}}
    project.suite(ladder=[*SUITE["ladder"], third])
    project.scenario({NONE2: {"fault": "crash"}})
    assert project.run("-k", "2gpu and none").kind(NONE2) == "failed"
    assert project.run("-k", "4gpu and none").kind(NONE4) == "skipped"
    done = project.run("-k", "8gpu and none", gpus=8)
    assert done.kind("demo-8gpu-fsdp8-dp1-none-lbs2") == "skipped", done.out
    assert f"{NONE4} (skipped: closed by its parent: {NONE2} (run_failed))" in done.out


def test_deselected_parent_without_record_is_an_error_naming_the_command(bare: Project) -> None:
    done = bare.run("-k", "4gpu and none")
    assert done.returncode == 1
    assert done.kind(NONE4) == "error"
    assert NONE2 in done.message(NONE4)
    assert "pytest" in done.message(NONE4)
    assert "--gpus 2" in done.message(NONE4)


def test_a_fresh_record_of_the_parent_opens_the_gate(project: Project) -> None:
    assert project.run("-k", "2gpu").returncode == 0
    done = project.run("-k", "4gpu")
    assert done.returncode == 0, done.out
    assert done.kinds() == {NONE4: "passed", FULL4: "passed"}


def test_an_old_record_opens_nothing(project: Project) -> None:
    assert project.run("-k", "2gpu").returncode == 0
    done = project.run("-k", "4gpu", "--evidence-max-age", "0.0000001")
    assert done.kind(NONE4) == "error"


def test_a_record_of_another_fingerprint_opens_nothing(project: Project) -> None:
    assert project.run("-k", "2gpu").returncode == 0
    project.suite(trainer=SUITE["trainer"] | {"args": ["--something.new", "1"]})
    done = project.run("-k", "4gpu")
    assert done.kind(NONE4) == "error"


def test_a_stored_failure_closes_the_gate(project: Project) -> None:
    project.scenario({NONE2: {"tps": 500}})
    assert project.run("-k", "2gpu").returncode == 1
    done = project.run("-k", "4gpu and none", "--gpus", "4")
    assert done.returncode == 5
    assert done.kind(NONE4) == "skipped"
    assert NONE2 in done.message(NONE4)


def test_last_failed_does_not_turn_it_into_silence(project: Project) -> None:
    project.scenario({NONE4: {"tps": 500}})
    assert project.run().returncode == 1
    done = project.run("--lf")
    assert done.kinds() == {NONE4: "failed"}


def test_xdist_is_refused_with_the_reason(project: Project) -> None:
    done = project.run("-n", "2")
    assert done.returncode == 4
    assert "pytest-xdist" in done.out


def test_xdist_without_gpus_is_refused_at_collection(project: Project) -> None:
    done = project.run_raw("-n", "2")
    assert done.returncode not in (0, 5)
    assert "pytest-xdist" in done.out


def test_order_is_by_rung_whatever_the_file_says(project: Project) -> None:
    project.suite(ladder=list(reversed(SUITE["ladder"])))
    assert project.run().returncode == 0
