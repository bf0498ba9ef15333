"""One question to the controller for all running jobs, not more often than it can bear.

``look`` never waits: it starts a squeue when one is due and takes its answer when it has come. An error means that
nothing is known yet. A job that the controller does not know (any more) is looked up in the accounting, where there is
one, until ``lag`` seconds have passed.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from pytest_scaleperf.launch.slurm.client import PATIENCE, UNKNOWN_JOB, Answer, ask, clean
from pytest_scaleperf.launch.slurm.states import ACCOUNT_FORMAT, QUEUE_FORMAT, Seen, parse_account, parse_queue

PERIOD = 5.0
"""Seconds between two questions, also for 500 jobs; beyond that, and while nobody answers, it grows."""

LONGEST_PERIOD = 30.0
LAG = 300.0
"""Seconds by which the accounting may be late."""

_MANY = 500


@dataclass(slots=True)
class _Watched:
    """One job: what was last seen, since when the controller does not know it."""

    seen: Seen | None = None
    missing_since: float | None = None


class Poller:
    """The states of all jobs of one launcher; ``period`` is the least time in s from one question to the next."""

    def __init__(self, period: float = PERIOD, lag: float = LAG, clock: Callable[[], float] = time.monotonic) -> None:
        self._period = period
        self._lag = lag
        self._clock = clock
        self._jobs: dict[str, _Watched] = {}
        self._asking: _Asking | None = None
        self._next = 0.0
        self._pause = period
        self._sacct = True
        self._away_since: float | None = None
        self.asked = 0

    @property
    def away_for(self) -> float:
        """Seconds for which the controller has not answered; 0 where it last did."""
        return 0.0 if self._away_since is None else self._clock() - self._away_since

    def watch(self, job: str) -> None:
        """Ask for this job too, until ``forget``."""
        self._jobs[job] = _Watched()

    def forget(self, job: str) -> None:
        """Its state is of no interest any more."""
        self._jobs.pop(job, None)

    def seen(self, job: str) -> Seen | None:
        """What was last told of a job; None: nothing yet."""
        watched = self._jobs.get(job)
        return None if watched is None else watched.seen

    def is_lost(self, job: str) -> bool:
        """True where neither the controller nor, after the lag, the accounting knows it, though both answer."""
        watched = self._jobs.get(job)
        since = None if watched is None else watched.missing_since
        return since is not None and self._clock() - since > self._lag

    def look(self) -> None:
        """Take an answer that has come; ask where it is time."""
        if self._asking is not None:
            answer = self._asking.answer()
            if answer is None:
                return
            self._take(answer, self._asking.jobs)
            self._asking = None
        if self._jobs and self._clock() >= self._next:
            self._next = self._clock() + self._pause
            self.asked += 1
            self._asking = _Asking(tuple(self._jobs))

    def close(self) -> None:
        """End a question that is under way."""
        if self._asking is not None:
            self._asking.drop()
            self._asking = None

    def _take(self, answer: Answer, jobs: tuple[str, ...]) -> None:
        if answer.code == 0 or UNKNOWN_JOB in answer.err:
            self._away_since = None
            self._pause = min(LONGEST_PERIOD, self._period * max(1.0, len(self._jobs) / _MANY))
            self._update(parse_queue(answer.out), jobs)
            return
        self._away_since = self._clock() if self._away_since is None else self._away_since
        self._pause = min(LONGEST_PERIOD, self._pause * 2)
        self._next = self._clock() + self._pause

    def _update(self, told: dict[str, Seen], jobs: tuple[str, ...]) -> None:
        missing = []
        for job in jobs:
            watched = self._jobs.get(job)
            if watched is None:
                continue
            if job in told:
                watched.seen, watched.missing_since = told[job], None
            else:
                missing.append(job)
                if watched.missing_since is None:
                    watched.missing_since = self._clock()
        if missing and self._sacct:
            self._ask_accounting(missing)

    def _ask_accounting(self, jobs: list[str]) -> None:
        answer = ask(("sacct", "-X", "-P", "-n", "-j", ",".join(jobs), "-o", ACCOUNT_FORMAT))
        if answer.code != 0:
            # Not installed, or accounting is switched off: it will not be there later in this session either.
            self._sacct = answer.away and "No such file" not in answer.err
            return
        for job, seen in parse_account(answer.out).items():
            watched = self._jobs.get(job)
            # Of a job that the controller has forgotten, a state that is not final is the accounting's delay.
            if watched is not None and seen.state.is_finished:
                watched.seen, watched.missing_since = seen, None


class _Asking:
    """A squeue that runs, its answer going into memory."""

    def __init__(self, jobs: tuple[str, ...]) -> None:
        self.jobs = jobs
        self._since = time.monotonic()
        self._out, self._err = os.memfd_create("squeue-out"), os.memfd_create("squeue-err")
        argv = ("squeue", "--me", "-h", "-t", "all", "-j", ",".join(jobs), "-o", QUEUE_FORMAT)
        self._failed = ""
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = subprocess.Popen(
                argv, env=clean(), stdin=subprocess.DEVNULL, stdout=self._out, stderr=self._err, start_new_session=True
            )
        except OSError as error:
            self._failed = f"squeue: {error.strerror}"

    def answer(self) -> Answer | None:
        """What it said, once it has ended or has taken too long."""
        if self._process is None:
            answer = Answer(None, "", self._failed)
        else:
            code = self._process.poll()
            if code is None and time.monotonic() - self._since < PATIENCE:
                return None
            answer = Answer(code, _whole(self._out), _whole(self._err))
        self.drop()
        return answer

    def drop(self) -> None:
        """End it, and what it has said."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for descriptor in (self._out, self._err):
            with suppress(OSError):
                os.close(descriptor)


def _whole(descriptor: int) -> str:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode("utf-8", "replace")
