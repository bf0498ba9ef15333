"""One launch as a step of an allocation: its srun under the guardian, and the certainty that the step has gone."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pytest_scaleperf.launch.guard import Guard, Ward
from pytest_scaleperf.launch.slurm import evidence
from pytest_scaleperf.launch.slurm.client import UNKNOWN_JOB, ask
from pytest_scaleperf.launch.slurm.faults import Class, End, classify
from pytest_scaleperf.launch.slurm.states import STEPS_FORMAT, Seen, parse_job, parse_steps
from pytest_scaleperf.launch.trees import Ended
from pytest_scaleperf.model import JobResult, LaunchError, LaunchSpec, StopReason

_LOOK_AGAIN = 0.3
_SETTLE = 15.0
"""Seconds in which an allocation that is ending comes to its final state."""


@dataclass(frozen=True, slots=True)
class Hold:
    """What a step belongs to: the allocation's job id, its own unique name, and whom to tell of its end.

    ``ended(job, name, result, gone)``: ``gone`` is False where nobody could be asked whether the step still runs.
    """

    job: str
    name: str
    ended: Callable[[JobResult | None, bool], None]


class StepJob:
    """One step of an AllocationLauncher; satisfies ``launch.protocol.Job``."""

    def __init__(self, guard: Guard, ward: Ward, spec: LaunchSpec, hold: Hold, limits: tuple[float, float]) -> None:
        self._guard = guard
        self._ward = ward
        self._spec = spec
        self._hold = hold
        self._grace, self._kill_limit = limits
        self._submitted = time.time()
        self._reason: StopReason | None = None
        self._result: JobResult | None = None
        self._error: LaunchError | None = None

    @property
    def id(self) -> str:
        """The step's id; before its first node has started, the allocation's and srun's process id."""
        return self._nodes().step or f"{self._hold.job}.srun-{self._ward.pid}"

    @property
    def runs(self) -> bool:
        """A step is started only where there is room."""
        return True

    @property
    def marker(self) -> str:
        """The value of SCALEPERF_JOB in the environment of its srun and of all that it runs."""
        return self._ward.marker

    def wait(self, timeout: float) -> JobResult | None:
        """The result once the step has ended, or None after ``timeout`` seconds.

        Raises LaunchError where the guardian was lost, or where the step cannot be ended.
        """
        return self._finished() if self._settled or self._guard.wait(self._ward, timeout) else None

    def stop(self, reason: StopReason) -> JobResult:
        """One SIGTERM to srun, which ends the step; the result once the controller has no such step any more.

        Raises LaunchError as ``wait`` does.
        """
        self._reason = self._reason or reason
        if not self._settled:
            self._guard.stop(self._ward, self._grace)
        return self._finished()

    @property
    def _settled(self) -> bool:
        return self._result is not None or self._error is not None

    def _finished(self) -> JobResult:
        if not self._settled:
            try:
                self._result = self._judge()
            except LaunchError as error:
                self._error = error
                self._hold.ended(None, True)
        if self._error is not None:
            raise self._error
        assert self._result is not None  # noqa: S101 - one of the two is set now
        return self._result

    def _judge(self) -> JobResult:
        ended = self._ward.ended
        if ended is None or ended.stuck:
            self._end_step()
            why = ended.stuck if ended is not None else (self._ward.lost or str(self._ward.refused))
            raise LaunchError(
                f"{self._spec.job_name}: its srun was lost: {why}; the step was ended. Expected the guardian "
                "to outlive the session; look for what ended it (out of memory: dmesg), and run the case again"
            )
        words = evidence.words_of(self._spec.output)
        stopped = (self._reason or StopReason.INTERRUPTED) if ended.stopped else None
        end = End(ended.code, words, stopped)
        gone, seen = True, None
        if stopped is not None or (ended.code is not None and ended.code < 0):
            gone = self._end_step()
        if stopped is None and (ended.code != 0 or words.state is not None):
            seen = self._ask_job()
            broken = tuple(n for n in evidence.node_states(self._names) if n.broken)
            full = evidence.is_full(self._folder)
            end = End(ended.code, words, None, None if seen is None else seen.state, broken, full)
        result = self._as_result(classify(end), ended, seen)
        self._hold.ended(result, gone)
        return result

    def _as_result(self, found: Class, ended: Ended, seen: Seen | None) -> JobResult:
        nodes = self._nodes()
        scheduler = {"job": self._hold.job, "step": nodes.step}
        if seen is not None:
            scheduler |= {"state": seen.word, "reason": seen.reason}
        waited = 0.0 if nodes.started is None else max(0.0, nodes.started - self._submitted)
        return JobResult(
            state=found.state,
            exit_code=found.code,
            stopped=(self._reason or StopReason.INTERRUPTED) if ended.stopped else None,
            hosts=nodes.hosts or self._names,
            leftovers=ended.leftovers,
            seconds=max(0.0, ended.seconds - waited),
            detail=found.detail,
            waited=waited,
            scheduler={name: value for name, value in scheduler.items() if value},
            gpu_ids=nodes.devices or {},
            failed_hosts=found.failed_hosts,
            fault=found.fault,
        )

    @property
    def _folder(self) -> Path:
        return self._spec.output.parent

    @property
    def _names(self) -> tuple[str, ...]:
        return () if self._spec.placement is None else self._spec.placement.nodes

    def _nodes(self) -> evidence.Nodes:
        return evidence.nodes_of(self._folder)

    def _ask_job(self) -> Seen | None:
        """The allocation's own state, final where it is ending; None where nobody answers."""
        until = time.monotonic() + _SETTLE
        while True:
            answer = ask(("scontrol", "show", "job", "-o", self._hold.job))
            seen = parse_job(answer.out) if answer.code == 0 else None
            if seen is None or seen.word != "COMPLETING" or time.monotonic() > until:
                return seen
            time.sleep(_LOOK_AGAIN)

    def _end_step(self) -> bool:
        """Make sure that the step is gone, by its id; False where the controller cannot be asked.

        Raises LaunchError where it does not end.
        """
        until = time.monotonic() + self._kill_limit
        while True:
            answer = ask(("squeue", "-h", "-s", "-j", self._hold.job, "-o", STEPS_FORMAT))
            if answer.code != 0 and UNKNOWN_JOB not in answer.err:
                return False
            step = parse_steps(answer.out).get(self._hold.name)
            if step is None:
                return True
            if time.monotonic() > until:
                raise LaunchError(
                    f"{self._spec.job_name}: its step {step} on {', '.join(self._names)} does not end, even by "
                    "scancel; expected nothing to outlive the case. The nodes need their operator first"
                )
            ask(("scancel", step))
            time.sleep(_LOOK_AGAIN)
