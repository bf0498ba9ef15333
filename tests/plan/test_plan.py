"""A plan without any record, with records, of a search, and of the published ladder; what does not add up is said."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from pytest_scaleperf.model import LaunchError, Layout, Suite, as_plain
from pytest_scaleperf.packing import Packer
from pytest_scaleperf.plan.assemble import Question, SuitePlan, make_plan
from pytest_scaleperf.plan.brief import brief
from pytest_scaleperf.plan.command import plan_app
from pytest_scaleperf.plan.communication import ModelSize
from pytest_scaleperf.plan.expected import Basis
from pytest_scaleperf.plan.forecast import State, forecast
from pytest_scaleperf.plan.past import Past, read_past
from pytest_scaleperf.plan.show import duration
from pytest_scaleperf.plan.simulate import Task, nodes_of, simulate
from pytest_scaleperf.records import SessionFolder
from pytest_scaleperf.suite import load_suite
from pytest_scaleperf.system import load_system
from tests.suite_texts import HEAD, ladder, load

ROOT = Path(__file__).parents[2]
HOUR = 3600.0

LADDER = """
- gpus: 4
  dp_shard: [2, 4]
  activation_checkpoint: [none, full]
  local_batch: [2, 4]
- gpus: 16
  requires: {gpus: 4, same: [activation_checkpoint]}
  dp_shard: 16
  activation_checkpoint: [none, full]
  local_batch: 4
