"""Recorded runs on H200 GPUs: outcome, speed, memory, retries as index.yaml has them, from console and event files."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_scaleperf.model import Outcome, Source, StopReason
from pytest_scaleperf.titan.console import parse
from pytest_scaleperf.titan.events import read_events
from pytest_scaleperf.titan.lines import load
from pytest_scaleperf.titan.observe import observe

H200 = Path(__file__).parents[1] / "data/h200"
RUNS = yaml.safe_load((H200 / "index.yaml").read_text(encoding="utf-8"))
NAMES = [run["run"] for run in RUNS]
WITH_EVENTS = [run["run"] for run in RUNS if (H200 / "runs" / run["run"] / "tb").is_dir()]
MEASURED = [run for run in RUNS if "tps_median_from_step_5" in run]

# What index.yaml says in prose. The recording's own time limit sent SIGTERM to torchrun, which says so; a bare
# python (rehearsal r16full18) just stopped. The exit codes were not recorded.
OUTCOMES = {
    "completed": Outcome.COMPLETED,
    "oom": Outcome.OOM,
    "ended-early": Outcome.ERROR,
    "rank 1 killed by SIGKILL": Outcome.KILLED,
}
SPECIAL = {
    "fault_STOP": Outcome.NCCL_TIMEOUT,
    "none12": Outcome.INTERRUPTED,
    "sel16": Outcome.INTERRUPTED,
    "r16full18": Outcome.INCOMPLETE,
}


def folder(name: str) -> Path:
    return H200 / "runs" / name


def entry(name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(run for run in RUNS if run["run"] == name)
    return found


def test_every_recorded_run_is_in_the_index() -> None:
    assert sorted(NAMES) == sorted(path.name for path in (H200 / "runs").iterdir())
    assert len(NAMES) >= 30


@pytest.mark.parametrize("run", RUNS, ids=NAMES)
def test_outcome_and_settings(run: dict[str, Any]) -> None:
    seen = observe(folder(run["run"]))
    assert seen.outcome is (SPECIAL.get(run["run"]) or OUTCOMES[run["outcome"]])
    assert seen.requested_steps == run["steps"]
    assert seen.world_size == run["world_size"]
    assert seen.malformed_lines == 0
    assert seen.attempts == 1
    assert (seen.failure is None) is (seen.outcome is Outcome.COMPLETED)


@pytest.mark.parametrize("run", MEASURED, ids=[run["run"] for run in MEASURED])
def test_console_numbers(run: dict[str, Any]) -> None:
    console = parse([load(folder(run["run"]) / "log.txt")])
    assert len(console.samples) == run["samples"]
    later = [s for s in console.samples if s.step >= 5]
    assert statistics.median(s.tps or 0 for s in later) == run["tps_median_from_step_5"]
    assert round(statistics.median(s.tflops or 0 for s in later), 2) == run["tflops_median"]
    assert max(s.memory_gib or 0 for s in console.samples) == run["peak_reserved_gib"]
    assert max(s.memory_pct or 0 for s in console.samples) == run["peak_reserved_pct"]
    assert list(console.retries) == run.get("alloc_retries_cumulative", [])


@pytest.mark.parametrize("name", WITH_EVENTS)
def test_event_files_and_console_agree_within_the_consoles_rounding(name: str) -> None:
    console = parse([load(folder(name) / "log.txt")])
    events = read_events((folder(name) / "tb").iterdir())
    assert events.warnings == ()
    if not console.samples:
        assert events.steps() == ()
        return
    for sample in console.samples:
        for tag, shown, rounding in (
            ("throughput(tps)", sample.tps, 0.5),
            ("tflops", sample.tflops, 0.005),
            ("mfu(%)", sample.mfu_pct, 0.005),
            ("memory/max_reserved(GiB)", sample.memory_gib, 0.005),
            ("memory/max_reserved(%)", sample.memory_pct, 0.005),
            ("loss_metrics/global_avg_loss", sample.loss, 0.000005),
        ):
            ((_, told),) = events.values(sample.step, tag)
            assert told == pytest.approx(shown, abs=rounding * 1.01), (sample.step, tag)
    retries = [int(events.values(step, "memory/num_alloc_retries")[0][1]) for step in events.steps()]
    assert [count for count in retries if count] == list(console.retries)


@pytest.mark.parametrize("name", WITH_EVENTS)
def test_event_files_are_the_source_where_they_are(name: str) -> None:
    seen = observe(folder(name))
    assert seen.warnings == ()
    if seen.series:
        assert set(seen.sources.values()) == {Source.EVENT_FILES}


def test_out_of_memory_names_rank_line_and_size() -> None:
    failure = observe(folder("r16sel10"), exit_code=1).failure
    assert failure is not None
    assert (failure.rank, failure.line, failure.requested_gib) == (0, 110, 2.5)
    assert failure.reason.startswith("torch.OutOfMemoryError: CUDA out of memory")


def test_a_killed_rank_is_named_and_the_other_one_is_its_consequence() -> None:
    failure = observe(folder("fault_KILL"), exit_code=1).failure
    assert failure is not None
    assert (failure.rank, failure.host, failure.signal) == (1, "localhost", 9)
    assert failure.consequences == ("exit code -15: rank 0 on localhost",)


@pytest.mark.parametrize("stopped", [None, StopReason.NO_PROGRESS, StopReason.TOTAL_LIMIT])
def test_a_stopped_rank_is_a_timeout_whoever_ended_the_run(stopped: StopReason | None) -> None:
    seen = observe(folder("fault_STOP"), exit_code=-9, stopped=stopped)
    assert seen.outcome is Outcome.NCCL_TIMEOUT
    assert seen.failure is not None
    assert seen.failure.rank == 0
    assert "ran for 20051 milliseconds" in seen.failure.reason


def test_ranks_of_one_step_are_merged() -> None:
    seen = observe(folder("fault_KILL"))
    assert [(s.step, s.tps, s.tps_min, s.ranks) for s in seen.series][-1] == (20, 52096.0, 52096.0, 2)
