"""pytest as a user runs it on a cluster: in an allocation, by submitting, and through what clusters do."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.plugin.conftest import Project
from tests.slurm.harness import Lab, until
from tests.slurm.sessions import FULL16, LADDER, NONE16, NONE32, Site, overlap, pause


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The baselines of the ladder, recorded by the plugin itself; the stand-in needs no cluster for that."""
    with pytest.MonkeyPatch.context() as patch:
        made = Project(tmp_path_factory.mktemp("recorded") / "project", patch)
        made.suite(ladder=LADDER)
        done = made.run("--record-baselines", "--launcher", "local", gpus=32)
        assert set(done.kinds().values()) == {"skipped"}, done.out
        return made.baseline_file.read_text()


@pytest.fixture
def site(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: str) -> Iterator[Site]:
    project = Project(tmp_path / "project", monkeypatch)
    project.suite(ladder=LADDER)
    project.baseline_file.write_text(recorded)
    made = Site(lab, project)
    yield made
    lab.release()
    assert made.nothing_left()


def test_inside_a_batch_job_cases_run_side_by_side_and_a_gated_one_after_them(site: Site) -> None:
    site.project.scenario({"*-16gpu-*": {"delay": 0.3}})
    done = site.batch()
    assert done.returncode == 0, done.out
    assert done.kinds() == {NONE16: "passed", FULL16: "passed", NONE32: "passed"}
    assert "32 GPUs" in done.out
    entries = {entry["case"]: entry for entry in site.timeline["timeline"]}
    assert site.timeline["capacity_gpus"] == 32
    assert overlap([entries[NONE16], entries[FULL16]]) > 1.0
    assert sorted(entries[NONE16]["hosts"] + entries[FULL16]["hosts"]) == ["node1", "node2", "node3", "node4"]
    assert entries[NONE32]["started"] >= entries[NONE16]["ended"]
    for case, nodes in ((NONE16, 2), (FULL16, 2), (NONE32, 4)):
        [sample] = site.samples(case)
        assert len(sample["hosts"]) == nodes
        assert sample["gpu_ids"] == {host: list("01234567") for host in sample["hosts"]}
        assert sample["scheduler"]["step"].partition(".")[0] == sample["scheduler"]["job"]


@pytest.mark.parametrize("submit", ["case", "rung"])
def test_on_the_login_node_cases_are_submitted(site: Site, submit: str) -> None:
    site.project.scenario({"*-16gpu-*": {"delay": 0.3}})
    site.project.system(slurm={"account": "of-the-file", "partition": "small"})
    done = site.run(
        "--gpus", "32", "--launcher", "slurm", "--submit", submit, "--partition", "gpu", "--time-limit", "7",
        "--slurm-arg=--nice=3",
    )  # fmt: skip
    assert done.returncode == 0, done.out
    samples = [site.samples(case)[0] for case in (NONE16, FULL16, NONE32)]
    jobs = {sample["scheduler"]["job"] for sample in samples}
    assert len(jobs) == (3 if submit == "case" else 1)
    for job in jobs:
        told = site.lab.cluster.tell("scontrol", "show", "job", "-o", job)
        for word in ("Partition=gpu", "Account=of-the-file", "TimeLimit=00:07:00", "Nice=3"):
            assert f" {word} " in told, told
    assert [len(sample["hosts"]) for sample in samples] == [2, 2, 4]
    entries = {entry["case"]: entry for entry in site.timeline["timeline"]}
    assert overlap([entries[NONE16], entries[FULL16]]) > 0.5


def test_an_excluded_node_is_given_nothing(site: Site) -> None:
    done = site.run("--gpus", "16", "--launcher", "slurm", "-k", "16gpu", "--exclude", "node1,node2")
    assert done.returncode == 0, done.out
    assert [site.samples(case)[0]["hosts"] for case in (NONE16, FULL16)] == [["node3", "node4"]] * 2


def test_a_node_that_loses_power_is_no_regression(site: Site) -> None:
    """Tried again on other nodes as a further sample; both attempts are told, and the verdict is the second's."""
    site.project.scenario({NONE16: {"delay": [2.0, 0.1]}})
    job, done = site.submit("-k", "16gpu")
    assert until(lambda: site.runs(NONE16), 30)
    attempt = site.project.run_dir.glob(f"sessions/*/cases/{NONE16}/1/nodes/1.json")
    [host] = {read_host(path) for path in attempt}
    site.lab.cluster.power_off(host)
    finished = site.ended(job, done)
    assert finished.returncode == 0, finished.out
    lost, again = site.samples(NONE16)
    assert (lost["outcome"], lost["failed_hosts"], again["outcome"]) == ("node_failure", [host], "completed")
    assert host in lost["hosts"]
    assert host not in again["hosts"]
    assert site.timeline["left_out"] == [host]
    assert site.timeline["gpu_seconds"]["lost"] > 0
    assert host in finished.out


def test_a_case_that_loses_its_nodes_three_times_is_an_error_of_the_machine(site: Site) -> None:
    site.project.scenario({NONE16: {"delay": 2.0}})
    job, done = site.submit("-k", f"{NONE16} or {NONE32}")
    hosts = []
    for attempt in (1, 2, 3):
        assert until(partial(site.runs, NONE16, attempt), 30), site.output
        [path] = site.project.run_dir.glob(f"sessions/*/cases/{NONE16}/{attempt}/nodes/1.json")
        hosts.append(read_host(path))
        site.lab.cluster.tell("scontrol", "update", f"nodename={hosts[-1]}", "state=down", "reason=xid 79")
    finished = site.ended(job, done)
    assert finished.kinds() == {NONE16: "error", NONE32: "skipped"}, finished.out
    assert [sample["failed_hosts"] for sample in site.samples(NONE16)] == [[host] for host in hosts]
    assert len(set(hosts)) == 3
    assert site.project.records()[NONE16]["decision"] == "machine_failed"
    assert hosts[-1] in finished.message(NONE16)
    assert "Traceback" not in finished.out


