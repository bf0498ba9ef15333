from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

from pytest_scaleperf.launch import guard, processes
from pytest_scaleperf.launch.local import LocalLauncher
from pytest_scaleperf.model import JobState, LaunchError, StopReason
from tests.launch.harness import SESSION, STUBBORN, Session, alive, said, session, shell, spec, until

TREE = ("/bin/sh", "-c", f"{STUBBORN} (setsid sleep 1000 &); sleep 1000")
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed here")


@pytest.fixture
def launcher() -> Iterator[LocalLauncher]:
    with LocalLauncher(grace=0.5) as made:
        yield made


def kill(running: Session) -> None:
    running.process.kill()


def terminate(running: Session) -> None:
    running.process.terminate()


def hang_up(running: Session) -> None:
    running.process.send_signal(signal.SIGHUP)


def interrupt_group(running: Session) -> None:
    """As a terminal's Ctrl-C does."""
    os.killpg(running.process.pid, signal.SIGINT)


@pytest.mark.parametrize("end", [kill, terminate, hang_up, interrupt_group])
def test_nothing_outlives_the_session(tmp_path: Path, end: Callable[[Session], None]) -> None:
    jobs = 3
    with session(tmp_path, *TREE, jobs=jobs) as running:
        assert until(lambda: all(said(tmp_path / f"job {n}.txt", "stubborn")() for n in range(jobs)))
        assert until(lambda: len(running.left()) == 5 * jobs + 1)
        end(running)
        running.process.wait(10)
        assert until(lambda: not running.left(), timeout=5), processes.describe(processes.tree(running.left()))


def test_a_forked_child_of_the_session_keeps_nothing_alive(tmp_path: Path) -> None:
    with session(tmp_path, *TREE, mode="forked") as running:
        forked = processes.children(running.process.pid)
        assert len(forked) == 2
        kill(running)
        assert until(lambda: not running.left(), timeout=5)
        rest = [pid for pid in forked if alive(pid)]
        assert len(rest) == 1  # the forked child itself, with its copy of the connection
        os.kill(rest[0], signal.SIGKILL)


def test_a_session_inside_a_job_ends_with_the_job(launcher: LocalLauncher, tmp_path: Path) -> None:
    order = '{"folder": "%s", "argv": ["/bin/sh", "-c", "sleep 1000 & setsid sleep 1000"], "jobs": 2, "mode": "wait"}'
    job = launcher.submit(spec(tmp_path, sys.executable, str(SESSION), order % tmp_path))
    assert until(said(tmp_path / "out.txt", "markers"))
    assert until(lambda: len(processes.tree([int(job.id)])) == 8)
    everything = processes.tree([int(job.id)])
    os.kill(int(job.id), signal.SIGKILL)
    assert job.wait(10) is not None
    assert until(lambda: not [each for each in everything if alive(each.pid)], timeout=5)


def test_two_launchers_touch_only_their_own(launcher: LocalLauncher, tmp_path: Path) -> None:
    mine = launcher.submit(shell(tmp_path, "sleep 1000"))
    with LocalLauncher(grace=0.5) as other:
        theirs = other.submit(shell(tmp_path, "sleep 1000"))
        assert other.guardian_pid != launcher.guardian_pid
    assert processes.marked(theirs.marker) == []
    assert mine.wait(0.1) is None
    assert int(mine.id) in processes.marked(mine.marker)


def test_the_guardian_is_out_of_a_terminals_reach(launcher: LocalLauncher, tmp_path: Path) -> None:
    job = launcher.submit(shell(tmp_path, "sleep 1000"))
    pid = launcher.guardian_pid
    assert pid is not None
    assert os.getsid(pid) == pid
    assert os.getsid(int(job.id)) == int(job.id)
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP):
        os.kill(pid, signum)
    assert job.wait(0.3) is None
    assert job.stop(StopReason.INTERRUPTED).state is JobState.CANCELLED


def end_by(signum: signal.Signals) -> Callable[[LocalLauncher], None]:
    return lambda launcher: os.kill(launcher.guardian_pid or 0, signum)


def send_nonsense(launcher: LocalLauncher) -> None:
    assert launcher._guard is not None
    launcher._guard._channel.sendall(b'{"op": "stop"}\n')


