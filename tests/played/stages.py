"""Sessions of pytest inside allocations of a virtual cluster, like the stages of a pipeline; what happens to nodes."""

from __future__ import annotations

import json
import shlex
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.played.project import PYTHON, Project
from tests.slurm.cluster import Cluster

_REPORT = "from pytest_scaleperf.cli import app; app()"


@dataclass(frozen=True, slots=True)
class Stage:
    """One finished session: pytest's exit status, what it printed, its JUnit file, its folder, seconds of wall time."""

    name: str
    status: int
    output: str
    junit: Path
    session: Path | None
    seconds: float


class Played:
    """A project on a cluster: one stage after the other, each in an allocation of its own, over one run directory."""

    def __init__(self, cluster: Cluster, project: Project) -> None:
        self.cluster = cluster
        self.project = project
        self.stages: list[Stage] = []

    def stage(
        self,
        name: str,
        *args: str,
        nodes: int,
        gpus: int,
        meanwhile: Callable[[], bool] = lambda: True,
        seconds: float = 600.0,
    ) -> Stage:
        """Run pytest in a batch job that holds ``nodes`` nodes. ``meanwhile`` is called until it says that it is done.

        Raises TimeoutError where the job does not start, or pytest does not end in time; the job is cancelled then.
        """
        began, folder = time.monotonic(), self.project.folder
        junit, out, done = (folder / f"{name}.{ending}" for ending in ("xml", "log", "status"))
        before = set(self.project.sessions())
        argv = self.project.command(*args, gpus=gpus, junit=str(junit))
        script = f"{shlex.join(argv)} > {out} 2>&1; echo $? > {done}.new; mv {done}.new {done}"
        job = self.cluster.tell(
            "sbatch", "--parsable", "--no-requeue", "--no-kill", f"--nodes={nodes}",
            f"--gpus-per-node={self.cluster.shape.gpus}", "--exclusive", "--mem=0", "--time=60",
            f"--job-name={name}", "--output=/dev/null", f"--chdir={folder}", f"--wrap={script}",
            env=self.project.env,
        )  # fmt: skip
        try:
            happened = False
            while not done.exists():
                happened = happened or meanwhile()
                if time.monotonic() - began > seconds:
                    raise TimeoutError(f"{name} did not end in {seconds:.0f} s: {out}")
                time.sleep(0.1)
        finally:
            self.cluster.tell("scancel", job)
        new = sorted(set(self.project.sessions()) - before)
        made = Stage(
            name, int(done.read_text()), out.read_text(), junit, new[-1] if new else None, time.monotonic() - began
        )
        self.stages.append(made)
        return made

    def kill_a_node_of(self, gpus: int) -> Callable[[], bool]:
        """For ``meanwhile``: power off the last node of the first real run of that size, once it is under way.

        Slurm 22.05 does not let the other nodes of such a step go, so the allocation needs as many again.
        """

        def act() -> bool:
            for log in self.project.run_dir.glob(f"sessions/*/cases/*-{gpus}gpu-*/*/stdout.log"):
                nodes = sorted(log.parent.glob("nodes/*.json"), key=lambda path: int(path.stem))
                if len(nodes) == gpus // self.cluster.shape.gpus and "step:  5" in log.read_text(errors="replace"):
                    self.cluster.power_off(json.loads(nodes[-1].read_text())["host"])
                    return True
            return False

        return act

    def age(self, began: float) -> float:
        """Seconds from ``began`` to tonight's newest record: what is older is history, which ends at that record."""
        records = self.project.run_dir.glob("sessions/*/re*/*.json")  # records and rehearsals
        return max(path.stat().st_mtime for path in records) - began

    def report(self, name: str, title: str, stages: Sequence[Stage], began: float) -> Path:
        """One merged JUnit file, one summary for a merge request, one page, of these stages; the page's path.

        What was recorded before ``began`` (seconds since 1970) is their history.
        """
        folder = self.project.folder / "reports"
        page, summary, junit = (folder / f"{name}.{ending}" for ending in ("html", "md", "xml"))
        done = subprocess.run(
            [PYTHON, "-c", _REPORT, "report", *map(str, self.project.nights()), *(str(stage.junit) for stage in stages),
             "--title", title, "--max-age", f"{self.age(began) / 3600:.6f}", "--html", str(page),
             "--markdown", str(summary), "--junit", str(junit)],
            cwd=self.project.folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"scaleperf report ended with {done.returncode}: {done.stderr[-2000:]}")
        return page
