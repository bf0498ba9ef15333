from __future__ import annotations

from pathlib import Path

import pytest

from pytest_scaleperf.model import Container, ContainerKind, SlurmOptions, Submit, SuiteError
from pytest_scaleperf.system import load_system

SYSTEM = """\
device: NVIDIA H200
device_match: H200
gpus_per_node: 8
peak_flops: 989e12
memory_gib: 139.8
judge: [mfu]
tolerance: {mfu: 3 %}
"""
SLURM = """\
slurm:
  partition: batch
  account: llm
  exclude: [node7]
  time_limit: 5400
  pending_limit: 7200
  max_jobs: 4
  submit: rung
  args: [--hint=nomultithread]
  srun_args: [--mpi=none]
  setup: |
    module load cuda
    export A=1
  env: {NCCL_IB_HCA: mlx5}
  container: {kind: pyxis, image: /images/titan.sqsh, mounts: ["/data:/data"]}
"""


def load(folder: Path, text: str) -> SlurmOptions | None:
    (folder / "h200").mkdir()
    (folder / "h200" / "system.yaml").write_text(SYSTEM.replace("989e12", "9.89e14") + text)
    return load_system(folder, "h200").slurm


def test_every_key(tmp_path: Path) -> None:
    assert load(tmp_path, SLURM) == SlurmOptions(
        partition="batch",
        account="llm",
        exclude=("node7",),
        time_limit=5400,
        pending_limit=7200,
        max_jobs=4,
        submit=Submit.RUNG,
        args=("--hint=nomultithread",),
        srun_args=("--mpi=none",),
        setup="module load cuda\nexport A=1\n",
        env=(("NCCL_IB_HCA", "mlx5"),),
        container=Container(ContainerKind.PYXIS, "/images/titan.sqsh", ("/data:/data",)),
    )


def test_a_system_without_it_says_nothing(tmp_path: Path) -> None:
    assert load(tmp_path, "") is None


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("partition: batch", "partitions: batch", "slurm.partitions: expected one of the keys"),
        ("time_limit: 5400", "time_limit: 1h", "slurm.time_limit: expected a number of seconds"),
        ("max_jobs: 4", "max_jobs: 0", "slurm.max_jobs: expected a whole number of jobs"),
        ("submit: rung", "submit: rungs", "slurm.submit: expected case or rung"),
        ("[--hint=nomultithread]", "[-x]", "slurm.args[0]: expected long options"),
        ("[--hint=nomultithread]", "[--output=x]", "--output is"),
        ("[--hint=nomultithread]", "[--partition=x]", "--partition is"),
        ("kind: pyxis", "kind: docker", "slurm.container.kind: expected pyxis or apptainer"),
        ("NCCL_IB_HCA:", "NCCL-IB:", "slurm.env"),
    ],
)
def test_a_fault_names_its_key(tmp_path: Path, old: str, new: str, fault: str) -> None:
    assert old in SLURM
    with pytest.raises(SuiteError) as caught:
        load(tmp_path, SLURM.replace(old, new))
    assert fault in str(caught.value)
