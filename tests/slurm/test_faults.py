"""What clusters do to jobs, done to the virtual one: the class, the node's name, and that nothing is left."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_scaleperf.launch.protocol import Launcher
from pytest_scaleperf.launch.slurm.allocation import AllocationLauncher
from pytest_scaleperf.launch.slurm.batch import BatchLauncher
from pytest_scaleperf.model import JobState, LaunchError, Outcome, Resources, SlurmOptions, StopReason, Wanted
from tests.slurm.harness import Lab, ended, session, until

PERIOD = 0.5


@pytest.fixture
def inside(lab: Lab) -> Iterator[AllocationLauncher]:
    """In an allocation of two nodes; the other two are free for jobs."""
    with AllocationLauncher(SlurmOptions(), 8, lab.allocate(nodes=2)) as made:
        yield made


@pytest.fixture
def outside(lab: Lab) -> Iterator[BatchLauncher]:
    with BatchLauncher(SlurmOptions(), PERIOD) as made:
        yield made
    assert until(lambda: lab.steps("") == [])


def test_a_node_loses_power(lab: Lab, inside: AllocationLauncher, outside: BatchLauncher) -> None:
    step, job = lab.sleep(inside, 16, 1000), lab.sleep(outside, 16, 1000)
    for node in ("node2", "node4"):
        lab.cluster.power_off(node)
    for result, node in ((ended(step, 60), "node2"), (ended(job, 60), "node4")):
        assert (result.state, result.fault) == (JobState.NODE_FAIL, Outcome.NODE_FAILURE)
        assert result.failed_hosts == (node,)
        assert node in result.hosts
        assert len(result.hosts) == 2
    # What failed is used no more; the rest is.
    with pytest.raises(LaunchError, match="left out: node2"):
        inside.choose([Wanted("again", Resources(16, 8))])
    assert ended(lab.python(inside, 8, "pass")).hosts == ("node1",)
    again = lab.python(outside, 8, "pass")
    assert ended(again).hosts == ("node3",)


def test_the_other_nodes_of_a_lost_step_are_taken_last(lab: Lab) -> None:
    """Slurm 22.05 may count their CPUs as taken for as long as the allocation lasts, and a step there would wait."""
    with AllocationLauncher(SlurmOptions(), 8, lab.allocate()) as launcher:
        step = lab.sleep(launcher, 16, 1000)
        lost, survivor = (lab.cluster.nodes[i] for i in (1, 0))
        lab.cluster.power_off(lost)
        assert set(ended(step, 60).hosts) == {lost, survivor}
        others = set(lab.cluster.nodes) - {lost, survivor}
        assert set(ended(lab.python(launcher, 8, "pass")).hosts) <= others
        assert set(ended(lab.python(launcher, 16, "pass")).hosts) == others
        chosen = launcher.choose([Wanted("three", Resources(24, 8))])  # where the others are not enough
        assert chosen is not None
        assert set(chosen[1].nodes) == others | {survivor}


def test_a_node_is_set_down_by_its_operator(lab: Lab, inside: AllocationLauncher, outside: BatchLauncher) -> None:
    step, job = lab.sleep(inside, 16, 1000), lab.sleep(outside, 16, 1000)
    for node in ("node2", "node4"):
        lab.cluster.tell("scontrol", "update", f"nodename={node}", "state=down", "reason=xid 79")
    for result, node in ((ended(step, 60), "node2"), (ended(job, 60), "node4")):
        assert (result.state, result.fault, result.failed_hosts) == (
            JobState.NODE_FAIL,
            Outcome.NODE_FAILURE,
            (node,),
        )


def test_a_drained_node_ends_its_job_first(lab: Lab, inside: AllocationLauncher, outside: BatchLauncher) -> None:
    step, job = lab.sleep(inside, 16, 2.0), lab.sleep(outside, 16, 2.0)
    for node in ("node2", "node4"):
        lab.cluster.tell("scontrol", "update", f"nodename={node}", "state=drain", "reason=bad gpu")
    assert [ended(j).state for j in (step, job)] == [JobState.COMPLETED, JobState.COMPLETED]


def test_what_fails_on_a_drained_node_is_put_down_to_it(
    lab: Lab, inside: AllocationLauncher, outside: BatchLauncher
) -> None:
    step, job = lab.sleep(inside, 16, 2.0, code=1), lab.sleep(outside, 16, 2.0, code=1)
    for node in ("node2", "node4"):
        lab.cluster.tell("scontrol", "update", f"nodename={node}", "state=drain", "reason=bad gpu")
    for result, node in ((ended(step), "node2"), (ended(job), "node4")):
        assert (result.state, result.fault, result.failed_hosts) == (
            JobState.NODE_FAIL,
            Outcome.NODE_FAILURE,
            (node,),
        )
        assert "bad gpu" in result.detail
        assert result.exit_code == 1


def test_a_slurmd_dies_and_comes_back(lab: Lab, inside: AllocationLauncher, outside: BatchLauncher) -> None:
    step, job = lab.sleep(inside, 16, 4.0), lab.sleep(outside, 16, 4.0)
    for node in ("node2", "node4"):
        lab.cluster.kill_daemon(node)
    time.sleep(1.0)
    for node in ("node2", "node4"):
        lab.cluster.power_on(node)
    assert [ended(j).state for j in (step, job)] == [JobState.COMPLETED, JobState.COMPLETED]


def test_somebody_cancels(lab: Lab, inside: AllocationLauncher, outside: BatchLauncher) -> None:
    step, job = lab.sleep(inside, 16, 1000), lab.sleep(outside, 16, 1000)
    lab.cluster.tell("scancel", step.id, job.id)
    for result in (ended(step), ended(job)):
        assert (result.state, result.fault, result.failed_hosts) == (JobState.CANCELLED, Outcome.CANCELLED, ())
        assert result.stopped is None
    # The allocation is still there.
    assert ended(lab.python(inside, 16, "pass")).state is JobState.COMPLETED


def test_the_time_limit(lab: Lab, inside: AllocationLauncher, outside: BatchLauncher) -> None:
    job = lab.python(
        outside, 16, "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(0)); time.sleep(1000)"
    )
    step = lab.sleep(inside, 16, 1000)
    assert until(lambda: job.wait(0) is None and job.runs)
    for name in (inside.job, job.id):
        lab.cluster.tell("scontrol", "update", f"jobid={name}", "EndTime=now+1")
    for result in (ended(job, 90), ended(step, 90)):
        assert (result.state, result.fault, result.stopped) == (JobState.TIMEOUT, Outcome.TIME_LIMIT, None)
    with pytest.raises(LaunchError, match=r"has ended: TIMEOUT"):
        inside.choose([Wanted("again", Resources(8, 8))])


def test_preemption(lab: Lab, inside: AllocationLauncher, outside: BatchLauncher) -> None:
    step, job = lab.sleep(inside, 16, 1000), lab.sleep(outside, 16, 1000)
    lab.allocate("--partition=urgent")
    for result in (ended(step), ended(job)):
        assert (result.state, result.fault) == (JobState.PREEMPTED, Outcome.PREEMPTED)
    with pytest.raises(LaunchError, match=r"has ended: PREEMPTED"):
        inside.choose([Wanted("again", Resources(8, 8))])


def test_the_controller_is_away_for_a_while(lab: Lab, inside: AllocationLauncher, outside: BatchLauncher) -> None:
    step, job = lab.sleep(inside, 16, 2.0), lab.sleep(outside, 16, 2.0)
    lab.cluster.stop_controller()
    # Both end now, and nobody can say so of the job: that is not an end.
    assert job.wait(5.0) is None
    lab.cluster.start_controller()
    assert ended(job, 60).state is JobState.COMPLETED
    assert ended(step, 60).state is JobState.COMPLETED


def test_a_job_is_submitted_once_the_controller_is_back(lab: Lab, outside: BatchLauncher) -> None:
    lab.cluster.stop_controller()
    revive = threading.Timer(3.0, lab.cluster.start_controller)
    revive.start()
    try:
        assert ended(lab.python(outside, 8, "pass"), 60).state is JobState.COMPLETED
    finally:
        revive.join()


FILL = "import sys; open('full', 'wb').write(bytes(1 << 20))"


@pytest.mark.parametrize("where", ["inside", "outside"])
def test_the_disk_under_the_run_folder_is_full(
    lab: Lab, inside: AllocationLauncher, outside: BatchLauncher, small_disk: Path, where: str
) -> None:
    first, second = small_disk / "first", small_disk / "second"
    first.mkdir()
    second.mkdir()
    launcher: Launcher = inside if where == "inside" else outside
    result = ended(lab.python(launcher, 8, FILL, folder=first))
    assert (result.state, result.fault) == (JobState.FAILED, Outcome.DISK_FULL)
    assert f"the disk under {first} is full" in result.detail
    with pytest.raises(LaunchError, match="No space left on device"):
        lab.python(launcher, 8, "pass", folder=second)


@pytest.mark.parametrize("mode", ["allocation", "batch"])
@pytest.mark.parametrize("signals", [(signal.SIGKILL,), (signal.SIGINT, signal.SIGINT)])
def test_pytest_ends_and_nothing_is_left(lab: Lab, mode: str, signals: tuple[signal.Signals, ...]) -> None:
    allocation = lab.allocate() if mode == "allocation" else ""
    with session(lab, mode, allocation) as process:
        if allocation:
            assert len(lab.steps(allocation)) == 2
        for signum in signals:
            os.killpg(process.pid, signum)
            time.sleep(0.2)
        process.wait(30)
        if allocation:
            assert until(lambda: lab.steps(allocation) == [])
            assert lab.state(allocation) == "RUNNING"
            lab.release()
        assert until(lambda: lab.cluster.left() == []), lab.cluster.left()


def test_the_session_and_its_guardian_are_killed_and_the_step_is_ended_by_its_id(lab: Lab) -> None:
    allocation = lab.allocate()
    with session(lab, "allocation", allocation) as process:
        for pid in lab.cluster.processes_of("launch.guardian"):
            if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[-3] == str(process.pid).encode():
                os.kill(pid, signal.SIGSTOP)  # it ends nothing any more
                for srun in lab.cluster.processes_of(f"srun --jobid={allocation}"):
                    os.kill(srun, signal.SIGKILL)
                os.kill(pid, signal.SIGKILL)
                break
        else:
            pytest.fail("no guardian found")
        process.kill()
        process.wait()
        assert until(lambda: lab.steps(allocation) == [], 20)


def test_what_is_stopped_while_the_controller_is_away_is_cancelled_when_it_is_back(lab: Lab) -> None:
    launcher = BatchLauncher(SlurmOptions(), PERIOD, kill_limit=0.5)
    job = lab.sleep(launcher, 16, 1000)
    lab.cluster.stop_controller()
    with pytest.raises(LaunchError, match="not seen to end"):
        job.stop(StopReason.INTERRUPTED)
    launcher.close()
    lab.cluster.start_controller()
    assert until(lambda: lab.state(job.id) == "CANCELLED", 30)