@pytest.mark.parametrize(
    ("end", "text"),
    [
        (end_by(signal.SIGKILL), "was ended by SIGKILL"),
        (end_by(signal.SIGTERM), "received SIGTERM"),
        (send_nonsense, 'ended with exit code 1: "KeyError'),
    ],
)
def test_the_loss_of_the_guardian_is_noticed_and_its_jobs_end(
    launcher: LocalLauncher, tmp_path: Path, end: Callable[[LocalLauncher], None], text: str
) -> None:
    jobs = [launcher.submit(shell(tmp_path, TREE[2], tmp_path / f"{n}.txt")) for n in range(2)]
    assert until(lambda: all(said(tmp_path / f"{n}.txt", "stubborn")() for n in range(2)))
    lost = launcher.guardian_pid
    end(launcher)
    with pytest.raises(LaunchError) as caught:
        jobs[0].wait(30)
    for part in ("suite[case]", f"pid {lost}", text, "what it ran was ended", "Run the case again"):
        assert part in str(caught.value)
    assert [pid for job in jobs for pid in processes.marked(job.marker)] == []
    with pytest.raises(LaunchError, match="guardian"):
        jobs[1].stop(StopReason.INTERRUPTED)
    # The session goes on, with another guardian.
    result = launcher.submit(shell(tmp_path, "exit 0")).wait(10)
    assert result is not None
    assert result.state is JobState.COMPLETED
    assert launcher.guardian_pid not in (None, lost)


def test_a_guardian_that_fails_ends_its_jobs_itself(launcher: LocalLauncher, tmp_path: Path) -> None:
    job = launcher.submit(shell(tmp_path, TREE[2]))
    assert until(said(tmp_path / "out.txt", "stubborn"))
    send_nonsense(launcher)
    # Nobody asks the launcher meanwhile: pytest may be busy, or dead.
    assert until(lambda: not processes.marked(job.marker), timeout=5)


def test_a_guardian_lost_between_jobs_costs_at_most_one_case(launcher: LocalLauncher, tmp_path: Path) -> None:
    assert launcher.submit(shell(tmp_path, "exit 0")).wait(10) is not None
    os.kill(launcher.guardian_pid or 0, signal.SIGKILL)
    with pytest.raises(LaunchError, match=r"suite\[case\]: lost on this machine: .* SIGKILL"):
        launcher.submit(shell(tmp_path, "exit 0"))
    assert launcher.submit(shell(tmp_path, "exit 0")).wait(10) is not None


def test_half_an_order_is_void(launcher: LocalLauncher, tmp_path: Path) -> None:
    job = launcher.submit(shell(tmp_path, "sleep 1000"))
    assert launcher._guard is not None
    launcher._guard._channel.sendall(b'{"op": "leave", "gra')
    launcher._guard._torn = True
    result = launcher.submit(shell(tmp_path, "exit 3")).wait(10)
    assert result is not None
    assert result.exit_code == 3
    assert job.stop(StopReason.INTERRUPTED).state is JobState.CANCELLED


def test_close_after_the_loss_of_the_guardian_still_ends_everything(launcher: LocalLauncher, tmp_path: Path) -> None:
    job = launcher.submit(shell(tmp_path, TREE[2]))
    assert until(said(tmp_path / "out.txt", "stubborn"))
    os.kill(launcher.guardian_pid or 0, signal.SIGKILL)
    launcher.close()
    assert processes.marked(job.marker) == []


def test_a_guardian_that_does_not_answer_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "ANSWER_LIMIT", 0.5)
    with LocalLauncher(grace=0.1, kill_limit=0.5) as launcher:
        job = launcher.submit(shell(tmp_path, TREE[2]))
        assert until(said(tmp_path / "out.txt", "stubborn"))
        os.kill(launcher.guardian_pid or 0, signal.SIGSTOP)
        with pytest.raises(LaunchError, match="did not answer the order to end a job within 2 s"):
            job.stop(StopReason.NO_PROGRESS)
        assert processes.marked(job.marker) == []


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="only root can make what it then may not end"
)
def test_what_cannot_be_ended_is_an_error_and_holds_nothing_up(tmp_path: Path) -> None:
    """Without CAP_KILL, root may not signal another user's process: as unkillable as one stuck in a driver."""
    foreign = "setpriv --reuid=65534 --clear-groups sleep 1000 &"
    job = ("/bin/sh", "-c", f"{foreign} sleep 0.5")
    lame = ("setpriv", "--bounding-set=-kill", "--inh-caps=-kill")
    with session(tmp_path, *job, mode="one more", prefix=lame) as running:
        assert until(lambda: processes.marked(running.marker))
        assert running.process.stdout is not None
        told = running.process.stdout.read().decode()
        assert running.process.wait(20) != 0
        stuck = processes.marked(running.marker)
        assert len(stuck) == 1
        assert f"cannot be ended, even by SIGKILL: pid {stuck[0]} (sleep, state S)" in told
        # The next job is not held responsible for it.
        assert "one more: completed, leftovers 0" in told
        assert not alive(running.guardian)


def test_the_guardian_needs_nothing_but_the_standard_library() -> None:
    script = (
        "import sys; sys.path.append(sys.argv[1]); import pytest_scaleperf.launch.guardian\n"
        "print(sorted(name for name in sys.modules if name.startswith('pytest_scaleperf')))\n"
        "files = [getattr(module, '__file__', None) or '' for module in sys.modules.values()]\n"
        "print([name for name in files if 'site-packages/' in name and 'pytest_scaleperf' not in name])"
    )
    root = Path(guard.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script, str(root)], capture_output=True, check=True, text=True
    )
    ours = [
        "pytest_scaleperf",
        *(f"pytest_scaleperf.launch{n}" for n in ("", ".guardian", ".processes", ".spawn", ".trees")),
    ]
    assert done.stdout.splitlines() == [str(ours), "[]"]


