"""Real torchtitan under Slurm: two nodes of two CPU ranks, two cases side by side, then a gated one over both."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_scaleperf.launch.slurm.allocation import AllocationLauncher
from pytest_scaleperf.model import JobState, SlurmOptions
from tests.plugin.conftest import Finished, Project
from tests.slurm.conftest import lab, whole_cluster  # noqa: F401 - fixtures
from tests.slurm.harness import Lab, ended
from tests.slurm.sessions import Site, overlap
from tests.titan import interpreters

ROOT = Path(__file__).parent.parent.parent
SCRIPT = Path(__file__).with_name("allreduce.py")
SUITE: dict[str, Any] = {
    "name": "pair",
    "system": "lab",
    "trainer": {"dialect": "0.3", "module": "llama3", "config": "llama3_debugmodel", "env": {"OMP_NUM_THREADS": "1"}},
    "measure": {"steps": 5, "warmup": 1, "log_freq": 1},
    "limits": {"startup": 180, "no_progress": 60, "total": 300},
    "sequence": 64,
    "ladder": [
        {"gpus": 2, "dp_shard": 2, "activation_checkpoint": ["none", "full"], "local_batch": 2},
        {
            "gpus": 4,
            "requires": {"gpus": 2, "same": ["activation_checkpoint"]},
            "dp_shard": 4,
            "activation_checkpoint": "none",
            "local_batch": 2,
        },
    ],
}
NONE2, FULL2 = "pair-2gpu-fsdp2-dp1-none-lbs2", "pair-2gpu-fsdp2-dp1-full-lbs2"
NONE4 = "pair-4gpu-fsdp4-dp1-none-lbs2"


@pytest.fixture
def site(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:  # noqa: F811 - the fixture
    interpreters.of("0.3")  # skips where torchtitan is not installed
    project = Project(tmp_path / "project", monkeypatch)
    stored = yaml.safe_load((ROOT / "baselines/cpu/system.yaml").read_text())
    (project.path / "baselines/lab/system.yaml").write_text(yaml.safe_dump(stored | {"gpus_per_node": 2}))
    (project.path / "suites/demo.yaml").unlink()
    (project.path / "suites/pair.yaml").write_text(yaml.safe_dump(SUITE, sort_keys=False))
    made = Site(lab, project)
    yield made
    lab.release()
    assert made.nothing_left()


def test_cases_packed_side_by_side_then_one_over_both_nodes(site: Site) -> None:
    allocation = site.lab.allocate("--gpus-per-node=2", nodes=2)
    done: Finished = site.run("--record-baselines", allocation=allocation, seconds=240)
    assert done.kinds() == {NONE2: "skipped", FULL2: "skipped", NONE4: "skipped"}, done.out
    records = site.project.records()
    assert {record["decision"] for record in records.values()} == {"recorded"}, done.out
    entries = {entry["case"]: entry for entry in site.timeline["timeline"]}
    assert overlap([entries[NONE2], entries[FULL2]]) > 1.0
    assert sorted(entries[NONE2]["hosts"] + entries[FULL2]["hosts"]) == ["node1", "node2"]
    assert entries[NONE4]["hosts"] == ["node1", "node2"]
    assert entries[NONE4]["started"] >= entries[NONE2]["ended"]
    for case, ranks in ((NONE2, 2), (FULL2, 2), (NONE4, 4)):
        [sample] = records[case]["samples"]
        assert (sample["outcome"], sample["last_step"]) == ("completed", 5)
        assert sorted(path.name for path in Path(sample["folder"]).glob("ranks/rank*.json")) == [
            f"rank{rank}.json" for rank in range(ranks)
        ]


def test_two_runs_of_two_nodes_meet_side_by_side(lab: Lab) -> None:  # noqa: F811 - the fixture
    """As titan/command.py builds it: torchrun takes the endpoint from its own defaults in the environment."""
    with AllocationLauncher(SlurmOptions(env=(("OMP_NUM_THREADS", "1"),)), 8, lab.allocate()) as launcher:
        folders = [lab.run_folder() for _ in range(2)]
        jobs = [
            lab.start(
                launcher, 16, sys.executable, "-m", "torch.distributed.run", "--nnodes=2",
                "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-id=scaleperf", "--role=rank", "--tee=3",
                f"--log-dir={folder / 'torchrun'}", str(SCRIPT), folder=folder,
            )
            for folder in folders
        ]  # fmt: skip
        results = [ended(job, 90) for job in jobs]
    assert [result.hosts for result in results] == [("node1", "node2"), ("node3", "node4")]
    for folder, result in zip(folders, results, strict=True):
        log = (folder / "stdout.log").read_text()
        assert result.state is JobState.COMPLETED, log
        said = set(re.findall(r"rank (\d) of 4 on (\w+): 10.0", log))
        assert {rank for rank, _ in said} == {"0", "1", "2", "3"}
        assert {host for _, host in said} == set(result.hosts)
        assert len(set(re.findall(r"master (\w+)", log)) & set(result.hosts)) == 1


def test_the_documented_command_runs_the_cpu_suite_both_ways() -> None:
    """docs/slurm.md, "Try it without a cluster", with the smallest part of this repository's own suite."""
    interpreters.of("0.3")
    command = [sys.executable, "-m", "tests.slurm.cluster", "try", "-q", "-k", "cpu-dense-2gpu-fsdp2-dp1-none"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("1 passed") == 2
    assert "$ salloc" in done.stdout
    assert "--launcher slurm" in done.stdout
