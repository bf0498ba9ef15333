from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_scaleperf.launch import processes
from pytest_scaleperf.launch.local import LocalLauncher
from pytest_scaleperf.launch.protocol import Job, Launcher
from pytest_scaleperf.model import JobState, LaunchError, StopReason
from tests.launch.harness import STUBBORN, alive, said, shell, spec, until

GRACE = 0.5


@pytest.fixture
def launcher() -> Iterator[LocalLauncher]:
    with LocalLauncher(grace=GRACE) as made:
        yield made


def test_it_is_what_the_protocol_asks_for(launcher: LocalLauncher, tmp_path: Path) -> None:
    as_launcher: Launcher = launcher
    as_job: Job = as_launcher.submit(shell(tmp_path, "echo $$"))
    assert as_job.wait(10) is not None
    assert (tmp_path / "out.txt").read_text() == f"{as_job.id}\n"


@pytest.mark.parametrize(
    ("script", "code", "state"),
    [
        ("exit 0", 0, JobState.COMPLETED),
        ("exit 3", 3, JobState.FAILED),
        ("kill -SEGV $$", -signal.SIGSEGV, JobState.FAILED),
        ("kill -KILL $$", -signal.SIGKILL, JobState.FAILED),
        ("kill -TERM $$", -signal.SIGTERM, JobState.FAILED),
    ],
)
def test_how_the_main_process_ended(
    launcher: LocalLauncher, tmp_path: Path, script: str, code: int, state: JobState
) -> None:
    result = launcher.submit(shell(tmp_path, script)).wait(10)
    assert result is not None
    assert (result.exit_code, result.state, result.stopped) == (code, state, None)
    assert result.hosts == (socket.gethostname(),)
    assert result.leftovers == 0
    assert 0 < result.seconds < 5


def test_output_is_appended_as_bytes_and_input_is_empty(launcher: LocalLauncher, tmp_path: Path) -> None:
    script = "printf 'out \\377\\000\\n'; printf 'err\\n' >&2; cat; echo end"
    for _ in range(2):
        assert launcher.submit(shell(tmp_path, script)).wait(10) is not None
    assert (tmp_path / "out.txt").read_bytes() == b"out \xff\0\nerr\nend\n" * 2


def test_the_environment_is_exactly_the_ordered_one_and_the_marker(launcher: LocalLauncher, tmp_path: Path) -> None:
    env = {"PATH": os.environ["PATH"], "NOT_UTF8": "\udcff", "UMLAUT": "ä", processes.MARKER: "an outer session's"}
    job = launcher.submit(spec(tmp_path, "env", "-0", env=env))
    assert job.wait(10) is not None
    found = dict(entry.split(b"=", 1) for entry in (tmp_path / "out.txt").read_bytes().split(b"\0") if entry)
    expected = env | {processes.MARKER: job.marker}
    assert found == {name.encode(): os.fsencode(value) for name, value in expected.items()}


def test_arguments_and_folders_pass_as_they_are(launcher: LocalLauncher, tmp_path: Path) -> None:
    folder = tmp_path / "a folder \udcfe; $(x)"
    folder.mkdir()
    job = launcher.submit(spec(folder, "sh", "-c", 'pwd; printf "%s\n" "$@"', "sh", "", "\udcff", "$(id) 'q'"))
    assert job.wait(10) is not None
    assert (folder / "out.txt").read_bytes() == os.fsencode(folder) + b"\n\n\xff\n$(id) 'q'\n"


def test_a_job_ignores_no_signal_and_holds_no_descriptor_of_ours(launcher: LocalLauncher, tmp_path: Path) -> None:
    # Read by grep: Python itself would ignore two signals.
    assert launcher.submit(spec(tmp_path, "grep", "-E", "^Sig(Ign|Blk)", "/proc/self/status")).wait(10) is not None
    blocked, ignored = (int(line.split()[1], 16) for line in (tmp_path / "out.txt").read_text().splitlines())
    # Above 31 lie the two with which glibc's posix_spawn does as it likes.
    assert (blocked & 0x7FFFFFFF, ignored & 0x7FFFFFFF) == (0, 0)
    script = (
        "import os; print([os.readlink(f'/proc/self/fd/{n}') for n in range(3)]); print(os.listdir('/proc/self/fd'))"
    )
    output = tmp_path / "descriptors.txt"
    assert launcher.submit(spec(tmp_path, sys.executable, "-S", "-c", script, output=output)).wait(10) is not None
    links, descriptors = output.read_text().splitlines()
    assert links == str(["/dev/null", str(output), str(output)])
    assert descriptors == "['0', '1', '2', '3']"  # 3 is the folder that is being listed


