"""`scaleperf observe`: what it prints for people and for programs, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from pytest_scaleperf.cli import app
from tests.titan.eventfiles import speed, write
from tests.titan.logs import PARTS, begin, header, line

DATA = Path(__file__).parent / "data"
ENDINGS = yaml.safe_load((DATA / "logs/endings.yaml").read_text(encoding="utf-8"))
WITH_DETAIL = [case for case in ENDINGS if "detail" in case["expect"]]


def run(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["observe", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def answer(*arguments: object) -> dict[str, Any]:
    code, out, err = run("--json", *arguments)
    assert (code, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "run.log"
    path.write_text("\n".join(PARTS.values()), encoding="utf-8")
    return path


def test_a_completed_run_for_people(log: Path) -> None:
    code, out, _ = run(log, "--exit-code", 0, "--warmup", 10, "--peak-flops", 1e15, "--world-size", 8)
    assert code == 0
    assert out.startswith("completed  step 40 of 40")
    text = " ".join(out.split())
    assert "steady steps 20, 30, 40 of 5 logged" in text
    assert "TPS 7,000 tokens/s/GPU console" in text
    assert "MFU 42.00 % console" in text
    assert "peak reserved 70.00 GiB console" in text
    assert "allocation retries 0 in the steady steps console" in text


def test_a_failed_run_for_people(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    oom = "[rank1]:[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB.\n"
    later = "[rank0]:[rank0]:[E820 09:23:20.000000000 ProcessGroupNCCL.cpp:1] [Rank 0] Heartbeat monitor timed out\n"
    path.write_text(PARTS["start"] + "\n" + oom + later, encoding="utf-8")
    code, out, _ = run(path, "--exit-code", 1)
    assert code == 0
    assert out.startswith("oom  step 10 of 40, rank 1, tried to allocate 2.50 GiB")
    assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. (line 5)" in out
    assert "then nccl_timeout: rank 0:" in out
    assert "note the run is oom, not completed" in out


def test_what_a_log_says_is_neither_markup_nor_a_terminal_command(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    evil = "[rank0]:[rank0]: RuntimeError: [red]x[/red] [/] \x07\x9b31m \u202e see [link=http://x]here[/link]\n"
    path.write_text(PARTS["start"] + "\n" + evil, encoding="utf-8")
    code, out, _ = run(path, "--exit-code", 1)
    assert code == 0
    assert "RuntimeError: [red]x[/red] [/] \\x07\\x9b31m \\u202e see [link=http://x]here[/link]" in out
    assert not set("\x07\x9b\u202e\x1b") & set(out)
    assert answer(path, "--exit-code", 1)["reason"].startswith("RuntimeError: [red]x[/red]")


@pytest.mark.parametrize("case", WITH_DETAIL, ids=[case["name"] for case in WITH_DETAIL])
def test_the_division_behind_an_error(case: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text(case["log"], encoding="utf-8")
    assert answer(path, "--exit-code", 1)["detail"] == case["expect"]["detail"]


def test_json_holds_no_word_that_json_does_not_know(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text(begin(10) + line(10, loss="     nan", grad_norm="    inf"), encoding="utf-8")
    found = answer(path, "--exit-code", 0)
    assert found["outcome"] == "nan_loss"
    assert found["samples"][0]["loss"] == "nan"
    assert found["samples"][0]["grad_norm"] == "inf"


def test_several_files_are_one_run(tmp_path: Path) -> None:
    for rank, tps in ((0, "7,000"), (1, "6,800"), (2, "7,100")):
        text = begin(10, rank="") + line(10, rank="", tps=tps) + "\n"
        (tmp_path / f"train.rank{rank}.log").write_text(text, encoding="utf-8")
    found = answer(*sorted(tmp_path.iterdir()), "--exit-code", 0)
    assert (found["outcome"], found["attempts"], found["steps"]) == ("completed", 1, 1)
    assert found["train"]["10"]["tps"] == 7000.0
    assert found["tps_min"]["10"] == 6800.0


def test_a_directory_with_event_files_and_console(tmp_path: Path) -> None:
    console = begin(20) + line(10, "13:10", tps="7,000") + "\n" + line(20, "13:20", tps="7,011")
    (tmp_path / "stdout.log").write_text(console, encoding="utf-8")
    write(tmp_path / "titan/tb/x/rank_0", {10: speed(7000.25), 20: speed(7010.75)})
    found = answer(tmp_path, "--exit-code", 0)
    assert found["tps"] == {"10": 7000.25, "20": 7010.75}
    assert found["sources"]["tps"] == "event files"
    assert found["sources"]["loss"] == "console"


def test_an_event_file_by_name(tmp_path: Path) -> None:
    path = write(tmp_path, {1: speed(100.0), 10: speed(7000.0), 20: speed(7100.0)})
    found = answer(path, "--exit-code", 0, "--requested-steps", 20)
    assert (found["outcome"], found["median_tps"]) == ("completed", 7050.0)


def test_tokens_of_a_step_from_the_logs_own_settings(tmp_path: Path) -> None:
    mesh = (
        header("12:40") + "Building device mesh with parallelism: pp=2, dp_replicate=1, dp_shard=4, cp=1, tp=1, ep=1\n"
    )
    path = tmp_path / "run.log"
    path.write_text(mesh + begin(20) + line(10, "13:10") + "\n" + line(20, "13:20") + "\n", encoding="utf-8")
    found = answer(path, "--exit-code", 0)
    assert (found["world_size"], found["tokens_per_step"]) == (8, 16 * 8192)
    assert found["step_time_s"] == 16 * 8192 / 8 / 7000
    assert found["global_tokens_per_s"] == 56000


def test_a_v_schedule_has_its_loss_on_rank_0(log: Path) -> None:
    usual = answer(log, "--exit-code", 0, "--world-size", 8, "--given", "pp=2")
    assert usual["loss_rank"] == 0  # where the loss was seen
    v_shape = answer(log, "--exit-code", 0, "--world-size", 8, "--given", "pp=2", "--given", "schedule=ZBVZeroBubble")
    assert v_shape["loss_rank"] == 0
    assert v_shape["warn"] is None


def test_the_same_run_without_its_end_is_not_completed(log: Path) -> None:
    assert answer(log)["outcome"] == "completed"
    assert answer(log, "--requested-steps", 50)["outcome"] == "incomplete"
    assert answer(log, "--slurm-state", "TIMEOUT")["outcome"] == "time_limit"
    assert answer(log, "--exit-code", 1)["outcome"] == "error"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no-such-file"], "no such file or directory: no-such-file"),
        (["empty.log"], "nothing readable in"),
        (["folder"], "nothing readable in"),
        (["run.log", "--given", "cp"], "expected NAME=VALUE"),
    ],
)
def test_refusals_are_one_line_and_exit_2(
    log: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(log.parent)
    Path("empty.log").write_text(" \n", encoding="utf-8")
    Path("folder").mkdir()
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


def test_the_command_is_installed_and_imports_no_torch(log: Path) -> None:
    code = (
        "import sys; from pytest_scaleperf.cli import app; sys.argv = ['scaleperf', 'observe', sys.argv[1]]\n"
        "try: app()\nexcept SystemExit as end: code = end.code\n"
        "heavy = {'torch', 'tensorboard', 'numpy', 'pytest'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(log)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("completed")


def dump(path: Path, *speeds: tuple[int, float]) -> Path:
    rows = [{"step": step, "tag": "throughput(tps)", "value": value} for step, value in speeds]
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


def test_of_scalars_that_go_back_only_the_last_attempt_counts(tmp_path: Path) -> None:
    path = dump(tmp_path / "run.json", (100, 1.0), (200, 2.0), (300, 3.0), (300, 900.0), (400, 7000.0))
    found = answer(path)
    assert (found["attempts"], found["tps"]) == (2, {"300": 900.0, "400": 7000.0})


def test_scalars_that_are_written_twice_are_one_attempt(tmp_path: Path) -> None:
    path = dump(tmp_path / "run.json", (100, 1.0), (200, 2.0), (200, 2.0), (300, 3.0))
    assert answer(path)["attempts"] == 1


@pytest.mark.parametrize("text", ["[]", "{}", "[1]", '[{"step": "1", "tag": "tflops", "value": 1}]', "["])
def test_json_of_another_kind_is_no_list_of_scalars(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text, encoding="utf-8")
    assert answer(path)["steps"] == 0


def test_who_did_not_report_a_timeout_is_named() -> None:
    found = answer(DATA / "h200/runs/fault_STOP")
    assert found["failure_details"] == {
        "collective": "_ALLGATHER_BASE",
        "sequence": 321,
        "timeout_ms": 20000,
        "quiet_ranks": [1],
    }
    assert "rank 0, not heard from: rank 1" in run(DATA / "h200/runs/fault_STOP")[1]


def test_a_run_that_is_not_judged_still_shows_its_window() -> None:
    found = answer(DATA / "h200/runs/none12")
    assert found["outcome"] == "interrupted"
    assert (found["median_tps"], found["run_peak_gib"]) == (26572.0, 138.07)
    assert (found["alloc_retries"], found["alloc_retries_cumulative"]) == (28, [8, 18, 28])


@pytest.mark.parametrize(("stopped", "outcome"), [("no_progress", "hang"), ("total_limit", "time_limit")])
def test_what_the_caller_ended(tmp_path: Path, stopped: str, outcome: str) -> None:
    path = tmp_path / "run.log"
    path.write_text(PARTS["start"], encoding="utf-8")
    assert answer(path, "--stopped", stopped)["outcome"] == outcome
