"""The pre-flight of a session in its report: numbers, findings, and a file that cannot be read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_scaleperf.model import Metric, System
from pytest_scaleperf.preflight import FILE, GpuProbe, Health, LinkProbe, ProbeReport, judge, save
from pytest_scaleperf.report import markdown, page
from pytest_scaleperf.report.assemble import read
from pytest_scaleperf.report.pictures.album import album
from tests.report import build

SYSTEM = System("b200", "NVIDIA B200", "B200", 8, 2.25e15, 178.4, (Metric.TPS,), {Metric.TPS: 0.03})
HEALTH = Health(sm_clock=1965, temperature=61, power=712.4, reasons=("sw_power_cap",), ecc_uncorrected=0, nvlinks=18)


def probed(*, slow: int | None = None, host: str = "n0") -> ProbeReport:
    gpus = tuple(
        GpuProbe(
            host, rank, rank, "NVIDIA B200", f"GPU-{rank}", health=HEALTH,
            rates={"matmul_tflops": 900.0 if rank == slow else 1500.0 + rank, "memory_gb_s": 6400.0},
        )
        for rank in range(8)
    )  # fmt: skip
    links = (LinkProbe("world", tuple(range(8)), False, "all_gather", 64, 321.5),)
    report = ProbeReport(build.T0, 8, "NVIDIA B200", gpus, links)
    return replace(report, findings=judge(report, SYSTEM))


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    build.write(tmp_path, [build.record(baseline=28_400.0)])
    return tmp_path


def session(run_dir: Path) -> Path:
    return run_dir / "sessions" / build.SESSION


def shown(run_dir: Path) -> tuple[str, str]:
    report, _ = read([run_dir])
    return markdown.render(report), page.render(report, album(report))


def test_the_numbers_of_each_gpu_and_link(run_dir: Path) -> None:
    save(session(run_dir) / FILE, probed())
    text, html = shown(run_dir)
    assert "### Pre-flight" in text
    assert "8 devices of 8 answered; nothing wrong" in text
    for part in (text, html):
        for number in ("1,500", "1,507", "6,400", "321.5", "712.4", "1,965"):
            assert number in part, number
    assert '<h2 id="preflight">' in html
    assert 'href="#preflight"' in html


def test_a_slow_gpu_comes_first_and_is_named(run_dir: Path) -> None:
    save(session(run_dir) / FILE, probed(slow=5))
    text, html = shown(run_dir)
    assert "n0 GPU 5: matmul 900 TFLOP/s, the fleet has" in html
    assert "1 finding" in text
    rows = [line for line in text.splitlines() if line.startswith("| n0 GPU")]
    assert rows[0].startswith("| n0 GPU 5 | 900.0 |")


def test_a_name_from_a_machine_is_no_markup(run_dir: Path) -> None:
    save(session(run_dir) / FILE, probed(slow=5, host="<b>|n0"))
    text, html = shown(run_dir)
    assert "<b>" not in text
    assert "<b>" not in html


def test_without_a_preflight_there_is_no_section(run_dir: Path) -> None:
    text, html = shown(run_dir)
    assert "Pre-flight" not in text
    assert 'id="preflight"' not in html
    assert "Pre-flight" not in html


def test_a_preflight_that_cannot_be_read_is_a_fault_of_the_report(run_dir: Path) -> None:
    (session(run_dir) / FILE).write_text("{")
    report, _ = read([run_dir])
    (fault,) = report.faults
    assert fault.where.endswith(FILE)
    assert fault.why.startswith("expected a pre-flight report, found")
    assert report.is_red