def test_relative_paths_are_of_the_launching_process(
    launcher: LocalLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    assert launcher.submit(spec(Path("sub"), "pwd", output=Path("relative.txt"))).wait(10) is not None
    assert (tmp_path / "relative.txt").read_text() == f"{tmp_path / 'sub'}\n"


def test_the_program_is_looked_up_in_the_path_of_the_job(launcher: LocalLauncher, tmp_path: Path) -> None:
    for name, mode in (("first", 0o644), ("second", 0o755)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "trainer").write_text(f"#!/bin/sh\necho {name}\n")
        (tmp_path / name / "trainer").chmod(mode)
    path = f"{tmp_path / 'missing'}:{tmp_path / 'first'}:{tmp_path / 'second'}"
    assert launcher.submit(spec(tmp_path, "trainer", env={"PATH": path})).wait(10) is not None
    assert (tmp_path / "out.txt").read_text() == "second\n"


def test_wait_returns_none_in_time_and_the_result_at_once(launcher: LocalLauncher, tmp_path: Path) -> None:
    job = launcher.submit(shell(tmp_path, "sleep 0.4; date +%s.%N"))
    began = time.monotonic()
    assert job.wait(0) is None
    assert job.wait(0.1) is None
    assert 0.1 <= time.monotonic() - began < 0.3
    result = job.wait(float("inf"))
    late = time.time() - float((tmp_path / "out.txt").read_text())
    assert result is not None
    assert late < 0.2
    assert job.wait(0) == result


@pytest.mark.parametrize(
    ("argv", "texts"),
    [
        (("/no/such/trainer",), ("'/no/such/trainer'", "No such file", "trainer.executable")),
        (("no-such-trainer",), ("'no-such-trainer'", "PATH", "Install it")),
        (("plain.txt",), ("PATH",)),
        (("./plain.txt",), ("Permission denied", "chmod +x")),
        (("./no-first-line",), ("Exec format error", "#!/bin/sh")),
        (("./bad-first-line",), ("No such file", "first line")),
        (("sh", "x" * 3_000_000), ("Argument list too long", "Shorten")),
        (("sh", "a\0b"), ("null", "args")),
        ((), ("nothing to start",)),
    ],
)
def test_what_cannot_be_started_is_a_message(
    launcher: LocalLauncher, tmp_path: Path, argv: tuple[str, ...], texts: tuple[str, ...]
) -> None:
    (tmp_path / "plain.txt").write_text("x")
    for name, text in (("no-first-line", "echo x\n"), ("bad-first-line", "#!/no/such/shell\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    with pytest.raises(LaunchError) as caught:
        launcher.submit(spec(tmp_path, *argv))
    for text in ("suite[case]", *texts, *([repr(str(tmp_path))] if argv else [])):
        assert text in str(caught.value)
    after = launcher.submit(shell(tmp_path, "exit 0")).wait(10)
    assert after is not None


def test_a_missing_folder_or_output_folder_is_a_message(launcher: LocalLauncher, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(LaunchError, match=r"cannot start 'sh' in '.*missing': the folder cannot be entered \(No such"):
        launcher.submit(spec(tmp_path, "sh", cwd=missing))
    with pytest.raises(LaunchError, match=r"output file '.*missing/o.txt' cannot be opened .*--run-dir"):
        launcher.submit(spec(tmp_path, "sh", output=missing / "o.txt"))
    assert not missing.exists()


def test_a_full_disk_ends_the_job_and_hangs_nothing(launcher: LocalLauncher, tmp_path: Path) -> None:
    result = launcher.submit(shell(tmp_path, "head -c 100000 /dev/zero", output=Path("/dev/full"))).wait(10)
    assert result is not None
    assert result.state is JobState.FAILED


def test_a_hundred_megabytes_arrive_complete(launcher: LocalLauncher, tmp_path: Path) -> None:
    result = launcher.submit(shell(tmp_path, "head -c 100000000 /dev/zero")).wait(30)
    assert result is not None
    assert result.state is JobState.COMPLETED
    assert (tmp_path / "out.txt").stat().st_size == 100_000_000


def test_what_a_finished_job_leaves_behind_is_killed_and_counted(launcher: LocalLauncher, tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    job = launcher.submit(shell(tmp_path, f"{STUBBORN} {STUBBORN} until [ $(grep -c stubborn {out}) = 2 ]; do :; done"))
    result = job.wait(15)
    assert result is not None
    assert (result.state, result.exit_code, result.leftovers) == (JobState.COMPLETED, 0, 4)
    assert "4 process(es)" in result.detail
    assert processes.marked(job.marker) == []


def test_what_ends_by_itself_in_time_is_no_leftover(launcher: LocalLauncher, tmp_path: Path) -> None:
    job = launcher.submit(shell(tmp_path, "(sleep 0.3; echo flushed) & exit 0"))
    result = job.wait(15)
    assert result is not None
    assert (result.leftovers, result.detail) == (0, "")
    assert (tmp_path / "out.txt").read_text() == "flushed\n"


@pytest.mark.parametrize(
    ("reason", "state"),
    [
        (StopReason.INTERRUPTED, JobState.CANCELLED),
        (StopReason.STARTUP_LIMIT, JobState.TIMEOUT),
        (StopReason.NO_PROGRESS, JobState.TIMEOUT),
        (StopReason.TOTAL_LIMIT, JobState.TIMEOUT),
    ],
)
def test_a_stopped_job_says_why(launcher: LocalLauncher, tmp_path: Path, reason: StopReason, state: JobState) -> None:
    job = launcher.submit(spec(tmp_path, "sleep", "1000"))
    result = job.stop(reason)
    assert (result.state, result.stopped, result.exit_code) == (state, reason, -signal.SIGTERM)
    assert job.stop(StopReason.INTERRUPTED) == result
    assert job.wait(0) == result


def test_stop_ends_a_tree_that_ignores_everything(launcher: LocalLauncher, tmp_path: Path) -> None:
    job = launcher.submit(shell(tmp_path, f"{STUBBORN} sleep 1000"))
    assert until(said(tmp_path / "out.txt", "stubborn"))
    began = time.monotonic()
    result = job.stop(StopReason.NO_PROGRESS)
    assert GRACE <= time.monotonic() - began < GRACE + 2
    assert processes.marked(job.marker) == []
    assert result.leftovers == 0


def test_each_process_is_asked_once(launcher: LocalLauncher, tmp_path: Path) -> None:
    daemons = "(setsid sleep 1000 &); (setsid sh -c 'trap \"sleep 0.1; exit\" TERM; sleep 1000 & wait' &); "
    script = f"trap 'echo asked' TERM; {daemons} echo up; while :; do sleep 0.02; done"
    job = launcher.submit(shell(tmp_path, script))
    assert until(said(tmp_path / "out.txt", "up"))
    assert until(lambda: len(processes.marked(job.marker)) >= 4)
    assert job.stop(StopReason.TOTAL_LIMIT).exit_code == -signal.SIGKILL
    assert (tmp_path / "out.txt").read_text().count("asked") == 1


def test_a_polite_job_has_the_time_to_say_goodbye(launcher: LocalLauncher, tmp_path: Path) -> None:
    job = launcher.submit(shell(tmp_path, "trap 'sleep 0.1; echo bye; exit 7' TERM; echo up; sleep 1000 & wait"))
    assert until(said(tmp_path / "out.txt", "up"))
    result = job.stop(StopReason.TOTAL_LIMIT)
    assert (result.state, result.exit_code) == (JobState.TIMEOUT, 7)
    assert (tmp_path / "out.txt").read_text() == "up\nbye\n"


def test_a_job_that_had_ended_keeps_its_result(launcher: LocalLauncher, tmp_path: Path) -> None:
    job = launcher.submit(shell(tmp_path, "exit 5"))
    assert until(lambda: not alive(int(job.id)))
    time.sleep(0.1)
    result = job.stop(StopReason.TOTAL_LIMIT)
    assert (result.state, result.stopped, result.exit_code) == (JobState.FAILED, None, 5)


def test_stopped_processes_end_on_sigterm(launcher: LocalLauncher, tmp_path: Path) -> None:
    job = launcher.submit(shell(tmp_path, "setsid sh -c 'echo up; kill -STOP $$; sleep 1000' & sleep 1000"))
    assert until(said(tmp_path / "out.txt", "up"))
    assert until(lambda: [each for each in processes.tree([int(job.id)]) if each.state == "T"])
    os.kill(int(job.id), signal.SIGSTOP)
    began = time.monotonic()
    result = job.stop(StopReason.NO_PROGRESS)
    assert time.monotonic() - began < GRACE
    assert result.exit_code == -signal.SIGTERM
    assert processes.marked(job.marker) == []


def test_stopped_processes_that_ignore_sigterm_are_killed(launcher: LocalLauncher, tmp_path: Path) -> None:
    job = launcher.submit(shell(tmp_path, "trap '' TERM; echo up; while :; do kill -STOP $$; done"))
    assert until(said(tmp_path / "out.txt", "up"))
    result = job.stop(StopReason.NO_PROGRESS)
    assert (result.state, result.exit_code) == (JobState.TIMEOUT, -signal.SIGKILL)
    assert processes.marked(job.marker) == []


def test_a_process_that_changes_its_pid_all_the_time_is_caught(launcher: LocalLauncher, tmp_path: Path) -> None:
    script = (
        "import os, signal\n"
        "for name in (signal.SIGTERM, signal.SIGHUP): signal.signal(name, signal.SIG_IGN)\n"
        "print('hopping', flush=True)\n"
        "while True:\n"
        "    if os.fork(): os._exit(0)\n"
        "    os.setsid()\n"
    )
    job = launcher.submit(shell(tmp_path, f'{sys.executable} -S -c "{script}" & sleep 1000'))
    assert until(said(tmp_path / "out.txt", "hopping"))
    job.stop(StopReason.INTERRUPTED)
    assert processes.marked(job.marker) == []


def test_close_ends_everything_and_closes_for_good(launcher: LocalLauncher, tmp_path: Path) -> None:
    jobs = [launcher.submit(shell(tmp_path, f"{STUBBORN} sleep 1000", tmp_path / f"{n}.txt")) for n in range(3)]
    assert until(lambda: all(said(tmp_path / f"{n}.txt", "stubborn")() for n in range(3)))
    guardian = launcher.guardian_pid
    assert guardian is not None
    launcher.close()
    assert [pid for job in jobs for pid in processes.marked(job.marker)] == []
    assert processes.look(guardian) is None
    results = [job.wait(0) for job in jobs]
    assert [(each.state, each.stopped) for each in results if each] == [
        (JobState.CANCELLED, StopReason.INTERRUPTED)
    ] * 3
    launcher.close()
    with pytest.raises(LaunchError, match=r"suite\[case\]: not started: this launcher is closed"):
        launcher.submit(shell(tmp_path, "exit 0"))


def test_fifty_jobs_at_a_time(launcher: LocalLauncher, tmp_path: Path) -> None:
    jobs = [
        launcher.submit(shell(tmp_path, f"echo {n}; sleep 0.5; exit {n}", tmp_path / f"{n}.txt")) for n in range(50)
    ]
    running = len(processes.children(launcher.guardian_pid or 0))
    results = [job.wait(30) for job in jobs]
    assert running > 25
    assert [each.exit_code for each in results if each] == list(range(50))
    assert [(tmp_path / f"{n}.txt").read_text() for n in range(50)] == [f"{n}\n" for n in range(50)]
    assert len({job.marker for job in jobs}) == 50


def test_ending_one_job_touches_no_other(launcher: LocalLauncher, tmp_path: Path) -> None:
    staying = launcher.submit(shell(tmp_path, f"{STUBBORN} (setsid sleep 1000 &); sleep 1000"))
    assert until(lambda: said(tmp_path / "out.txt", "stubborn")() and len(processes.marked(staying.marker)) == 5)
    before = sorted(processes.marked(staying.marker))
    stopped = launcher.submit(shell(tmp_path, f"{STUBBORN} sleep 1000"))
    finished = launcher.submit(shell(tmp_path, f"{STUBBORN} sleep 0.2"))
    assert until(said(tmp_path / "out.txt", "stubborn", times=3))
    stopped.stop(StopReason.TOTAL_LIMIT)
    assert finished.wait(15) is not None
    assert processes.marked(stopped.marker) == processes.marked(finished.marker) == []
    assert sorted(processes.marked(staying.marker)) == before


def test_a_daemon_without_marker_session_or_parent_ends_with_the_job_that_made_it(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    hidden = "(env -i setsid sh -c 'trap \"\" TERM; echo daemon $$; exec sleep 1000' &); "

    def daemon(output: Path) -> int:
        assert until(said(output, "daemon"))
        return int(output.read_text().split()[-1])

    long = launcher.submit(shell(tmp_path, "sleep 1000"))
    short = launcher.submit(shell(tmp_path, f"{hidden} sleep 0.2", tmp_path / "short.txt"))
    theirs = daemon(tmp_path / "short.txt")
    assert short.wait(15) is not None
    # It may be the longer job's, which is older than it: nobody can tell, so it may live as long as that.
    assert alive(theirs)
    long.stop(StopReason.TOTAL_LIMIT)
    assert not alive(theirs)

    # Without marker or parent, but still in the session of its job: that tells.
    longer = launcher.submit(shell(tmp_path, "sleep 1000"))
    script = f"{hidden.replace('setsid', '')} sleep 0.2"
    member = launcher.submit(shell(tmp_path, script, tmp_path / "member.txt"))
    theirs = daemon(tmp_path / "member.txt")
    result = member.wait(15)
    assert result is not None
    assert result.leftovers == 1
    assert not alive(theirs)
    longer.stop(StopReason.TOTAL_LIMIT)

    alone = launcher.submit(shell(tmp_path, f"{hidden} sleep 0.2", tmp_path / "alone.txt"))
    theirs = daemon(tmp_path / "alone.txt")
    time.sleep(0.05)  # start times are told apart from 10 ms on
    younger = launcher.submit(shell(tmp_path, "sleep 1000"))
    result = alone.wait(15)
    assert result is not None
    assert result.leftovers == 1
    assert not alive(theirs)
    assert alive(int(younger.id))


def test_nothing_accumulates(launcher: LocalLauncher, tmp_path: Path) -> None:
    def held() -> tuple[int, int, list[int], list[int]]:
        guardian = launcher.guardian_pid
        assert guardian is not None
        descriptors = [len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in (os.getpid(), guardian)]
        return descriptors[0], descriptors[1], processes.children(guardian), processes.children(os.getpid())

    launcher.submit(shell(tmp_path, "exit 0")).wait(10)
    before = held()
    for n in range(200):
        result = launcher.submit(shell(tmp_path, "(exit 0) & exit 0" if n % 2 else "exit 0")).wait(10)
        assert result is not None
        assert result.state is JobState.COMPLETED
    assert held() == before
    assert before[2] == []
    # The resting guardian takes no processor time from what is measured.
    ticks = Path(f"/proc/{launcher.guardian_pid}/stat").read_text().split()[13:15]
    time.sleep(0.3)
    assert Path(f"/proc/{launcher.guardian_pid}/stat").read_text().split()[13:15] == ticks


def test_a_forked_child_can_neither_end_nor_start_jobs(launcher: LocalLauncher, tmp_path: Path) -> None:
    job = launcher.submit(shell(tmp_path, "sleep 1000"))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            launcher.submit(shell(tmp_path, "sleep 1000"))
        except LaunchError as error:
            code = 0 if "forked child" in str(error) else 2
        launcher.close()
        os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert job.wait(0.2) is None
    assert job.stop(StopReason.INTERRUPTED).state is JobState.CANCELLED


def test_other_systems_are_told_what_is_needed(
    launcher: LocalLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(LaunchError, match=r"needs Linux .*found darwin.*--launcher slurm"):
        launcher.submit(shell(tmp_path, "exit 0"))
    assert launcher.guardian_pid is None


def test_a_python_that_is_not_there_is_a_message(
    launcher: LocalLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(LaunchError, match=r"guardian of this session's jobs with '/no/such/python': No such file"):
        launcher.submit(shell(tmp_path, "exit 0"))
