"""A rehearsing session: every selected case of every rung, one process each, green only where it is valid and fits."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from junitparser import JUnitXml

from tests.plugin.conftest import FULL2, FULL4, NONE2, NONE4, SUITE, Finished, Project

REHEARSE = {"steps": 3, "executable": True}


@pytest.fixture
def lab(bare: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The demo project with a trainer of its own that can be rehearsed, on a machine with two GPUs; no baselines."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    bare.suite(rehearse=REHEARSE)
    return bare


def rehearse(project: Project, *args: str) -> Finished:
    return project.run_raw("--rehearse", *args)


def rehearsals(project: Project) -> dict[str, dict[str, Any]]:
    paths = project.run_dir.glob("sessions/*/rehearsals/*.json")
    return {record["case_id"]: record for record in (json.loads(path.read_text()) for path in paths)}


def environment_of(project: Project, case_id: str, attempt: int = 1) -> dict[str, str]:
    """What the process of a rehearsal was given, as the script that repeats it says."""
    [script] = project.run_dir.glob(f"sessions/*/cases/{case_id}/{attempt}/command.sh")
    words = [line.strip().removesuffix(" \\") for line in script.read_text().splitlines()]
    return dict(word.split("=", 1) for word in words if "=" in word)


def test_every_rung_is_rehearsed_without_gpus_and_without_baselines(lab: Project) -> None:
    done = rehearse(lab)
    assert done.returncode == 0, done.out
    assert done.kinds() == dict.fromkeys((NONE2, FULL2, NONE4, FULL4), "passed")
    assert "REHEARSAL of 4 cases of up to 4 GPUs" in done.out
    found = rehearsals(lab)
    assert {record["fit"] for record in found.values()} == {"fits"}
    assert found[NONE4]["ranks"][0]["margin_gib"] == 80 - 2 - 40
    assert lab.records() == {}, "a rehearsal is no record: no gate may rely on it"
    told = environment_of(lab, NONE4)
    assert (told["WORLD_SIZE"], told["NGPU"], told["RANK"], told["LOCAL_RANK"]) == ("4", "4", "0", "0")
    assert float(told["SCALEPERF_MOST_MEMORY"]) == pytest.approx(78 / 80)


def test_it_opens_no_gate_of_the_real_case(lab: Project) -> None:
    assert rehearse(lab).returncode == 0
    real = lab.run("-k", NONE4)
    assert real.kind(NONE4) == "error"
    assert "no verdict" in real.message(NONE4) or "found neither" in real.message(NONE4)


def test_a_real_run_says_what_communication_costs(lab: Project, recorded: str) -> None:
    lab.baseline_file.write_text(recorded)
    lab.scenario({"*": {"tps": 1100.0}})
    rehearse(lab, "-k", NONE2)
    lab.scenario({})
    said = lab.run("-k", "2gpu")
    assert said.properties(NONE2)["scaleperf.rehearsal.ceiling_tps"] == "1100"
    assert float(said.properties(NONE2)["scaleperf.rehearsal.communication_pct"]) == pytest.approx(100 / 11, abs=0.01)
    assert not any(name.startswith("scaleperf.rehearsal") for name in said.properties(FULL2))


def test_what_did_not_fit_closes_the_gate_of_the_real_case(lab: Project, recorded: str) -> None:
    lab.baseline_file.write_text(recorded)
    lab.suite(rehearse=REHEARSE | {"steps": 4})
    lab.scenario({FULL2: {"fault": "oom", "at": 1}})
    rehearse(lab, "-k", FULL2)
    real = lab.run("-k", "2gpu")
    assert real.kinds() == {NONE2: "passed", FULL2: "skipped"}
    assert "OOM in rehearsal: 2.50 GiB more were asked for, rank 0 of 2: oom: " in real.message(FULL2)
    lab.suite(rehearse=REHEARSE | {"steps": 4, "closes_gate": False})
    assert lab.run("-k", FULL2).kind(FULL2) == "failed", "the suite says that it is launched all the same"


def test_numbers_in_junit_are_no_verdict_of_the_case(lab: Project) -> None:
    said = rehearse(lab, "-k", NONE2).properties(NONE2)
    assert said["scaleperf.rehearsal"] == "fits"
    assert float(said["scaleperf.rehearsal.peak_memory"]) == 40
    assert float(said["scaleperf.rehearsal.margin"]) == 38
    assert float(said["scaleperf.rehearsal.ceiling_tps"]) == 1000
    assert float(said["scaleperf.rehearsal.ceiling_mfu"]) == pytest.approx(20)
    assert "scaleperf.verdict" not in said
    assert "scaleperf.case" not in said


def test_out_of_memory_fails_with_the_size_and_the_next_command(lab: Project) -> None:
    lab.scenario({NONE4: {"fault": "oom", "at": 1}})
    done = rehearse(lab)
    assert done.returncode == 1
    assert done.kind(NONE4) == "failed"
    assert done.kind(FULL4) == "passed"
    said = done.message(NONE4)
    assert "does_not_fit" in said
    assert "rank 0 of 4: oom, 2.50 GiB more could not be allocated, of 80.00 GiB 2 are kept free" in said
    assert "next: try a smaller local_batch" in said
    assert "command.sh" in said


def test_a_configuration_that_does_not_start_is_invalid_with_its_own_words(lab: Project) -> None:
    lab.scenario({FULL4: {"fault": "crash", "at": 1}})
    done = rehearse(lab)
    assert done.kind(FULL4) == "failed"
    assert "found invalid: RuntimeError: shape '[2, 8]' is invalid for input of size 8" in done.message(FULL4)
    assert rehearsals(lab)[FULL4]["fit"] == "invalid"


def test_what_fails_after_its_first_step_is_no_fault_of_the_configuration(lab: Project) -> None:
    lab.scenario({FULL4: {"fault": "crash", "at": 3}})
    assert rehearse(lab, "-k", FULL4).kind(FULL4) == "failed"
    assert rehearsals(lab)[FULL4]["fit"] == "failed"


def test_losses_that_are_not_finite_fail_nothing(lab: Project) -> None:
    lab.scenario({"*": {"nan": True}})
    done = rehearse(lab)
    assert done.returncode == 0, done.out


def test_allocation_retries_fit_and_are_said(lab: Project) -> None:
    lab.scenario({NONE2: {"retries": 4, "memory": 79.5}})
    done = rehearse(lab, "-k", NONE2)
    assert done.kind(NONE2) == "passed"
    assert f"{NONE2}: saturated: it fits only with 8 allocation retries" in done.out


def test_less_than_the_reserve_left_is_said(lab: Project) -> None:
    lab.scenario({NONE2: {"memory": 79.0}})
    done = rehearse(lab, "-k", NONE2)
    assert done.kind(NONE2) == "passed"
    assert f"{NONE2}: tight: it ran, but 1.00 GiB of the reserve of 2 GiB were taken" in done.out


def test_a_reserve_of_the_suites_own(lab: Project) -> None:
    lab.suite(rehearse=REHEARSE | {"reserve_gib": 8})
    rehearse(lab, "-k", NONE2)
    assert rehearsals(lab)[NONE2]["ranks"][0]["margin_gib"] == 32
    assert float(environment_of(lab, NONE2)["SCALEPERF_MOST_MEMORY"]) == pytest.approx(0.9)


def test_chosen_ranks_each_in_a_process_of_its_own(lab: Project) -> None:
    lab.suite(rehearse=REHEARSE | {"ranks": [0, -1]})
    lab.scenario({NONE4: {"memory": [40.0, 50.0], "tps": [1000.0, 800.0]}})
    done = rehearse(lab, "-k", NONE4)
    [record] = rehearsals(lab).values()
    assert [rank["rank"] for rank in record["ranks"]] == [0, 3]
    assert environment_of(lab, NONE4, attempt=2)["RANK"] == "3"
    said = done.properties(NONE4)
    assert said["scaleperf.rehearsal.ranks"] == "0,3"
    assert float(said["scaleperf.rehearsal.peak_memory"]) == 50, "the fullest rank"
    assert float(said["scaleperf.rehearsal.ceiling_tps"]) == 800, "the slowest rank, as the others wait for it"


def test_memory_is_compared_with_the_real_baseline_and_fails_nothing(lab: Project, recorded: str) -> None:
    lab.baseline_file.write_text(recorded)
    lab.scenario({NONE2: {"memory": 44.0}})
    done = rehearse(lab, "-k", "2gpu")
    assert done.kinds() == {NONE2: "passed", FULL2: "passed"}
    assert "+10.0% !" in done.out
    assert float(done.properties(FULL2)["scaleperf.rehearsal.baseline_change_pct"]) == 0


def test_a_program_that_starts_its_ranks_itself_is_a_skip_that_says_so(lab: Project) -> None:
    lab.suite()
    done = rehearse(lab)
    assert set(done.kinds().values()) == {"skipped"}
    assert "cannot be rehearsed: trainer.executable" in done.message(NONE2)
    assert "rehearse: {executable: true}" in done.message(NONE2)
    assert done.returncode == 5, "a session that rehearsed nothing is not green"


def test_a_pipeline_is_a_skip_with_the_reason(lab: Project) -> None:
    pipeline = {"gpus": 8, "dp_shard": 4, "pp": 2, "activation_checkpoint": "none", "local_batch": 2}
    lab.suite(rehearse=REHEARSE, ladder=[*SUITE["ladder"], pipeline])
    done = rehearse(lab, "-k", "8gpu or 2gpu")
    [name] = [each for each in done.cases if "pp2" in each]
    assert done.kind(name) == "skipped"
    assert "cannot be rehearsed: the stages of a pipeline ask their neighbours" in done.message(name)
    assert rehearsals(lab)[name]["fit"] == "not_rehearsable"
    assert not list(lab.run_dir.glob(f"sessions/*/cases/{name}")), "nothing was launched for it"


def test_a_node_that_is_lost_is_an_error(lab: Project) -> None:
    lab.scenario({NONE2: {"fault": "node_failure", "at": 1}})
    done = rehearse(lab, "-k", NONE2)
    assert done.kind(NONE2) == "error"


def test_an_expected_oom_passes(lab: Project) -> None:
    ladder = [SUITE["ladder"][0] | {"expect": "oom"}]
    lab.suite(rehearse=REHEARSE, ladder=ladder)
    lab.scenario({NONE2: {"fault": "oom", "at": 1}})
    done = rehearse(lab)
    assert done.kinds() == {NONE2: "passed", FULL2: "passed"}


def test_a_test_that_hides_its_verdict_or_asks_for_none_fails(lab: Project) -> None:
    lab.scenario({NONE2: {"fault": "oom", "at": 1}})
    (lab.path / "suites/test_throughput.py").write_text(
        "import pytest\n"
        "def test_hidden(scaleperf):\n    with pytest.raises(BaseException):\n        scaleperf.check()\n"
        "def test_unasked(scaleperf):\n    pass\n"
        "def test_numbers(scaleperf):\n    assert scaleperf.run.step_times\n"
    )
    done = rehearse(lab, "-k", "2gpu and none")
    out = done.out
    assert done.returncode == 1
    assert "the test caught its verdict: does_not_fit" in out
    assert "the test never called scaleperf.check(): does_not_fit" in out
    assert "1 failed, 2 passed" in out
    assert "2 errors" in out, "both are red, although their bodies were green"
    assert len(list(lab.run_dir.glob(f"sessions/*/cases/{NONE2}/*"))) == 1, "one rehearsal serves all tests of a case"


def test_a_machine_without_a_gpu_is_an_error_with_the_next_command(
    lab: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = rehearse(lab, "-k", NONE2)
    assert done.kind(NONE2) == "error"
    assert "srun --gpus 1 pytest suites/ --rehearse" in done.message(NONE2)


def test_two_devices_rehearse_side_by_side_each_on_its_own(lab: Project) -> None:
    lab.scenario({"*": {"delay": 0.5}})
    assert rehearse(lab).returncode == 0
    ran = sorted(
        (rank["started"], rank["started"] + rank["seconds"])
        for record in rehearsals(lab).values()
        for rank in record["ranks"]
    )
    assert any(later[0] < earlier[1] for earlier, later in itertools.pairwise(ran))
    for first, third in zip(ran, ran[2:], strict=False):
        assert third[0] >= first[1] - 0.3, "two devices, two processes"
    [path] = lab.run_dir.glob("sessions/*/timeline.json")
    told = json.loads(path.read_text())
    assert (told["capacity_gpus"], len(told["timeline"])) == (2, len(ran))


@pytest.mark.parametrize("option", ["--record-baselines", "--with-trace", "--repeats=2"])
def test_options_of_measurements_are_refused(lab: Project, option: str) -> None:
    done = rehearse(lab, option)
    assert done.returncode == 4
    assert f"--rehearse with {option.partition('=')[0]}" in done.out


def test_a_resumed_session_rehearses_what_is_missing_only(lab: Project) -> None:
    assert rehearse(lab, "-k", "2gpu").returncode == 0
    again = rehearse(lab, "--resume")
    assert again.kinds() == dict.fromkeys((NONE2, FULL2, NONE4, FULL4), "passed")
    launches = [path.parent.name for path in lab.run_dir.glob("sessions/*/cases/*/*")]
    assert sorted(launches) == sorted([NONE2, FULL2, NONE4, FULL4]), "each once"


def test_scaling_is_a_skip(lab: Project) -> None:
    lab.suite(rehearse=REHEARSE, scaling={"tolerance": "2 %"})
    (lab.path / "suites/test_scaling.py").write_text("def test_s(scaleperf_scaling):\n    scaleperf_scaling.check()\n")
    done = rehearse(lab)
    assert done.returncode == 0, done.out
    skipped = [case.result[0].message for suite in JUnitXml.fromfile(str(done.junit)) for case in suite if case.result]
    assert skipped
    assert set(skipped) == {"a rehearsal compares no speeds"}


def test_nothing_outlives_a_killed_session(lab: Project, tmp_path: Path) -> None:
    import signal  # noqa: PLC0415 - here only
    import subprocess  # noqa: PLC0415
    import time  # noqa: PLC0415

    lab.scenario({"*": {"fault": "hang", "at": 2}})
    with (tmp_path / "out").open("w") as out:
        session = subprocess.Popen(lab.command("--rehearse"), cwd=lab.path, stdout=out, stderr=out)
        end = time.monotonic() + 60
        while len(list(lab.run_dir.glob("sessions/*/cases/*/1/stdout.log"))) < 2 and time.monotonic() < end:
            time.sleep(0.1)
        session.send_signal(signal.SIGTERM)
        session.wait(timeout=60)
    folders = [str(path) for path in lab.run_dir.glob("sessions/*/cases/*/1")]
    assert len(folders) == 2
    time.sleep(0.5)
    left = [path.name for path in Path("/proc").iterdir() if path.name.isdigit() and _belongs(path, folders)]
    assert left == []


def _belongs(process: Path, folders: list[str]) -> bool:
    try:
        environment = (process / "environ").read_bytes().decode(errors="replace")
    except OSError:
        return False
    return any(f"SCALEPERF_RUN_DIR={folder}" in environment for folder in folders)
