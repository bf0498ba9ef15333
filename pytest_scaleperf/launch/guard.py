"""The launching process's end of its guardian: starts it, gives it orders, keeps book of what it reports.

Single-threaded by design, and safe against an exception (KeyboardInterrupt) between any two instructions: a job is
in the book before its order is sent, an event is applied before it is taken off the socket and applying it
twice is harmless, and an order that was torn in the middle is a line that the guardian does not obey.
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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_scaleperf.launch import processes
from pytest_scaleperf.launch.guardian import FAREWELL_LIMIT, ORPHANED_GRACE
from pytest_scaleperf.launch.trees import LINGER, Ended
from pytest_scaleperf.model import LaunchError, LaunchSpec

ANSWER_LIMIT = 60.0
"""Seconds until a guardian that does not answer counts as lost: a hung file system can hold it that long."""

_BOOT = """import sys
sys.path.append(sys.argv[1])
from pytest_scaleperf.launch.guardian import main
main()"""
_ROOT = Path(__file__).resolve().parents[2]
_LARGEST_READ = 1 << 16
_LONGEST_POLL = 3600.0


@dataclass(slots=True)
class Ward:
    """One job as the guardian last reported it; ``lost`` says why nothing more will be heard of it."""

    number: int
    marker: str
    pid: int | None = None
    refused: dict[str, Any] | None = None
    ended: Ended | None = None
    lost: str | None = None

    @property
    def settled(self) -> bool:
        """True once nothing more can happen to it."""
        return self.ended is not None or self.refused is not None or self.lost is not None


class Guard:
    """One guardian process and its jobs; what lives ``kill_limit`` seconds after SIGKILL is given up as stuck.

    Raises LaunchError where a guardian cannot be started.
    """

    def __init__(self, kill_limit: float) -> None:
        _require_linux()
        self._kill_limit = kill_limit
        self._owner = os.getpid()
        self._session = f"{self._owner}-{os.urandom(6).hex()}"
        self._count = 0
        self._wards: dict[int, Ward] = {}
        self._torn = False
        self._stuck = ""
        self._why = ""
        self.lost: str | None = None
        self._complaints = os.memfd_create("guardian-stderr")
        self._channel, theirs = socket.socketpair()
        try:
            self._process = _start_guardian(theirs.fileno(), self._complaints, kill_limit)
        except BaseException:
            self._channel.close()
            os.close(self._complaints)
            raise
        finally:
            theirs.close()
        self._channel.settimeout(ANSWER_LIMIT)
        self._poller = select.poll()
        self._poller.register(self._channel, select.POLLIN)

    @property
    def pid(self) -> int:
        """The guardian's process id."""
        return self._process.pid

    @property
    def is_ours(self) -> bool:
        """False in a forked child of the process that started the guardian: the jobs are not the child's."""
        return os.getpid() == self._owner

    @property
    def _connected(self) -> bool:
        return self.lost is None and self._channel.fileno() >= 0

    def spawn(self, spec: LaunchSpec) -> Ward:
        """Order a job and return once the guardian has started or refused it (see ``Ward``)."""
        self._count += 1
        ward = Ward(self._count, f"{self._session}.{self._count}")
        self._wards[ward.number] = ward
        self._send(
            op="spawn",
            job=ward.number,
            marker=ward.marker,
            argv=spec.argv,
            env={**spec.env, processes.MARKER: ward.marker},
            cwd=os.path.abspath(spec.cwd),  # noqa: PTH100 (Path.resolve would follow links, absolute keep ..)
            output=os.path.abspath(spec.output),  # noqa: PTH100 (as above)
        )
        self._await(lambda: ward.settled or ward.pid is not None, ANSWER_LIMIT, "the order to start a job")
        return ward

    def stop(self, ward: Ward, grace: float) -> None:
        """Have a job ended and return once nothing of it is left; it is settled then."""
        if ward.settled:
            return
        self._send(op="stop", job=ward.number, grace=grace)
        limit = max(grace, LINGER) + self._kill_limit + ANSWER_LIMIT
        self._await(lambda: ward.settled, limit, "the order to end a job")

    def wait(self, ward: Ward, timeout: float) -> bool:
        """Wait until a job is settled; False where it is not after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        while not ward.settled:
            left = deadline - time.monotonic()
            if not self._pump(max(left, 0.0)) and left <= 0:
                break
        return ward.settled

    def wait_for_any(self, timeout: float) -> None:
        """Return as soon as any job of this guardian may have ended, at the latest after ``timeout`` seconds."""
        self._pump(timeout)

    def close(self, grace: float) -> str:
        """End all jobs and the guardian; a description of what could not be ended, empty where nothing is left."""
        try:
            if self._connected:
                self._send(op="leave", grace=grace)
                limit = max(grace, LINGER) + self._kill_limit + ANSWER_LIMIT
                self._await(lambda: self.lost is not None, limit, "the order to leave")
        finally:
            # Also when interrupted: with the connection gone the guardian ends everything at once.
            self._channel.close()
            self._see_off()
        return self._stuck

    def _see_off(self) -> None:
        """Wait for the guardian's process, whose connection is closed, and drop what is ours."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(ORPHANED_GRACE + self._kill_limit + FAREWELL_LIMIT)
        if self.lost is None or self._process.returncode is None:
            self._lose("was left behind by an interrupted session")
        self._process.wait()
        if self._complaints >= 0:
            os.close(self._complaints)
            self._complaints = -1

    def _send(self, **order: object) -> None:
        if not self._connected:
            return
        # After an interrupted sendall the guardian may hold half an order: a line's end makes that one void.
        data = (b"\n" if self._torn else b"") + json.dumps(order).encode() + b"\n"
        self._torn = True
        try:
            self._channel.sendall(data, socket.MSG_NOSIGNAL)
        except ConnectionError:
            # It is gone; the next read says so.
            return
        except TimeoutError:
            self._lose(f"did not take an order for {ANSWER_LIMIT:.0f} s")
            return
        self._torn = False

    def _await(self, settled: Callable[[], bool], limit: float, what: str) -> None:
        deadline = time.monotonic() + limit
        while not settled() and self.lost is None:
            if not self._pump(max(deadline - time.monotonic(), 0.0)) and time.monotonic() >= deadline:
                self._lose(f"did not answer {what} within {limit:.0f} s (does a file system hang?)")

    def _pump(self, timeout: float) -> bool:
        """Apply the events that have arrived, waiting up to ``timeout`` seconds for one; False where none came."""
        if self._channel.fileno() < 0:
            # A close was interrupted before it had seen the guardian off.
            self._see_off()
        if not self._connected or not self._poller.poll(min(timeout, _LONGEST_POLL) * 1000):
            return False
        try:
            data = self._channel.recv(_LARGEST_READ, socket.MSG_PEEK)
        except ConnectionError:
            data = b""
        if not data:
            self._lose(self._how_it_ended())
            return True
        complete = data.rfind(b"\n") + 1
        for line in data[:complete].splitlines():
            self._apply(json.loads(line))
        self._channel.recv(complete)
        return True

    def _apply(self, event: dict[str, Any]) -> None:
        kind = event.pop("event")
        if kind == "leaving":
            self._why = f"received {event['why']} from somebody"
            return
        ward = self._wards.get(event["job"])
        if ward is None:
            return
        if kind == "started":
            ward.pid = event["pid"]
        elif kind == "refused":
            ward.refused = event
        else:
            ward.ended = Ended(**event)
            self._stuck = self._stuck or ward.ended.stuck
        if ward.settled:
            del self._wards[ward.number]

    def _how_it_ended(self) -> str:
        try:
            code = self._process.wait(ANSWER_LIMIT)
        except subprocess.TimeoutExpired:
            return "closed its connection but still runs"
        if self._why:
            return self._why
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        said = os.pread(self._complaints, 4096, max(0, os.fstat(self._complaints).st_size - 4096))
        last = said.decode("utf-8", "replace").strip().rpartition("\n")[2]
        return f"ended with exit code {code}" + (f": {last!r}" if last else "")

    def _lose(self, why: str) -> None:
        """The guardian is gone, or is of no use: end its jobs ourselves, found by their marker."""
        self._process.kill()
        left = processes.end_marked(self._session, self._kill_limit) if self._wards else []
        self._stuck = self._stuck or processes.describe(left)
        rest = f"these could not be ended: {self._stuck}" if left else "what it ran was ended"
        for ward in self._wards.values():
            ward.lost = f"the guardian of this session's jobs (pid {self.pid}) {why}; {rest}"
        self._wards.clear()
        self.lost = why


def _require_linux() -> None:
    platform: str = sys.platform
    if platform != "linux" or not Path("/proc/self/stat").exists():
        found = platform if platform != "linux" else "Linux without /proc"
        raise LaunchError(
            f"the local launcher needs Linux with /proc mounted (to end whole process trees), found {found}; "
            "run on a Linux machine, or with --launcher slurm on a cluster"
        )


def _start_guardian(descriptor: int, complaints: int, kill_limit: float) -> subprocess.Popen[bytes]:
    """Start the guardian: isolated, without site-packages, in its own session, holding only its own descriptors."""
    # utf8: it must read and write file names with the same encoding as this process.
    isolation = ("-I", "-S", "-X", f"utf8={sys.flags.utf8_mode}")
    who = (str(_ROOT), str(descriptor), str(os.getpid()), str(kill_limit))
    try:
        return subprocess.Popen(
            (sys.executable, *isolation, "-c", _BOOT, *who),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=complaints,
            pass_fds=(descriptor,),
            start_new_session=True,
            cwd="/",
        )
    except OSError as error:
        raise LaunchError(
            f"cannot start the guardian of this session's jobs with {sys.executable!r}: {error.strerror}; "
            "expected the Python that runs pytest to be startable"
        ) from None
