"""What a session spent and saved, from its records, its rehearsals and its timeline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_scaleperf.model import ActivationCheckpoint, GateState, Layout, Outcome
from pytest_scaleperf.plan.forecast import forecast
from pytest_scaleperf.plan.past import Past
from pytest_scaleperf.plan.show import spent_lines
from pytest_scaleperf.plan.spent import spent
from pytest_scaleperf.rehearsed.gate import rehearsal_gate
from pytest_scaleperf.rehearsed.words import Fit, RankRehearsal, Rehearsal
from tests.plan.test_plan import FULL2, LADDER, NONE2, NONE4, record, session
from tests.suite_texts import ladder

FULL16, NONE16 = "demo-16gpu-fsdp16-dp1-full-lbs4", "demo-16gpu-fsdp16-dp1-none-lbs4"


def closed(reason: str) -> dict[str, Any]:
    return {"state": "closed", "reason": reason, "parents": []}


def test_launches_are_counted_and_skips_are_valued(tmp_path: Path) -> None:
    suite = ladder(tmp_path, LADDER)
    case = next(case for case in suite.cases() if case.id == FULL16)
    rank = RankRehearsal(0, Fit.DOES_NOT_FIT, "CUDA out of memory", Outcome.OOM)
    rehearsed = Rehearsal(
        FULL16, "demo", "cpu", 16, Layout(16, 1), ActivationCheckpoint.FULL, case.batch, Fit.DOES_NOT_FIT,
        "CUDA out of memory", (rank,), 5, None, None,
    )  # fmt: skip
    gate = rehearsal_gate(case, rehearsed)
    assert gate is not None
    again = record(suite, NONE2, "pass", 100.0)
    again["samples"] = again["samples"] * 3
    told = {
        NONE2: again,
        FULL2: record(suite, FULL2, "run_failed", 30.0),
        NONE4: record(suite, NONE4, "skipped", 0.0, gate={"state": "beyond", "reason": "needs 4 GPUs"}),
        NONE16: record(suite, NONE16, "skipped", 0.0, gate=closed("closed by its parent: x (regression)")),
        FULL16: record(suite, FULL16, "skipped", 0.0, gate=closed(gate.reason)),
        NONE4.replace("lbs4", "lbs2"): record(
            suite, NONE4, "skipped", 0.0, gate={"state": GateState.NOT_NEEDED, "reason": "the peak is found"}
        ),
        "gone": {**record(suite, FULL16, "skipped", 0.0, gate=closed("closed by its parent: y (oom)"))},
    }
    folder = session(tmp_path / "run", told)
    timeline = {"capacity_gpus": 16, "gpu_seconds": {"busy": 1320.0, "lost": 80.0, "idle": 200.0}, "timeline": []}
    (folder / "timeline.json").write_text(json.dumps(timeline))
    found = spent(folder, {one.case.id: one for one in forecast(suite, 16, Past())})
    [rung] = found.rungs
    assert (rung.gpus, rung.cases, rung.launches, rung.gpu_seconds) == (4, 2, 4, 4 * 330.0)
    assert (found.gates.cases, found.gates.gpu_seconds, found.gates.unknown) == (2, 16 * 900.0, 1)
    assert (found.rehearsals.cases, found.rehearsals.gpu_seconds) == (1, 16 * 900.0)
    assert (found.searches.cases, found.searches.gpu_seconds) == (1, 4 * 900.0)
    assert found.used is not None
    assert (found.used.gpus, found.used.busy, found.used.idle, found.used.lost) == (16, 1320.0, 200.0, 80.0)
    text = "\n".join(spent_lines(found))
    assert "gates saved: 2 cases, about 4.000 GPU-hours (without 1 that no suite has any more)" in text
    assert "searches saved: 1 case, about 1.000 GPU-hours" in text
    assert "GPU-hours of 16 GPUs: 0.367 busy, 0.056 idle, 0.022 lost (82% busy)" in text


@pytest.mark.parametrize("text", [None, "", "[]", '{"gpu_seconds": {}}', '{"gpu_seconds": {"busy": 1}}'])
def test_a_session_without_a_timeline_says_so(tmp_path: Path, text: str | None) -> None:
    suite = ladder(tmp_path, LADDER)
    folder = session(tmp_path / "run", {NONE2: record(suite, NONE2, "pass", 100.0)})
    if text is not None:
        (folder / "timeline.json").write_text(text)
    found = spent(folder, {})
    assert found.used is None
    assert "  how busy the GPUs were: not recorded" in list(spent_lines(found))
