"""From all that is known of a job's end to its class, and to the nodes that it is put down to. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_scaleperf.launch.slurm.messages import Words
from pytest_scaleperf.model import JobState, Outcome, StopReason

FAULTS: Mapping[JobState, Outcome] = {
    JobState.NODE_FAIL: Outcome.NODE_FAILURE,
    JobState.PREEMPTED: Outcome.PREEMPTED,
    JobState.TIMEOUT: Outcome.TIME_LIMIT,
    JobState.CANCELLED: Outcome.CANCELLED,
}
_BROKEN = ("down", "drain", "fail", "error", "unknown", "no_respond", "not_resp", "powered", "powering_down", "reboot")
_SIGNAL_EXIT = 128


@dataclass(frozen=True, slots=True)
class NodeState:
    """One node as sinfo tells it: its state word (``down*``, ``draining``) and the reason that somebody gave."""

    name: str
    word: str
    reason: str

    @property
    def broken(self) -> bool:
        """True where nothing more should be started on it."""
        return any(text in self.word.lower() for text in _BROKEN) or self.word.endswith("*")

    def __str__(self) -> str:
        """``node3 (drained: bad gpu)``."""
        return f"{self.name} ({self.word}: {self.reason})" if self.reason != "none" else f"{self.name} ({self.word})"


@dataclass(frozen=True, slots=True)
class End:
    """All that is known: ``code`` of srun, ``job`` the scheduler's state of the job that held it (None: not asked).

    ``broken`` are those of its nodes that are down or drained now, ``full`` says that its folder's disk is full.
    """

    code: int | None
    words: Words
    stopped: StopReason | None = None
    job: JobState | None = None
    broken: tuple[NodeState, ...] = ()
    full: str = ""


@dataclass(frozen=True, slots=True)
class Class:
    """What it comes to."""

    state: JobState
    fault: Outcome | None
    code: int | None
    failed_hosts: tuple[str, ...]
    detail: str


def classify(end: End) -> Class:
    """State first, exit code second: the job's own state, Slurm's words, its nodes, and only then the exit code."""
    if end.stopped is not None:
        ours = (StopReason.INTERRUPTED, StopReason.NEVER_STARTED)
        state = JobState.CANCELLED if end.stopped in ours else JobState.TIMEOUT
        code = None if end.stopped is StopReason.NEVER_STARTED else _of_shell(end.code)
        return Class(state, None, code, (), "")
    state = _state(end)
    if state is JobState.COMPLETED:
        return Class(state, None, 0, (), "")
    if state is JobState.FAILED and end.full:
        return Class(state, Outcome.DISK_FULL, _code(end), (), end.full)
    if state is JobState.FAILED and end.broken:
        state = JobState.NODE_FAIL
    hosts = end.words.failed
    if state is JobState.NODE_FAIL:
        hosts = hosts or tuple(node.name for node in end.broken)
    detail = [end.words.said or end.words.denied, *(str(node) for node in end.broken)]
    return Class(state, FAULTS.get(state), _code(end), hosts, "; ".join(text for text in detail if text))


def _state(end: End) -> JobState:
    decided = (JobState.NODE_FAIL, JobState.PREEMPTED, JobState.TIMEOUT, JobState.CANCELLED, JobState.OUT_OF_MEMORY)
    if end.job in decided:
        return end.job
    if end.words.state is not None:
        return end.words.state
    if end.words.code is not None:
        return JobState.FAILED
    if end.code == 0 and end.job in (None, JobState.COMPLETED, JobState.RUNNING):
        return JobState.COMPLETED
    return JobState.FAILED


def _code(end: End) -> int | None:
    """The exit code of the task that failed, else srun's."""
    return _of_shell(end.code) if end.words.code is None else end.words.code


def _of_shell(code: int | None) -> int | None:
    """A signal as a negative number, where srun tells it as a shell does."""
    return _SIGNAL_EXIT - code if code is not None and code > _SIGNAL_EXIT else code
