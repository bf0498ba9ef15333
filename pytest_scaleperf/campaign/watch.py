"""Waiting for one job: live progress from its log, and the three limits that end it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pytest_scaleperf.launch.protocol import Job
from pytest_scaleperf.model import Case, JobResult, Limits, Progress, StopReason
from pytest_scaleperf.titan.console import Tail

TICK_SECONDS = 0.5
"""How often the log is looked at; the end of the job itself is noticed at once."""


@dataclass(slots=True)
class _Clock:
    """What the log has said so far, and when it last said something new."""

    started: float
    first_step_at: float | None = None
    first_step: int | None = None
    step: int | None = None
    changed: float = 0.0

    def see(self, step: int | None, now: float) -> None:
        if step is None or step == self.step:
            return
        if self.first_step_at is None:
            self.first_step_at, self.first_step = now, step
        self.step, self.changed = step, now

    def overrun(self, limits: Limits, now: float) -> StopReason | None:
        if now - self.started > limits.total:
            return StopReason.TOTAL_LIMIT
        if self.step is None:
            return StopReason.STARTUP_LIMIT if now - self.started > limits.startup else None
        return StopReason.NO_PROGRESS if now - self.changed > limits.no_progress else None

    def left(self, steps: int, now: float) -> float | None:
        if self.step is None or self.first_step is None or self.first_step_at is None or self.step <= self.first_step:
            return None
        return (now - self.first_step_at) / (self.step - self.first_step) * max(steps - self.step, 0)


def watch(job: Job, case: Case, log: Path, progress: Callable[[Progress], None]) -> JobResult:
    """Wait until the job ends by itself, or end it at a limit; progress is told by the log's steps."""
    tail, clock, offset = Tail(), _Clock(started=time.monotonic()), 0
    while True:
        result = job.wait(TICK_SECONDS)
        if result is not None:
            return result
        now = time.monotonic()
        offset += _feed(tail, log, offset)
        clock.see(tail.last_step, now)
        reason = clock.overrun(case.suite.limits, now)
        if reason is not None:
            return job.stop(reason)
        steps = case.suite.measure.steps
        progress(Progress(case.id, clock.step, steps, tail.last_tps, now - clock.started, clock.left(steps, now)))


def _feed(tail: Tail, log: Path, offset: int) -> int:
    try:
        with log.open("rb") as file:
            file.seek(offset)
            data = file.read()
    except FileNotFoundError:
        return 0
    tail.feed(data)
    return len(data)
