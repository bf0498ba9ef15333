"""Jobs on this machine: each case's process tree under a guardian that ends it whatever happens to pytest.

``JobResult`` as this launcher fills it: ``exit_code`` is the main process's (negative: the signal that ended it);
``seconds`` run from its start to its end; ``leftovers`` counts processes that still ran a second after the main
process had ended by itself, and were killed.
"""

from __future__ import annotations

import dataclasses
import errno
import socket
import time
from collections.abc import Sequence

from pytest_scaleperf.launch.closing import Closing
from pytest_scaleperf.launch.guard import Guard, Ward
from pytest_scaleperf.launch.trees import LINGER, Ended
from pytest_scaleperf.model import (
    JobResult,
    JobState,
    LaunchError,
    LaunchSpec,
    Placement,
    StopReason,
    Wanted,
)

_DEVICES = "CUDA_VISIBLE_DEVICES"


class LocalJob:
    """One job of a LocalLauncher; satisfies ``launch.protocol.Job``. To be used from the launcher's thread."""

    def __init__(self, guard: Guard, ward: Ward, spec: LaunchSpec, grace: float) -> None:
        self._guard = guard
        self._ward = ward
        self._spec = spec
        self._grace = grace
        self.runs = True
        self._reason: StopReason | None = None

    @property
    def id(self) -> str:
        """The process id of the job's main process."""
        return str(self._ward.pid)

    @property
    def marker(self) -> str:
        """The value of SCALEPERF_JOB in the environment of everything that belongs to this job."""
        return self._ward.marker

    @property
    def ended(self) -> bool:
        """Whether it is known, without waiting, that nothing of it is left."""
        return self._ward.settled

    @property
    def placement(self) -> Placement | None:
        """Where it was started."""
        return self._spec.placement

    def wait(self, timeout: float) -> JobResult | None:
        """The result as soon as the job and all it started have ended, or None after ``timeout`` seconds.

        Raises LaunchError where the guardian was lost or a process of the job cannot be ended.
        """
        return self._result() if self._guard.wait(self._ward, timeout) else None

    def stop(self, reason: StopReason) -> JobResult:
        """SIGTERM to the whole tree, SIGKILL after the launcher's grace; the result once nothing is left.

        A job that had already ended keeps its own result. Raises LaunchError as ``wait`` does.
        """
        self._reason = self._reason or reason
        self._guard.stop(self._ward, self._grace)
        return self._result()

    def _result(self) -> JobResult:
        ended = self._ward.ended
        if ended is None:
            raise LaunchError(
                f"{self._spec.job_name}: lost on this machine: {self._ward.lost}; "
                "expected the guardian to outlive the session. Run the case again; where this repeats, look for what "
                "ended it (out of memory: dmesg; a clean-up of the machine)"
            )
        if ended.stuck:
            raise LaunchError(
                f"{self._spec.job_name}: what it started cannot be ended, even by SIGKILL: {ended.stuck}; expected "
                "nothing to outlive the case. State D is a process inside the kernel or a driver: this machine "
                "needs its operator before it measures again"
            )
        # Ended by the launcher's close: nobody gave a reason, the session was ending.
        reason = (self._reason or StopReason.INTERRUPTED) if ended.stopped else None
        return JobResult(
            state=_state(ended, reason),
            exit_code=ended.code,
            stopped=reason,
            hosts=(socket.gethostname(),),
            leftovers=ended.leftovers,
            seconds=ended.seconds,
            detail=_detail(ended),
        )


