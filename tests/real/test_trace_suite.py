"""A real training run on two CPU ranks is traced by torchtitan itself, read, recorded, and judged by its counts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.titan import interpreters

ROOT = Path(__file__).parent.parent.parent
CASE = "traced-2gpu-fsdp2-dp1-none-lbs2-gbs8"
SUITE = {
    "name": "traced",
    "system": "cpu",
    "trainer": {"dialect": "0.3", "module": "llama3", "config": "llama3_debugmodel"},
    "measure": {"steps": 6, "warmup": 1, "log_freq": 1},
    "limits": {"startup": 180, "no_progress": 60, "total": 300},
    "trace": True,
    "sequence": 64,
    "ladder": [{"gpus": 2, "dp_shard": 2, "activation_checkpoint": "none", "local_batch": 2, "global_batch": 8}],
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    interpreters.of("0.3")  # skips where torchtitan is not installed
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites/traced.yaml").write_text(yaml.safe_dump(SUITE, sort_keys=False))
    shutil.copy(ROOT / "suites/test_throughput.py", tmp_path / "suites")
    (tmp_path / "baselines/cpu").mkdir(parents=True)
    shutil.copy(ROOT / "baselines/cpu/system.yaml", tmp_path / "baselines/cpu")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def run(project: Path, *args: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "suites", "--gpus", "2", "--system", "cpu", *args]
    done = subprocess.run(
        command, cwd=project, env=dict(os.environ), capture_output=True, text=True, check=False, timeout=500
    )
    return done.returncode, done.stdout


def record(project: Path) -> dict[str, Any]:
    [path] = project.glob(".scaleperf/sessions/*/records/*.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_a_real_trace_is_recorded_and_then_judged_by_its_counts(project: Path) -> None:
    code, out = run(project, "--record-baselines")
    assert code == 0, out
    trace = record(project)["trace"]
    assert trace["decision"] == "recorded"
    assert [Path(name).name for name in trace["files"]] == ["rank0_trace.json.gz", "rank1_trace.json.gz"]
    assert Path(trace["picture"]).is_file()
    assert not trace["on_gpu"]
    assert any(line == "phases from annotations" for line in trace["words"]), trace["words"]
    # Two accumulation steps, each of which reduces all groups of parameters; those freed after forward come twice.
    counts = trace["counts"]
    reduced = [value for name, value in counts.items() if name.startswith("calls reduce_scatter")]
    gathered = [value for name, value in counts.items() if name.startswith("calls all_gather")]
    assert reduced
    assert reduced[0] % 2 == 0
    assert gathered[0] > reduced[0]
    assert trace["metrics"]["compute_ms"] > 0
    baseline = project / "baselines/cpu/traced.yaml"
    assert yaml.safe_load(baseline.read_text())["cases"][CASE]["trace"]["counts"] == counts

    # The same session once more launches nothing: what was measured and traced is judged against what is stored.
    code, out = run(project, "--resume")
    assert code == 0, out
    assert f"trace of {CASE}" in out
    calls = f'"{next(name for name in counts if name.startswith("calls reduce_scatter"))}": '
    baseline.write_text(baseline.read_text().replace(f"{calls}{reduced[0]}", f"{calls}{reduced[0] - 1}"))
    code, out = run(project, "--resume")
    assert code == 1, out
    assert f": {reduced[0] - 1} -> {reduced[0]} calls a step" in out
    assert len(list(project.glob(".scaleperf/sessions/*/cases/*/*"))) == 2
