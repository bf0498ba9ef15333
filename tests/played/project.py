"""A team's folder for the play: the published suite and its system, with the SIMULATED trainer in the place of GPUs."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.played.probes import MATMUL
from tests.played.surface import DEVICE_GIB, LABEL

ROOT = Path(__file__).parent.parent.parent
PYTHON = sys.executable
_PLAIN = os.path.realpath(sys.executable)  # a shim of a version manager takes 0.1 s a start
SUITE = "b200-30b-a3b"
_PROGRAM = """\
#!{python} -S
import sys
sys.path.insert(0, {root!r})
from tests.played.trainer import main
main()
"""
_PYTHON = """\
#!{plain} -S
# The job's interpreter: {label} where it is asked to probe a node's GPUs, else a real one.
import os, sys
if sys.argv[1:2] != ["-m"]:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
sys.path.insert(0, {root!r})
from tests.played.probes import main
main()
"""
_CONFTEST = '''\
"""Says on the screen what these numbers are."""


def pytest_report_header():
    return "{label}: speeds and memory come from a small model (scenario {scenario}); nothing is trained"


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line("{label}: no number above was measured on a GPU")
'''


@dataclass(frozen=True, slots=True)
class Size:
    """How large a play is: nodes of the stages, seconds of a logged interval by GPUs, launches that are recorded.

    ``reduced``: two families at 16 GPUs and every other batch, for a test.
    """

    nodes: int
    small: int
    middle: int
    delay: Mapping[int, float]
    repeats: int = 3
    gpus_per_node: int = 8
    reduced: bool = False


class Project:
    """The folder, and what its trainer is told."""

    def __init__(self, folder: Path, scenario: str, size: Size) -> None:
        self.folder = folder
        self.scenario = scenario
        self._size = size
        self._night = 1
        self._told = folder / "played.json"
        for name in ("suites", "baselines/b200"):
            (folder / name).mkdir(parents=True)
        self._suite()
        self._system()
        for name in ("test_throughput.py", "test_scaling.py"):
            shutil.copy(ROOT / "suites" / name, folder / "suites" / name)
        (folder / "pytest.ini").write_text(f"[pytest]\njunit_suite_name = {LABEL} ({scenario})\n")
        (folder / "conftest.py").write_text(_CONFTEST.format(label=LABEL, scenario=scenario))
        self.condition(1)

    @property
    def env(self) -> dict[str, str]:
        """What a session needs in its environment."""
        return {"SCALEPERF_PLAYED": str(self._told)}

    @property
    def runs(self) -> Path:
        """The run directories of all nights, on storage that all nodes see."""
        return self.folder / "runs"

    @property
    def run_dir(self) -> Path:
        """Tonight's: evidence of last night opens no gate."""
        return self.runs / f"night-{self._night}"

    def nights(self) -> list[Path]:
        """The run directories so far."""
        return sorted(self.runs.iterdir())

    def condition(
        self, night: int, *, slow: Mapping[str, float] | None = None, slower: Mapping[str, float] | None = None
    ) -> None:
        """What is true tonight: ``slow`` nodes, and modes that a change made ``slower``; both as shares of a speed."""
        self._night = night
        told = {"scenario": self.scenario, "night": night, "delay": {str(g): s for g, s in self._size.delay.items()}}
        self._told.write_text(json.dumps({**told, "slow": dict(slow or {}), "slower": dict(slower or {})}))

    def command(self, *args: str, gpus: int, junit: str) -> list[str]:
        """A session of pytest."""
        own = ("--system", "b200", "--gpus", str(gpus), f"--run-dir={self.run_dir}", f"--junitxml={junit}", "-q")
        return [PYTHON, "-m", "pytest", *own, *args]

    def sessions(self) -> list[Path]:
        """The folders of all sessions, oldest first."""
        return sorted(self.runs.glob("*/sessions/*/"))

    def _suite(self) -> None:
        suite: dict[str, Any] = yaml.safe_load((ROOT / "suites" / "b200_30b_a3b.yaml").read_text())
        suite["trainer"] |= {"executable": "./trainer.py", "python": "./python"}
        suite["rehearse"] = {"executable": True}
        suite["tolerance"] = {"tps": "1.5 %", "mfu": "1.5 %"}  # narrowed: three launches of each case are recorded
        suite["limits"] = {"startup": 200, "no_progress": 60, "total": 300}
        if self._size.reduced:
            _, small, *larger = suite["ladder"]
            small |= {"dp_shard": 16, "activation_checkpoint": ["selective", "full"]}
            small["local_batch"] = {"search": {"from": 2, "step": 8, "to": 34}}
            suite["ladder"] = [small, *larger]
        text = f"# {LABEL}: the published suite with a trainer that trains nothing.\n"
        (self.folder / "suites" / "b200_30b_a3b.yaml").write_text(text + yaml.safe_dump(suite, sort_keys=False))
        self._program("trainer.py", _PROGRAM.format(python=_PLAIN, root=str(ROOT)))
        self._program("python", _PYTHON.format(plain=_PLAIN, python=PYTHON, root=str(ROOT), label=LABEL))

    def _program(self, name: str, text: str) -> None:
        program = self.folder / "suites" / name
        program.write_text(text)
        program.chmod(program.stat().st_mode | stat.S_IXUSR)

    def _system(self) -> None:
        system: dict[str, Any] = yaml.safe_load((ROOT / "baselines" / "b200" / "system.yaml").read_text())
        system |= {"device": f"NVIDIA B200 ({LABEL})", "memory_gib": DEVICE_GIB,
                   "gpus_per_node": self._size.gpus_per_node,
                   "preflight": {"tolerance": "5 %", "matmul_tflops": MATMUL}}  # fmt: skip
        folder = self.folder / "baselines" / "b200"
        (folder / "system.yaml").write_text(yaml.safe_dump(system, sort_keys=False))
        if self.scenario == "published":  # the other machine is not the one that was published
            shutil.copytree(ROOT / "baselines" / "b200" / "published", folder / "published")
