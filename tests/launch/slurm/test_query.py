"""The shared question, put to real programs that stand in for squeue and sacct on the PATH."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from pytest_scaleperf.launch.slurm.query import Poller
from pytest_scaleperf.model import JobState
from tests.launch.harness import until


class Clock:
    """Seconds as the test wants them."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


class Programs:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = folder / "count"
        self.count.write_text("")

    def squeue(self, script: str) -> None:
        self._write("squeue", f"echo x >> {self.count}\n{script}")

    def sacct(self, script: str) -> None:
        self._write("sacct", script)

    def _write(self, name: str, script: str) -> None:
        (self.folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.folder / name).chmod(0o755)

    @property
    def asked(self) -> int:
        return len(self.count.read_text().split())


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    return Programs(tmp_path)


def ask_once(poller: Poller, clock: Clock, seconds: float = 100.0) -> None:
    """Let time pass, and take the answer."""
    clock.now += seconds
    before = poller.asked
    poller.look()
    assert poller.asked == before + 1
    deadline = time.monotonic() + 10
    while poller._asking is not None:
        poller.look()
        assert time.monotonic() < deadline
        time.sleep(0.005)


def is_answered(poller: Poller) -> bool:
    poller.look()
    return poller._asking is None


RUNNING = "|RUNNING|n1|2026-11-30T23:39:30|2026-11-30T23:39:30|N/A|None"


def test_500_jobs_are_one_question_in_5_seconds(programs: Programs, clock: Clock) -> None:
    programs.squeue(f'i=1; while [ $i -le 500 ]; do echo "$i{RUNNING}"; i=$((i+1)); done')
    poller = Poller(clock=clock)
    for job in range(1, 501):
        poller.watch(str(job))
    for _ in range(100):  # 50 s, looked at twice a second by everybody who waits
        for _ in range(5):
            poller.look()
        assert until(lambda: is_answered(poller))
        clock.now += 0.5
    poller.close()
    assert 5 <= programs.asked <= 10
    assert poller.asked == programs.asked
    assert {poller.seen(str(job)) is not None for job in range(1, 501)} == {True}


def test_an_error_means_that_nothing_is_known_yet(programs: Programs, clock: Clock) -> None:
    programs.squeue(f"echo '7{RUNNING}'")
    poller = Poller(clock=clock)
    poller.watch("7")
    ask_once(poller, clock)
    programs.squeue("echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1")
    for _ in range(4):
        ask_once(poller, clock, 30.0)
    seen = poller.seen("7")
    assert seen is not None
    assert seen.state is JobState.RUNNING
    assert not poller.is_lost("7")
    assert poller.away_for == 90.0
    programs.squeue(f"echo '7{RUNNING.replace('RUNNING', 'COMPLETED')}'")
    ask_once(poller, clock, 30.0)
    seen = poller.seen("7")
    assert seen is not None
    assert seen.state is JobState.COMPLETED
    assert poller.away_for == 0


def test_a_controller_that_is_away_is_asked_less_often(programs: Programs, clock: Clock) -> None:
    programs.squeue("exit 1")
    poller = Poller(clock=clock)
    poller.watch("7")
    ask_once(poller, clock)
    for seconds in (10.0, 20.0, 30.0, 30.0):
        clock.now += seconds - 0.5
        poller.look()
        assert poller._asking is None
        ask_once(poller, clock, 0.5)


GONE = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"


def test_a_forgotten_job_is_lost_only_after_the_lag(programs: Programs, clock: Clock) -> None:
    programs.squeue(GONE)
    programs.sacct("echo 'Slurm accounting storage is disabled' >&2; exit 1")
    poller = Poller(clock=clock)
    poller.watch("7")
    ask_once(poller, clock)
    assert not poller.is_lost("7")
    clock.now += 299
    assert not poller.is_lost("7")
    clock.now += 2
    assert poller.is_lost("7")
    assert poller.seen("7") is None


def test_accounting_may_be_five_minutes_late(programs: Programs, clock: Clock) -> None:
    programs.squeue(GONE)
    programs.sacct("echo '7|RUNNING|0:0|n1|2026-11-30T23:39:30|2026-11-30T23:39:30|Unknown'")
    poller = Poller(clock=clock)
    poller.watch("7")
    for _ in range(2):
        ask_once(poller, clock)
        assert poller.seen("7") is None
    programs.sacct("echo '7|CANCELLED by 5|0:15|n1|2026-11-30T23:39:30|2026-11-30T23:39:30|2026-11-30T23:40:30'")
    ask_once(poller, clock)
    seen = poller.seen("7")
    assert seen is not None
    assert (seen.state, seen.exit_code, seen.seconds) == (JobState.CANCELLED, -15, 60.0)
    assert not poller.is_lost("7")


def test_without_sacct_at_all(programs: Programs, clock: Clock) -> None:
    programs.squeue(GONE)
    poller = Poller(clock=clock)
    poller.watch("7")
    for _ in range(3):
        ask_once(poller, clock)
    assert poller.seen("7") is None
