"""What a person reads, and what a machine does, of the real traces and of bad news."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_scaleperf.trace.analyse import analyse
from pytest_scaleperf.trace.export import to_data
from pytest_scaleperf.trace.result import TraceReport
from pytest_scaleperf.trace.words import Tolerances, describe
from tests.trace.script import US, Script

STEP = (
    "step: 499.1 ms at rank 0, the slowest: compute 92.6 %, exposed communication 5.1 %, exposed copies 0.6 %, "
    "idle 1.6 %; 88.0 % of the communication is hidden, communication / compute = 0.46"
)
COPIES = (
    "4.4 % of the step is communication that hides only under FSDP's own copies: these are no work on the model, "
    "and would shrink with it"
)


def test_fsdp_in_words(fsdp: TraceReport) -> None:
    assert describe(fsdp)[:9] == [
        "ranks 0, 1 of 2, NVIDIA H200; steps 37, 38 (not counted, for it is not whole: 39)",
        "phases from what autograd ran",
        "",
        STEP,
        "forward: 9.6 ms of all_gather exposed = 6.8 %, 7.7 ms idle = 5.4 %",
        "backward: 8.5 ms of reduce_scatter exposed = 5.3 %",
        "last backward: 7.5 ms of reduce_scatter exposed = 4.5 %",
        "optimiser: compute-bound (0.1 % exposed, 2.5 % idle)",
        COPIES,
    ]


def test_ddp_in_words_points_out_the_reduce_in_every_backward(ddp: TraceReport) -> None:
    assert (
        "all_reduce runs in every accumulation step (2 backward passes), the last would do: about 11.6 ms a step "
        "(22.4 GB reduced too often)"
    ) in describe(ddp)


def test_bound_or_not_is_a_matter_of_tolerance(fsdp: TraceReport) -> None:
    patient = [line for line in describe(fsdp, Tolerances(exposed=0.2, idle=0.2)) if "compute-bound" in line]
    assert [line.partition(":")[0] for line in patient] == ["forward", "backward", "last backward", "optimiser"]
    strict = [line for line in describe(fsdp, Tolerances(exposed=0.0, idle=0.0)) if "compute-bound" in line]
    assert strict == []


def test_collectives_in_words(fsdp: TraceReport) -> None:
    lines = describe(fsdp)
    assert (
        "  reduce_scatter [default_pg x 2]: 20 calls, 44.9 GB, 97.9 ms, 229 GB/s, skew 0.3 ms (largest 1.5 ms), "
        "15.5 ms exposed"
    ) in lines
    (small,) = [line for line in lines if line.startswith("  all_reduce")]
    assert "GB/s" not in small


def test_marks_stand_beside_the_figure(ddp: TraceReport) -> None:
    (line,) = [line for line in describe(ddp) if line.startswith("  all_reduce")]
    assert " GB/s (!)" in line
    assert line.endswith("[! 1 of 2 ranks read: times include waiting for the others]")


def test_the_table_adds_up(fsdp: TraceReport) -> None:
    lines = describe(fsdp)
    start = next(at for at, line in enumerate(lines) if line.startswith("rank 0, ms a step"))
    rows = [[float(cell) for cell in line[22:].split()] for line in lines[start + 1 : start + 5]]
    assert sum(row[4] for row in rows) == pytest.approx(499.13, abs=0.03)
    assert all(sum(row[:4]) == pytest.approx(row[4], abs=0.03) for row in rows)


def test_data_is_plain_json_with_exact_integers(fsdp: TraceReport) -> None:
    data = json.loads(json.dumps(to_data(fsdp)))
    assert data["schema"] == 1
    assert data["counts"]["calls all_gather [default_pg x 2]"] == 38
    step = data["ranks"][0]["steps"][0]
    assert step["window"] == 494_322_215
    parts = ("compute", "exposed_communication", "exposed_copy", "idle")
    assert sum(step[part] for part in parts) == step["window"]
    assert sum(phase[part] for phase in step["phases"].values() for part in parts) == step["window"]
    assert sum(each["own"] for each in step["classes"]) == step["window"]
    assert data["metrics"]["step_ms"] == pytest.approx(499.13, abs=0.01)


def test_a_trace_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    script = Script(0, 1, device="\x1b[2J\u202eGPU")
    script.kernel("x\x1b[31m", 30 * US, 20 * US, 5)
    script.collective("allreduce", 10, 30 * US, 40 * US, launched=6, said={"Process Group Description": "a\nb\x07"})
    lines = describe(analyse([script.write(tmp_path / "t.json")]))
    assert not any(ord(letter) < 32 or letter in "\x7f\u202e" for line in lines for letter in line)
    assert "\\x1b[2J\\u202eGPU" in lines[0]


def test_clips_and_notes_say_which_rank(tmp_path: Path) -> None:
    paths = []
    for rank in range(2):
        script = Script(rank, 2)
        script.kernel("gemm", 0, 10 * US, 5)
        if rank:
            script.kernel("odd", 30 * US, 20 * US, 5)
        paths.append(script.write(tmp_path / f"rank{rank}.json"))
    lines = describe(analyse(paths))
    assert "note: 1 events with a negative duration, taken as 0 (the first: 'odd') (rank 1)" in lines
    assert next(line for line in lines if line.startswith("note: no ProfilerStep")).endswith("is not seen")
    assert lines[1].startswith("NOT A MEASURE OF A STEP: the whole trace")
