"""What the probes write is read whole or refused by name; the report keeps everything."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_scaleperf.model import LaunchError
from pytest_scaleperf.preflight import GpuProbe, Health, LinkProbe, ProbeReport, judge, load, read, save
from tests.preflight.test_judge import STATED, gpu

PART = {
    "gpu": {
        "host": "n1", "index": 3, "rank": 0, "device": "NVIDIA H200", "uuid": "GPU-a",
        "rates": {"matmul_tflops": 7.5e2}, "problems": [], "seconds": 2.0,
        "health": {"sm_clock": 1980, "reasons": ["sw_power_cap"], "xids": [[79, "lost"]]},
    },
    "links": [
        {"scope": "pair", "ranks": [0, 1], "across_nodes": False, "operation": "all_gather", "mib": 64, "gb_s": 215.0}
    ],
}  # fmt: skip


def write(folder: Path, rank: int, part: object) -> Path:
    path = folder / "probes" / f"rank{rank}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(part if isinstance(part, str) else json.dumps(part))
    return path


def test_the_files_of_the_ranks(tmp_path: Path) -> None:
    write(tmp_path, 0, PART)
    report = read(tmp_path, expected=2, device="NVIDIA H200", problems=("cut off",))
    assert report.gpus == (
        GpuProbe(
            "n1", 3, 0, "NVIDIA H200", "GPU-a", {"matmul_tflops": 750.0},
            Health(sm_clock=1980, reasons=("sw_power_cap",), xids=((79, "lost"),)), (), 2.0,
        ),
    )  # fmt: skip
    assert report.links == (LinkProbe("pair", (0, 1), False, "all_gather", 64, 215.0),)
    assert (report.expected, report.problems) == (2, ("cut off",))


def test_nothing_written_is_a_report_of_nobody(tmp_path: Path) -> None:
    report = read(tmp_path, expected=2, device="NVIDIA H200")
    assert report.gpus == ()
    (found,) = judge(report, STATED)
    assert "expected 2 ranks to answer, found 0" in found.text


@pytest.mark.parametrize("part", ["", "[]", "{", '{"gpu": {}}', {**PART, "links": [{"scope": "pair"}]}])
def test_a_file_that_cannot_be_understood_is_named(tmp_path: Path, part: object) -> None:
    path = write(tmp_path, 0, part)
    with pytest.raises(LaunchError, match=f"{path}: expected a pre-flight report, found .*scaleperf preflight"):
        read(tmp_path, expected=1, device="cpu")


def test_a_saved_report_is_the_same_again(tmp_path: Path) -> None:
    health = Health(temperature=88, power=690.5, reasons=("hw_slowdown",), ecc_uncorrected=1, xids=())
    report = ProbeReport(
        12.5, 2, "NVIDIA H200", (gpu(0, health=health), gpu(1)), (LinkProbe("pair", (0, 1), True, "x", 1, 2.0),)
    )
    report = replace(report, findings=judge(report, STATED), problems=("late",))
    assert report.findings
    path = save(tmp_path / "deep" / "preflight.json", report)
    assert load(path) == report
    assert [found.name for found in path.parent.iterdir()] == ["preflight.json"]


def test_a_report_of_another_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "preflight.json"
    path.write_text('{"schema": 99}')
    with pytest.raises(LaunchError, match="schema 99, this version reads 1"):
        load(path)