class LocalLauncher(Closing):
    """Starts jobs on this machine; satisfies ``launch.protocol.Launcher``. To be used from one thread.

    ``grace`` is the time in seconds between SIGTERM and SIGKILL when a job is stopped. What still lives
    ``kill_limit`` seconds after SIGKILL (state D in a driver) is given up, and reported as a LaunchError.
    One job runs at a time, on all devices, as neighbours would disturb a measurement. Where ``slots`` is given, that
    many jobs of one device each run side by side, each on a device of its own (rehearsals, which measure no network).
    """

    def __init__(self, grace: float = 5.0, kill_limit: float = 30.0, slots: int | None = None) -> None:
        self._grace = grace
        self._kill_limit = kill_limit
        self._slots = slots
        self._running: list[LocalJob] = []
        self._guard: Guard | None = None
        self._closed = False

    @property
    def guardian_pid(self) -> int | None:
        """Process id of the guardian; None before the first job and after ``close``."""
        return None if self._guard is None else self._guard.pid

    @property
    def side_by_side(self) -> bool:
        """Only where slots were given."""
        return self._slots is not None

    def choose(self, waiting: Sequence[Wanted]) -> tuple[Wanted, Placement] | None:
        """The first that waits, as soon as nothing else runs; with slots, as soon as one is free."""
        self._running = [job for job in self._running if not job.ended]
        if not waiting or (self._slots is None and self._running):
            return None
        first, host = waiting[0], (socket.gethostname(),)
        if self._slots is None:
            return first, Placement(host, first.resources.gpus)
        taken = {device for job in self._running if job.placement is not None for device in job.placement.gpu_ids}
        free = [slot for slot in range(self._slots) if slot not in taken]
        return (first, Placement(host, 1, (free[0],))) if free else None

    def wait(self, timeout: float) -> None:
        """Return as soon as a job may have ended, at the latest after ``timeout`` seconds."""
        if self._guard is None:
            time.sleep(timeout)
        else:
            self._guard.wait_for_any(timeout)

    def leave_out(self, host: str) -> None:
        """There is no other machine to go to; what fails here is said by each case."""

    def submit(self, spec: LaunchSpec) -> LocalJob:
        """Start a job with exactly ``spec.env`` plus the marker; its output is appended to ``spec.output``.

        Raises LaunchError where it cannot be started: the text names the program, the folder and what to do.
        """
        if not spec.argv:
            raise LaunchError(f"{spec.job_name}: nothing to start: expected a program and its arguments, found none")
        guard = self._ready_guard(spec)
        if spec.placement is not None and spec.placement.gpu_ids:
            spec = dataclasses.replace(spec, env=_confined(spec, spec.placement.gpu_ids))
        ward = guard.spawn(spec)
        if ward.refused is not None:
            raise LaunchError(_refusal(spec, ward.refused["where"], ward.refused["why"], ward.refused["number"]))
        job = LocalJob(guard, ward, spec, self._grace)
        if ward.lost is not None:
            # Says what happened to the guardian, by raising.
            job.wait(0.0)
        self._running.append(job)
        return job

    def close(self) -> None:
        """End every job and the guardian. Twice is harmless; in a forked child it does nothing.

        Raises LaunchError where a process cannot be ended even by SIGKILL.
        """
        self._closed = True
        guard = self._guard
        if guard is None or not guard.is_ours:
            return
        stuck = guard.close(self._grace)
        self._guard = None
        if stuck:
            raise LaunchError(
                f"the session leaves processes behind that SIGKILL does not end: {stuck}; expected none. State D is a "
                "process inside the kernel or a driver: this machine needs its operator before it measures again"
            )

    def _ready_guard(self, spec: LaunchSpec) -> Guard:
        if self._closed:
            raise LaunchError(f"{spec.job_name}: not started: this launcher is closed, its session has ended")
        if self._guard is not None and not self._guard.is_ours:
            raise LaunchError(
                f"{spec.job_name}: not started: expected the process that made this launcher, found a forked "
                "child of it; make a launcher of its own there"
            )
        if self._guard is not None and self._guard.lost is not None:
            self._guard.close(self._grace)
            self._guard = None
        if self._guard is None:
            self._guard = Guard(self._kill_limit)
        return self._guard


def _confined(spec: LaunchSpec, devices: Sequence[int]) -> dict[str, str]:
    """The job's environment with only these of the devices that it would see."""
    seen = [device for device in spec.env.get(_DEVICES, "").split(",") if device]
    chosen = [seen[device] if seen else str(device) for device in devices]
    return {**spec.env, _DEVICES: ",".join(chosen)}


def _state(ended: Ended, reason: StopReason | None) -> JobState:
    if reason is StopReason.INTERRUPTED:
        return JobState.CANCELLED
    if reason is not None:
        return JobState.TIMEOUT
    return JobState.COMPLETED if ended.code == 0 else JobState.FAILED


def _detail(ended: Ended) -> str:
    if not ended.leftovers:
        return ""
    return (
        f"{ended.leftovers} process(es) still ran {LINGER:.0f} s after the main process had ended with exit code "
        f"{ended.code}, and were killed"
    )


def _refusal(spec: LaunchSpec, where: str, why: str, number: int | None) -> str:
    """The message for a job that the system would not start; ``number`` is its errno."""
    program = spec.argv[0]
    match where, number:
        case "cwd", _:
            text = f"the folder cannot be entered ({why}); expected an existing folder. Create it, or correct the path"
        case "output", _:
            text = (
                f"its output file {str(spec.output)!r} cannot be opened ({why}); expected a writable file in an "
                "existing folder. Create the folder, free the disk, or choose another with --run-dir"
            )
        case "argv", errno.ENOENT if "/" in program:
            text = (
                f"{why}; expected an executable file, and, where it is a script, that the program in its first line "
                "exists. Correct trainer.executable or trainer.python of the suite"
            )
        case "argv", errno.ENOENT:
            text = (
                f"{why} in any folder of the job's PATH {spec.env.get('PATH')!r}; expected an executable. Install it, "
                "correct the PATH, or name it by its full path in trainer.executable or trainer.python of the suite"
            )
        case "argv", errno.EACCES:
            text = f"{why}; expected a file that may be executed. Make it so with chmod +x, or correct the path"
        case "argv", errno.ENOEXEC:
            text = f"{why}; expected a program, or a script whose first line names one (#!/bin/sh)"
        case "argv", errno.E2BIG:
            text = f"{why}; expected arguments and environment that the system accepts. Shorten them"
        case "env", _:
            text = f"{why}; expected arguments and environment that a program can take. Correct the suite's args or env"
        case _:
            text = f"{why}; expected it to start. Try it by hand in that folder"
    return f"{spec.job_name}: cannot start {program!r} in {str(spec.cwd)!r}: {text}"
