"""The guardian: a small process that owns all jobs of one session, and ends them when the session ends in any way.

It lives in a session of its own (a terminal's Ctrl-C does not reach it), speaks JSON lines over a socket with the
process that started it, and takes the end of that process, or of the socket, as the order to end everything.
Standard library only; started without site-packages by ``guard.py``.

Orders: ``spawn`` (the fields of ``spawn.Order``), ``stop`` (job, grace), ``leave`` (grace).
Events:  ``started`` (job, pid), ``refused`` (job, where, why, number), ``ended`` (the fields of ``trees.Ended``),
``leaving`` (why).
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pytest_scaleperf.launch import processes
from pytest_scaleperf.launch.spawn import Order, RefusedError
from pytest_scaleperf.launch.trees import Ended, Trees

ORPHANED_GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL when the session is gone: nobody waits for a result any more."""

FAREWELL_LIMIT = 5.0
"""Seconds that the other side has to take the last events."""

_READABLE = select.POLLIN | select.POLLHUP | select.POLLERR


class Guardian:
    """The loop: orders in, events out, children reaped, trees pressed until nothing of them is left."""

    def __init__(self, channel: socket.socket, session: int, kill_limit: float) -> None:
        self._channel = channel
        self._trees = Trees(kill_limit)
        self._inbox = bytearray()
        self._outbox = bytearray()
        self._employed = True
        self._connected = True
        self._terminated = False
        self._poller = select.poll()
        channel.setblocking(False)
        self._poller.register(channel, select.POLLIN)
        self._wake = _wake_on_signals(self._on_sigterm)
        self._poller.register(self._wake, select.POLLIN)
        self._session_handle = _watch_process(session)
        if self._session_handle is not None:
            self._poller.register(self._session_handle, select.POLLIN)
        if os.getppid() != session:
            # It died before it could be watched.
            self._hang_up()

    def serve(self) -> None:
        """Work until told to leave and nothing is left to end."""
        try:
            self._work()
        except BaseException:
            self._trees.kill_everything()
            raise
        # Who does not listen any more has lost nothing that it waits for.
        with suppress(OSError):
            self._channel.settimeout(FAREWELL_LIMIT)
            self._channel.sendall(self._outbox, socket.MSG_NOSIGNAL)

    def _work(self) -> None:
        while self._employed or self._trees:
            wait = self._trees.next_check()
            ready = dict(self._poller.poll(None if wait is None else math.ceil(wait * 1000)))
            if self._wake in ready:
                _drain(self._wake)
            if self._session_handle in ready:
                self._hang_up()
            if self._terminated and self._employed:
                self._say("leaving", why="SIGTERM")
                self._hang_up()
            if ready.get(self._channel.fileno(), 0) & _READABLE:
                self._read()
            self._trees.reap()
            for ended in self._trees.advance():
                self._report(ended)
            self._flush()

    def _on_sigterm(self) -> None:
        self._terminated = True

    def _read(self) -> None:
        """Take the orders that have arrived; an end of the stream is the order to end everything."""
        try:
            data = self._channel.recv(1 << 16)
        except BlockingIOError:
            return
        except ConnectionError:
            # The other side died with events unread.
            data = b""
        if not data:
            self._hang_up()
            return
        self._inbox += data
        *lines, rest = self._inbox.split(b"\n")
        self._inbox = rest
        for line in lines:
            # An order that an interrupt tore in the middle is void; no part of a JSON object is valid JSON.
            with suppress(json.JSONDecodeError):
                self._obey(json.loads(line))

    def _obey(self, order: dict[str, Any]) -> None:
        match order.pop("op"):
            case "spawn":
                self._spawn(Order(**order))
            case "stop":
                self._trees.stop(order["job"], order["grace"])
            case "leave":
                self._employed = False
                self._trees.stop_all(order["grace"])

    def _spawn(self, order: Order) -> None:
        if not self._employed:
            self._say("refused", job=order.job, where="guardian", why="it is already leaving", number=None)
            return
        try:
            pid = self._trees.spawn(order)
        except RefusedError as refused:
            self._say("refused", job=order.job, where=refused.where, why=refused.why, number=refused.number)
        else:
            self._say("started", job=order.job, pid=pid)

    def _report(self, ended: Ended) -> None:
        # After SIGTERM the trees end because the guardian does: that is no result of theirs.
        if not self._terminated:
            self._say("ended", **{name: getattr(ended, name) for name in Ended.__slots__})

    def _hang_up(self) -> None:
        """The session is gone, or we are told to go: end everything soon. Events may still be taken."""
        self._employed = False
        self._trees.stop_all(ORPHANED_GRACE)
        if self._connected:
            self._connected = False
            self._poller.unregister(self._channel)
        if self._session_handle is not None:
            self._poller.unregister(self._session_handle)
            os.close(self._session_handle)
            self._session_handle = None

    def _say(self, event: str, **fields: object) -> None:
        self._outbox += json.dumps({"event": event, **fields}).encode() + b"\n"

    def _flush(self) -> None:
        """Send what can be sent now; the rest when the other side has read (it may be busy for long)."""
        if self._outbox:
            try:
                del self._outbox[: self._channel.send(self._outbox, socket.MSG_NOSIGNAL)]
            except BlockingIOError:
                pass
            except OSError:
                self._outbox.clear()
        if self._connected:
            self._poller.modify(self._channel, select.POLLIN | (select.POLLOUT if self._outbox else 0))


def _wake_on_signals(on_sigterm: Callable[[], None]) -> int:
    """Make SIGCHLD and SIGTERM wake a poll, and be deaf to a terminal; the descriptor to poll."""
    wake, ring = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(ring, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: on_sigterm())
    for deaf in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP):
        signal.signal(deaf, signal.SIG_IGN)
    return wake


def _watch_process(pid: int) -> int | None:
    """A pidfd that becomes readable when the session's process ends; None where the kernel has none.

    The socket alone would not tell while a forked child of that process still holds a copy of its end.
    """
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _drain(descriptor: int) -> None:
    try:
        while os.read(descriptor, 4096):
            pass
    except BlockingIOError:
        pass


def main() -> None:
    """Serve; arguments: where our package lies, the socket's descriptor, the session's pid, the kill limit in s."""
    processes.become_subreaper()
    _, _, descriptor, session, kill_limit = sys.argv
    with socket.socket(fileno=int(descriptor)) as channel:
        # It came here by inheritance; a job that inherited it too would keep the session's end from being seen.
        channel.set_inheritable(False)
        Guardian(channel, int(session), float(kill_limit)).serve()
