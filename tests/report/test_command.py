"""``scaleperf report`` as a person and a CI job call it: what it writes, says and ends with."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from junitparser import JUnitXml
from typer.testing import CliRunner, Result

from pytest_scaleperf.report.command import report_app
from tests.report import build


def run(*words: object, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(report_app, [str(word) for word in words], env=env)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return build.write(tmp_path / "run", [build.record(baseline=29_500.0), build.oom(local=22)])


@pytest.fixture
def junit(tmp_path: Path) -> Path:
    path = tmp_path / "stage-16.xml"
    path.write_text('<testsuites><testsuite name="s"><testcase classname="c" name="other"/></testsuite></testsuites>')
    return path


def test_without_options_it_is_on_the_screen(run_dir: Path) -> None:
    done = run(run_dir)
    assert done.exit_code == 0
    assert done.stdout.startswith("## scaleperf: 2 of 2 cases red")


def test_every_file_at_once(run_dir: Path, junit: Path, tmp_path: Path) -> None:
    out = tmp_path / "a" / "b"
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    done = run(
        run_dir, "--merge", junit, "--markdown", out / "r.md", "--html", out / "r.html", "--png", out / "png",
        "--junit", out / "all.xml", "--metrics", out / "metrics.txt", "--github-summary",
        env={"GITHUB_STEP_SUMMARY": str(summary)},
    )  # fmt: skip
    assert (done.exit_code, done.output) == (0, "")
    assert summary.read_text() == "before\n" + (out / "r.md").read_text()
    assert (out / "r.html").read_text().startswith("<!DOCTYPE html>")
    assert (out / "metrics.txt").read_text().endswith("# EOF\n")
    assert JUnitXml.fromfile(str(out / "all.xml")).tests == 1
    assert list((out / "png").glob("heatmap-*.png"))


def test_what_cannot_be_read_is_named_and_the_report_is_made(run_dir: Path, tmp_path: Path) -> None:
    torn = run_dir / "sessions" / build.SESSION / "records" / "torn.json"
    torn.write_text("{")
    done = run(run_dir, "--markdown", tmp_path / "r.md")
    assert done.exit_code == 1
    assert str(torn) in done.stderr
    assert "torn.json" in (tmp_path / "r.md").read_text()


def test_an_unreadable_junit_file_is_red_in_the_merged_one(run_dir: Path, tmp_path: Path) -> None:
    torn = tmp_path / "stage-128.xml"
    torn.write_text("<testsuites>")
    done = run(run_dir, torn, "--junit", tmp_path / "all.xml")
    assert done.exit_code == 1
    assert JUnitXml.fromfile(str(tmp_path / "all.xml")).errors == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nowhere",), "no such file or directory: nowhere"),
        ((".",), "expected a run directory"),
        (("RUN", "--junit", "all.xml"), "no JUnit file was given"),
        (("RUN", "--github-summary"), "GITHUB_STEP_SUMMARY"),
        (("RUN", "--markdown", "FILE/r.md"), "cannot be written"),
        (("RUN", "--html", "."), "cannot be written"),
        (("RUN", "--metrics", "FILE/m"), "cannot be written"),
        (("RUN", "--png", "FILE"), "cannot be written"),
        (("RUN", "JUNIT", "--junit", "FILE/all.xml"), "cannot be written"),
        (("RUN", "--max-age", "-1"), "max-age"),
    ],
)
def test_a_mistake_is_a_sentence(
    run_dir: Path, junit: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    folder = run_dir.parent
    (folder / "empty").mkdir()
    monkeypatch.chdir(folder / "empty")
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    (folder / "file").write_text("")
    named = {"RUN": str(run_dir), "JUNIT": str(junit)}
    done = run(*(named.get(word, word.replace("FILE", str(folder / "file"))) for word in words))
    assert done.exit_code == 2
    assert said in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.output


def test_an_older_session_comes_in_on_request(tmp_path: Path) -> None:
    told = [build.record(local=2, finished=build.T0 - 40 * 3600, session="old"), build.record(local=4)]
    run_dir = build.write(tmp_path, told)
    assert run(run_dir).stdout.startswith("## scaleperf: 1 of 1 case red")
    assert run(run_dir, "--max-age", "48").stdout.startswith("## scaleperf: 2 of 2 cases red")


def test_the_command_itself_loads_nothing_heavy() -> None:
    """``scaleperf --help`` imports this module: what reads and draws is loaded when a report is made."""
    heavy = "{'matplotlib', 'jinja2', 'msgspec', 'junitparser', 'numpy', 'torch'}"
    told = f"import sys, pytest_scaleperf.report.command; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_templates_are_in_the_wheel(tmp_path: Path) -> None:
    """setuptools takes them along: the list of a built package is what pyproject.toml says."""
    import tomllib  # noqa: PLC0415 - one use

    root = Path(__file__).parents[2]
    patterns = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    package = tmp_path / "pytest_scaleperf"
    shutil.copytree(root / "pytest_scaleperf" / "report" / "templates", package / "report" / "templates")
    found = {path.name for pattern in patterns["pytest_scaleperf"] for path in package.glob(pattern)}
    assert found == {path.name for path in (package / "report" / "templates").iterdir()}
    assert {"page.html.j2", "trace.html.j2", "page.css", "page.js"} <= found
