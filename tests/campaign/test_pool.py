"""Cases side by side: real processes of the stand-in trainer under the local launcher with slots."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_scaleperf.baseline import read_baselines
from pytest_scaleperf.campaign import Campaign
from pytest_scaleperf.launch.local import LocalLauncher
from pytest_scaleperf.model import Case, Decision, GateState, JobState, Outcome, Progress, Settings
from pytest_scaleperf.records import SessionFolder
from pytest_scaleperf.suite import load_suites
from pytest_scaleperf.system import load_system
from tests.plugin.conftest import SUITE, Project

MANY: dict[str, Any] = {
    "ladder": [
        {"gpus": 2, "dp_shard": 2, "activation_checkpoint": ["none", "full"], "local_batch": [1, 2, 3]},
        {
            "gpus": 4,
            "requires": {"gpus": 2, "same": ["activation_checkpoint", "local_batch"]},
            "dp_shard": 4,
            "activation_checkpoint": ["none", "full"],
            "local_batch": [1],
        },
    ],
    "measure": {"steps": 10, "warmup": 5, "log_freq": 1},
}
SLOTS = 3


def nothing(_: Progress) -> None:
    """Show no progress."""


@pytest.fixture
def wide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project of six cases of one rung and two behind them; each takes half a second or so."""
    made = Project(tmp_path / "project", monkeypatch)
    made.suite(**MANY)
    made.scenario({"*": {"delay": 0.05}})
    return made


@pytest.fixture
def campaign(wide: Project) -> Iterator[Campaign]:
    """A recording session of that project, three launches at a time."""
    made = begin(wide)
    yield made
    made.launcher.close()


def begin(project: Project) -> Campaign:
    settings = Settings(4, "lab", "local", project.run_dir, project.path / "baselines", True, 3600.0, None)
    [suite] = load_suites(project.path / "suites")
    session = SessionFolder.create(project.run_dir, {})
    system = load_system(project.path / "baselines", "lab")
    return Campaign(settings, system, session, LocalLauncher(grace=0.5, slots=SLOTS), suite.cases())


def timeline(campaign: Campaign) -> list[dict[str, Any]]:
    campaign.close()
    entries = json.loads((campaign.session.path / "timeline.json").read_text())["timeline"]
    assert isinstance(entries, list)
    return entries


def most_at_once(entries: list[dict[str, Any]]) -> int:
    spans = [(float(e["started"]), float(e["ended"])) for e in entries]
    return max(sum(began <= start < ended for began, ended in spans) for start, _ in spans)


def run(campaign: Campaign, case: Case) -> Decision:
    gate = campaign.gate(case)
    assert gate.state is GateState.OPEN, gate
    done = campaign.run(case, gate, nothing)
    campaign.finish(done, done.verdict)
    return done.verdict.decision


def test_open_cases_run_side_by_side_and_are_each_given_to_their_own_test(campaign: Campaign) -> None:
    decisions = [run(campaign, case) for case in campaign.selected]
    assert decisions == [Decision.RECORDED] * 8
    entries = timeline(campaign)
    assert sorted(e["case"] for e in entries) == sorted(case.id for case in campaign.selected)
    assert most_at_once(entries) == SLOTS
    assert {e["state"] for e in entries} == {JobState.COMPLETED}


def test_a_gated_case_starts_only_after_its_parent_was_finished(campaign: Campaign) -> None:
    *lower, child, _ = campaign.selected
    parent = next(case for case in lower if case.id == campaign.gate(child).parents[0])
    assert campaign.gate(child).state is GateState.NO_EVIDENCE
    for case in lower:
        run(campaign, case)
    run(campaign, child)
    began = {e["case"]: e for e in timeline(campaign)}
    assert began[child.id]["started"] >= began[parent.id]["ended"]


def test_a_case_that_fails_takes_no_other_with_it(wide: Project) -> None:
    bad = "demo-2gpu-fsdp2-dp1-none-lbs2"
    wide.scenario({"*": {"delay": 0.05}, bad: {"fault": "oom"}})
    campaign = begin(wide)
    try:
        decisions = {case.id: run(campaign, case) for case in campaign.selected if case.gpus == 2}
    finally:
        campaign.close()
    assert decisions.pop(bad) is Decision.RUN_FAILED
    assert set(decisions.values()) == {Decision.RECORDED}


def test_what_ended_ahead_of_its_test_is_on_the_disk_and_is_no_evidence(campaign: Campaign) -> None:
    first, *others = [case for case in campaign.selected if case.gpus == 2]
    run(campaign, first)
    run(campaign, others[-1])  # the other four have run meanwhile, or still do
    records = {p.stem: json.loads(p.read_text()) for p in (campaign.session.path / "records").glob("*.json")}
    ahead = [records[case.id] for case in others[:-1] if case.id in records]
    assert len(ahead) >= 1
    assert {record["decision"] for record in ahead} == {Decision.MACHINE_FAILED}
    assert all(record["samples"][0]["outcome"] == Outcome.COMPLETED for record in ahead)
    assert all("before its test was reached" in record["reason"] for record in ahead)
    assert not {case.id for case in others[:-1]} & set(campaign.verdicts)


def test_ctrl_c_ends_all_that_run_and_writes_each_down(wide: Project) -> None:
    wide.scenario({"*": {"delay": 5.0}})
    campaign = begin(wide)
    began = time.monotonic()

    def interrupt(now: Progress) -> None:
        if now.beside == SLOTS - 1:
            raise KeyboardInterrupt

    first = campaign.selected[0]
    with pytest.raises(KeyboardInterrupt):
        campaign.run(first, campaign.gate(first), interrupt)
    assert time.monotonic() - began < 20
    records = [json.loads(p.read_text()) for p in (campaign.session.path / "records").glob("*.json")]
    assert len(records) == SLOTS
    assert all(record["reason"].startswith("interrupted") for record in records)
    assert {e["state"] for e in timeline(campaign)} == {JobState.CANCELLED}


@pytest.mark.parametrize("times", [1, 3])
def test_a_launch_that_the_machine_took_is_made_again_as_a_further_sample(wide: Project, times: int) -> None:
    name = "demo-2gpu-fsdp2-dp1-none-lbs1"
    wide.scenario({"*": {"delay": 0.01}, name: {"fault": ["node_failure"] * times + [None]}})
    campaign = begin(wide)
    try:
        decision = run(campaign, campaign.selected[0])
        [record] = [json.loads(p.read_text()) for p in (campaign.session.path / "records").glob(f"{name}.json")]
    finally:
        campaign.close()
    outcomes = [sample["outcome"] for sample in record["samples"]]
    if times == 1:
        assert decision is Decision.RECORDED
        assert outcomes == [Outcome.NODE_FAILURE, Outcome.COMPLETED]
        [stored] = read_baselines(wide.baseline_file)[name].samples
        assert stored.number == 1
    else:
        assert decision is Decision.MACHINE_FAILED
        assert outcomes == [Outcome.NODE_FAILURE] * 3


def test_the_suite_used_here_has_cases_in_both_rungs() -> None:
    assert [rung["gpus"] for rung in MANY["ladder"]] == [rung["gpus"] for rung in SUITE["ladder"]]
