"""What every launcher offers: say what may start, start a job, ask for it, end it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pytest_scaleperf.model import JobResult, LaunchSpec, Placement, StopReason, Wanted


class Job(Protocol):
    """One started job. Ending it twice is harmless."""

    @property
    def id(self) -> str:
        """The launcher's own id of the job (a process id, a Slurm job or step id)."""
        ...

    @property
    def runs(self) -> bool:
        """False while a scheduler still has it queued; a limit on its start counts only once it runs."""
        ...

    def wait(self, timeout: float) -> JobResult | None:
        """The result once the job and everything it started have ended, or None after ``timeout`` seconds."""
        ...

    def stop(self, reason: StopReason) -> JobResult:
        """End the job and everything it started, and return how it ended."""
        ...


class Launcher(Protocol):
    """A way to start jobs. To be used from one thread. ``close`` ends whatever still runs, on every path out."""

    @property
    def side_by_side(self) -> bool:
        """Whether more than one job may run at once; where not, nothing is started ahead of its test."""
        ...

    def choose(self, waiting: Sequence[Wanted]) -> tuple[Wanted, Placement] | None:
        """Which of those that wait may start now, and where; None: none has room now.

        Nothing is taken yet: ``submit`` takes the placement, the job's end gives it back.
        Raises LaunchError where one of them can never run here (more GPUs than there are, all nodes left out).
        """
        ...

    def submit(self, spec: LaunchSpec) -> Job:
        """Start a job where ``spec.placement`` says.

        Raises LaunchError where it cannot be started.
        """
        ...

    def wait(self, timeout: float) -> None:
        """Return as soon as a job may have ended, at the latest after ``timeout`` seconds."""
        ...

    def leave_out(self, host: str) -> None:
        """Start nothing more on this host."""
        ...

    def close(self) -> None:
        """End every job that this launcher started and has not yet seen end."""
        ...
