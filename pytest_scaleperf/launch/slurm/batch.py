"""Cases as Slurm jobs of their own: submitted by the keeper, watched by one question for all, cancelled by id."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence

from pytest_scaleperf.launch.closing import Closing
from pytest_scaleperf.launch.slurm import evidence, render
from pytest_scaleperf.launch.slurm.batch_job import BatchJob
from pytest_scaleperf.launch.slurm.client import Answer, cluster, without_slurm
from pytest_scaleperf.launch.slurm.keep import Keep
from pytest_scaleperf.launch.slurm.query import PERIOD, Poller
from pytest_scaleperf.model import JobResult, LaunchError, LaunchSpec, Outcome, Placement, SlurmOptions, Wanted

SUBMIT_PATIENCE = 180.0
"""Seconds for which a controller that is away is asked again to take a job."""

_SUBMIT_PAUSE = 5.0


class BatchLauncher(Closing):
    """Submits a job per case; satisfies ``Launcher``. Slurm chooses the nodes and packs them.

    ``period`` is the least time in s between two questions to the controller, ``kill_limit`` the time in s after which
    a cancelled job that does not end is reported. ``counts_gpus``: the cluster knows GPUs (``GresTypes=gpu``).
    """

    def __init__(
        self,
        options: SlurmOptions,
        period: float = PERIOD,
        kill_limit: float = 120.0,
        *,
        counts_gpus: bool = True,
    ) -> None:
        self._options = options
        self._kill_limit = kill_limit
        self._counts_gpus = counts_gpus
        self._poller = Poller(period)
        self._keep: Keep | None = None
        self._jobs: dict[str, BatchJob] = {}
        self._alone = False
        self._left_out: set[str] = set()
        self._closed = False

    @property
    def side_by_side(self) -> bool:
        """Jobs wait and run side by side."""
        return True

    @property
    def keeper_pid(self) -> int | None:
        """Process id of the keeper; None before the first job."""
        return None if self._keep is None else self._keep.pid

    @property
    def asked(self) -> int:
        """How often the controller was asked for the states of all jobs."""
        return self._poller.asked

    def choose(self, waiting: Sequence[Wanted]) -> tuple[Wanted, Placement] | None:
        """The first that waits, while ours are fewer than ``max_jobs``; an exclusive one once none of ours is left."""
        if self._alone and self._jobs:
            return None
        for wanted in waiting:
            exclusive = wanted.resources.exclusive
            if (exclusive and self._jobs) or len(self._jobs) >= self._options.max_jobs:
                continue
            return wanted, Placement((), wanted.resources.gpus // wanted.resources.nodes)
        return None

    def submit(self, spec: LaunchSpec) -> BatchJob:
        """Submit a job and return at once; it may wait long.

        Raises LaunchError where Slurm does not take it, with what it said.
        """
        if self._closed:
            raise LaunchError(f"{spec.job_name}: not started: this launcher is closed, its session has ended")
        if not spec.argv:
            raise LaunchError(f"{spec.job_name}: nothing to start: expected a program and its arguments, found none")
        evidence.prepare(spec, spec.output.parent)
        keep = self._ready_keep()
        job_id = self._submitted(keep, spec)
        self._poller.watch(job_id)
        self._alone = spec.resources.exclusive

        def ended(result: JobResult | None) -> None:
            self._jobs.pop(job_id, None)
            self._poller.forget(job_id)
            keep.forget(job_id)
            if result is not None and result.fault is Outcome.NODE_FAILURE:
                self._left_out.update(result.failed_hosts)

        job = BatchJob(job_id, spec, self._poller, self._options, kill_limit=self._kill_limit, ended=ended)
        self._jobs[job_id] = job
        return job

    def wait(self, timeout: float) -> None:
        """Return as soon as a job may have ended, at the latest after ``timeout`` seconds."""
        until = time.monotonic() + timeout
        while True:
            self._poller.look()
            left = until - time.monotonic()
            if left <= 0 or any(job.may_have_ended for job in self._jobs.values()):
                return
            time.sleep(min(left, 0.1))

    def leave_out(self, host: str) -> None:
        """Submit nothing more to this node."""
        self._left_out.add(host)

    def close(self) -> None:
        """Cancel every job by its id, and end the keeper. Twice is harmless; in a forked child it does nothing."""
        self._closed = True
        keep = self._keep
        if keep is None or not keep.is_ours:
            return
        self._poller.close()
        for job in self._jobs.values():
            job.close()
        # It cancels what is left, and where the controller is away it goes on by itself.
        keep.close()
        self._keep = None

    def _ready_keep(self) -> Keep:
        if self._keep is not None and not self._keep.is_ours:
            raise LaunchError("not started: expected the process that made this launcher, found a forked child of it")
        if self._keep is None:
            self._keep = Keep()
        return self._keep

    def _submitted(self, keep: Keep, spec: LaunchSpec) -> str:
        folder = spec.output.parent
        token = f"scaleperf:{os.urandom(16).hex()}"
        nodes, gpus = spec.resources.nodes, self._gpus_on_each(spec)
        argv = render.sbatch(
            self._options,
            name=spec.job_name,
            nodes=nodes,
            gpus_on_each=gpus,
            output=spec.output,
            cwd=spec.cwd,
            token=token,
            exclude=sorted(spec.avoid | self._left_out),
            whole_nodes=spec.resources.exclusive,
        )
        step = render.srun(
            self._options,
            render.node_command(spec, folder),
            nodes=nodes,
            gpus_on_each=gpus,
            name=spec.job_name,
            folder=folder,
            cwd=spec.cwd,
        )
        env = {**dict(self._options.env), **without_slurm(spec.env), **cluster()}
        return submit(keep, spec, argv, env=env, script=render.script(self._options, step), token=token)

    def _gpus_on_each(self, spec: LaunchSpec) -> int | None:
        return spec.resources.gpus // spec.resources.nodes if self._counts_gpus else None


def submit(  # noqa: PLR0913 - what a submission is made of
    keep: Keep, spec: LaunchSpec, argv: Sequence[str], *, env: Mapping[str, str], script: str, token: str
) -> str:
    """The id of the new job; a controller that is away is asked again for a while.

    Raises LaunchError where Slurm does not take it.
    """
    until = time.monotonic() + SUBMIT_PATIENCE
    while True:
        answer = keep.submit(argv, env, spec.cwd, script, token)
        if isinstance(answer, str):
            return answer
        if not answer.away or time.monotonic() > until:
            raise LaunchError(_refusal(spec, argv, answer))
        time.sleep(_SUBMIT_PAUSE)


def _refusal(spec: LaunchSpec, argv: Sequence[str], answer: Answer) -> str:
    asked = " ".join(word for word in argv[1:] if not word.startswith(("--comment=", "--output=", "--chdir=")))
    return (
        f"{spec.job_name}: Slurm did not take the job: {answer.said}; asked with: {asked}. Correct `slurm:` in the "
        "system file, or the command line; `sinfo` says what there is"
    )
