from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_scaleperf.launch import processes
from tests.launch.harness import alive, until


@contextmanager
def running(*argv: str, marker: str | None = None) -> Iterator[subprocess.Popen[bytes]]:
    env = {"PATH": os.environ["PATH"]} | ({processes.MARKER: marker} if marker else {})
    with subprocess.Popen(argv, env=env, start_new_session=True, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            with_children = processes.tree([process.pid])
            for each in with_children:
                processes.send(each, signal.SIGKILL)


def test_a_process_is_read_whatever_its_name_is(tmp_path: Path) -> None:
    program = tmp_path / "a) S 1 (b"
    shutil.copy("/bin/sleep", program)
    with running(str(program), "100") as process:
        seen = processes.look(process.pid)
        assert seen is not None
        assert (seen.pid, seen.parent, seen.session) == (process.pid, os.getpid(), process.pid)
        assert seen.name == "a) S 1 (b"
        assert not seen.kernel
    assert processes.look(process.pid) is None


def test_children_of_every_thread_are_found_by_both_ways() -> None:
    script = (
        "import subprocess, threading, time\n"
        "def start(): subprocess.Popen(['sleep', '100']); print('up', flush=True); time.sleep(100)\n"
        "[threading.Thread(target=start).start() for _ in range(3)]\n"
    )
    with running(sys.executable, "-c", script) as process:
        assert process.stdout is not None
        for _ in range(3):
            process.stdout.readline()
        found = processes.children(process.pid)
        assert len(found) == 3
        assert sorted(found) == sorted(processes.children_by_scan(process.pid))
        assert {each.pid for each in processes.tree([process.pid])} == {process.pid, *found}
    assert processes.children(process.pid) == []


def test_marked_means_this_job_or_a_job_of_this_session() -> None:
    with running("sleep", "100", marker="here.1") as one, running("sleep", "100", marker="here.10") as ten:
        assert until(lambda: processes.marked("here.10") == [ten.pid])
        assert processes.marked("here.1") == [one.pid]
        assert sorted(processes.marked("here")) == sorted([one.pid, ten.pid])
        assert processes.marked("her") == []


def test_a_zombie_is_not_marked() -> None:
    with running("sleep", "100", marker="zombie.1") as process:
        assert until(lambda: processes.marked("zombie.1"))
        process.send_signal(signal.SIGKILL)
        assert until(lambda: not alive(process.pid))
        seen = processes.look(process.pid)
        assert seen is not None
        assert seen.state == "Z"
        assert processes.marked("zombie.1") == []


def test_an_environment_without_the_marker_has_none() -> None:
    with running("sleep", "100") as process:
        assert processes.marker_of(process.pid) is None
    with running("env", "-i", "sleep", "100", marker="gone.1") as process:
        assert until(lambda: processes.marker_of(process.pid) is None)


def test_a_signal_never_reaches_a_later_process_of_the_same_pid() -> None:
    with running("sleep", "100") as process:
        seen = processes.look(process.pid)
        assert seen is not None
        assert not processes.send(replace(seen, start=seen.start - 1), signal.SIGKILL)
        assert alive(process.pid)
        assert processes.send(seen, signal.SIGKILL)
        assert process.wait(10) == -signal.SIGKILL
        assert not processes.send(seen, signal.SIGKILL)


@pytest.mark.parametrize("refusal", [OSError(38, "no such call"), PermissionError(1, "filtered")])
def test_without_pidfds_signals_still_arrive(monkeypatch: pytest.MonkeyPatch, refusal: OSError) -> None:
    def refuse(_pid: int) -> int:
        raise refusal

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with running("sleep", "100") as process:
        seen = processes.look(process.pid)
        assert seen is not None
        assert processes.send(seen, signal.SIGKILL)
        assert process.wait(10) == -signal.SIGKILL


def test_end_marked_ends_the_marked_and_their_unmarked_descendants() -> None:
    script = "env -i sh -c 'trap \"\" TERM; sleep 1000; sleep 1000' & setsid sleep 1000 & echo up; wait"
    with running("sh", "-c", script, marker="end.1") as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert until(lambda: len(processes.tree([process.pid])) == 4)
        everything = processes.tree([process.pid])
        assert processes.end_marked("end", 10.0) == []
        process.wait(10)
        assert [each for each in everything if alive(each.pid)] == []
