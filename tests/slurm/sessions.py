"""A user's project on the virtual cluster: pytest in a batch job of its own, in an allocation, or on the login node."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.plugin.conftest import Finished, Project
from tests.slurm.harness import Lab, until

LADDER: list[dict[str, Any]] = [
    {"gpus": 16, "dp_shard": 16, "activation_checkpoint": ["none", "full"], "local_batch": 2},
    {
        "gpus": 32,
        "requires": {"gpus": 16, "same": ["activation_checkpoint"]},
        "dp_shard": 32,
        "activation_checkpoint": "none",
        "local_batch": 2,
    },
]
NONE16, FULL16 = "demo-16gpu-fsdp16-dp1-none-lbs2", "demo-16gpu-fsdp16-dp1-full-lbs2"
NONE32 = "demo-32gpu-fsdp32-dp1-none-lbs2"


class Site:
    """One user of the cluster, with one project on storage that all nodes see."""

    def __init__(self, lab: Lab, project: Project) -> None:
        self.lab = lab
        self.project = project

    def batch(self, *args: str, nodes: int = 4, seconds: float = 90) -> Finished:
        """Run pytest inside an sbatch job that holds ``nodes`` nodes, as a nightly does."""
        return self.ended(*self.submit(*args, nodes=nodes), seconds)

    def ended(self, job: str, done: Path, seconds: float = 90) -> Finished:
        """How the pytest of a batch job ended."""
        assert until(done.exists, seconds), self.lab.state(job) + self.output
        assert until(lambda: self.lab.state(job) in ("COMPLETED", "FAILED"))
        return self._finished(int(done.read_text()))

    def submit(self, *args: str, nodes: int = 4) -> tuple[str, Path]:
        """Such a job's id, and the file that will hold pytest's exit status."""
        self.project.runs += 1
        done = self.project.path / f"status-{self.project.runs}"
        script = (
            f"{shlex.join(self.project.command(*args))} > {self._out} 2>&1; echo $? > {done}.new; mv {done}.new {done}"
        )
        job = self.lab.cluster.tell(
            "sbatch", "--parsable", "--no-requeue", "--no-kill", f"--nodes={nodes}", "--gpus-per-node=8", "--mem=0",
            "--exclusive", "--output=/dev/null", f"--chdir={self.project.path}", f"--wrap={script}",
            env=dict(os.environ),
        )  # fmt: skip
        assert job.isdecimal(), job
        self.lab.held(job)
        return job, done

    @contextmanager
    def started(self, *args: str, allocation: str = "") -> Iterator[subprocess.Popen[bytes]]:
        """Start pytest on the login node, or in an allocation as salloc's shell does; it may be ended by signals."""
        self.project.runs += 1
        env = {**os.environ, **({"SLURM_JOB_ID": allocation} if allocation else {})}
        with Path(self._out).open("wb") as out:
            process = subprocess.Popen(
                self.project.command(*args),
                cwd=self.project.path, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, process_group=0,
            )  # fmt: skip
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def run(self, *args: str, allocation: str = "", seconds: float = 90) -> Finished:
        """The same, to its end."""
        with self.started(*args, allocation=allocation) as process:
            return self.finished(process, seconds)

    def finished(self, process: subprocess.Popen[bytes], seconds: float = 90) -> Finished:
        return self._finished(process.wait(seconds))

    def runs(self, case: str, attempt: int = 1) -> bool:
        """Whether an attempt of a case is under way."""
        logs = self.project.run_dir.glob(f"sessions/*/cases/{case}/{attempt}/stdout.log")
        return any("Training starts" in log.read_text() for log in logs)

    @property
    def output(self) -> str:
        return Path(self._out).read_text()

    @property
    def timeline(self) -> Mapping[str, Any]:
        """The newest session's."""
        newest = max(self.project.run_dir.glob("sessions/*/timeline.json"), key=lambda path: path.stat().st_mtime_ns)
        read: Mapping[str, Any] = json.loads(newest.read_text())
        return read

    def samples(self, case: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.project.records()[case]["samples"]
        return found

    def records_of(self, case: str) -> int:
        """How many records of a case there are."""
        return sum(1 for _ in self.project.run_dir.glob(f"sessions/*/records/{case}*.json"))

    def attempts(self, case: str) -> int:
        """How many launches of a case there were."""
        return sum(1 for _ in self.project.run_dir.glob(f"sessions/*/cases/{case}/*/"))

    def nothing_left(self) -> bool:
        """No job, no step and no process of the project, once what is told to end had its time."""
        cluster = self.lab.cluster
        return until(lambda: not cluster.left() and not cluster.processes_of(str(self.project.path)), 20)

    @property
    def _out(self) -> str:
        return str(self.project.path / f"out-{self.project.runs}")

    def _finished(self, status: int) -> Finished:
        return Finished(status, self.output, self.project.path / f"junit-{self.project.runs}.xml")


def overlap(entries: list[dict[str, Any]]) -> float:
    """Seconds for which all of these launches ran at once."""
    return float(min(e["ended"] for e in entries) - max(e["started"] for e in entries))


def pause(seconds: float) -> None:
    time.sleep(seconds)
