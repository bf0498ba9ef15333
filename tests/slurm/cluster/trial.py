"""The CPU suite through a virtual cluster, inside an allocation and by submitting: the whole of it in one command."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.slurm.cluster.control import Cluster
from tests.slurm.cluster.files import Shape

ROOT = Path(__file__).parents[3]
RANKS = 4
"""A "node" of baselines/cpu/system.yaml."""


def attempt(arguments: Sequence[str], nodes: int = 2) -> int:
    """Run ``pytest suites/`` both ways, show what is run and what it says; 0 where both are green.

    Raises MissingError where this machine cannot have a cluster.
    """
    with tempfile.TemporaryDirectory(prefix="scaleperf-try-") as name:
        cluster = Cluster(Path(name) / "cluster", Shape(nodes, RANKS, dead_after=60))
        try:
            cluster.up()
            print(cluster.tell("sinfo"), flush=True)  # noqa: T201 - a command's answer
            statuses = [_run(cluster, command) for command in commands(arguments, Path(name) / "runs")]
        finally:
            cluster.down()
    return max(statuses)


def commands(arguments: Sequence[str], runs: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What a user types: inside an allocation, and on the login node."""
    pytest = (sys.executable, "-m", "pytest", "suites/", "--system", "cpu", *arguments)
    allocate = ("salloc", "--quiet", "--nodes=1", f"--gpus-per-node={RANKS}", "--exclusive", "--mem=0", "--no-kill")
    submit = ("--launcher", "slurm", "--gpus", str(RANKS), "--slurm-arg=--exclusive")
    return (
        (*allocate, *pytest, "--run-dir", str(runs / "inside")),
        (*pytest, *submit, "--run-dir", str(runs / "submitted")),
    )


def _run(cluster: Cluster, command: Sequence[str]) -> int:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    print(f"$ {shlex.join(command)}", flush=True)  # noqa: T201 - what is run
    return subprocess.run(command, cwd=ROOT, env={**clean, **cluster.env}, check=False).returncode
