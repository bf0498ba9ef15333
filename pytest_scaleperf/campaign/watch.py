"""Watching one job: live progress from its log, and the limits that end it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from pytest_scaleperf.model import Case, Limits, Progress, StopReason
from pytest_scaleperf.titan.console import Tail

TICK_SECONDS = 0.5
"""How often the log is looked at; the end of the job itself is noticed at once."""


@dataclass(slots=True)
class Watch:
    """What a job's log has said so far, and when it last said something new. Times are of the monotonic clock.

    A limit counts from when the job runs: the time that a scheduler has it queued is none of the case's.
    """

    case: Case
    log: Path
    started: float | None = None
    _first_step_at: float | None = None
    _first_step: int | None = None
    _step: int | None = None
    _changed: float = 0.0
    _offset: int = 0
    _tail: Tail = field(default_factory=Tail)

    def look(self, *, runs: bool) -> StopReason | None:
        """Read what is new in the log; a reason to end the job, where a limit was passed."""
        now = time.monotonic()
        if self.started is None:
            if not runs:
                return None
            self.started = now
        self._feed()
        self._see(self._tail.last_step, now)
        return self._overrun(self.case.suite.limits, self.started, now)

    def progress(self, beside: int = 0) -> Progress:
        """Where the job is; ``beside`` others run at the same time."""
        now, steps = time.monotonic(), self.case.suite.measure.steps
        seconds = None if self.started is None else now - self.started
        return Progress(self.case.id, self._step, steps, self._tail.last_tps, seconds, self._left(steps, now), beside)

    def _see(self, step: int | None, now: float) -> None:
        if step is None or step == self._step:
            return
        if self._first_step_at is None:
            self._first_step_at, self._first_step = now, step
        self._step, self._changed = step, now

    def _overrun(self, limits: Limits, started: float, now: float) -> StopReason | None:
        if now - started > limits.total:
            return StopReason.TOTAL_LIMIT
        if self._step is None:
            return StopReason.STARTUP_LIMIT if now - started > limits.startup else None
        return StopReason.NO_PROGRESS if now - self._changed > limits.no_progress else None

    def _left(self, steps: int, now: float) -> float | None:
        if self._step is None or self._first_step is None or self._first_step_at is None:
            return None
        if self._step <= self._first_step:
            return None
        return (now - self._first_step_at) / (self._step - self._first_step) * max(steps - self._step, 0)

    def _feed(self) -> None:
        try:
            with self.log.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return
        self._offset += len(data)
        self._tail.feed(data)
