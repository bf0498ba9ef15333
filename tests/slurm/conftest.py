from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.harness import Lab


@pytest.fixture(scope="session")
def whole_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Four nodes with eight GPUs each, two to a switch; where Slurm is missing this fails and says what to install."""
    cluster = Cluster(tmp_path_factory.mktemp("slurm"))
    small = cluster.folder / "small-disk"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(small)], check=True)
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()
        subprocess.run(["umount", str(small)], check=True)


@pytest.fixture
def small_disk(whole_cluster: Cluster) -> Iterator[Path]:
    """A folder on a file system of 512 KiB that all nodes see."""
    folder = whole_cluster.folder / "small-disk"
    yield folder
    for path in folder.iterdir():
        shutil.rmtree(path)


@pytest.fixture
def lab(whole_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """The cluster with all its nodes idle, and no job of anybody; a test that leaves something behind fails."""
    for name, value in whole_cluster.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    whole_cluster.await_idle()
    made = Lab(whole_cluster, tmp_path)
    yield made
    made.release()
    whole_cluster.await_idle()
    assert whole_cluster.left() == []
    assert whole_cluster.processes_of(str(tmp_path)) == []
