"""A small project on this machine's GPUs; every test here skips, with the reason, where there are none."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_scaleperf.model import LaunchError
from pytest_scaleperf.titan.software import probe

ROOT = Path(__file__).parents[2]
GPUS = 2
SECONDS = 200
FREE_WITHIN = 20.0  # seconds in which a driver may still give memory back after a process has ended
SLACK_MIB = 300  # what a GPU's use may differ by without anybody's training on it
# By torchtitan's generation: how its smallest model is named, and what a suite has to add.
MODELS = {"0.2": ("llama3", "debugmodel"), "0.3": ("llama3", "llama3_debugmodel")}


def memory_used() -> list[int] | None:
    """MiB in use on each GPU of this machine, or None where there is no nvidia-smi that answers."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    argv = [program, "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
    rows = list(csv.reader(io.StringIO(done.stdout)))
    return [int(row[0]) for row in rows] if done.returncode == 0 and rows else None


@dataclass(frozen=True)
class Ended:
    """A finished session: pytest's exit code and output, and the record of its one case."""

    code: int
    out: str
    record: dict[str, Any]

    @property
    def sample(self) -> dict[str, Any]:
        """The last launch."""
        return self.record["samples"][-1]  # type: ignore[no-any-return] # read from JSON

    @property
    def failure(self) -> dict[str, Any]:
        """Why the last launch failed."""
        return self.sample["failure"]  # type: ignore[no-any-return] # read from JSON


class Lab:
    """A user's repository with one case of two GPUs of the smallest model."""

    def __init__(self, path: Path, system: str, generation: str) -> None:
        self.path = path
        self.system = system
        module, config = MODELS[generation]
        self.suite: dict[str, Any] = {
            "name": "lab",
            "system": system,
            "trainer": {"dialect": generation, "module": module, "config": config},
            "measure": {"steps": 24, "warmup": 4, "log_freq": 2},
            "limits": {"startup": 120, "no_progress": 40, "total": 160},
            "sequence": 256,
            "ladder": [{"gpus": GPUS, "dp_shard": GPUS, "activation_checkpoint": "none", "local_batch": 2}],
        }
        (path / "suites").mkdir()
        shutil.copy(ROOT / "suites/test_throughput.py", path / "suites")
        shutil.copytree(ROOT / "baselines" / system, path / "baselines" / system)
        for file in (path / "baselines" / system).glob("*.yaml"):
            if file.name != "system.yaml":
                file.unlink()
        (path / "pytest.ini").write_text("[pytest]\n")

    def run(self, *arguments: str, **environment: str) -> Ended:
        """One session of the plugin in a process of its own."""
        (self.path / "suites/lab.yaml").write_text(yaml.safe_dump(self.suite, sort_keys=False))
        command = [sys.executable, "-m", "pytest", "suites", f"--gpus={GPUS}", f"--system={self.system}", *arguments]
        python_path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        done = subprocess.run(
            command,
            cwd=self.path,
            env={**os.environ, "PYTHONPATH": python_path, **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
        )
        records = sorted(self.path.glob(".scaleperf/sessions/*/records/*.json"), key=lambda path: path.stat().st_mtime)
        assert records, done.stdout[-3000:] + done.stderr[-1000:]
        return Ended(done.returncode, done.stdout, json.loads(records[-1].read_text(encoding="utf-8")))


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    used = memory_used()
    if used is None or len(used) < GPUS:
        pytest.skip(f"needs {GPUS} GPUs, found {0 if used is None else len(used)}")
    try:
        version = probe(sys.executable, dict(os.environ)).torchtitan
    except LaunchError as error:
        pytest.skip(str(error))
    generation = ".".join((version or "").split(".")[:2])
    if generation not in MODELS:
        pytest.skip(f"needs torchtitan {' or '.join(MODELS)} in this interpreter, found {version}")
    return Lab(tmp_path, "h200", generation)


def check_given_back(before: list[int] | None) -> None:
    """Every GPU has as much free memory as before, within a moment."""
    assert before is not None
    deadline = time.monotonic() + FREE_WITHIN
    while True:
        now = memory_used()
        assert now is not None
        kept = [
            f"GPU {i}: {b} MiB before, {a} after"
            for i, (b, a) in enumerate(zip(before, now, strict=True))
            if a > b + SLACK_MIB
        ]
        if not kept or time.monotonic() > deadline:
            break
        time.sleep(0.5)
    assert not kept
