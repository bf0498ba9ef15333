"""Rule 6: a finished result survives SIGKILL, an interrupted session goes on, and nothing outlives the session."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.plugin.conftest import FULL2, FULL4, NONE2, NONE4, Project

HANG = {FULL2: {"fault": "child", "at": 7}}


def trainers(project: Project) -> list[int]:
    """Processes that carry this project's scenario file in their environment."""
    wanted = f"SCALEPERF_STANDIN={project.scenario_file}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def wait_until(what: str, true: object, seconds: float = 30.0) -> None:
    """Wait for a condition, or fail saying which."""
    assert callable(true)
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"waited {seconds:g} s for: {what}"
        time.sleep(0.05)


def start_until_second_case_hangs(project: Project, *args: str) -> subprocess.Popen[bytes]:
    project.scenario(HANG)
    before = set(project.run_dir.glob("sessions/*"))
    process = subprocess.Popen(
        project.command("--gpus", "4", *args), cwd=project.path, stdout=subprocess.DEVNULL, start_new_session=True
    )

    def session() -> Path | None:
        return next(iter(set(project.run_dir.glob("sessions/*")) - before), None)

    def hanging() -> bool:
        folder = session()
        log = None if folder is None else folder / "cases" / FULL2 / "1" / "stdout.log"
        return log is not None and log.exists() and b"step:  5" in log.read_bytes()

    wait_until("the second case to hang", hanging)
    folder = session()
    assert folder is not None
    assert (folder / "records" / f"{NONE2}.json").exists()
    return process


def test_sigkill_of_pytest_leaves_the_finished_records_and_no_process(project: Project) -> None:
    process = start_until_second_case_hangs(project)
    assert trainers(project)
    process.kill()
    process.wait()
    wait_until("every process to end", lambda: not trainers(project))
    assert project.records()[NONE2]["decision"] == "pass"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_job_and_keeps_the_results(project: Project, number: signal.Signals) -> None:
    process = start_until_second_case_hangs(project)
    process.send_signal(number)
    assert process.wait(timeout=30) not in (0, 5)
    assert not trainers(project)
    records = project.records()
    assert records[NONE2]["decision"] == "pass"
    assert records[FULL2]["decision"] == "machine_failed"
    assert "interrupted" in records[FULL2]["reason"]


def test_an_interrupted_session_goes_on_and_reruns_only_what_is_missing(project: Project) -> None:
    process = start_until_second_case_hangs(project)
    process.kill()
    process.wait()
    wait_until("every process to end", lambda: not trainers(project))
    session = max(project.run_dir.glob("sessions/*"))
    project.scenario({})
    done = project.run("--resume")
    assert done.returncode == 0, done.out
    assert done.kinds() == dict.fromkeys((NONE2, FULL2, NONE4, FULL4), "passed")
    launches = {case.name: len(list(case.iterdir())) for case in (session / "cases").iterdir()}
    assert launches == {NONE2: 1, FULL2: 2, NONE4: 1, FULL4: 1}


def test_a_session_that_still_runs_cannot_be_resumed(project: Project) -> None:
    process = start_until_second_case_hangs(project)
    try:
        done = project.run("--resume", "-k", "2gpu")
        assert done.returncode == 1
        assert "still running" in done.out
    finally:
        process.kill()
        process.wait()
    wait_until("every process to end", lambda: not trainers(project))


def test_two_sessions_on_one_run_directory_are_separate(project: Project) -> None:
    processes = [
        subprocess.Popen(
            [*project.command("--gpus", "2"), f"--junitxml={project.path}/two-{i}.xml"],
            cwd=project.path,
            stdout=subprocess.DEVNULL,
        )
        for i in range(2)
    ]
    before = len(list(project.run_dir.glob("sessions/*")))
    assert [p.wait(timeout=60) for p in processes] == [0, 0]
    sessions = list(project.run_dir.glob("sessions/*"))
    assert len(sessions) >= before + 1
    newest = sorted(sessions)[-2:]
    assert all((s / "records" / f"{NONE2}.json").exists() for s in newest)


def test_a_full_run_directory_is_an_error_with_the_path(project: Project, tmp_path: Path) -> None:
    wall = tmp_path / "file"
    wall.write_text("not a folder")
    done = project.run("-k", "2gpu", "--run-dir", str(wall / "below"))
    assert done.returncode == 1
    assert done.kind(NONE2) == "error"
    assert str(wall) in done.message(NONE2)
    assert "--run-dir" in done.message(NONE2)