@pytest.fixture
def alarm() -> Iterator[Callable[[float], None]]:
    """Sets a moment at which KeyboardInterrupt is raised wherever this process then is."""

    def interrupt(_signum: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds) and None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_ctrl_c_in_any_moment_loses_no_job_and_no_result(
    launcher: LocalLauncher, tmp_path: Path, alarm: Callable[[float], None]
) -> None:
    """Many interrupts, each in another moment of submit and wait, and every job accounted for afterwards."""
    assert launcher.submit(shell(tmp_path, "exit 0")).wait(10) is not None
    session_marker = launcher._guard._session if launcher._guard else ""
    guardian = launcher.guardian_pid
    interrupts = 0
    for round_ in range(300):
        job = None
        try:
            alarm(0.0001 + round_ % 100 * 0.00004)
            job = launcher.submit(shell(tmp_path, "exit 4"))
            assert job.wait(10) is not None
            alarm(0)
        except KeyboardInterrupt:
            interrupts += 1
        if job is not None:
            result = job.stop(StopReason.INTERRUPTED)
            assert result.exit_code in (4, -signal.SIGTERM)
            assert result.state is (JobState.CANCELLED if result.stopped else JobState.FAILED)
    assert interrupts > 30
    assert launcher.guardian_pid == guardian
    survivor = launcher.submit(shell(tmp_path, "exit 0")).wait(10)
    assert survivor is not None
    assert survivor.state is JobState.COMPLETED
    assert until(lambda: not processes.marked(session_marker))


# An interrupt inside subprocess.Popen leaves Python's own ResourceWarning about the process that it had started.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("delay", [0.0002, 0.01, 0.03, 0.06, 0.1, 0.2])
def test_ctrl_c_while_starting_or_closing_leaves_nothing(
    tmp_path: Path, alarm: Callable[[float], None], delay: float
) -> None:
    launcher = LocalLauncher(grace=20.0)

    def submit_many() -> None:
        alarm(delay)
        for n in range(1000):
            launcher.submit(shell(tmp_path, TREE[2], tmp_path / f"{n}.txt"))
            time.sleep(0.01)

    def close() -> None:
        alarm(0.1)
        launcher.close()
        time.sleep(1)

    with pytest.raises(KeyboardInterrupt):
        submit_many()
    made = launcher._guard
    with pytest.raises(KeyboardInterrupt):
        close()
    began = time.monotonic()
    launcher.close()
    assert time.monotonic() - began < 4
    assert made is None or processes.marked(made._session) == []
    assert made is None or processes.look(made.pid) is None


def torchrun(folder: Path, worker: str) -> tuple[str, ...]:
    script = folder / "worker.py"
    script.write_text(f"import os, signal, time\nprint('rank', os.environ['RANK'], 'up', flush=True)\n{worker}\n")
    return (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script))


@needs_torch
def test_torchruns_workers_do_not_outlive_a_killed_session(tmp_path: Path) -> None:
    with session(tmp_path, *torchrun(tmp_path, "time.sleep(1000)")) as running:
        assert until(said(tmp_path / "job 0.txt", "up", times=2), timeout=60)
        left = processes.marked(running.marker)
        assert len(left) == 3
        assert len({os.getsid(pid) for pid in left}) == 3  # why a process group would not be enough
        kill(running)
        assert until(lambda: not running.left(), timeout=5)


@needs_torch
def test_a_stopped_rank_does_not_hold_torchrun_up(launcher: LocalLauncher, tmp_path: Path) -> None:
    worker = "if os.environ['RANK'] == '1': os.kill(os.getpid(), signal.SIGSTOP)\ntime.sleep(1000)"
    job = launcher.submit(spec(tmp_path, *torchrun(tmp_path, worker)))
    assert until(said(tmp_path / "out.txt", "up", times=2), timeout=60)
    began = time.monotonic()
    result = job.stop(StopReason.NO_PROGRESS)
    assert time.monotonic() - began < 3
    assert (result.state, result.stopped) == (JobState.TIMEOUT, StopReason.NO_PROGRESS)
    assert processes.marked(job.marker) == []


@needs_torch
def test_workers_of_a_torchrun_that_was_killed_alone_are_ended(launcher: LocalLauncher, tmp_path: Path) -> None:
    job = launcher.submit(spec(tmp_path, *torchrun(tmp_path, "time.sleep(1000)")))
    assert until(said(tmp_path / "out.txt", "up", times=2), timeout=60)
    os.kill(int(job.id), signal.SIGKILL)
    result = job.wait(10)
    assert result is not None
    assert (result.state, result.exit_code, result.leftovers) == (JobState.FAILED, -signal.SIGKILL, 2)
    assert processes.marked(job.marker) == []
