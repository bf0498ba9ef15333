"""Records out of runs that were recorded on H200 GPUs, through the rooms that the plugin uses; and their report.

    python -m tests.report.h200_records FOLDER

writes docs/examples/h200-report again. The plugin did not start these runs: they were recorded on another day, with
torchtitan alone, and are observed, measured and judged here from their logs and event files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import re
import sys
from pathlib import Path
from typing import Any

import yaml

from pytest_scaleperf import steady
from pytest_scaleperf.model import (
    ActivationCheckpoint,
    Baseline,
    BaselineSample,
    Batch,
    Case,
    Decision,
    Fingerprint,
    Gate,
    GateState,
    JobResult,
    JobState,
    Layout,
    Limits,
    Measure,
    Metric,
    Observation,
    Outcome,
    Suite,
    Trainer,
    as_plain,
)
from pytest_scaleperf.records import SCHEMA, write_json
from pytest_scaleperf.suite import digest
from pytest_scaleperf.titan.observe import observe
from pytest_scaleperf.verdict import Rule, judge, judge_outcome

H200 = Path(__file__).parents[1] / "data/h200"
SESSION = "20261130-184236-h200"
PEAK_FLOPS = 9.89e14  # as the logs say
MEMORY_GIB = 139.80
TOLERANCE = {Metric.TPS: 0.03, Metric.MFU: 0.03, Metric.PEAK_MEMORY: 0.02}
RULE = Rule(tuple(TOLERANCE), TOLERANCE, ("config",))
TITLE = "Runs recorded on 2 x H200, observed afterwards (not started by the plugin)"
_TIME = re.compile(r"\[titan\] (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),")
_CUT_SHORT = "ended by the recording time limit"


def write_records(run_dir: Path) -> list[dict[str, Any]]:
    """Write a session with a record of every recorded run, in the order of their times; give the records back."""
    runs = yaml.safe_load((H200 / "index.yaml").read_text(encoding="utf-8"))
    session = run_dir / "sessions" / SESSION
    (session / "records").mkdir(parents=True)
    timed = sorted((times(H200 / "runs" / run["run"] / "log.txt"), run["run"], run) for run in runs)
    about = {"arguments": ["recorded runs, not a session of the plugin"], "system": "h200"}
    write_json(session / "session.json", {"schema": SCHEMA, "session": SESSION, "started": timed[0][0][0], **about})
    written: list[dict[str, Any]] = []
    for (began, ended), _, run in timed:
        record = _record(run, began, ended, written)
        same = sum(1 for other in written if other["case"] == record["case"])
        name = record["case"] + (f".{same + 1}" if same else "")
        write_json(session / "records" / f"{name}.json", record)
        written.append(record)
    return written


def times(log: Path) -> tuple[float, float]:
    """First and last time in a log, in seconds since 1970 (the logs are in UTC)."""
    found = _TIME.findall(log.read_text(encoding="utf-8", errors="replace"))
    first, last = (dt.datetime.fromisoformat(f"{text}+00:00").timestamp() for text in (found[0], found[-1]))
    return first, last


def case_of(run: dict[str, Any]) -> Case:
    """The case that a recorded run was."""
    name = f"h200-{run['model'].lower()}"
    name += "-never" if run.get("fsdp_reshard_after_forward") == "never" else ""
    name += "-rehearsed" if run["rehearsal"] else ""
    layout = Layout(run["dp_shard"], run["dp_replicate"])
    one_pass = run["local_batch_size"] * layout.data_parallel
    target = run["global_batch_size"] if run["global_batch_size"] > 0 else None
    batch = Batch(run["local_batch_size"], target or one_pass, (target or one_pass) // one_pass, run["seq_len"], target)
    gpus, mode = run["world_size"], ActivationCheckpoint(run["activation_checkpoint"])
    suite = Suite(
        name=name,
        path=H200 / "index.yaml",
        system="h200",
        trainer=Trainer("0.2", "qwen3", run["model"], entry="recorded"),
        measure=Measure(run["steps"], warmup=min(5, run["steps"] // 4), log_freq=run["log_freq"]),
        limits=Limits(600, 180, 1800),
        tolerance={},
        compare_across=("config",),
    )
    end = f"-gbs{batch.global_}" if batch.accumulation > 1 else ""
    case_id = f"{name}-{gpus}gpu-{layout.label}-{mode}-lbs{batch.local}{end}"
    expect = Outcome.OOM if run["outcome"] == "oom" else Outcome.COMPLETED
    return Case(case_id, suite, gpus, layout, mode, batch, expect)


def observed(run: dict[str, Any]) -> tuple[Observation, tuple[str, ...]]:
    """What a recorded run did, and what has to be said with it.

    The recording had a time limit of its own, which ended three runs after their last logged step; index.yaml says that
    what they measured until then is valid. They are taken as runs of so many steps.
    """
    seen = observe(H200 / "runs" / run["run"], requested_steps=run["steps"])
    if not run["outcome"].startswith(_CUT_SHORT):
        return seen, ()
    note = f"ended by the recording's own time limit after step {seen.last_step} of {run['steps']}; measured to there"
    cut = dataclasses.replace(seen, outcome=Outcome.COMPLETED, failure=None, requested_steps=seen.last_step)
    return cut, (note,)


def _record(run: dict[str, Any], began: float, ended: float, earlier: list[dict[str, Any]]) -> dict[str, Any]:
    case = case_of(run)
    seen, notes = observed(run)
    notes += ("rehearsed: collectives do nothing, TPS is a ceiling",) if run["rehearsal"] else ()
    measured = steady.measure(
        seen,
        warmup=case.suite.measure.warmup,
        peak_flops=PEAK_FLOPS,
        memory_total_gib=MEMORY_GIB,
        tokens_per_step_per_gpu=case.batch.tokens_per_step / case.gpus,
    )
    fingerprint = Fingerprint("NVIDIA H200", None, "2.11.0", None, "0.2.2", None, digest(case), PEAK_FLOPS)
    verdict = judge_outcome(case.expect, seen) or judge([measured], _baseline(case, earlier), fingerprint, RULE)
    if verdict.decision is Decision.NO_BASELINE:
        verdict = dataclasses.replace(
            verdict, decision=Decision.RECORDED, reason="first run of this case: its baseline"
        )
    job = JobResult(JobState.COMPLETED, None, seconds=ended - began)
    return {
        "schema": SCHEMA,
        "session": SESSION,
        "case": case.id,
        "suite": case.suite.name,
        "system": "h200",
        "gpus": case.gpus,
        "layout": as_plain(case.layout),
        "activation_checkpoint": case.activation_checkpoint,
        "batch": as_plain(case.batch),
        "decision": verdict.decision,
        "reason": verdict.reason,
        "notes": (*verdict.notes, *notes),
        "metrics": [as_plain(metric) for metric in verdict.metrics],
        "gate": as_plain(Gate(GateState.OPEN, "recorded run")),
        "fingerprint": as_plain(fingerprint),
        "samples": [_sample(run, seen, job, began) | {"measurement": as_plain(measured)}],
        "finished": ended,
    }


def _sample(run: dict[str, Any], seen: Observation, job: JobResult, began: float) -> dict[str, Any]:
    return {
        "argv": [],
        "folder": f"tests/data/h200/runs/{run['run']}",
        "outcome": seen.outcome,
        "failure": None if seen.failure is None else as_plain(seen.failure),
        "exit_code": job.exit_code,
        "stopped": job.stopped,
        "hosts": job.hosts,
        "started": began,
        "seconds": job.seconds,
        "last_step": seen.last_step,
        "sources": dict(seen.sources),
    }


def _baseline(case: Case, earlier: list[dict[str, Any]]) -> Baseline | None:
    """Every earlier completed run of the same case."""
    same = [r for r in earlier if r["case"] == case.id and r["samples"][0]["measurement"]["values"]]
    if not same:
        return None
    samples = tuple(BaselineSample("2026-11-30", SESSION, r["samples"][0]["measurement"]["values"]) for r in same)
    return Baseline(case.id, Fingerprint(**same[0]["fingerprint"]), samples, "the recorded runs before")


def main() -> None:
    """Write records, the page, the pictures, Markdown and metrics of the recorded runs into a folder."""
    import tempfile  # noqa: PLC0415 - only for the command

    from typer.testing import CliRunner  # noqa: PLC0415 - only for the command

    from pytest_scaleperf.report.command import report_app  # noqa: PLC0415 - only for the command

    target = Path(sys.argv[1]).absolute()
    outputs = {"--html": "report.html", "--png": ".", "--markdown": "report.md", "--metrics": "metrics.txt"}
    words = [word for option, name in outputs.items() for word in (option, str(target / name))]
    # From inside, so that the page names no path of this machine.
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        write_records(Path("run-directory"))
        done = CliRunner().invoke(report_app, ["run-directory", "--title", TITLE, *words])
    print(done.output)  # noqa: T201 - a command
    sys.exit(done.exit_code)


if __name__ == "__main__":
    main()
