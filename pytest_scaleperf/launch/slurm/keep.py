"""The launching process's end of its keeper: starts it, has it submit jobs, tells it what it need not hold any more."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_scaleperf.launch.slurm.client import Answer, ask, clean
from pytest_scaleperf.model import LaunchError

ANSWER_LIMIT = 300.0
"""Seconds after which a keeper that does not answer counts as lost: sbatch itself may take 120, a look-up as long."""

FAREWELL_LIMIT = 10.0
"""Seconds that a close waits for the keeper; it goes on cancelling by itself where the controller is away."""

_BOOT = """import sys
sys.path.append(sys.argv[1])
from pytest_scaleperf.launch.slurm.keeper import main
main()"""
_ROOT = Path(__file__).resolve().parents[3]


class Keep:
    """One keeper and what it holds.

    Raises LaunchError where it cannot be started.
    """

    def __init__(self) -> None:
        self._count = 0
        self._owner = os.getpid()
        self._jobs: set[str] = set()
        self._channel, theirs = socket.socketpair()
        try:
            self._process = _start(theirs.fileno())
        except BaseException:
            self._channel.close()
            raise
        finally:
            theirs.close()
        self._channel.settimeout(ANSWER_LIMIT)
        self._inbox = b""

    @property
    def pid(self) -> int:
        """The keeper's process id."""
        return self._process.pid

    @property
    def is_ours(self) -> bool:
        """False in a forked child of the process that started it."""
        return os.getpid() == self._owner

    def submit(self, argv: Sequence[str], env: Mapping[str, str], cwd: Path, script: str, token: str) -> str | Answer:
        """The new job's id, or what sbatch answered where there is none.

        Raises LaunchError where the keeper is lost; what it held is cancelled then.
        """
        self._count += 1
        number = self._count
        self._send(op="submit", number=number, argv=list(argv), env=dict(env), cwd=str(cwd), script=script, token=token)
        while True:
            event = self._receive()
            if event["number"] != number:
                continue  # an interrupted wait left it behind; the keeper holds that job
            if event["event"] == "submitted":
                self._jobs.add(str(event["job"]))
                return str(event["job"])
            code = event["code"]
            return Answer(code if isinstance(code, int) else None, "", str(event["err"]))

    def hold_step(self, job: str, name: str) -> None:
        """Have a step ended by its id, should the session end before ``forget_step``."""
        self._send(op="hold", job=job, step=name)

    def forget_step(self, job: str, name: str) -> None:
        """The step has ended."""
        self._send(op="forget", job=job, step=name)

    def forget(self, job: str) -> None:
        """The job has ended."""
        self._jobs.discard(job)
        self._send(op="forget", job=job, step="")

    def close(self) -> None:
        """Have everything cancelled that is still held. Twice is harmless; in a forked child it does nothing."""
        if self.is_ours:
            self._channel.close()
            try:
                self._process.wait(FAREWELL_LIMIT)
            except subprocess.TimeoutExpired:
                # It is left to itself on purpose; Popen would complain of that.
                self._process.returncode = 0

    def _send(self, **order: object) -> None:
        if self._channel.fileno() < 0:
            return
        try:
            # The line's end in front makes an order void that an interrupt tore in the middle.
            self._channel.sendall(b"\n" + json.dumps(order).encode() + b"\n", socket.MSG_NOSIGNAL)
        except OSError as error:
            raise self._lost(str(error.strerror)) from None

    def _receive(self) -> dict[str, object]:
        while b"\n" not in self._inbox:
            try:
                data = self._channel.recv(1 << 16)
            except TimeoutError:
                raise self._lost(f"no answer within {ANSWER_LIMIT:.0f} s") from None
            except OSError as error:
                raise self._lost(str(error.strerror)) from None
            if not data:
                raise self._lost("it ended")
            self._inbox += data
        line, _, self._inbox = self._inbox.partition(b"\n")
        event: dict[str, object] = json.loads(line)
        return event

    def _lost(self, why: str) -> LaunchError:
        """The keeper is gone: cancel by their ids what we know of."""
        self._channel.close()
        if self._jobs:
            ask(("scancel", *sorted(self._jobs)))
        held = ", ".join(sorted(self._jobs)) or "none"
        return LaunchError(
            f"the keeper of this session's Slurm jobs (pid {self.pid}) is lost: {why}; expected it to outlive the "
            f"session. These jobs were cancelled: {held}. Look into `squeue --me` for others, and run again"
        )


def _start(descriptor: int) -> subprocess.Popen[bytes]:
    isolation = ("-I", "-S", "-X", f"utf8={sys.flags.utf8_mode}")
    try:
        return subprocess.Popen(
            (sys.executable, *isolation, "-c", _BOOT, str(_ROOT), str(descriptor), str(os.getpid())),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(descriptor,),
            start_new_session=True,
            cwd="/",
            env=clean(),
        )
    except OSError as error:
        raise LaunchError(
            f"cannot start the keeper of this session's Slurm jobs with {sys.executable!r}: {error.strerror}; "
            "expected the Python that runs pytest to be startable"
        ) from None
