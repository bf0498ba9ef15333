from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Iterator

import pytest

from pytest_scaleperf.launch.protocol import Job, Launcher
from pytest_scaleperf.launch.slurm import where
from pytest_scaleperf.launch.slurm.allocation import AllocationLauncher
from pytest_scaleperf.model import JobState, LaunchError, Resources, SlurmOptions, StopReason, Wanted
from tests.slurm.harness import PYTHON, Lab, ended, until


@pytest.fixture
def launcher(lab: Lab) -> Iterator[AllocationLauncher]:
    with AllocationLauncher(SlurmOptions(env=(("OF_THE_SITE", "yes"),)), 8, lab.allocate()) as made:
        yield made


SAY = (
    "import os, socket\n"
    "print(socket.gethostname(), os.environ.get('PET_RDZV_ENDPOINT'), os.environ.get('PET_RDZV_CONF'),"
    " os.environ.get('PET_LOCAL_ADDR'), os.environ['CUDA_VISIBLE_DEVICES'], os.environ['OF_THE_SUITE'],"
    " os.environ['OF_THE_SITE'], os.environ['SLURM_STEP_NUM_NODES'])"
)


def test_it_is_what_the_protocol_asks_for(lab: Lab, launcher: AllocationLauncher) -> None:
    as_launcher: Launcher = launcher
    as_job: Job = lab.python(as_launcher, 8, "pass")
    assert ended(as_job).state is JobState.COMPLETED
    assert as_job.id == f"{launcher.job}.0"


def test_a_launch_on_two_nodes(lab: Lab, launcher: AllocationLauncher) -> None:
    folder = lab.run_folder()
    job = lab.python(launcher, 16, SAY, folder=folder)
    result = ended(job)
    assert (result.state, result.exit_code, result.fault, result.detail) == (JobState.COMPLETED, 0, None, "")
    assert result.hosts == ("node1", "node2")
    assert result.gpu_ids == dict.fromkeys(("node1", "node2"), tuple("01234567"))
    assert result.scheduler == {"job": launcher.job, "step": f"{launcher.job}.0"}
    assert 0 < result.waited < 2
    said = dict(line.split(": ", 1) for line in (folder / "stdout.log").read_text().splitlines())
    endpoint = (folder / "rendezvous").read_text().split()[1]
    assert said["0"] == f"node1 {endpoint} is_host=true node1 0,1,2,3,4,5,6,7 yes yes 2"
    assert said["1"] == f"node2 {endpoint} is_host=false node2 0,1,2,3,4,5,6,7 yes yes 2"


def test_a_launch_on_half_a_node_sees_its_own_devices(lab: Lab, launcher: AllocationLauncher) -> None:
    jobs = [lab.sleep(launcher, 4, 0.5) for _ in range(2)]
    results = [ended(job) for job in jobs]
    assert [result.hosts for result in results] == [("node1",), ("node1",)]
    assert [result.gpu_ids["node1"] for result in results] == [tuple("0123"), tuple("4567")]


def test_launches_run_side_by_side_and_give_their_nodes_back(lab: Lab, launcher: AllocationLauncher) -> None:
    began = time.monotonic()
    jobs = [lab.sleep(launcher, 16, 1.0) for _ in range(2)]
    assert launcher.busy_gpus == 32
    assert launcher.choose([Wanted("third", Resources(8, 8))]) is None
    results = [ended(job) for job in jobs]
    assert sorted(host for result in results for host in result.hosts) == ["node1", "node2", "node3", "node4"]
    took = time.monotonic() - began
    assert took < 3.5
    assert all(result.waited + result.seconds < took for result in results)
    assert launcher.busy_gpus == 0
    assert ended(lab.python(launcher, 32, "pass")).hosts == ("node1", "node2", "node3", "node4")


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("raise SystemExit(3)", 3),
        ("import os; os.environ['SLURM_PROCID'] == '1' and os._exit(3); import time; time.sleep(60)", 3),
        ("import os; os.environ['SLURM_PROCID'] == '1' and os.kill(os.getpid(), 11); import time; time.sleep(60)", -11),
        ("import os; os.kill(os.getpid(), 9)", -9),
    ],
)
def test_the_exit_code_is_the_failing_task_s(lab: Lab, launcher: AllocationLauncher, script: str, code: int) -> None:
    result = ended(lab.python(launcher, 16, script))
    assert (result.state, result.exit_code, result.fault, result.failed_hosts) == (JobState.FAILED, code, None, ())
    assert lab.steps(launcher.job) == []


