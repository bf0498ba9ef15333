"""What the tests on the virtual cluster share: allocations, launches of small programs, sessions in other processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pytest_scaleperf.launch.protocol import Job, Launcher
from pytest_scaleperf.model import JobResult, LaunchSpec, Resources, Wanted
from tests.slurm.cluster import Cluster

SESSION = Path(__file__).with_name("session.py")
PYTHON = os.path.realpath(sys.executable)
"""Not a shim of a version manager, which takes longer to start than all that is measured here."""

SLEEP = "import sys, time; print('up', flush=True); time.sleep(float(sys.argv[1])); sys.exit(int(sys.argv[2]))"


def until(condition: Callable[[], object], seconds: float = 15.0) -> bool:
    """Whether the condition came true in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False


class Lab:
    """One test's view of the cluster."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self._held: list[str] = []
        self._count = 0

    def allocate(self, *argv: str, nodes: int = 4) -> str:
        """The id of a running job that holds nodes and survives the loss of one."""
        self._count += 1
        script = f"exec sleep infinity # {self.folder}"
        job = self.cluster.tell(
            "sbatch", "--parsable", "--no-requeue", "--no-kill", f"--nodes={nodes}", "--gpus-per-node=8", "--mem=0",
            "--cpus-per-task=64", "--output=/dev/null", *argv, f"--wrap={script}",
        )  # fmt: skip
        assert job.isdecimal(), job
        self._held.append(job)
        assert until(lambda: self.state(job) == "RUNNING"), self.cluster.tell("squeue")
        return job

    def held(self, job: str) -> None:
        """A job of the test's own, cancelled where it is still there at its end."""
        self._held.append(job)

    def release(self) -> None:
        if self._held:
            self.cluster.tell("scancel", *self._held)
        self._held.clear()

    def state(self, job: str) -> str:
        return self.cluster.tell("squeue", "-h", "-t", "all", "-j", job, "-o", "%T")

    def run_folder(self) -> Path:
        self._count += 1
        folder = self.folder / f"run-{self._count}"
        folder.mkdir()
        return folder

    def start(self, launcher: Launcher, gpus: int, *argv: str, folder: Path | None = None, avoid: str = "") -> Job:
        """A launch as the campaign makes it: choose, then submit."""
        folder = folder or self.run_folder()
        wanted = Wanted(folder.name, Resources(gpus, 8), frozenset({avoid} - {""}))
        chosen = launcher.choose([wanted])
        assert chosen is not None, "no room"
        output = folder / "stdout.log"
        return launcher.submit(
            LaunchSpec(
                f"session.{folder.name}", argv, self.env, folder, output, wanted.resources, chosen[1], wanted.avoid
            )
        )

    def python(self, launcher: Launcher, gpus: int, script: str, *argv: str, folder: Path | None = None) -> Job:
        return self.start(launcher, gpus, PYTHON, "-I", "-S", "-c", script, *argv, folder=folder)

    def sleep(self, launcher: Launcher, gpus: int, seconds: float, code: int = 0) -> Job:
        """A program that says that it is up on each node, and ends with ``code``; returned once it is up."""
        folder = self.run_folder()
        job = self.python(launcher, gpus, SLEEP, str(seconds), str(code), folder=folder)
        nodes = -(-gpus // 8)
        log = folder / "stdout.log"
        assert until(lambda: job.wait(0) is None and log.exists() and log.read_text().count("up") == nodes), job.wait(0)
        return job

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "OF_THE_SUITE": "yes"}

    def steps(self, job: str) -> list[str]:
        """Steps that run in a job, without its batch step."""
        said = self.cluster.tell("squeue", "-h", "-s", "-j", job, "-o", "%i").split()
        return [step for step in said if step.rpartition(".")[2].isdecimal()]


def ended(job: Job, seconds: float = 20.0) -> JobResult:
    result = job.wait(seconds)
    assert result is not None, f"{job.id} has not ended in {seconds} s"
    return result


@contextmanager
def session(lab: Lab, mode: str, allocation: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """A process of its own that has started two launches and waits for them, as a user's pytest would."""
    order = json.dumps({"folder": str(lab.run_folder()), "mode": mode, "allocation": allocation, "python": PYTHON})
    process = subprocess.Popen(
        [sys.executable, str(SESSION), order], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, process_group=0
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n", process.wait()
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
