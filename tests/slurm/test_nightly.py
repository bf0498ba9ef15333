"""The nightly of docs/examples/nightly as it stands there: three sbatch jobs on 64 nodes, each a session of its own."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.plugin.conftest import Finished, Project
from tests.slurm.cluster import Cluster, Shape
from tests.slurm.harness import until

SCRIPTS = Path(__file__).parents[2] / "docs" / "examples" / "nightly"


def rung(gpus: int, below: int | None) -> dict[str, Any]:
    gate = {} if below is None else {"requires": {"gpus": below, "same": ["activation_checkpoint"]}}
    return {"gpus": gpus, "dp_shard": gpus, "activation_checkpoint": ["none", "full"], "local_batch": 2, **gate}


LADDER = [rung(16, None), rung(128, 16), rung(512, 128)]


def case(gpus: int, recomputed: str) -> str:
    return f"demo-{gpus}gpu-fsdp{gpus}-dp1-{recomputed}-lbs2"


@pytest.fixture
def large_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path / "cluster", Shape(64, 8, dead_after=60))
    for name, value in cluster.env.items():
        monkeypatch.setenv(name, value)
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    made = Project(tmp_path / "project", monkeypatch)
    made.suite(ladder=LADDER)
    done = made.run("--record-baselines", "--launcher", "local", "--run-dir", "of-the-recording", gpus=512)
    assert set(done.kinds().values()) == {"skipped"}, done.out
    return made


def stage(cluster: Cluster, project: Project, gpus: int) -> Finished:
    """One job of the nightly, from its script, to its end."""
    job = cluster.tell(
        "sbatch", "--parsable", f"--chdir={project.path}", str(SCRIPTS / f"stage{gpus}.sh"), "--system", "lab",
        env={**os.environ, "PYTHON": sys.executable},
    )  # fmt: skip
    assert job.isdecimal(), job
    log = project.path / f"nightly-{gpus}.{job}.log"
    assert until(
        lambda: cluster.tell("squeue", "-h", "-j", job, "-t", "all", "-o", "%T") in ("COMPLETED", "FAILED"), 60
    )
    status = 0 if cluster.tell("squeue", "-h", "-j", job, "-t", "all", "-o", "%T") == "COMPLETED" else 1
    return Finished(status, log.read_text(), project.path / f"nightly-{gpus}.xml")


def test_what_failed_at_16_does_not_run_at_128_nor_at_512(
    large_cluster: Cluster, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.scenario({"*-16gpu-*-full-*": {"fault": "crash"}})
    first = stage(large_cluster, project, 16)
    assert first.kinds() == {case(16, "none"): "passed", case(16, "full"): "failed"}, first.out
    # As docs/slurm.md packs it: records alone, without logs and event files, unpacked elsewhere.
    unpacked = project.path / "unpacked"
    shutil.copytree(project.run_dir, unpacked, ignore=shutil.ignore_patterns("cases"))
    monkeypatch.setenv("SCALEPERF_RUNS", str(unpacked))
    second = stage(large_cluster, project, 128)
    assert second.kinds() == {case(128, "none"): "passed", case(128, "full"): "skipped"}, second.out
    assert case(16, "full") in second.message(case(128, "full"))
    third = stage(large_cluster, project, 512)
    assert third.kinds() == {case(512, "none"): "passed", case(512, "full"): "skipped"}, third.out
    assert case(16, "full") in third.message(case(512, "full"))
    assert [done.returncode for done in (first, second, third)] == [1, 0, 0]
    assert len(list(unpacked.glob("sessions/*"))) == 3
    assert {path.name for path in unpacked.glob("sessions/*/cases/*")} == {case(128, "none"), case(512, "none")}
