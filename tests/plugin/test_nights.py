"""A case's nights: a loss that creeps inside the band is said beside a verdict that stays a pass."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from tests.plugin.conftest import NONE2, Project

NIGHTS = 24


def creeping(project: Project, *, change: float, other_commit: bool = False) -> None:
    """Nights before this one: copies of a real record, the last ten losing more every night."""
    project.run("-k", NONE2)
    [record] = project.run_dir.glob("sessions/*/records/*.json")
    real = json.loads(record.read_text())
    for night in range(NIGHTS):
        session = f"202511{night + 1:02}-200000-{night:06x}"
        told = real | {"session": session, "finished": real["finished"] - 86400 * (NIGHTS - night)}
        loss = change * max(0, night - NIGHTS + 11)
        wiggle = 0.001 * (night * 7 % 5 - 2)
        told["metrics"] = [m | {"value": m["value"] * (1 - loss + wiggle)} for m in real["metrics"]]
        if other_commit:
            told["fingerprint"] = real["fingerprint"] | {"torchtitan_commit": f"c{night}"}
        folder = project.run_dir / "sessions" / session / "records"
        folder.mkdir(parents=True)
        (folder / record.name).write_text(json.dumps(told))


def newest(project: Project) -> dict[str, object]:
    path = max(project.run_dir.glob("sessions/*/records/*.json"), key=lambda p: p.stat().st_mtime_ns)
    found: dict[str, object] = json.loads(Path(path).read_text())
    return found


@pytest.mark.skipif(importlib.util.find_spec("ruptures") is None, reason="needs the extra history")
def test_a_creeping_loss_is_said_beside_a_pass(project: Project) -> None:
    creeping(project, change=0.003)
    project.scenario({NONE2: {"tps": 972}})
    done = project.run("-k", NONE2)
    assert done.kind(NONE2) == "passed", done.out
    record = newest(project)
    notes = record["notes"]
    assert isinstance(notes, list)
    assert any("history: tps is worse by" in note for note in notes)
    assert any(c["metric"] == "tps" and c["after"] < c["before"] for c in record["changes"])  # type: ignore[attr-defined]


@pytest.mark.skipif(importlib.util.find_spec("ruptures") is None, reason="needs the extra history")
def test_nights_of_another_commit_count_only_where_the_suite_compares_across(project: Project) -> None:
    creeping(project, change=0.003, other_commit=True)
    project.run("-k", NONE2)
    assert newest(project)["changes"] == []
    project.suite(compare_across=["torchtitan_commit"])
    project.run("-k", NONE2)
    assert newest(project)["changes"] != []


def test_few_nights_say_nothing(project: Project) -> None:
    project.run("-k", NONE2)
    assert newest(project)["changes"] == []
    assert newest(project)["notes"] == []
