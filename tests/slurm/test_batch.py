from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_scaleperf.launch.protocol import Job, Launcher
from pytest_scaleperf.launch.slurm.batch import BatchLauncher
from pytest_scaleperf.launch.slurm.holder import HolderLauncher
from pytest_scaleperf.model import JobState, LaunchError, Resources, SlurmOptions, StopReason, Wanted
from tests.slurm.harness import Lab, ended, until

PERIOD = 0.5


@pytest.fixture
def launcher(lab: Lab) -> Iterator[BatchLauncher]:
    with BatchLauncher(SlurmOptions(setup="export OF_THE_SETUP='a b'"), PERIOD) as made:
        yield made
    assert until(lambda: lab.cluster.left() == []), lab.cluster.left()


def test_it_is_what_the_protocol_asks_for(lab: Lab, launcher: BatchLauncher) -> None:
    as_launcher: Launcher = launcher
    as_job: Job = lab.python(as_launcher, 8, "pass")
    assert ended(as_job).state is JobState.COMPLETED
    assert as_job.id.isdecimal()


def test_a_job_of_two_nodes(lab: Lab, launcher: BatchLauncher) -> None:
    folder = lab.run_folder()
    script = (
        "import os, socket\n"
        "print(socket.gethostname(), os.environ['PET_RDZV_ENDPOINT'], os.environ['OF_THE_SUITE'],"
        " os.environ['OF_THE_SETUP'], os.getcwd())"
    )
    job = lab.python(launcher, 16, script, folder=folder)
    result = ended(job)
    assert (result.state, result.exit_code, result.fault) == (JobState.COMPLETED, 0, None)
    assert len(result.hosts) == 2
    assert set(result.gpu_ids) == set(result.hosts)
    assert result.scheduler == {"job": job.id, "step": f"{job.id}.0", "state": "COMPLETED", "reason": "None"}
    endpoint = (folder / "rendezvous").read_text().split()[1]
    lines = sorted((folder / "stdout.log").read_text().splitlines())
    assert lines == [f"{n}: {host} {endpoint} yes a b {folder}" for n, host in enumerate(result.hosts)]


def test_the_exit_code_is_the_failing_task_s(lab: Lab, launcher: BatchLauncher) -> None:
    jobs = [
        lab.python(launcher, 8, "raise SystemExit(3)"),
        lab.python(launcher, 8, "import os; os.kill(os.getpid(), 9)"),
    ]
    results = [ended(job) for job in jobs]
    assert [(r.state, r.exit_code, r.fault) for r in results] == [
        (JobState.FAILED, 3, None),
        (JobState.FAILED, -9, None),
    ]


def test_a_queued_job_does_not_run_yet(lab: Lab, launcher: BatchLauncher) -> None:
    first = lab.sleep(launcher, 32, 2.0)
    second = lab.python(launcher, 8, "pass")
    assert second.wait(1.5) is None
    assert (first.runs, second.runs, launcher.side_by_side) == (True, False, True)
    assert ended(first).state is JobState.COMPLETED
    result = ended(second)
    assert result.state is JobState.COMPLETED
    assert result.waited >= 1.0


def test_stopping_cancels_by_id(lab: Lab, launcher: BatchLauncher) -> None:
    running, queued = lab.sleep(launcher, 32, 1000), lab.python(launcher, 8, "pass")
    result = queued.stop(StopReason.INTERRUPTED)
    assert (result.state, result.stopped, result.hosts) == (JobState.CANCELLED, StopReason.INTERRUPTED, ())
    result = running.stop(StopReason.TOTAL_LIMIT)
    assert (result.state, result.stopped, result.fault) == (JobState.TIMEOUT, StopReason.TOTAL_LIMIT, None)
    assert until(lambda: lab.cluster.left() == [])


def test_the_job_of_somebody_else_with_the_same_name_stays(lab: Lab, launcher: BatchLauncher) -> None:
    ours = lab.sleep(launcher, 8, 1000)
    name = lab.cluster.tell("squeue", "-h", "-j", ours.id, "-o", "%j")
    theirs = lab.allocate(f"--job-name={name}", nodes=1)
    launcher.close()
    assert until(lambda: lab.state(ours.id) == "CANCELLED")
    assert lab.state(theirs) == "RUNNING"
    lab.release()


@pytest.mark.parametrize(
    ("options", "texts"),
    [
        (SlurmOptions(partition="nope"), ("invalid partition specified: nope", "--partition=nope")),
        (SlurmOptions(constraint="h300"), ("Requested node configuration is not available|Invalid feature", "h300")),
        (SlurmOptions(exclude=("node99",)), ("Invalid node name", "--exclude=node99")),
        (SlurmOptions(args=("--no-such-option",)), ("unrecognized option", "--no-such-option")),
    ],
)
def test_what_slurm_does_not_take_is_said_with_its_words(
    lab: Lab, options: SlurmOptions, texts: tuple[str, str]
) -> None:
    with BatchLauncher(options, PERIOD) as launcher:
        for text in texts:
            with pytest.raises(LaunchError, match=text):
                lab.python(launcher, 8, "pass")


