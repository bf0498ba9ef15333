"""Run directories to observations: all ranks' event files, the console for the rest, attempts, damaged files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_scaleperf.model import Outcome, Source, StopReason
from pytest_scaleperf.titan.observe import Files, find_files, observe
from tests.titan.eventfiles import speed, write
from tests.titan.logs import PARTS, begin, header, line

SPEEDS = {1: speed(100.0), 10: speed(7000.25), 20: speed(7010.75)}


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A finished run as our own product leaves it, without event files and rank files."""
    (tmp_path / "stdout.log").write_text("\n".join(PARTS.values()), encoding="utf-8")
    return tmp_path


def rank_file(run_dir: Path, rank: int, **more: object) -> None:
    (run_dir / "ranks").mkdir(exist_ok=True)
    content = {"rank": rank, "host": "h", "matmul_flops": 1.2e11, "matmul_flops_after": 1.0e11, **more}
    (run_dir / "ranks" / f"rank{rank}.json").write_text(json.dumps(content), encoding="utf-8")


def test_the_console_alone(run_dir: Path) -> None:
    seen = observe(run_dir, exit_code=0)
    assert seen.outcome is Outcome.COMPLETED
    assert [s.step for s in seen.series] == [1, 10, 20, 30, 40]
    assert set(seen.sources.values()) == {Source.CONSOLE}
    assert (seen.requested_steps, seen.last_step, seen.first_step, seen.attempts) == (40, 40, 1, 1)


def test_event_files_of_all_ranks_come_first(tmp_path: Path) -> None:
    console = begin(20) + "\n".join(line(s, f"13:{s:02}", tps=t) for s, t in ((1, "100"), (10, "7,000"), (20, "7,011")))
    (tmp_path / "stdout.log").write_text(console, encoding="utf-8")
    for rank, (tps, gib) in enumerate([(7010.75, 20.0), (6990.0, 24.0), (7012.0, 22.0)]):
        steps = {1: speed(100.0), 10: speed(7000.25), 20: speed(tps, gib, retries=float(rank))}
        write(tmp_path / f"titan/tb/20261130-1843/rank_{rank}", steps, started=1000.0 + rank)
    seen = observe(tmp_path, exit_code=0)
    last = seen.series[-1]
    assert (last.tps, last.tps_min, last.memory_gib, last.alloc_retries, last.ranks) == (7010.75, 6990.0, 24.0, 2, 3)
    assert seen.sources["tps"] is Source.EVENT_FILES
    assert seen.sources["loss"] is Source.CONSOLE
    assert seen.warnings == ()


def test_event_files_alone_without_a_rank_folder(tmp_path: Path) -> None:
    write(tmp_path / "dump/tb/20261130-1843", SPEEDS)
    seen = observe(tmp_path, exit_code=0, requested_steps=20)
    assert seen.outcome is Outcome.COMPLETED
    assert [s.tps for s in seen.series] == [100.0, 7000.25, 7010.75]


def test_two_ranks_give_a_speed_that_one_of_them_reported(tmp_path: Path) -> None:
    for rank, tps in enumerate((7000.0, 7002.0)):
        write(tmp_path / f"tb/x/rank_{rank}", {10: speed(tps)})
    assert observe(tmp_path).series[0].tps == 7000.0


@pytest.mark.parametrize("cut", [1, 20, 300])
def test_a_truncated_event_file_gives_what_is_readable_and_says_so(tmp_path: Path, cut: int) -> None:
    path = write(tmp_path / "tb/x", SPEEDS)
    path.write_bytes(path.read_bytes()[:-cut])
    seen = observe(tmp_path)
    assert [s.step for s in seen.series][:2] == [1, 10]
    assert any("truncated or corrupt" in text and path.name in text for text in seen.warnings)


def test_a_corrupt_event_file_gives_what_comes_before_and_says_so(tmp_path: Path) -> None:
    path = write(tmp_path / "tb/x", SPEEDS)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))
    seen = observe(tmp_path)
    assert seen.series[0].tps == 100.0
    assert any("truncated or corrupt" in text for text in seen.warnings)


@pytest.mark.parametrize("data", [b"", b"no event file", b"\x00" * 64])
def test_what_is_no_event_file_is_said_and_the_console_serves(run_dir: Path, data: bytes) -> None:
    (run_dir / "titan").mkdir()
    (run_dir / "titan/events.out.tfevents.1.host.1.0").write_bytes(data)
    seen = observe(run_dir, exit_code=0)
    assert seen.outcome is Outcome.COMPLETED
    assert seen.series[-1].tps == 7000.0
    assert any("events.out.tfevents.1" in text for text in seen.warnings)


def test_steps_that_the_event_files_lack_come_from_the_console(tmp_path: Path) -> None:
    console = begin(20) + line(10, "13:10", tps="7,000") + "\n" + line(20, "13:20", tps="7,011")
    (tmp_path / "stdout.log").write_text(console, encoding="utf-8")
    write(tmp_path / "titan/tb/x", {10: speed(7000.25)})
    seen = observe(tmp_path)
    assert [s.tps for s in seen.series] == [7000.25, 7011.0]
    assert any("lack some steps" in text for text in seen.warnings)


