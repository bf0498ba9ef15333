"""``scaleperf trace`` at a terminal: words, JSON, pictures, differences, and mistakes in one line each."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from pytest_scaleperf.trace.command import trace_app
from tests.trace.conftest import TRACES
from tests.trace.script import US, Script

SEL4 = str(TRACES / "sel4-rank0.json.gz")


def run(*args: str) -> Result:
    return CliRunner().invoke(trace_app, list(args))


def test_files_alone_are_shown() -> None:
    result = run(SEL4)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[0] == "rank 0 of 2, NVIDIA H200"
    assert run("show", SEL4).stdout == result.stdout


def test_a_folder_is_all_its_traces() -> None:
    result = run(str(TRACES))
    assert result.exit_code == 2
    assert "rank 0 is there twice" in result.stderr, "three runs lie in that folder"


def test_json() -> None:
    data = json.loads(run("--json", SEL4).stdout)
    assert data["ranks"][0]["file"] == SEL4
    assert not data["whole_steps"]


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_a_picture(suffix: str, tmp_path: Path) -> None:
    target = tmp_path / f"step{suffix}"
    result = run(SEL4, "--picture", str(target))
    assert result.exit_code == 0, result.output
    assert str(target) in result.stdout
    data = target.read_bytes()
    assert data.startswith(b"\x89PNG" if suffix == ".png" else b"<?xml")
    if suffix == ".svg":
        text = data.decode()
        for word in ("last backward", "stream 22", "not hidden", "exposed communication", "rank 0, step 19"):
            assert word in re.sub(r"<!-- (.*?) -->", r"\1", text), word


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--picture", "step.bmp"], "expected a picture's name ending in .svg, .png, .pdf"),
        (["--picture", "no/such/step.png"], "cannot be written: No such file"),
        (["--picture", "step.png", "--rank", "7"], "expected one of the ranks [0], found rank 7"),
        (["--picture", "step.png", "--step", "7"], "expected one of the steps [19], found 7"),
        (["--ranks", "2"], "expected the traces of 2 ranks, found 1 of 2 ranks read (missing: 1)"),
        (["--rule", "compute=(("], "expected a regular expression, found '(('"),
    ],
)
def test_mistakes_are_a_sentence(
    options: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(SEL4, *options)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert said in result.stderr
    assert result.stdout == ""


def test_a_rule_of_no_kind() -> None:
    result = run(SEL4, "--rule", "speed=x")
    assert result.exit_code == 2
    assert "found 'speed=x'" in re.sub(r"[│\s]+", " ", result.stderr)


def test_what_is_not_there(tmp_path: Path) -> None:
    for place, said in ((tmp_path / "none", "found nothing there"), (tmp_path, "found no *.json or *.json.gz in it")):
        result = run(str(place))
        assert (result.exit_code, said in result.stderr) == (2, True)


def test_rules_are_used(tmp_path: Path) -> None:
    script = Script(0, 1)
    script.kernel("our_ring", 0, 10 * US, 5)
    script.kernel("gemm", 10 * US, 40 * US, 5)
    path = str(script.write(tmp_path / "t.json"))
    assert "exposed communication 25.0 %" in run(path, "--rule", "communication=^our_").stdout
    assert "exposed communication 0.0 %" in run(path).stdout


def test_diff() -> None:
    result = run("diff", SEL4, str(TRACES / "trddp-rank0.json.gz"), "--top", "3")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("step: 403.212 ms -> ")
    assert len([line for line in lines[3:] if not line.startswith("note:")]) == 5
    data = json.loads(run("diff", SEL4, SEL4, "--json").stdout)
    assert data["change"] == 0


def test_it_works_inside_another_app() -> None:
    """As cli.py takes it in."""
    app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.add_typer(trace_app, name="trace")

    @app.callback()
    def main() -> None:
        """Another app."""

    inside = CliRunner().invoke(app, ["trace", SEL4])
    assert (inside.exit_code, inside.stdout) == (0, run(SEL4).stdout)
    assert CliRunner().invoke(app, ["trace", "diff", SEL4, SEL4]).exit_code == 0
    assert CliRunner().invoke(app, ["trace", "--json", SEL4]).stdout.startswith("{")


def test_the_command_alone_imports_nothing_heavy() -> None:
    heavy = ("numpy", "msgspec", "matplotlib")
    program = f"import sys, pytest_scaleperf.trace.command; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_help_names_both() -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert "show" in result.stdout
    assert "diff" in result.stdout
