"""What every launcher offers: start a job, ask for it, end it."""

from __future__ import annotations

from typing import Protocol

from pytest_scaleperf.model import JobResult, LaunchSpec, StopReason


class Job(Protocol):
    """One started job. Ending it twice is harmless."""

    @property
    def id(self) -> str:
        """The launcher's own id of the job (a process id, a Slurm job or step id)."""
        ...

    def wait(self, timeout: float) -> JobResult | None:
        """The result once the job and everything it started have ended, or None after ``timeout`` seconds."""
        ...

    def stop(self, reason: StopReason) -> JobResult:
        """End the job and everything it started, and return how it ended."""
        ...


class Launcher(Protocol):
    """A way to start jobs. ``close`` ends whatever still runs, on every path out."""

    def submit(self, spec: LaunchSpec) -> Job:
        """Start a job.

        Raises LaunchError where it cannot be started.
        """
        ...

    def close(self) -> None:
        """End every job that this launcher started and has not yet seen end."""
        ...