def test_of_a_resumed_run_the_newest_event_files_count(tmp_path: Path) -> None:
    for rank in (0, 1):
        write(tmp_path / f"tb/a/rank_{rank}", {1: speed(1.0), 10: speed(5000.0)}, started=1000.0)
        write(tmp_path / f"tb/b/rank_{rank}", {20: speed(900.0), 30: speed(7000.0)}, started=2000.0 + rank)
    seen = observe(tmp_path)
    assert [s.step for s in seen.series] == [20, 30]
    assert seen.attempts == 2
    assert seen.first_step == 20  # no line says where it began: the latest that it can be
    assert any("first logged step is 20" in text for text in seen.warnings)


def test_a_rank_that_wrote_nothing_in_the_last_attempt_is_left_out(tmp_path: Path) -> None:
    write(tmp_path / "tb/a/rank_0", {10: speed(5000.0)}, started=1000.0)
    write(tmp_path / "tb/a/rank_1", {10: speed(5000.0)}, started=1000.0)
    write(tmp_path / "tb/b/rank_0", {20: speed(7000.0)}, started=2000.0)
    seen = observe(tmp_path)
    assert [s.step for s in seen.series] == [20]
    assert any("rank 1 wrote nothing in the last attempt" in text for text in seen.warnings)


def test_event_files_of_the_attempt_before_are_not_taken_for_the_last(tmp_path: Path) -> None:
    log = begin() + line(1) + "\n" + line(10, "13:14") + "\n" + begin(clock="15:00")
    (tmp_path / "stdout.log").write_text(log, encoding="utf-8")
    write(tmp_path / "titan/tb/a", {1: speed(100.0), 10: speed(7000.0)})
    seen = observe(tmp_path, exit_code=1)
    assert seen.series == ()
    assert seen.attempts == 2
    assert any("event files are not used" in text for text in seen.warnings)


def test_event_files_of_another_run_are_not_mixed_in(run_dir: Path) -> None:
    write(run_dir / "titan/tb/a", {10: speed(123.0), 20: speed(124.0)})
    seen = observe(run_dir, exit_code=0)
    assert seen.series[1].tps == 7000.0
    assert any("disagree at step 10" in text for text in seen.warnings)


def test_validation_and_foreign_tags_are_no_training_values(tmp_path: Path) -> None:
    values = {"validation_metrics/throughput(tps)": 9.0, "validation_metrics/memory/max_reserved(GiB)": 99.0}
    write(tmp_path / "tb/x", {10: {**speed(7000.0), **values, "time_metrics/end_to_end(s)": 0.01}})
    sample = observe(tmp_path).series[0]
    assert (sample.tps, sample.memory_gib) == (7000.0, 10.0)


def test_a_forks_own_name_before_a_tag_is_understood(tmp_path: Path) -> None:
    write(tmp_path / "tb/x", {10: {"train/throughput(tps)": 7000.0, "train/tflops": 70.0}})
    sample = observe(tmp_path).series[0]
    assert (sample.tps, sample.tflops) == (7000.0, 70.0)


def test_statistics_that_the_device_does_not_have_are_not_known(tmp_path: Path) -> None:
    gone = {"tps": 7000.0, "gib": -9.3e-10, "pct": -1e-9, "retries": -1.0}
    write(tmp_path / "tb/x", {10: gone})
    sample = observe(tmp_path).series[0]
    assert (sample.memory_gib, sample.memory_pct, sample.alloc_retries) == (None, None, None)


def test_a_loss_that_is_not_finite_in_the_event_files_fails_the_run(run_dir: Path) -> None:
    log = begin(20) + line(10, "13:10") + "\n" + line(20, "13:20") + "\n"
    (run_dir / "stdout.log").write_text(log, encoding="utf-8")
    write(run_dir / "titan/tb/x", {10: speed(7000.0, loss=9.0), 20: speed(7000.0, loss=float("nan"))})
    seen = observe(run_dir, exit_code=0)
    assert seen.outcome is Outcome.NAN_LOSS
    assert seen.failure is not None
    assert seen.failure.step == 20


def test_rank_files_give_the_measured_peak_and_the_software(run_dir: Path) -> None:
    rank_file(run_dir, 1)
    rank_file(run_dir, 0, matmul_flops=1.4e11, matmul_flops_after=None, software={"torch": "2.13.0", "device": "CPU"})
    seen = observe(run_dir, exit_code=0)
    assert seen.rank_peak_flops == (1.4e11, 1.1e11)
    assert seen.sources["rank_peak_flops"] is Source.RANK_FILES
    assert seen.software == {"torch": "2.13.0", "device": "CPU"}


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"rank": "x"}', '{"rank": null}', "\x00"])
def test_a_bad_rank_file_is_said(run_dir: Path, content: str) -> None:
    rank_file(run_dir, 0)
    (run_dir / "ranks/rank1.json").write_text(content, encoding="utf-8")
    seen = observe(run_dir, exit_code=0)
    assert seen.rank_peak_flops == (1.1e11,)
    assert any("rank1.json: unreadable rank file" in text for text in seen.warnings)


