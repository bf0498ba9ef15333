"""``scaleperf preflight`` on this machine's CPU: real ranks, real collectives, real exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_scaleperf.preflight import command, load

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
PROGRAM = ("-c", "from pytest_scaleperf.cli import app; app()", "preflight")
SYSTEM = (ROOT / "baselines/cpu/system.yaml").read_text()


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *PROGRAM, *arguments],
        cwd=folder,
        env={**os.environ, "COLUMNS": "200", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def system(folder: Path, extra: str = "") -> None:
    path = folder / "baselines/cpu/system.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(SYSTEM + extra)


def test_two_ranks_of_a_cpu_are_probed_for_real(tmp_path: Path) -> None:
    system(tmp_path)
    done = run(tmp_path, "--gpus", "2", "--system", "cpu", "--output", "preflight.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing wrong" in done.stdout
    report = load(tmp_path / "preflight.json")
    assert [gpu.rank for gpu in report.gpus] == [0, 1]
    for gpu in report.gpus:
        assert 1e-3 < gpu.rates["matmul_tflops"] < 10
        assert 0.1 < gpu.rates["memory_gb_s"] < 1000
        assert gpu.health is None
    assert {(link.operation, link.mib) for link in report.links} == {
        (operation, mib) for operation in ("all_gather", "reduce_scatter", "all_reduce") for mib in (1, 4)
    }
    assert all(link.gb_s > 0 for link in report.links)


def test_a_rate_below_what_the_system_states_is_red_and_named(tmp_path: Path) -> None:
    system(tmp_path, "\npreflight: {tolerance: 10 %, memory_gb_s: 1e6, inside_node: {all_gather: {4MiB: 5e4}}}\n")
    done = run(tmp_path, "--gpus", "2", "--system", "cpu", "--output", "preflight.json")
    assert done.returncode == 1, done.stdout + done.stderr
    report = load(tmp_path / "preflight.json")
    host = report.gpus[0].host
    assert [(f.probe, f.hosts, f.indices) for f in report.findings] == [
        ("memory_gb_s", (host,), (0,)),
        ("memory_gb_s", (host,), (1,)),
        ("all_gather 4 MiB", (host,), (0, 1)),
    ]
    assert "expected 1,000,000 (-100.0%)" in done.stdout


def test_an_interpreter_without_torch_is_said_and_red(tmp_path: Path) -> None:
    system(tmp_path)
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho 'ModuleNotFoundError: No module named torch' >&2\nexit 1\n")
    program.chmod(0o755)
    done = run(tmp_path, "--gpus", "2", "--system", "cpu", "--python", str(program))
    assert done.returncode == 1
    assert "ModuleNotFoundError: No module named torch" in done.stdout
    assert "expected 2 ranks to answer, found 0" in done.stdout


def test_a_system_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    system(tmp_path)
    done = run(tmp_path, "--gpus", "1", "--system", "b300")
    assert (done.returncode, done.stdout) == (2, "")
    assert "expected a folder b300" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_job_inherits_no_rank_of_an_outer_one(tmp_path: Path) -> None:
    outer = {"RANK": "3", "MASTER_ADDR": "x", "TORCHELASTIC_RUN_ID": "7", "PET_RDZV_ENDPOINT": "n0:29400", "HOME": "/h"}
    job = command(tmp_path, gpus=16, nodes=2, device="NVIDIA H200", python="/p", base_env=outer)
    assert job.env == {"PET_RDZV_ENDPOINT": "n0:29400", "HOME": "/h", "PYTHONUNBUFFERED": "1"}
    assert job.argv[:5] == ("/p", "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=8")
    assert "--rdzv-endpoint=localhost:0" not in job.argv
    assert job.argv[-2:] == ("pytest_scaleperf.preflight.inside.probe", str(tmp_path))
    assert json.dumps(job.argv)
