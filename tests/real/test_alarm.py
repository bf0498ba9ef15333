"""The alarm goes off for real: a real training run made three times slower is a regression on the CPU system too."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from junitparser import Failure, JUnitXml

from tests.titan import interpreters

ROOT = Path(__file__).parent.parent.parent
CASE = "alarm-2gpu-fsdp2-dp1-none-lbs2"
SUITE = {
    "name": "alarm",
    "system": "cpu",
    "trainer": {"dialect": "0.3", "module": "llama3", "config": "llama3_debugmodel"},
    "measure": {"steps": 12, "warmup": 3, "log_freq": 1},
    "limits": {"startup": 180, "no_progress": 60, "total": 300},
    "sequence": 128,
    "ladder": [{"gpus": 2, "dp_shard": 2, "activation_checkpoint": "none", "local_batch": 2}],
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    interpreters.of("0.3")  # skips where torchtitan is not installed
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites/alarm.yaml").write_text(yaml.safe_dump(SUITE, sort_keys=False))
    shutil.copy(ROOT / "suites/test_throughput.py", tmp_path / "suites")
    (tmp_path / "baselines/cpu").mkdir(parents=True)
    shutil.copy(ROOT / "baselines/cpu/system.yaml", tmp_path / "baselines/cpu")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def run(project: Path, *args: str, **environment: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "suites", "--gpus", "2", "--system", "cpu", "--junitxml=j.xml", *args]
    done = subprocess.run(
        command,
        cwd=project,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    return done.returncode, done.stdout


def test_three_times_slower_fails_and_as_fast_as_before_passes(project: Path) -> None:
    code, out = run(project, "--record-baselines")
    assert code == 0, out
    code, out = run(project)
    assert code == 0, out
    code, out = run(project, SCALEPERF_SLOWDOWN="3")
    assert code == 1, out
    (suite,) = JUnitXml.fromfile(str(project / "j.xml"))
    (case,) = suite
    (result,) = case.result
    assert isinstance(result, Failure)
    assert "regression: mfu" in str(result.text)
    assert CASE in str(result.text)