@pytest.mark.parametrize("signals", [(signal.SIGKILL,), (signal.SIGINT, signal.SIGINT), (signal.SIGTERM,)])
def test_what_ends_pytest_leaves_nothing_and_loses_nothing(site: Site, signals: tuple[signal.Signals, ...]) -> None:
    allocation = site.lab.allocate()
    site.project.scenario({FULL16: {"delay": 100.0}, NONE32: {"delay": 0.1}})
    with site.started(allocation=allocation) as process:
        assert until(lambda: site.records_of(NONE16) and site.runs(FULL16), 30), site.output
        for signum in signals:
            os.kill(process.pid, signum)
            pause(0.2)
        process.wait(30)
        assert until(lambda: site.lab.steps(allocation) == [], 20)
        assert site.lab.state(allocation) == "RUNNING"
    assert "INTERNALERROR" not in site.output
    site.project.scenario({})
    done = site.run("--resume", allocation=allocation)
    assert done.returncode == 0, done.out
    assert done.kinds() == {NONE16: "passed", FULL16: "passed", NONE32: "passed"}
    assert site.attempts(NONE16) == 1
    assert site.attempts(FULL16) == 2


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT])
def test_what_ends_pytest_cancels_its_jobs(site: Site, signum: signal.Signals) -> None:
    site.project.scenario({"*": {"delay": 100.0}})
    with site.started("--gpus", "32", "--launcher", "slurm") as process:
        assert until(lambda: site.runs(NONE16) and site.runs(FULL16), 30), site.output
        os.kill(process.pid, signum)
        process.wait(30)
        assert until(lambda: site.lab.cluster.left() == [], 20)


def test_a_case_that_is_preempted_is_tried_again(site: Site) -> None:
    site.project.scenario({NONE16: {"delay": [100.0, 0.0]}})
    with site.started("--gpus", "32", "--launcher", "slurm", "-k", NONE16) as process:
        assert until(lambda: site.runs(NONE16), 30), site.output
        other = site.lab.allocate("--partition=urgent")
        assert until(lambda: site.attempts(NONE16) == 2, 30), site.output
        site.lab.cluster.tell("scancel", other)
        finished = site.finished(process)
    assert finished.returncode == 0, finished.out
    assert [sample["outcome"] for sample in site.samples(NONE16)] == ["preempted", "completed"]


def test_what_somebody_else_ends_is_an_error_and_not_tried_again(site: Site) -> None:
    site.project.scenario({"*-16gpu-*": {"delay": 100.0}})
    with site.started("--gpus", "32", "--launcher", "slurm") as process:
        assert until(lambda: site.runs(NONE16) and site.runs(FULL16), 30), site.output
        jobs = dict(line.split() for line in site.lab.cluster.tell("squeue", "-h", "-o", "%j %i").splitlines())
        [limited] = [job for name, job in jobs.items() if NONE16 in name]
        [cancelled] = [job for name, job in jobs.items() if FULL16 in name]
        site.lab.cluster.tell("scontrol", "update", f"jobid={limited}", "EndTime=now+1")
        site.lab.cluster.tell("scancel", cancelled)
        finished = site.finished(process)
    for case, outcome in ((NONE16, "time_limit"), (FULL16, "cancelled")):
        [sample] = site.samples(case)
        assert sample["outcome"] == outcome
        assert site.project.records()[case]["decision"] == "machine_failed"  # the suite's own limits were not reached
    assert finished.kinds() == {NONE16: "error", FULL16: "error", NONE32: "skipped"}, finished.out
    assert "Traceback" not in finished.out


@pytest.mark.parametrize("submit", ["case", "rung"])
def test_a_job_that_can_never_start_is_an_error_with_slurm_s_reason(site: Site, submit: str) -> None:
    done = site.run("--gpus", "32", "--launcher", "slurm", "--submit", submit, "--partition", "small", "-k", "16gpu")
    assert done.kinds() == {NONE16: "error", FULL16: "error"}, done.out
    assert all("PartitionNodeLimit" in done.message(case) for case in (NONE16, FULL16))
    assert "Traceback" not in done.out


def test_a_full_disk_under_the_run_directory_is_an_error_that_says_so(site: Site, small_disk: Path) -> None:
    site.project.scenario({"*-16gpu-*": {"delay": 1.0}})
    allocation = site.lab.allocate()
    with site.started("--run-dir", str(small_disk / "runs"), allocation=allocation) as process:
        assert until(
            lambda: any("step:" in p.read_text() for p in small_disk.glob("runs/sessions/*/cases/*/1/*.log")), 30
        )
        (small_disk / "full").mkdir()
        with (small_disk / "full" / "file").open("wb", buffering=0) as file:
            fill(file)
        finished = site.finished(process)
    assert finished.kinds() == {NONE16: "error", FULL16: "error", NONE32: "error"}, finished.out
    assert "No space left on device" in finished.message(NONE16)
    assert "Traceback" not in finished.out
    assert "INTERNALERROR" not in finished.out


def read_host(path: Path) -> str:
    assert until(path.exists)
    return str(json.loads(path.read_text())["host"])


def fill(file: io.FileIO) -> None:
    with contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
