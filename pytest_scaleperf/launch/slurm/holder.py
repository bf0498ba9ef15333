"""A job that only holds nodes, for a whole rung or more: its cases run in it as steps, by its id."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from pytest_scaleperf.launch.closing import Closing
from pytest_scaleperf.launch.slurm import render
from pytest_scaleperf.launch.slurm.allocation import AllocationLauncher
from pytest_scaleperf.launch.slurm.batch import submit
from pytest_scaleperf.launch.slurm.batch_job import BatchJob
from pytest_scaleperf.launch.slurm.client import ask, cluster, without_slurm
from pytest_scaleperf.launch.slurm.keep import Keep
from pytest_scaleperf.launch.slurm.query import PERIOD, Poller
from pytest_scaleperf.launch.slurm.step import StepJob
from pytest_scaleperf.model import JobResult, LaunchError, LaunchSpec, Placement, Resources, SlurmOptions, Wanted


class HolderLauncher(Closing):
    """Submits one job for the largest launch that waits, and runs all launches as its steps; satisfies ``Launcher``.

    ``gpus`` are held at least (None: as many as the largest launch needs that waits first). A larger launch later takes
    a larger job once nothing runs in the first. ``folder`` is where the job's own output goes, ``name`` its name.
    """

    def __init__(  # noqa: PLR0913 - each named where it is made
        self,
        options: SlurmOptions,
        gpus_per_node: int,
        folder: Path,
        *,
        name: str,
        gpus: int | None = None,
        period: float = PERIOD,
    ) -> None:
        self._options = options
        self._gpus_per_node = gpus_per_node
        self._folder = folder
        self._name = name
        self._least = gpus or 0
        self._poller = Poller(period)
        self._period = period
        self._keep: Keep | None = None
        self._job: BatchJob | None = None
        self._held = 0
        self._inner: AllocationLauncher | None = None
        self._left_out: set[str] = set()
        self._failed = ""
        self._closed = False

    @property
    def side_by_side(self) -> bool:
        """Steps share the job's nodes."""
        return True

    @property
    def job(self) -> str | None:
        """The id of the job that holds the nodes now; None where there is none."""
        return None if self._job is None else self._job.id

    @property
    def queued_for(self) -> str:
        """Slurm's reason why the nodes are not there yet; empty once they are."""
        return "" if self._job is None else self._job.queued_for

    def choose(self, waiting: Sequence[Wanted]) -> tuple[Wanted, Placement] | None:
        """As AllocationLauncher's, once the nodes are there; None while they are waited for.

        Raises LaunchError where the job cannot be had, or has ended.
        """
        if self._failed:
            raise LaunchError(self._failed)
        if not waiting or self._closed:
            return None
        needed = max(self._least, *(w.resources.nodes * self._on_each(w.resources) for w in waiting))
        if self._inner is not None:
            if self._held >= needed or self._inner.busy_gpus:
                fitting = [w for w in waiting if w.resources.gpus <= self._held]
                return self._inner.choose(fitting) if fitting else None
            self._release()
        if self._job is None:
            self._submit(needed)
        return self._inner.choose(waiting) if self._ready() and self._inner is not None else None

    def submit(self, spec: LaunchSpec) -> StepJob:
        """Start a step where ``choose`` said."""
        if self._inner is None:
            raise LaunchError(f"{spec.job_name}: expected `choose` to have given nodes, found none held")
        return self._inner.submit(spec)

    def wait(self, timeout: float) -> None:
        """Return as soon as a step may have ended or the nodes may be there, at most ``timeout`` s later."""
        if self._inner is not None:
            self._inner.wait(timeout)
            return
        until = time.monotonic() + timeout
        while self._job is not None and not self._job.runs and time.monotonic() < until:
            self._poller.look()
            time.sleep(min(0.1, timeout))

    def leave_out(self, host: str) -> None:
        """Start nothing more on this node, and do not ask for it again."""
        self._left_out.add(host)
        if self._inner is not None:
            self._inner.leave_out(host)

    def close(self) -> None:
        """End every step, then the job that holds the nodes, by its id."""
        self._closed = True
        keep = self._keep
        if keep is None or not keep.is_ours:
            return
        try:
            self._release()
        finally:
            self._poller.close()
            keep.close()
            self._keep = None

    def _on_each(self, resources: Resources) -> int:
        """Whole nodes are held, also for a launch of a part of one."""
        return min(self._gpus_per_node, resources.gpus)

    def _submit(self, gpus: int) -> None:
        if self._keep is None:
            self._keep = Keep()
        keep, token = self._keep, f"scaleperf:{os.urandom(16).hex()}"
        resources = Resources(gpus, self._gpus_per_node)
        on_each = gpus // resources.nodes
        output = self._folder / "nodes-held.log"
        env = {**without_slurm(os.environ), **cluster()}
        spec = LaunchSpec(self._name, ("sleep", "infinity"), env, self._folder, output, resources)
        argv = render.sbatch(
            self._options,
            name=self._name,
            nodes=resources.nodes,
            gpus_on_each=on_each,
            output=output,
            cwd=self._folder,
            token=token,
            exclude=sorted(self._left_out),
            whole_nodes=True,
            no_kill=True,
        )
        job = submit(keep, spec, argv, env=env, script="#!/bin/bash\nexec sleep infinity\n", token=token)
        self._poller.watch(job)
        self._held = gpus

        def ended(_result: JobResult | None) -> None:
            self._poller.forget(job)
            keep.forget(job)

        self._job = BatchJob(job, spec, self._poller, self._options, kill_limit=60.0, ended=ended)

    def _ready(self) -> bool:
        """True once the nodes are there.

        Raises LaunchError where they never will be.
        """
        job = self._job
        if job is None:
            return False
        result = job.wait(0.0)
        if result is not None:
            # What could not be had once is not asked for again: every case that waits is told the same.
            self._failed = (
                f"{self._name}: expected {self._held} GPUs to run in, found the job {job.id} ended before: "
                f"{result.scheduler.get('state', result.state)}: {result.detail}. Correct `slurm:` in the system file"
            )
            raise LaunchError(self._failed)
        if job.runs:
            self._inner = AllocationLauncher(self._options, self._gpus_per_node, job.id)
            for host in self._left_out:
                self._inner.leave_out(host)
        return job.runs

    def _release(self) -> None:
        """End the steps and give the nodes back."""
        inner, job = self._inner, self._job
        self._inner = self._job = None
        try:
            if inner is not None:
                inner.close()
        finally:
            if job is not None and self._keep is not None:
                ask(("scancel", job.id))
                self._poller.forget(job.id)
                # The keeper still holds it, and cancels it once more when the session ends: nothing is lost by that.
