"""Cases as steps of one allocation: inside salloc or sbatch, or in another job of ours, given by its id."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Sequence

from pytest_scaleperf.launch.closing import Closing
from pytest_scaleperf.launch.guard import Guard
from pytest_scaleperf.launch.slurm import allotted, evidence, render
from pytest_scaleperf.launch.slurm.client import UNKNOWN_JOB, ask, cluster, without_slurm
from pytest_scaleperf.launch.slurm.keep import Keep
from pytest_scaleperf.launch.slurm.states import STEPS_FORMAT, parse_steps
from pytest_scaleperf.launch.slurm.step import Hold, StepJob
from pytest_scaleperf.model import (
    JobResult,
    LaunchError,
    LaunchSpec,
    Outcome,
    Placement,
    SlurmOptions,
    Wanted,
)
from pytest_scaleperf.packing import Node, Packer

_LOST_ALLOCATION = frozenset({"COMPLETED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "CANCELLED", "DEADLINE"})


class AllocationLauncher(Closing):
    """Starts steps in the allocation ``job`` (None: the one that this process is in); satisfies ``Launcher``.

    ``gpus_per_node`` is the system's, for a Slurm that does not count GPUs. ``grace`` is the time in s between SIGTERM
    and SIGKILL to srun, ``kill_limit`` the time in s after which a step that does not end is reported.

    Raises LaunchError where there is no such allocation.
    """

    def __init__(
        self,
        options: SlurmOptions,
        gpus_per_node: int,
        job: str | None = None,
        grace: float = 10.0,
        kill_limit: float = 60.0,
    ) -> None:
        found = job or os.environ.get("SLURM_JOB_ID")
        if not found:
            raise LaunchError(
                "expected to be inside a Slurm allocation (salloc, sbatch), found no SLURM_JOB_ID; start one with "
                "`salloc -N NODES --gpus-per-node=N --mem=0`, or submit a job per case with --launcher slurm"
            )
        self._options = options
        self._limits = (grace, kill_limit)
        self._kill_limit = kill_limit
        self._allotted = allotted.read(found, gpus_per_node)
        self._packer = Packer(self._allotted.nodes)
        for node in evidence.node_states([node.name for node in self._allotted.nodes]):
            if node.broken:
                self._packer.leave_out(node.name)
        self._guard: Guard | None = None
        self._keep: Keep | None = None
        self._jobs: dict[str, StepJob] = {}
        self._offered: dict[Placement, tuple[str, Placement]] = {}
        self._doubtful: set[str] = set()
        self._count = 0
        self._token = os.urandom(6).hex()
        self._over = ""
        self._closed = False

    @property
    def job(self) -> str:
        """The allocation's job id."""
        return self._allotted.job

    @property
    def total_gpus(self) -> int:
        """GPUs of the allocation's nodes that are in use."""
        return self._packer.total_gpus

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The allocation's nodes that are in use."""
        return self._packer.nodes

    @property
    def busy_gpus(self) -> int:
        """GPUs that running steps hold now."""
        return self._packer.busy_gpus

    @property
    def side_by_side(self) -> bool:
        """Steps share an allocation."""
        return True

    def choose(self, waiting: Sequence[Wanted]) -> tuple[Wanted, Placement] | None:
        """The launch that starts next, and its nodes, as ``packing`` chooses.

        Raises LaunchError where one of them can never run here, or where the allocation has ended.
        """
        self._require_allocation()
        chosen = self._packer.choose([self._as_packed(wanted) for wanted in waiting])
        if chosen is None:
            return None
        packed, taken = chosen
        wanted = next(w for w in waiting if w.key == packed.key)
        placement = Placement(taken.nodes, wanted.resources.gpus // wanted.resources.nodes)
        self._offered[placement] = (wanted.key, taken)
        return wanted, placement

    def submit(self, spec: LaunchSpec) -> StepJob:
        """Start a step on the nodes of ``spec.placement``, with ``spec.env`` plus what Slurm itself sets.

        Raises LaunchError where it cannot be started.
        """
        self._require_allocation()
        placement = spec.placement
        if placement is None or not placement.nodes or not spec.argv:
            raise LaunchError(f"{spec.job_name}: expected a program, and the nodes that `choose` gave, found none")
        folder = spec.output.parent
        evidence.prepare(spec, folder)
        self._count += 1
        name = f"{spec.job_name}.{self._token}-{self._count}".replace("|", "_")
        key, taken = self._offered.pop(placement, (name, placement))
        guard, keep = self._ready()
        self._packer.take(key, taken)
        try:
            keep.hold_step(self.job, name)
            ward = guard.spawn(self._as_srun(spec, placement, name))
        except BaseException:
            self._packer.free(key)
            raise

        def ended(result: JobResult | None, gone: bool) -> None:  # noqa: FBT001 - the callback's two values
            self._packer.free(key)
            self._jobs.pop(name, None)
            if gone:
                keep.forget_step(self.job, name)
            if result is not None:
                self._learn(result, placement)

        job = StepJob(guard, ward, spec, Hold(self.job, name, ended), self._limits)
        if ward.refused is not None:
            ended(None, True)
            raise LaunchError(f"{spec.job_name}: cannot start srun: {ward.refused['why']}; expected it on the PATH")
        self._jobs[name] = job
        return job

    def wait(self, timeout: float) -> None:
        """Return as soon as a step may have ended, at the latest after ``timeout`` seconds."""
        if self._guard is None:
            time.sleep(timeout)
        else:
            self._guard.wait_for_any(timeout)

    def leave_out(self, host: str) -> None:
        """Start nothing more on this node."""
        self._packer.leave_out(host)

    def close(self) -> None:
        """End every step, then the guardian and the keeper. The allocation itself stays. Twice is harmless.

        Raises LaunchError where something cannot be ended.
        """
        self._closed = True
        guard, keep = self._guard, self._keep
        if guard is None or not guard.is_ours:
            return
        try:
            stuck = guard.close(self._limits[0])
            if keep is not None:
                self._forget_ended(keep)
        finally:
            # The keeper looks for steps that are still there, and cancels them by id.
            if keep is not None:
                keep.close()
        self._guard = self._keep = None
        if stuck:
            raise LaunchError(f"the session leaves processes behind that SIGKILL does not end: {stuck}; expected none")

    def _as_packed(self, wanted: Wanted) -> Wanted:
        """Off doubtful nodes where others are enough, and whole nodes where Slurm does not hand out GPUs.

        (Two launches on one such node would take the same GPUs.)
        """
        wanted = self._off_doubtful(wanted)
        if self._allotted.counts_gpus:
            return wanted
        asked = wanted.resources
        whole = dataclasses.replace(asked, gpus=asked.nodes * asked.gpus_per_node)
        return dataclasses.replace(wanted, resources=whole)

    def _off_doubtful(self, wanted: Wanted) -> Wanted:
        """Away from nodes whose CPUs Slurm may still count as taken by a step that another node's failure ended.

        Slurm 22.05 never frees them ("unable to update job's core use information due to job resizing"), and a step
        there waits until its start has taken too long.
        """
        careful = dataclasses.replace(wanted, avoid=wanted.avoid | self._doubtful)
        try:
            self._packer.check(careful)
        except LaunchError:
            return wanted
        return careful

    def _forget_ended(self, keep: Keep) -> None:
        """One question instead of the keeper's patience: usually srun has ended every step by now."""
        if not self._jobs:
            return
        answer = ask(("squeue", "-h", "-s", "-j", self.job, "-o", STEPS_FORMAT))
        if answer.code == 0 or UNKNOWN_JOB in answer.err:
            for name in self._jobs.keys() - parse_steps(answer.out).keys():
                keep.forget_step(self.job, name)

    def _ready(self) -> tuple[Guard, Keep]:
        if self._guard is not None and not self._guard.is_ours:
            raise LaunchError("not started: expected the process that made this launcher, found a forked child of it")
        if self._guard is not None and self._guard.lost is not None:
            self._guard.close(self._limits[0])
            self._guard = None
        if self._keep is None:
            self._keep = Keep()
        if self._guard is None:
            self._guard = Guard(self._kill_limit)
        return self._guard, self._keep

    def _as_srun(self, spec: LaunchSpec, placement: Placement, name: str) -> LaunchSpec:
        """The order to the guardian: srun, or the site's lines and then srun."""
        folder = spec.output.parent
        argv = render.srun(
            self._options,
            render.node_command(spec, folder),
            nodes=len(placement.nodes),
            gpus_on_each=placement.gpus_on_each if self._allotted.counts_gpus else None,
            name=name,
            folder=folder,
            cwd=spec.cwd,
            job=self.job,
            hosts=placement.nodes,
            cpus=allotted.cpus_for(self._allotted, placement.nodes, placement.gpus_on_each),
        )
        if self._options.setup:
            argv = ("/bin/bash", "-c", render.script(self._options, argv))
        env = {**dict(self._options.env), **without_slurm(spec.env), **cluster()}
        return LaunchSpec(name, argv, env, spec.cwd, spec.output, spec.resources, placement)

    def _learn(self, result: JobResult, placement: Placement) -> None:
        """Use no more what failed, its step's other nodes last, and nothing more of an allocation that has ended."""
        if result.fault is Outcome.NODE_FAILURE:
            self._doubtful |= set(placement.nodes)
            for host in result.failed_hosts:
                self._packer.leave_out(host)
        if result.scheduler.get("state") in _LOST_ALLOCATION:
            word, reason = result.scheduler["state"], result.scheduler.get("reason", "")
            self._over = f"{word} (reason {reason})"

    def _require_allocation(self) -> None:
        if self._closed:
            raise LaunchError("nothing is started any more: this launcher is closed, its session has ended")
        if self._over:
            raise LaunchError(
                f"the allocation {self.job} has ended: {self._over}; expected it to last as long as the session. Make "
                "another, and go on with --resume latest"
            )
