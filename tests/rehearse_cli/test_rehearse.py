"""``scaleperf rehearse`` on a made-up system with the stand-in trainer, as a person runs it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_scaleperf.model import ScalePerfError
from pytest_scaleperf.rehearse_cli.select import selection
from tests.plugin.conftest import FULL2, FULL4, NONE2, NONE4, Project

CASES = (NONE2, FULL2, NONE4, FULL4)


@pytest.fixture
def lab(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    made = Project(tmp_path_factory.mktemp("lab") / "project", monkeypatch)
    made.suite(rehearse={"steps": 3, "executable": True})
    return made


def rehearse(project: Project, *args: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-c",
        "from pytest_scaleperf.cli import app; app()",
        "rehearse",
        *args,
        "--system",
        "lab",
    ]
    return subprocess.run(command, cwd=project.path, capture_output=True, text=True, check=False, timeout=120)


def test_a_table_with_every_number_whole_and_exit_code_0(lab: Project) -> None:
    done = rehearse(lab, "suites")
    assert done.returncode == 0, done.stderr
    lines = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()[1:]}
    assert lines[NONE4][:7] == ["4", "fits", "40.00", "50.0%", "38.00", "1,000", "20.00"]
    assert set(lines) == set(CASES)


def test_json_of_one_rank_of_one_case(lab: Project) -> None:
    done = rehearse(lab, "suites/demo.yaml", "--case", NONE4, "--rank", "-1", "--json")
    assert done.returncode == 0, done.stderr
    [found] = json.loads(done.stdout)
    assert (found["case"], found["gpus"], found["ranks"], found["fits"]) == (NONE4, 4, [3], True)
    assert (found["peak_memory"], found["margin"], found["ceiling_tps"]) == (40, 38, pytest.approx(1000))
    assert found["baseline_memory"] is None


def test_what_does_not_fit_is_exit_code_1_with_the_reason(lab: Project) -> None:
    lab.scenario({FULL2: {"fault": "oom", "at": 1}})
    done = rehearse(lab, "suites", "-k", "2gpu")
    assert done.returncode == 1
    assert f"{FULL2}: does_not_fit: oom: torch.OutOfMemoryError: CUDA out of memory." in done.stdout


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["nowhere"], "no such file or directory: nowhere"),
        (["suites", "--case", "x"], "--case x: expected the id of a case of system lab, found none such"),
        (["suites", "-k", "nothing"], "no case of system lab is meant"),
        (["suites", "-k", "(none"], "-k '(none': expected ), found its end"),
        (["suites", "--rank", "2"], f"--rank 2: expected a rank of {NONE2}, from -2 (the first) to 1"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(lab: Project, args: list[str], said: str) -> None:
    done = rehearse(lab, *args)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("expression", "meant"),
    [
        ("none", {NONE2, NONE4}),
        ("NONE and 4gpu", {NONE4}),
        ("none and 4gpu or full and 2gpu", {NONE4, FULL2}),
        ("not (none or 2gpu)", {FULL4}),
        ("not none and not 2gpu", {FULL4}),
    ],
)
def test_expressions_mean_what_pytest_means(expression: str, meant: set[str]) -> None:
    chosen = selection(expression)
    assert {name for name in CASES if chosen(name)} == meant


@pytest.mark.parametrize("expression", ["and", "none or", "not", "(", "none)", "none full", "()"])
def test_what_is_not_whole_is_refused(expression: str) -> None:
    with pytest.raises(ScalePerfError, match="expected"):
        selection(expression)


@given(st.text(alphabet="() andornotx", max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        chosen = selection(text)
    except ScalePerfError:
        return
    assert chosen("anything") in (True, False)
