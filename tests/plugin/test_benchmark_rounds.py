"""pytest-benchmark keeps the training steps of each case; the verdict stays ours, and without it all else works."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tests.plugin.conftest import FULL2, FULL4, NONE2, NONE4, Project

STEPS = [10, 15, 20, 25, 30]
"""What is logged after the warm-up."""
SECONDS = 2 * 128 / 1000
"""One step: local batch 2 x sequence 128 at 1000 tokens/s per GPU."""


def benchmarks(path: Path) -> dict[str, dict[str, Any]]:
    """Entries of one of pytest-benchmark's files, by case id."""
    found: dict[str, dict[str, Any]] = {}
    for entry in json.loads(path.read_text())["benchmarks"]:
        found[entry["name"].partition("[")[2].rstrip("]")] = entry
    return found


def compare(project: Project, *args: str) -> str:
    """Run ``pytest-benchmark compare`` in the project's folder."""
    program = str(Path(sys.executable).with_name("pytest-benchmark"))
    done = subprocess.run(
        [program, "compare", *args], cwd=project.path, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_json_has_the_steps_as_rounds_and_the_metrics_beside_them(project: Project) -> None:
    project.scenario({NONE2: {"tps": 990, "wobble": 0.01}})
    done = project.run("--benchmark-json=bench.json", "-k", "2gpu")
    assert done.returncode == 0, done.out
    found = benchmarks(project.path / "bench.json")
    assert set(found) == {NONE2, FULL2}
    said = done.properties(NONE2)
    entry = found[NONE2]
    assert entry["stats"]["rounds"] == len(STEPS)
    assert sorted(entry["stats"]["data"]) == pytest.approx(
        sorted(2 * 128 / (990 * (1 + 0.01 * (-1) ** (step // 5))) for step in STEPS), rel=1e-4
    )
    assert found[FULL2]["stats"]["median"] == pytest.approx(SECONDS, rel=1e-4)
    assert {"tps", "mfu", "peak_memory", "step_time", "verdict"} <= set(entry["extra_info"])
    for metric in ("tps", "mfu", "peak_memory"):
        assert entry["extra_info"][metric] == pytest.approx(float(said[f"scaleperf.{metric}"]), rel=1e-5)
    assert entry["extra_info"]["verdict"] == "pass"


def test_autosave_and_compare_see_what_got_slower(project: Project) -> None:
    assert project.run("--benchmark-autosave", "-k", "2gpu and none").returncode == 0
    project.scenario({NONE2: {"tps": 500}})
    done = project.run("--benchmark-autosave", "-k", "2gpu and none")
    assert done.returncode == 1  # our verdict: a regression
    saved = sorted((project.path / ".benchmarks").rglob("*.json"))
    assert [benchmarks(path)[NONE2]["extra_info"]["verdict"] for path in saved] == ["pass", "regression"]
    table = compare(project, "--columns=median,rounds")
    assert table.count("demo-2gpu-fsdp2") == 2
    medians = [(float(ms), float(times)) for ms, times in re.findall(r"(\d+\.\d+) \((\d+\.\d+)\)", table)]
    assert [ms for ms, _ in medians] == pytest.approx([1000 * SECONDS, 2000 * SECONDS])
    assert [times for _, times in medians] == [1.0, 2.0]


def test_its_own_regression_check_is_not_the_verdict(project: Project) -> None:
    """Slower than the saved run by more than its limit, but inside our band: the case passes, also in JUnit."""
    assert project.run("--benchmark-autosave", "-k", "2gpu and none").returncode == 0
    project.scenario({NONE2: {"tps": 980}})
    done = project.run("--benchmark-compare", "--benchmark-compare-fail=median:1%", "-k", "2gpu and none")
    assert done.kind(NONE2) == "passed"
    assert done.properties(NONE2)["scaleperf.verdict"] == "pass"
    assert project.records()[NONE2]["decision"] == "pass"
    assert "Performance has regressed" in done.out  # what the user asked it for, it says by itself, outside the case


def test_histogram_is_a_picture_of_the_steps(project: Project) -> None:
    pytest.importorskip("pygal", reason="pytest-benchmark draws with pygal (its extra: histogram)")
    done = project.run("--benchmark-histogram=steps", "-k", "2gpu")
    assert done.returncode == 0, done.out
    [picture] = project.path.glob("steps*.svg")
    text = "".join(ET.fromstring(picture.read_text()).itertext())  # noqa: S314 - our own file
    assert NONE2 in text
    assert FULL2 in text


def test_every_sample_gives_its_steps(project: Project) -> None:
    project.run("--benchmark-json=bench.json", "--repeats", "2", "-k", "2gpu and none")
    assert benchmarks(project.path / "bench.json")[NONE2]["stats"]["rounds"] == 2 * len(STEPS)


def test_a_run_without_numbers_is_no_benchmark(project: Project) -> None:
    project.scenario({NONE2: {"fault": "oom"}})
    done = project.run("--benchmark-json=bench.json")
    assert set(benchmarks(project.path / "bench.json")) == {FULL2, FULL4}
    assert done.kinds() == {NONE2: "failed", NONE4: "skipped", FULL2: "passed", FULL4: "passed"}


@pytest.mark.parametrize("flag", ["--benchmark-disable", "--benchmark-skip"])
def test_its_switches_do_not_hide_a_case(project: Project, flag: str) -> None:
    project.scenario({NONE2: {"tps": 500}})
    done = project.run(flag, "-k", "2gpu and none")
    assert done.kind(NONE2) == "failed", done.out
    assert done.returncode == 1


def test_only_benchmarks_skips_the_cases_and_is_not_green(project: Project) -> None:
    """A case asks for no ``benchmark`` fixture, so pytest-benchmark skips it: a session that measured nothing."""
    done = project.run("--benchmark-only", "-k", "2gpu and none")
    assert done.kind(NONE2) == "skipped"
    assert "--benchmark-only" in done.message(NONE2)
    assert done.returncode == 5


def test_without_the_plugin_everything_else_works(project: Project) -> None:
    project.scenario({FULL2: {"tps": 500}})
    done = project.run("-p", "no:benchmark")
    assert done.kinds() == {NONE2: "passed", FULL2: "failed", NONE4: "passed", FULL4: "skipped"}
    assert not re.search("benchmark", done.out)


def test_nothing_is_stored_unasked(project: Project) -> None:
    done = project.run("-k", "2gpu and none")
    assert done.returncode == 0
    assert not list(project.path.glob(".benchmarks/**/*.json"))
    assert "benchmark: 1 tests" not in done.out