def test_another_ones_run_directory(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/slurm-42.out").write_text("\n".join(PARTS.values()), encoding="utf-8")
    (tmp_path / "logs/slurm-42.err").write_text("[rank1]:[rank1]: RuntimeError: no\n", encoding="utf-8")
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint/other.log").write_text(line(99), encoding="utf-8")
    event = write(tmp_path / "outputs/tb/x", SPEEDS)
    found = find_files(tmp_path)
    assert [path.name for path in found.logs] == ["slurm-42.err", "slurm-42.out"]
    assert found.events == (event,)
    assert observe(tmp_path, exit_code=1).outcome is Outcome.ERROR


def test_one_file_for_each_rank_as_torchrun_redirects_them(tmp_path: Path) -> None:
    for rank, tps in ((0, "7,000"), (1, "6,900"), (2, "7,100")):
        folder = tmp_path / f"none_abc/attempt_0/{rank}"
        folder.mkdir(parents=True)
        (folder / "stdout.log").write_text(begin(10, rank="") + line(10, rank="", tps=tps) + "\n", encoding="utf-8")
        (folder / "stderr.log").write_text("", encoding="utf-8")
    (tmp_path / "none_abc/attempt_0/2/stderr.log").write_text("[rank2]: MemoryError\n", encoding="utf-8")
    seen = observe(tmp_path, exit_code=1)
    assert (seen.series[0].tps, seen.series[0].tps_min, seen.series[0].ranks) == (7000.0, 6900.0, 3)
    assert seen.failure is not None
    assert (seen.outcome, seen.failure.rank) == (Outcome.HOST_OOM, 2)


def test_a_run_that_left_nothing(tmp_path: Path) -> None:
    assert not find_files(tmp_path)
    seen = observe(tmp_path, exit_code=-9, stopped=StopReason.STARTUP_LIMIT)
    assert seen.outcome is Outcome.HANG
    assert (seen.series, seen.last_step) == ((), None)


def test_a_log_that_is_not_there_is_said(tmp_path: Path) -> None:
    seen = observe(logs=[tmp_path / "no.log"], exit_code=0)
    assert seen.outcome is Outcome.INCOMPLETE
    assert any("no.log: cannot be read" in text for text in seen.warnings)


def test_the_world_size_of_the_mesh_and_the_steps_of_the_caller(tmp_path: Path) -> None:
    mesh = (
        header("12:40") + "Building device mesh with parallelism: pp=1, dp_replicate=2, dp_shard=4, cp=1, tp=1, ep=1\n"
    )
    log = tmp_path / "log.txt"
    log.write_text(mesh + begin(20) + line(20) + "\n", encoding="utf-8")
    seen = observe(logs=[log], exit_code=0, requested_steps=30)
    assert seen.world_size == 8
    assert (seen.outcome, seen.requested_steps) == (Outcome.INCOMPLETE, 30)
    assert any("the log says 20" in text for text in seen.warnings)


def test_a_guessed_peak_and_a_strange_gradient_are_said(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    guess = header("12:40").replace("INFO", "WARNING") + "Peak flops undefined for: Foo, fallback to A100\n"
    log.write_text(guess + begin(20) + line(20, grad_norm="    nan") + "\n", encoding="utf-8")
    seen = observe(logs=[log], exit_code=0)
    assert any("did not know this GPU" in text for text in seen.warnings)
    assert any("gradient norm at step 20 is not finite" in text for text in seen.warnings)


def test_a_pipelines_sentinel_is_no_loss(tmp_path: Path) -> None:
    mesh = (
        header("12:40") + "Building device mesh with parallelism: pp=2, dp_replicate=1, dp_shard=4, cp=1, tp=1, ep=1\n"
    )
    log = tmp_path / "log.txt"
    log.write_text(mesh + begin(10) + line(10, loss="-2.00000") + "\n", encoding="utf-8")
    seen = observe(logs=[log], exit_code=0)
    assert seen.series[0].loss is None
    assert "loss not visible; loss-visible rank is 4" in seen.warnings


def test_files_say_whether_there_are_any(tmp_path: Path) -> None:
    assert not Files()
    assert Files(logs=(tmp_path,))


def test_losses_that_mean_nothing_fail_no_run(tmp_path: Path) -> None:
    """A rehearsal's collectives do nothing: its loss and gradient norm may be anything."""
    console = begin(3) + "\n".join(
        line(step, f"13:0{step}", loss="     nan", grad_norm="    nan") for step in (1, 2, 3)
    )
    (tmp_path / "stdout.log").write_text(console + "\n", encoding="utf-8")
    assert observe(tmp_path, exit_code=0).outcome is Outcome.NAN_LOSS
    rehearsed = observe(tmp_path, exit_code=0, losses=False)
    assert rehearsed.outcome is Outcome.COMPLETED
    assert rehearsed.last_step == 3
    assert rehearsed.warnings == ()
    assert observe(tmp_path, exit_code=1, losses=False).outcome is Outcome.ERROR
