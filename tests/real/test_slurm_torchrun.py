from __future__ import annotations

import re
import sys
from pathlib import Path

from pytest_scaleperf.launch.slurm.allocation import AllocationLauncher
from pytest_scaleperf.model import JobState, SlurmOptions
from tests.slurm.conftest import lab, whole_cluster  # noqa: F401 - fixtures
from tests.slurm.harness import Lab, ended

SCRIPT = Path(__file__).with_name("allreduce.py")


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
