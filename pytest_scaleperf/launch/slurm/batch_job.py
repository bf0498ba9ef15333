"""One case as a Slurm job of its own: what the shared question says of it, and its end."""

from __future__ import annotations

import time
from collections.abc import Callable

from pytest_scaleperf.launch.slurm import evidence
from pytest_scaleperf.launch.slurm.client import ask
from pytest_scaleperf.launch.slurm.faults import End, classify
from pytest_scaleperf.launch.slurm.hostlist import expand
from pytest_scaleperf.launch.slurm.query import Poller
from pytest_scaleperf.launch.slurm.states import Seen, Wait, hope, parse_job
from pytest_scaleperf.model import JobResult, JobState, LaunchError, LaunchSpec, SlurmOptions, StopReason

DOUBT_LIMIT = 300.0
"""Seconds for which a reason is borne that somebody has to resolve (nodes down, job held)."""

NEVER_LIMIT = 1.0
"""Seconds for which a reason has to be told that never resolves, before the job is given up: it may be a guess."""

AWAY_LIMIT = 900.0
"""Seconds without the controller after which a case is given up."""

_SAY_NOTHING = frozenset({"", "None", "NonZeroExitCode"})
_TICK = 0.05
_LOOK_AGAIN = 0.5


class BatchJob:
    """One job of a BatchLauncher; satisfies ``launch.protocol.Job``."""

    def __init__(  # noqa: PLR0913 - what a job is made of
        self,
        job: str,
        spec: LaunchSpec,
        poller: Poller,
        options: SlurmOptions,
        *,
        kill_limit: float,
        ended: Callable[[JobResult | None], None],
    ) -> None:
        self._job = job
        self._spec = spec
        self._poller = poller
        self._options = options
        self._kill_limit = kill_limit
        self._ended = ended
        self._began = time.monotonic()
        self._reason_since: tuple[Wait, float] = (Wait.WAITS, self._began)
        self._why = ""
        self._closing = False
        self._result: JobResult | None = None
        self._error: LaunchError | None = None

    @property
    def id(self) -> str:
        """Slurm's job id."""
        return self._job

    @property
    def runs(self) -> bool:
        """False while it is queued, or nothing is known yet."""
        seen = self._poller.seen(self._job)
        return self._result is not None or (seen is not None and seen.state is not JobState.PENDING)

    @property
    def queued_for(self) -> str:
        """Slurm's reason why it still waits; empty where it does not."""
        seen = self._poller.seen(self._job)
        return seen.reason if seen is not None and seen.state is JobState.PENDING else ""

    @property
    def may_have_ended(self) -> bool:
        """True where ``wait`` would return at once."""
        seen = self._poller.seen(self._job)
        return (seen is not None and seen.state.is_finished) or self._hopeless() != "" or self._lost() != ""

    def wait(self, timeout: float) -> JobResult | None:
        """The result once its state is final, or None after ``timeout`` seconds.

        A job that waits for what never comes is ended: ``stopped`` is NEVER_STARTED and ``detail`` says the reason.
        Raises LaunchError where nothing can be learnt of it any more.
        """
        until = time.monotonic() + timeout
        while self._result is None and self._error is None:
            self._poller.look()
            seen = self._poller.seen(self._job)
            lost, hopeless = self._lost(), self._hopeless()
            if seen is not None and seen.state.is_finished:
                return self._finish(seen, None)
            if lost:
                self._give_up(lost)
            elif hopeless:
                self._why = hopeless
                return self.stop(StopReason.NEVER_STARTED)
            elif time.monotonic() >= until:
                return None
            else:
                time.sleep(min(_TICK, max(0.0, until - time.monotonic())))
        if self._error is not None:
            raise self._error
        return self._result

    def close(self) -> None:
        """The keeper cancels it now: that it ends is no work of others."""
        self._closing = True

    def stop(self, reason: StopReason) -> JobResult:
        """Cancel it by its id; the result once its state is final. One that has ended by itself keeps its own result.

        Raises LaunchError where it does not end, or where nobody answers.
        """
        if self._result is not None:
            return self._result
        if self._error is not None:
            raise self._error
        until, cancelled, said = time.monotonic() + self._kill_limit, False, ""
        while time.monotonic() < until:
            answer = ask(("scontrol", "show", "job", "-o", self._job))
            seen = parse_job(answer.out) if answer.code == 0 else None
            if seen is not None and seen.state.is_finished:
                by_us = (cancelled or self._closing) and seen.state is JobState.CANCELLED
                return self._finish(seen, reason if by_us else None)
            said = answer.said if seen is None else f"state {seen.word}"
            if seen is None and not answer.away:
                break
            cancelled = ask(("scancel", self._job)).code == 0 or cancelled
            time.sleep(_LOOK_AGAIN)
        # The keeper holds it still, and goes on.
        self._give_up(f"its job {self._job} was cancelled, but is not seen to end: {said}", keeps=True)
        raise self._error or LaunchError(said)

    def _hopeless(self) -> str:
        """Why it will not start; empty where there is hope."""
        seen = self._poller.seen(self._job)
        if seen is None or seen.state is not JobState.PENDING:
            return ""
        now, kind = time.monotonic(), hope(seen.reason)
        if kind is not self._reason_since[0]:
            self._reason_since = (kind, now)
        limit = {Wait.NEVER: NEVER_LIMIT, Wait.DOUBTFUL: DOUBT_LIMIT}.get(kind)
        if limit is not None and now - self._reason_since[1] > limit:
            return f"Slurm's reason {seen.reason}: that is not resolved by waiting"
        longest = self._options.pending_limit
        if longest is not None and now - self._began > longest:
            return f"it has waited for more than {longest:.0f} s (pending_limit); Slurm's reason: {seen.reason}"
        return ""

    def _lost(self) -> str:
        """Why nothing more will be heard of it; empty where something may."""
        if self._poller.is_lost(self._job):
            return f"its job {self._job} is known neither to the controller nor to the accounting"
        if self._poller.away_for > AWAY_LIMIT:
            return f"the controller has not answered for {AWAY_LIMIT:.0f} s, its job {self._job} may still run"
        return ""

    def _give_up(self, why: str, *, keeps: bool = False) -> None:
        self._error = LaunchError(
            f"{self._spec.job_name}: {why}; expected its state. Ask `scontrol ping` and `squeue --me`, and run it again"
        )
        if not keeps:
            self._ended(None)

    def _finish(self, seen: Seen, stopped: StopReason | None) -> JobResult:
        nodes = evidence.nodes_of(self._spec.output.parent)
        names = nodes.hosts or expand(seen.nodes)
        words = evidence.words_of(self._spec.output)
        broken = () if seen.state is JobState.COMPLETED else evidence.node_states(names)
        full = "" if seen.state is JobState.COMPLETED else evidence.is_full(self._spec.output.parent)
        code = self._code(seen)
        found = classify(End(code, words, stopped, seen.state, tuple(n for n in broken if n.broken), full))
        scheduler = {"job": self._job, "step": nodes.step, "state": seen.word, "reason": seen.reason}
        self._result = JobResult(
            state=found.state,
            exit_code=found.code,
            stopped=stopped,
            hosts=names,
            seconds=seen.seconds,
            detail=self._why or found.detail or (seen.reason if seen.reason not in _SAY_NOTHING else ""),
            waited=seen.waited,
            scheduler={name: value for name, value in scheduler.items() if value},
            gpu_ids=nodes.devices or {},
            failed_hosts=found.failed_hosts,
            fault=found.fault,
        )
        self._ended(self._result)
        return self._result

    def _code(self, seen: Seen) -> int | None:
        """The exit code, which the question for all jobs does not tell."""
        if seen.state is JobState.COMPLETED:
            return 0
        if seen.exit_code is not None:
            return seen.exit_code
        answer = ask(("scontrol", "show", "job", "-o", self._job))
        told = parse_job(answer.out) if answer.code == 0 else None
        return None if told is None else told.exit_code