def test_a_program_that_is_not_there_is_said(lab: Lab, launcher: AllocationLauncher) -> None:
    folder = lab.run_folder()
    result = ended(lab.start(launcher, 8, "/no/such/trainer", folder=folder))
    assert (result.state, result.exit_code) == (JobState.FAILED, 127)
    assert "cannot start '/no/such/trainer': No such file" in (folder / "stdout.log").read_text()


def test_stopping_ends_the_step(lab: Lab, launcher: AllocationLauncher) -> None:
    job = lab.sleep(launcher, 16, 1000)
    began = time.monotonic()
    result = job.stop(StopReason.NO_PROGRESS)
    assert time.monotonic() - began < 5
    assert (result.state, result.stopped, result.fault) == (JobState.TIMEOUT, StopReason.NO_PROGRESS, None)
    assert lab.steps(launcher.job) == []
    assert job.stop(StopReason.INTERRUPTED) == result


def test_closing_ends_every_step(lab: Lab, launcher: AllocationLauncher) -> None:
    for _ in range(4):
        lab.sleep(launcher, 8, 1000)
    assert len(lab.steps(launcher.job)) == 4
    launcher.close()
    assert lab.steps(launcher.job) == []
    with pytest.raises(LaunchError, match="closed"):
        lab.start(launcher, 8, "true")


def test_what_can_never_run_is_refused(launcher: AllocationLauncher) -> None:
    with pytest.raises(LaunchError, match="expected 8 nodes"):
        launcher.choose([Wanted("big", Resources(64, 8))])


def test_the_nodes_of_one_switch_go_together(lab: Lab, launcher: AllocationLauncher) -> None:
    first = lab.sleep(launcher, 8, 2.0)
    assert ended(lab.python(launcher, 16, "pass")).hosts == ("node3", "node4")
    ended(first)


def test_where_we_are(launcher: AllocationLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
    assert where.is_here()
    assert where.allocation() is None
    assert where.gpus(launcher.job, 8) == launcher.total_gpus == 32
    monkeypatch.setenv("SLURM_JOB_ID", launcher.job)
    assert where.allocation() == launcher.job
    with AllocationLauncher(SlurmOptions(), 8) as inside:
        assert inside.job == launcher.job
    monkeypatch.setenv("SLURM_JOB_ID", "999999")
    with pytest.raises(LaunchError, match="Invalid job id"):
        AllocationLauncher(SlurmOptions(), 8)
    monkeypatch.delenv("SLURM_JOB_ID")
    with pytest.raises(LaunchError, match="salloc"):
        AllocationLauncher(SlurmOptions(), 8)


def test_a_launch_costs_little_more_than_its_srun(lab: Lab, launcher: AllocationLauncher) -> None:
    bare = (
        "srun",
        f"--jobid={launcher.job}",
        "--exact",
        "-c1",
        "-N1",
        "-n1",
        "--gres=gpu:8",
        PYTHON,
        "-I",
        "-S",
        "-c",
        "",
    )
    srun, ours = [], []
    for _ in range(7):
        began = time.perf_counter()
        subprocess.run(bare, check=True)
        srun.append(time.perf_counter() - began)
        began = time.perf_counter()
        ended(lab.python(launcher, 8, ""))
        ours.append(time.perf_counter() - began)
    above = statistics.median(ours) - statistics.median(srun)
    print(f"bare srun {statistics.median(srun) * 1000:.0f} ms, {above * 1000:.0f} ms above it")  # noqa: T201 - a figure
    assert above < 0.2, (srun, ours)  # 30 ms on an idle machine; CI's is not


def test_a_site_s_lines_come_first(lab: Lab) -> None:
    folder = lab.run_folder()
    with AllocationLauncher(SlurmOptions(setup="export OF_THE_SETUP='a b'\n"), 8, lab.allocate()) as launcher:
        job = lab.python(launcher, 8, "import os; print(os.environ['OF_THE_SETUP'])", folder=folder)
        assert ended(job).state is JobState.COMPLETED
    assert (folder / "stdout.log").read_text() == "0: a b\n"
    assert until(lambda: lab.steps(launcher.job) == [])


def test_where_slurm_does_not_count_gpus_nobody_shares_a_node(lab: Lab) -> None:
    with AllocationLauncher(SlurmOptions(), 8, lab.allocate("--gpus-per-node=0", nodes=2)) as launcher:
        assert launcher.total_gpus == 16
        jobs = [lab.sleep(launcher, 4, 0.5) for _ in range(2)]
        assert launcher.choose([Wanted("third", Resources(4, 8))]) is None
        assert [ended(job).hosts for job in jobs] == [("node1",), ("node2",)]
        assert ended(lab.python(launcher, 16, "pass")).gpu_ids == {}
