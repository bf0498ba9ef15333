"""The keeper: a small process that submits our jobs, holds their ids, and cancels them by id when the session ends.

It lives in a session of its own, speaks JSON lines over a socket with the process that started it, and takes the end
of that process or of the socket, however it came, as the order to cancel what it holds. It goes on while the controller
is away. Standard library only; started without site-packages by ``keep.py``.

Orders: ``submit`` (number, argv, env, cwd, script, token), ``hold`` (job, step name), ``forget`` (job, step name).
Events: ``submitted`` (number, job), ``refused`` (number, code, err).
A step is held by a name that nobody else can have; it is looked up under its job, and cancelled by the id found there.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

HOLD_ON = 1800.0
"""Seconds for which a lost controller is asked again to cancel what is left."""

STEP_GRACE = 2.5
"""Seconds that the guardian has to end the steps before they are cancelled by id: its own grace is 1 s."""

_PATIENCE = 120.0
_AGAIN = 3.0


class Keeper:
    """What is held: job ids, and step names by job id."""

    def __init__(self, channel: socket.socket, session: int) -> None:
        self._channel = channel
        self._session = session
        self._jobs: set[str] = set()
        self._steps: set[tuple[str, str]] = set()
        self._tokens: dict[str, Mapping[str, str]] = {}
        self._env: Mapping[str, str] = dict(os.environ)
        self._inbox = b""

    def serve(self) -> None:
        """Obey until the session has gone, then cancel what is held."""
        handle = _watch(self._session)
        poller = select.poll()
        poller.register(self._channel, select.POLLIN)
        if handle is not None:
            poller.register(handle, select.POLLIN)
        while os.getppid() == self._session or handle is None:
            ready = dict(poller.poll())
            if handle in ready or not self._read():
                break
        self._cancel_all()

    def _read(self) -> bool:
        """Take the orders that have arrived; False at the end of the stream."""
        try:
            data = self._channel.recv(1 << 16)
        except ConnectionError:
            return False
        *lines, self._inbox = (self._inbox + data).split(b"\n")
        for line in lines:
            # An order that an interrupt tore in the middle is void.
            with suppress(json.JSONDecodeError):
                self._obey(json.loads(line))
        return bool(data)

    def _obey(self, order: dict[str, Any]) -> None:
        kind = order.pop("op")
        if kind == "submit":
            self._submit(order)
        elif kind == "hold":
            self._steps.add((order["job"], order["step"]))
        elif order["step"]:
            self._steps.discard((order["job"], order["step"]))
        else:
            self._jobs.discard(order["job"])

    def _submit(self, order: dict[str, Any]) -> None:
        """Submit a job; its token finds it again where the answer got lost on the way."""
        self._env, token = order["env"], order["token"]
        code, out, err = _run(order["argv"], order["env"], order["cwd"], order["script"])
        job = out.strip().partition(";")[0]
        if code != 0 or not job.isdecimal():
            self._tokens[token] = order["env"]
            job = self._find(token) if _is_lost(code, err) else ""
            if not job:
                self._say("refused", number=order["number"], code=code, err=err)
                return
        self._tokens.pop(token, None)
        self._jobs.add(job)
        self._say("submitted", number=order["number"], job=job)

    def _find(self, token: str) -> str:
        """The job that carries the token as its comment; empty where there is none, or nobody answers."""
        code, out, _ = _run(["squeue", "--me", "-h", "-o", "%i|%k"], self._env)
        pairs = (line.partition("|") for line in out.splitlines())
        return next((job for job, _, comment in pairs if comment == token), "") if code == 0 else ""

    def _say(self, event: str, **fields: object) -> None:
        with suppress(OSError):
            self._channel.sendall(json.dumps({"event": event, **fields}).encode() + b"\n", socket.MSG_NOSIGNAL)

    def _cancel_all(self) -> None:
        until, began = time.monotonic() + HOLD_ON, time.monotonic()
        while (self._jobs or self._steps or self._tokens) and time.monotonic() < until:
            self._cancel_jobs()
            if time.monotonic() - began >= STEP_GRACE or not self._steps:
                for job in {job for job, _ in self._steps}:
                    self._cancel_steps(job)
            if self._jobs or self._steps or self._tokens:
                time.sleep(0.5 if time.monotonic() - began < STEP_GRACE else _AGAIN)

    def _cancel_jobs(self) -> None:
        for token in list(self._tokens):
            code, out, _ = _run(["squeue", "--me", "-h", "-o", "%i|%k"], self._env)
            if code == 0:
                pairs = (line.partition("|") for line in out.splitlines())
                self._jobs.update(job for job, _, comment in pairs if comment == token)
                del self._tokens[token]
        if self._jobs:
            # It answers 0 for a job that has already ended or is not known.
            code, _, _ = _run(["scancel", *sorted(self._jobs)], self._env)
            if code == 0:
                self._jobs.clear()

    def _cancel_steps(self, job: str) -> None:
        code, out, err = _run(["squeue", "-h", "-s", "-j", job, "-o", "%i|%j"], self._env)
        if code != 0 and "Invalid job id" not in err:
            return
        names = {name for owner, name in self._steps if owner == job}
        left = [step for step, _, name in (line.partition("|") for line in out.splitlines()) if name in names]
        if not left:
            self._steps -= {(job, name) for name in names}
        for step in left:
            _run(["scancel", step], self._env)


def _run(
    argv: list[str], env: Mapping[str, str], cwd: str = "/", script: str | None = None
) -> tuple[int | None, str, str]:
    """A command's exit code (None: it did not end in time, or not start), output and complaints."""
    try:
        done = subprocess.run(
            argv,
            env=env,
            cwd=cwd,
            input=None if script is None else script.encode("utf-8", "surrogateescape"),
            capture_output=True,
            timeout=_PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, "", f"{argv[0]}: no answer within {_PATIENCE:.0f} s"
    except OSError as error:
        return None, "", f"{argv[0]}: {error.strerror}: {error.filename}"
    return done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")


def _is_lost(code: int | None, err: str) -> bool:
    return code is None or "timed out" in err or "Zero Bytes" in err


def _watch(pid: int) -> int | None:
    """A pidfd that becomes readable when the session's process ends; None where the kernel has none."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def main() -> None:
    """Serve; arguments: where our package lies, the socket's descriptor, the session's pid."""
    for deaf in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTERM):
        signal.signal(deaf, signal.SIG_IGN)
    _, _, descriptor, session = sys.argv
    with socket.socket(fileno=int(descriptor)) as channel:
        channel.set_inheritable(False)
        Keeper(channel, int(session)).serve()