"""


def planned(suite: Suite, past: Past | None = None, gpus: int = 16) -> SuitePlan:
    return make_plan(suite, load_system(ROOT / "baselines", "cpu"), past or Past(), Question(gpus, Path("nowhere")))


def record(suite: Suite, case_id: str, decision: str, seconds: float, **more: object) -> dict[str, Any]:
    """A record as a session writes it, as far as a plan looks at it."""
    case = next(case for case in suite.cases() if case.id == case_id)
    outcome = "completed" if decision in ("pass", "regression") else "oom"
    values = {"tps": 1000.0} if outcome == "completed" else {}
    sample = {"seconds": seconds, "outcome": outcome, "measurement": {"values": values, "spread": {}}}
    samples = [] if decision == "skipped" else [sample]
    told = {"decision": decision, "suite": suite.name, "gpus": case.gpus, "samples": samples}
    return {**told, "gate": {"state": "open", "reason": "lowest rung", "parents": []}, **more}


def session(run_dir: Path, records: dict[str, dict[str, Any]]) -> Path:
    folder = SessionFolder.create(run_dir, {})
    for case_id, told in records.items():
        folder.write(case_id, told)
    folder.close()
    return folder.path


NONE2 = "demo-4gpu-fsdp2-dp2-none-lbs2"
NONE4 = "demo-4gpu-fsdp4-dp1-none-lbs4"
FULL2 = "demo-4gpu-fsdp2-dp2-full-lbs2"


def test_without_records_every_gate_is_assumed_to_open(tmp_path: Path) -> None:
    plan = planned(ladder(tmp_path, LADDER))
    lower, upper = plan.rungs
    assert (lower.runs, upper.runs, lower.gpus, upper.gpus) == (8, 2, 4, 16)
    assert (lower.expected, upper.expected) == (8 * 4 * 900, 2 * 16 * 900)  # half of limits.total, 1800 s
    assert (upper.least, upper.most) == (0, upper.expected)
    assert lower.least == lower.most == lower.expected
    assert {basis for rung in plan.rungs for basis in rung.bases} == {Basis.GUESS}
    assert all(one.assumed for one in plan.forecasts if one.gated)
    # Four of the 4-GPU cases at a time fill 16 GPUs: two rounds, then the two large ones, one by one.
    assert plan.wall.seconds == 4 * 900
    assert plan.wall.busy == plan.expected == plan.wall.available
    assert plan.serial == 10 * 900


def test_the_grid_has_every_layout_that_the_rule_gives_at_the_target(tmp_path: Path) -> None:
    grid = planned(ladder(tmp_path, LADDER)).grid
    assert grid is not None
    # FSDP 2, 4, 8, 16 x two modes x two batches; the ladder's own degrees are 2 and 4.
    assert (grid.cases, grid.own_cases) == (16, 8)
    assert (grid.gpu_seconds, grid.own_gpu_seconds) == (16 * 16 * 900, 8 * 16 * 900)


def test_what_ran_before_gives_the_times_and_closes_the_gates(tmp_path: Path) -> None:
    suite, run_dir = ladder(tmp_path, LADDER), tmp_path / "run"
    fulls = [c.id for c in suite.cases() if c.gpus == 4 and c.activation_checkpoint == "full"]
    session(run_dir, {NONE2: record(suite, NONE2, "pass", 100.0)})
    time.sleep(1.1)  # sessions are ordered by the second in which they began
    session(
        run_dir,
        {
            NONE2: record(suite, NONE2, "pass", 120.0),
            **{name: record(suite, name, "run_failed", 30.0) for name in fulls},
            NONE4: record(suite, NONE4, "machine_failed", 7.0),
        },
    )
    past = read_past(run_dir)
    by_id = {one.case.id: one for one in planned(suite, past).forecasts}
    assert (by_id[NONE2].expected.seconds, by_id[NONE2].expected.basis) == (110.0, Basis.CASE)
    assert by_id[FULL2].expected.seconds == 30.0
    other = by_id["demo-4gpu-fsdp4-dp1-none-lbs2"]
    assert (other.expected.seconds, other.expected.basis) == (110.0, Basis.RUNG)
    none16, full16 = by_id["demo-16gpu-fsdp16-dp1-none-lbs4"], by_id["demo-16gpu-fsdp16-dp1-full-lbs4"]
    assert (none16.state, none16.after, none16.assumed) == (State.RUNS, (NONE2,), False)
    assert full16.state is State.CLOSED
    assert f"{FULL2} (run_failed in " in full16.reason
    assert none16.expected.basis is Basis.GUESS


def test_a_case_beyond_the_session_costs_nothing(tmp_path: Path) -> None:
    plan = planned(ladder(tmp_path, LADDER), gpus=8)
    assert [rung.beyond for rung in plan.rungs] == [0, 2]
    assert (plan.rungs[1].expected, plan.rungs[1].most, plan.grid) == (0, 0, None)


def test_of_a_search_half_a_grid_is_counted_and_around_a_peak_its_offsets(tmp_path: Path) -> None:
    text = """
    - gpus: 4
      dp_shard: 4
      activation_checkpoint: [none, full]
      local_batch: {search: {from: 2, step: 2, to: 18}}
    - gpus: 16
      requires: {gpus: 4, same: [activation_checkpoint]}
      dp_shard: 16
      activation_checkpoint: full
      local_batch: {around: peak, offsets: [0, 2]}
    """
    plan = planned(ladder(tmp_path, text))
    lower, upper = plan.rungs
    assert (lower.cases, lower.runs, lower.spared) == (18, 10, 8)
    assert (upper.runs, upper.expected, upper.most) == (2, 2 * 16 * 900, 2 * 16 * 900)
    assert lower.most == 18 * 4 * 900
    # Candidates of a family one after the other, the two families side by side; then the two of the upper rung.
    assert plan.wall.seconds == (5 + 2) * 900


def test_a_rehearsal_that_does_not_fit_closes_a_gate(tmp_path: Path) -> None:
    suite, run_dir = ladder(tmp_path, LADDER), tmp_path / "run"
    folder = session(run_dir, {})
    rank = {"rank": 0, "fit": "does_not_fit", "reason": "CUDA out of memory", "requested_gib": 2.5}
    case = next(case for case in suite.cases() if case.id == NONE4)
    layout = {"dp_shard": 4, "dp_replicate": 1}
    told = {
        "schema": 1, "rehearsal": 1, "case_id": NONE4, "suite": "demo", "system": "cpu", "gpus": 4, "layout": layout,
        "activation_checkpoint": "none", "batch": {"local": 4, "global_": 16, "accumulation": 1, "sequence": 4096},
        "fit": "does_not_fit", "reason": "CUDA out of memory", "ranks": [rank], "steps": 5, "reserve_gib": None,
        "fingerprint": None,
    }  # fmt: skip
    (folder / "rehearsals").mkdir()
    (folder / "rehearsals" / f"{NONE4}.json").write_text(json.dumps(told))
    found = {one.case.id: one for one in forecast(suite, 16, read_past(run_dir))}
    assert found[case.id].state is State.CLOSED
    assert found[case.id].reason.startswith("OOM in rehearsal: 2.50 GiB more were asked for")


def test_rehearsed_ceilings_of_both_cases_enter_the_projection(tmp_path: Path) -> None:
    suite = load_suite(ROOT / "suites" / "b200_30b_a3b.yaml")
    below, above = "b200-30b-a3b-16gpu-fsdp16-dp1-selective-lbs18", "b200-30b-a3b-128gpu-fsdp128-dp1-selective-lbs22"
    folder = session(tmp_path, {})
    (folder / "rehearsals").mkdir()
    for case in suite.cases():
        if case.id in (below, above):
            rank = {"rank": 0, "fit": "fits", "tps": 30_000.0 if case.id == below else 31_000.0}
            told = {
                "schema": 1, "rehearsal": 1, "case_id": case.id, "suite": suite.name, "system": "b200",
                "gpus": case.gpus, "layout": as_plain(case.layout), "activation_checkpoint": "selective",
                "batch": as_plain(case.batch), "fit": "fits", "reason": "", "ranks": [rank], "steps": 5,
                "reserve_gib": None, "fingerprint": None,
            }  # fmt: skip
            (folder / "rehearsals" / f"{case.id}.json").write_text(json.dumps(told))
    asked = Question(128, ROOT / "baselines", ModelSize(30.5e9, 48))
    plan = make_plan(suite, load_system(ROOT / "baselines", "b200"), read_past(tmp_path), asked, {below: 28_400.0})
    found = {one.case.id: one.projection for one in plan.outlooks}
    assert found[above].rehearsed
    paid = 18 * 4096 / 28_400 - 18 * 4096 / 30_000
    assert found[above].seconds == pytest.approx(22 * 4096 / 31_000 + paid + found[above].added)
    assert not found["b200-30b-a3b-128gpu-fsdp128-dp1-selective-lbs18"].rehearsed


def test_a_file_that_cannot_be_read_is_named_and_not_counted(tmp_path: Path) -> None:
    suite, run_dir = ladder(tmp_path, LADDER), tmp_path / "run"
    folder = session(run_dir, {NONE2: record(suite, NONE2, "pass", 100.0)})
    broken = folder / "records" / "broken.json"
    broken.write_text('{"schema": 1, "case"')
    past = read_past(run_dir)
    assert past.unreadable == [broken]
    assert list(past.by_case) == [NONE2]
    assert not read_past(tmp_path / "never").by_case


def test_the_newest_record_of_a_session_counts_first(tmp_path: Path) -> None:
    suite, run_dir = ladder(tmp_path, LADDER), tmp_path / "run"
    folder = SessionFolder.create(run_dir, {})
    for number in range(11):
        folder.write(NONE2, record(suite, NONE2, "regression" if number < 10 else "pass", 100.0))
    folder.close()
    case = next(case for case in suite.cases() if case.id == NONE2)
    newest = read_past(run_dir).verdict(case)
    assert newest is not None
    assert newest.decision == "pass"


# The simulation ------------------------------------------------------------------------------------------------------


def test_an_allocation_is_whole_nodes_and_a_rest() -> None:
    assert [node.gpus for node in nodes_of(20, 8)] == [8, 8, 4]
    assert [node.gpus for node in nodes_of(2, 4)] == [2]
    assert Packer(nodes_of(512, 8)).total_gpus == 512


def test_a_case_waits_for_the_first_parent_that_ends() -> None:
    tasks = [Task("a", 8, 10), Task("b", 8, 30), Task("c", 16, 5, after=("a", "b")), Task("d", 8, 1, after=("a",))]
    found = simulate(tasks, 24, 8)
    assert found.seconds == 30  # c runs beside b on the other two nodes, from 10 to 15
    assert found.busy == 8 * 10 + 8 * 30 + 16 * 5 + 8 * 1
    assert simulate([], 8, 8).seconds == 0
    with pytest.raises(LaunchError, match="big: expected 4 nodes"):
        simulate([Task("big", 32, 1)], 16, 8)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.sampled_from([1, 2, 8, 16, 32]), st.integers(1, 9), st.booleans()), max_size=20))
def test_no_schedule_beats_the_work_or_the_longest_chain(drawn: list[tuple[int, int, bool]]) -> None:
    tasks: list[Task] = []
    for number, (gpus, seconds, chained) in enumerate(drawn):
        after = (tasks[-1].key,) if chained and tasks else ()
        tasks.append(Task(f"t{number}", gpus, seconds, after))
    found = simulate(tasks, 32, 8)
    chain, longest = 0.0, 0.0
    for task in tasks:
        chain = task.seconds + (chain if task.after else 0.0)
        longest = max(longest, chain)
    assert found.busy == sum(task.gpus * task.seconds for task in tasks)
    assert max(found.busy / 32, longest) <= found.seconds <= sum(task.seconds for task in tasks)


@pytest.mark.parametrize("seed", range(5))
def test_a_gated_campaign_keeps_64_nodes_busy_while_small_cases_wait(seed: int) -> None:
    """200 cases of 16 GPUs, 10 of 128, 2 of 512, durations within 20 %, the larger ones behind gates."""
    chance = random.Random(seed)  # noqa: S311 - a reproducible campaign, no secret
    tasks: list[Task] = []
    for gpus, count, parents in ((16, 200, 0), (128, 10, 16), (512, 2, 128)):
        below = [task.key for task in tasks if task.gpus == parents]
        for number in range(count):
            after = tuple(chance.sample(below, 3)) if below else ()
            tasks.append(Task(f"{gpus}-{number}", gpus, 600 * chance.uniform(0.8, 1.2), after))
    starts = simulate(tasks, 512, 8).starts
    until = max(starts[task.key] for task in tasks if task.gpus == 16)
    begun = [(task, starts[task.key]) for task in tasks if starts[task.key] < until]
    busy = sum(task.gpus * (min(begin + task.seconds, until) - begin) for task, begin in begun)
    assert busy / (512 * until) >= 0.95


# The command ---------------------------------------------------------------------------------------------------------


def ran(*args: str) -> tuple[int, str]:
    done = CliRunner().invoke(plan_app, [*args, "--baselines", str(ROOT / "baselines")])
    return done.exit_code, done.output


PUBLISHED = (str(ROOT / "suites"), "--system", "b200", "--run-dir", "nowhere")
SIZE = ("--parameters", "30.53B", "--layers", "48")


def test_the_published_ladder_costs_at_most_three_per_cent_of_the_grid() -> None:
    code, out = ran(*PUBLISHED, "--gpus", "512", "--json")
    assert code == 0
    [plan] = json.loads(out)["plans"]
    assert [(rung["gpus"], rung["runs"]) for rung in plan["rungs"]] == [(8, 15), (16, 30), (128, 6), (512, 1)]
    assert 0 < plan["share_of_grid"] <= 0.03
    assert plan["grid"]["cases"] == 30 * len([8, 16, 32, 64, 128, 256, 512])
    _, text = ran(*PUBLISHED, "--gpus", "512")
    assert "exhaustive grid at 512 GPUs: 210 cases, 26,880 GPU-hours; this plan: 1.7% of it" in text
    assert "7 cases would run if a parent passes" in text
    assert "no projection to larger rungs: missing are the model's size" in text


def test_a_speed_that_is_given_is_projected_and_costed() -> None:
    given_tps = ("--tps", "*16gpu-fsdp16*selective-lbs18=28,400", "--tps", "*512gpu*-lbs22=26700")
    code, out = ran(*PUBLISHED, "--gpus", "768", "--tokens", "20T", *SIZE, *given_tps, "--json")
    assert code == 0
    [plan] = json.loads(out)["plans"]
    [at128] = [p for p in plan["projections"] if p["case"].endswith("128gpu-fsdp128-dp1-selective-lbs22")]
    assert abs(at128["tps"] / 28_000 - 1) < 0.03
    assert at128["measured_tps"] is None
    [at512] = [p for p in plan["projections"] if p["case"].endswith("512gpu-fsdp128-dp4-selective-lbs22")]
    assert abs(at512["error"]) < 0.03
    assert at512["below"].endswith("16gpu-fsdp16-dp1-selective-lbs18")
    days = {row["gpus"]: row["days"] for row in plan["budget"]}
    assert days[512] == pytest.approx(16.9, abs=0.05)
    assert days[768] == pytest.approx(11.3, abs=0.05)


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ((*PUBLISHED,), "expected --gpus N"),
        ((*PUBLISHED, "--gpus", "8", "--system", "tpu"), "expected suites to plan, found b200-30b-a3b (system b200)"),
        (("nowhere", "--gpus", "8"), "nowhere: expected a suite file or a folder of them"),
        ((*PUBLISHED, "--gpus", "8", "--tps", "*=3"), "--tps *=3: expected PATTERN=VALUE"),
        ((*PUBLISHED, "--gpus", "8", "--tps", "*512gpu*-lbs22=fast"), "expected tokens/s per GPU after the ="),
        ((*PUBLISHED, "--gpus", "8", "--layers", "48"), "expected both --parameters and --layers"),
        ((*PUBLISHED, "--gpus", "8", "--tokens", "many"), "--tokens: expected a number more than 0"),
        ((*PUBLISHED, "--after", "latest"), "expected a session under nowhere, found none"),
        (("suites", "--gpus", "12", "--system", "b200"), ""),
    ],
)
def test_a_slip_is_said_in_one_line(args: tuple[str, ...], told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    code, out = ran(*args)
    assert (code, told in out) == ((2, True) if told else (0, True))
    assert "Traceback" not in out


def test_times_are_written_as_people_say_them() -> None:
    assert [duration(s) for s in (0, 119, 900, 2 * HOUR, 47 * HOUR, 406.4 * HOUR)] == [
        "0 s", "119 s", "15 min", "2.0 h", "47.0 h", "16.9 days",
    ]  # fmt: skip


# In short ------------------------------------------------------------------------------------------------------------


def test_the_brief_counts_rungs_and_bounds_the_cost(tmp_path: Path) -> None:
    suite = ladder(tmp_path, LADDER)
    told = "10 cases, 2 of them only where their gates open"
    assert brief(suite.cases(), 16) == [
        "plan: 8 at 4 GPUs, 2 at 16 GPUs",
        f"plan: {told}; at most 32.0 GPU-hours (limits.total); more: scaleperf plan",
    ]
    assert brief(suite.cases(), 4)[0].endswith("2 of them need more than --gpus 4")
    assert brief(suite.cases(), 2) == ["plan: 8 at 4 GPUs, 2 at 16 GPUs; 10 of them need more than --gpus 2"]
    assert brief((), 4) == []


def test_ten_thousand_cases_are_planned_in_seconds_and_briefed_in_no_time(tmp_path: Path) -> None:
    batches = ", ".join(map(str, range(1, 2501)))
    text = (
        HEAD
        + f"""\
ladder:
  - gpus: 8
    dp_shard: [1, 2, 4]
    activation_checkpoint: none
    local_batch: [{batches}]
  - gpus: 16
    requires: {{gpus: 8, same: [activation_checkpoint]}}
    dp_shard: 16
    activation_checkpoint: none
    local_batch: [{batches}]
"""
    )
    suite = load(tmp_path, text)
    cases = suite.cases()
    assert len(cases) == 10_000
    times = []
    for _ in range(5):
        began = time.perf_counter()
        brief(cases, 16)
        times.append(time.perf_counter() - began)
    assert min(times) < 0.05
    began = time.perf_counter()
    plan = planned(suite, gpus=512)
    assert time.perf_counter() - began < 10
    assert plan.rungs[0].runs + plan.rungs[1].runs == 10_000
    assert {one.case.layout for one in plan.forecasts if one.gated} == {Layout(16, 1)}


def test_the_suites_of_this_repository_can_all_be_planned() -> None:
    for path in sorted((ROOT / "suites").glob("*.yaml")):
        suite = load_suite(path)
        plan = make_plan(
            suite, load_system(ROOT / "baselines", suite.system), Past(), Question(512, ROOT / "baselines")
        )
        assert plan.rungs
        assert plan.wall.seconds > 0
