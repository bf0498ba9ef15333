"""A session that really ran, and what `scaleperf plan` says before and after it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.plugin.conftest import FULL2, FULL4, NONE2, NONE4, Project


def planned(project: Project, *args: str) -> Any:
    command = [sys.executable, "-c", "from pytest_scaleperf.cli import app; app()", "plan", *args, "--json"]
    done = subprocess.run(command, cwd=project.path, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_a_session_is_planned_run_and_accounted_for(project: Project) -> None:
    [before] = planned(project, "--gpus", "4")["plans"]
    assert {case["case"]: case["assumed"] for case in before["cases"]} == {
        NONE2: False, FULL2: False, NONE4: True, FULL4: True,
    }  # fmt: skip
    assert all(case["seconds"] == 60 for case in before["cases"]), "half of limits.total"

    project.scenario({FULL2: {"fault": "oom"}})
    done = project.run()
    assert done.kinds()[FULL4] == "skipped"

    spent = planned(project, "--after", "latest")
    records = project.records()
    seconds = {name: sum(s["seconds"] for s in record["samples"]) for name, record in records.items()}
    assert spent["gpu_seconds"] == pytest.approx(2 * (seconds[NONE2] + seconds[FULL2]) + 4 * seconds[NONE4])
    rungs = {r["gpus"]: (r["cases"], r["launches"]) for r in spent["rungs"]}
    assert rungs == {2: (2, 2), 4: (1, 1)}
    # What the closed gate saved is counted as its rung took: the median of its completed launches.
    saved = spent["gates"]
    assert saved == {"cases": 1, "gpu_seconds": pytest.approx(4 * seconds[NONE4]), "unknown": 0}
    used = spent["used"]
    assert used["busy"] == pytest.approx(spent["gpu_seconds"], rel=0.05, abs=1.0)
    assert used["lost"] == 0

    [after] = planned(project, "--gpus", "4")["plans"]
    states = {case["case"]: (case["state"], case["assumed"]) for case in after["cases"]}
    assert states == {
        NONE2: ("runs", False), FULL2: ("runs", False), NONE4: ("runs", False), FULL4: ("closed", False),
    }  # fmt: skip
    [reason] = [case["reason"] for case in after["cases"] if case["case"] == FULL4]
    assert f"{FULL2} (run_failed in " in reason
    assert "records of the case" in {case["from"] for case in after["cases"]}
