"""A small project of a user: one suite on the made-up system ``lab``, with the stand-in trainer for its GPUs."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from junitparser import Failure, JUnitXml, Properties, Skipped, TestCase

TRAINER = Path(__file__).parent.parent / "standin" / "trainer.py"

TEST_FILE = """
def test_throughput(scaleperf):
    scaleperf.check()
"""

SYSTEM: dict[str, Any] = {
    "device": "lab-gpu",
    "device_match": "lab",
    "gpus_per_node": 8,
    "peak_flops": 1.0e14,
    "memory_gib": 80,
    "judge": ["tps", "mfu", "peak_memory"],
    "tolerance": {"tps": "3 %", "mfu": "3 %", "peak_memory": "2 %"},
}

SUITE: dict[str, Any] = {
    "name": "demo",
    "system": "lab",
    "trainer": {"dialect": "0.3", "module": "llama3", "config": "llama3_debugmodel", "executable": "./trainer.py"},
    "measure": {"steps": 30, "warmup": 5, "log_freq": 5},
    "limits": {"startup": 60, "no_progress": 60, "total": 120},
    "sequence": 128,
    "ladder": [
        {"gpus": 2, "dp_shard": 2, "activation_checkpoint": ["none", "full"], "local_batch": 2},
        {
            "gpus": 4,
            "requires": {"gpus": 2, "same": ["activation_checkpoint"]},
            "dp_shard": 4,
            "activation_checkpoint": ["none", "full"],
            "local_batch": 2,
        },
    ],
}

NONE2, FULL2 = "demo-2gpu-fsdp2-dp1-none-lbs2", "demo-2gpu-fsdp2-dp1-full-lbs2"
NONE4, FULL4 = "demo-4gpu-fsdp4-dp1-none-lbs2", "demo-4gpu-fsdp4-dp1-full-lbs2"


@dataclass(frozen=True)
class Finished:
    """One finished pytest run and its JUnit file."""

    returncode: int
    out: str
    junit: Path

    @property
    def cases(self) -> dict[str, TestCase]:
        """JUnit test cases by the case's id (the text in brackets)."""
        found = {}
        for suite in JUnitXml.fromfile(str(self.junit)):
            for case in suite:
                found[case.name.partition("[")[2].rstrip("]")] = case
        return found

    def kind(self, case_id: str) -> str:
        """passed, failed, error or skipped."""
        results = self.cases[case_id].result
        if not results:
            return "passed"
        first = results[0]
        if isinstance(first, Skipped):
            return "skipped"
        return "failed" if isinstance(first, Failure) else "error"

    def message(self, case_id: str) -> str:
        """What the JUnit file says of a case that did not pass."""
        return " ".join(f"{r.message or ''} {r.text or ''}" for r in self.cases[case_id].result)

    def properties(self, case_id: str) -> dict[str, str]:
        """The case's JUnit properties."""
        holder = self.cases[case_id].child(Properties)
        return {} if holder is None else {p.name: p.value for p in holder}

    def kinds(self) -> dict[str, str]:
        """Kind of every case."""
        return {case_id: self.kind(case_id) for case_id in self.cases}


class Project:
    """A user's repository: suites/, baselines/, and what the stand-in trainer is told."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.scenario_file = path / "scenario.json"
        monkeypatch.setenv("SCALEPERF_STANDIN", str(self.scenario_file))
        for folder in ("suites", "baselines/lab"):
            (path / folder).mkdir(parents=True)
        (path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
        (path / "suites" / "test_throughput.py").write_text(TEST_FILE)
        trainer = path / "suites" / "trainer.py"
        trainer.write_text(f"#!{sys.executable} -S\n{TRAINER.read_text()}")
        trainer.chmod(trainer.stat().st_mode | stat.S_IXUSR)
        self.system()
        self.suite()
        self.scenario({})
        self.runs = 0

    def system(self, **changes: object) -> None:
        """Write system.yaml with some keys changed."""
        (self.path / "baselines/lab/system.yaml").write_text(yaml.safe_dump(SYSTEM | changes))

    def suite(self, **changes: object) -> None:
        """Write the suite with some keys changed."""
        (self.path / "suites/demo.yaml").write_text(yaml.safe_dump(SUITE | changes, sort_keys=False))

    def scenario(self, told: dict[str, dict[str, Any]]) -> None:
        """Tell the stand-in trainer what to do, by pattern of case ids."""
        self.scenario_file.write_text(json.dumps(told))

    @property
    def baseline_file(self) -> Path:
        """The stored baselines of the demo suite."""
        return self.path / "baselines/lab/demo.yaml"

    @property
    def run_dir(self) -> Path:
        """The run directory that the plugin makes by itself."""
        return self.path / ".scaleperf"

    def records(self) -> dict[str, dict[str, Any]]:
        """Newest record of every case over all sessions."""
        found = {}
        for path in sorted(self.run_dir.glob("sessions/*/records/*.json"), key=lambda p: p.stat().st_mtime_ns):
            record = json.loads(path.read_text())
            found[record["case"]] = record
        return found

    def command(self, *args: str) -> list[str]:
        """The command line of one pytest run in this project."""
        junit = self.path / f"junit-{self.runs}.xml"
        base = [
            sys.executable,
            "-m",
            "pytest",
            "suites/",
            "--system",
            "lab",
            f"--junitxml={junit}",
            "-p",
            "no:randomly",
        ]
        return [*base, *args]

    def run(self, *args: str, gpus: int = 4) -> Finished:
        """Run pytest as a user does, in a process of its own."""
        return self.run_raw("--gpus", str(gpus), *args)

    def run_raw(self, *args: str) -> Finished:
        """The same without ``--gpus``."""
        self.runs += 1
        command = self.command(*args)
        done = subprocess.run(command, cwd=self.path, capture_output=True, text=True, check=False, timeout=300)
        return Finished(done.returncode, done.stdout + done.stderr, self.path / f"junit-{self.runs}.xml")

    def record_baselines(self) -> None:
        """Store a baseline of every case as the stand-in trainer is told now."""
        done = self.run("--record-baselines")
        assert set(done.kinds().values()) == {"skipped"}, done.out
        assert all("recorded, not judged" in done.message(case_id) for case_id in done.cases)


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The baselines of the demo suite, recorded once by the plugin itself at 1000 tokens/s and 40 GiB."""
    with pytest.MonkeyPatch.context() as patch:
        made = Project(tmp_path_factory.mktemp("recorded") / "project", patch)
        made.record_baselines()
        return made.baseline_file.read_text()


@pytest.fixture
def project(bare: Project, recorded: str) -> Project:
    """A project whose four cases (two rungs) have baselines; nothing has run in it yet."""
    bare.baseline_file.write_text(recorded)
    return bare


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The same project without any baseline."""
    return Project(tmp_path / "project", monkeypatch)