def test_what_waits_for_ever_is_given_up_with_its_reason(lab: Lab) -> None:
    with BatchLauncher(SlurmOptions(partition="small"), PERIOD) as launcher:
        job = lab.python(launcher, 16, "pass")
        result = ended(job)
        assert (result.state, result.stopped, result.exit_code) == (JobState.CANCELLED, StopReason.NEVER_STARTED, None)
        assert "PartitionNodeLimit" in result.detail
        assert until(lambda: lab.state(job.id) == "CANCELLED")


def test_what_waits_too_long_is_given_up(lab: Lab) -> None:
    lab.allocate()
    with BatchLauncher(SlurmOptions(pending_limit=1.5), PERIOD) as launcher:
        result = ended(lab.python(launcher, 8, "pass"))
        assert result.stopped is StopReason.NEVER_STARTED
        assert "pending_limit" in result.detail
        assert "Resources" in result.detail or "Priority" in result.detail


def test_hosts_to_avoid_and_hosts_left_out_are_excluded(lab: Lab, launcher: BatchLauncher) -> None:
    launcher.leave_out("node1")
    launcher.leave_out("node2")
    result = ended(lab.start(launcher, 8, "true", avoid="node3"))
    assert result.hosts == ("node4",)


def test_an_exclusive_job_runs_alone(lab: Lab, launcher: BatchLauncher) -> None:
    alone = Wanted("alone", Resources(8, 8, exclusive=True))
    first = lab.sleep(launcher, 8, 1.0)
    assert launcher.choose([alone]) is None
    ended(first)
    assert launcher.choose([alone]) is not None


def test_many_jobs_are_one_question(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.allocate()  # so that they wait
    count = tmp_path / "bin" / "count"
    squeue = lab.cluster.tell("sh", "-c", "command -v squeue")
    (tmp_path / "bin").mkdir()
    wrapper = tmp_path / "bin" / "squeue"
    wrapper.write_text(f'#!/bin/sh\necho x >> {count}\nexec {squeue} "$@"\n')
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    with BatchLauncher(SlurmOptions(max_jobs=1000), 2.0) as launcher:
        jobs = [lab.start(launcher, 8, "true") for _ in range(40)]
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
        for _ in range(100):
            launcher.wait(0.05)
        monkeypatch.undo()
        for name, value in lab.cluster.env.items():
            monkeypatch.setenv(name, value)
        assert not any(job.runs for job in jobs)
        assert 2 <= len(count.read_text().split()) <= 4  # 5 s


def test_closing_ends_jobs_and_they_say_that_it_was_us(lab: Lab, launcher: BatchLauncher) -> None:
    jobs = [lab.sleep(launcher, 16, 1000), lab.python(launcher, 32, "pass")]
    launcher.close()
    for job in jobs:
        result = job.stop(StopReason.INTERRUPTED)
        assert (result.state, result.stopped, result.fault) == (JobState.CANCELLED, StopReason.INTERRUPTED, None)


def test_nodes_that_cannot_be_held_are_said_to_every_case(lab: Lab) -> None:
    options, waiting = SlurmOptions(partition="small"), [Wanted("first", Resources(16, 8))]
    with HolderLauncher(options, 8, lab.run_folder(), name="s.nodes", period=PERIOD) as launcher:
        assert launcher.choose(waiting) is None

        def is_told() -> bool:
            launcher.wait(0.5)
            try:
                return launcher.choose(waiting) is not None
            except LaunchError:
                return True

        assert until(is_told)
        with pytest.raises(LaunchError, match="PartitionNodeLimit"):
            launcher.choose(waiting)


def test_a_job_that_holds_nodes_for_a_rung(lab: Lab) -> None:
    with HolderLauncher(SlurmOptions(), 8, lab.run_folder(), name="s.nodes", period=PERIOD) as launcher:
        while launcher.choose([Wanted("first", Resources(16, 8))]) is None:
            launcher.wait(1.0)
        held = launcher.job
        assert held is not None
        results = [ended(job) for job in [lab.sleep(launcher, 8, 0.5) for _ in range(2)]]
        assert {r.scheduler["job"] for r in results} == {held}
        assert launcher.choose([Wanted("larger", Resources(32, 8))]) is None
        while launcher.choose([Wanted("larger", Resources(32, 8))]) is None:
            launcher.wait(1.0)
        assert ended(lab.python(launcher, 32, "pass")).hosts == ("node1", "node2", "node3", "node4")
        assert launcher.job != held
        assert lab.state(held) == "CANCELLED"
    assert until(lambda: lab.cluster.left() == [])
