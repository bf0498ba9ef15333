"""What a report speaks of: cases with their newest entry and their history, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pytest_scaleperf.model import (
    ActivationCheckpoint,
    Batch,
    Decision,
    Failure,
    Fingerprint,
    Gate,
    GateState,
    Layout,
    Measurement,
    Metric,
    MetricVerdict,
    Outcome,
    StopReason,
)
from pytest_scaleperf.preflight import ProbeReport
from pytest_scaleperf.published import Published
from pytest_scaleperf.rehearsed import Rehearsal
from pytest_scaleperf.report.timeline import SessionTimeline
from pytest_scaleperf.report.traces import Trace

TITLE = "scaleperf"
SECONDS_PER_HOUR = 3600.0
MAX_AGE_HOURS = 18.0
"""How long before the newest entry a session may have ended to be of this report's time: long enough for the stages of
one night's ladder, and short enough that the night before is history."""


class JUnitState(StrEnum):
    """How a test ended in a JUnit file; in rising order of badness."""

    PASSED = "passed"
    SKIPPED = "skipped"
    FAILED = "failed"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a case, as its record keeps it. ``seconds`` and ``started`` are in seconds."""

    folder: str
    outcome: Outcome
    seconds: float
    started: float
    measurement: Measurement
    failure: Failure | None = None
    exit_code: int | None = None
    stopped: StopReason | None = None
    hosts: tuple[str, ...] = ()
    last_step: int | None = None
    argv: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Attempt:
    """One test in one JUnit file, with everything that the file says of it.

    ``time`` and ``until`` are when its suite began and ended, in seconds since 1970 (None: not said). ``case_id`` is
    what the file says, or the text in the name's brackets: a test that is no case of ours may have one too.
    """

    where: str
    classname: str
    name: str
    state: JUnitState
    message: str
    time: float | None
    until: float | None
    case_id: str | None = None
    properties: tuple[tuple[str, str], ...] = ()

    def ran_at(self, moment: float) -> bool:
        """True where its suite was running at that moment, in seconds since 1970."""
        return self.time is not None and self.until is not None and self.time <= moment <= self.until

    def said(self, name: str) -> str | None:
        """The last value of a property, or None."""
        return next((value for key, value in reversed(self.properties) if key == f"scaleperf.{name}"), None)


@dataclass(frozen=True, slots=True)
class Entry:
    """One finished case as one record (or, where there is none, one JUnit file) tells it.

    ``memory_pct`` is the peak reserved share of the device and ``alloc_retries`` the retries in the window, over
    all launches: median and highest. ``gpu_seconds`` is GPUs x seconds of every launch, the traced one too.
    ``launches`` is empty where only a JUnit file tells of it; ``times`` counts them all the same. ``attempt`` is the
    test in a JUnit file that tells of the same event.
    """

    system: str
    suite: str
    case_id: str
    session: str
    finished: float
    gpus: int
    decision: Decision
    reason: str
    where: str
    times: int
    gpu_seconds: float
    layout: Layout | None = None
    activation_checkpoint: ActivationCheckpoint | None = None
    batch: Batch | None = None
    metrics: tuple[MetricVerdict, ...] = ()
    memory_pct: float | None = None
    alloc_retries: int | None = None
    outcome: Outcome | None = None
    gate: Gate | None = None
    notes: tuple[str, ...] = ()
    fingerprint: Fingerprint | None = None
    launches: tuple[Launch, ...] = ()
    attempt: Attempt | None = None
    trace: Trace | None = None

    def metric(self, metric: Metric) -> MetricVerdict | None:
        """The judgement of one metric, or None where it was neither judged nor measured."""
        return next((found for found in self.metrics if found.metric is metric), None)

    def value(self, metric: Metric) -> float | None:
        """The measured value of one metric, or None."""
        found = self.metric(metric)
        return None if found is None else found.value

    @property
    def is_beyond(self) -> bool:
        """True where it was not run only because the session had too few GPUs: it says nothing of the case."""
        return self.decision is Decision.SKIPPED and self.gate is not None and self.gate.state is GateState.BEYOND

    @property
    def lacks_evidence(self) -> bool:
        """True where no verdict of a parent was known: an error in pytest, although nothing was launched."""
        return self.decision is Decision.SKIPPED and self.gate is not None and self.gate.state is GateState.NO_EVIDENCE

    @property
    def is_contradicted(self) -> bool:
        """True where the JUnit file says failed or error of a case whose record does not."""
        bad = self.attempt is not None and self.attempt.state in (JUnitState.FAILED, JUnitState.ERROR)
        return bad and not (self.lacks_evidence or is_failing(self.decision))

    @property
    def is_red(self) -> bool:
        """True where pytest was not green because of it."""
        return is_failing(self.decision) or self.lacks_evidence or self.is_contradicted

    @property
    def verdict(self) -> str:
        """One or two words for a table."""
        if self.lacks_evidence:
            return "no_evidence"
        if self.is_contradicted and self.attempt is not None:
            return f"{self.decision}, but test {self.attempt.state}"
        return self.decision


def is_failing(decision: Decision) -> bool:
    """True for a verdict that is a failure or an error of the test."""
    return not (decision.is_pass or decision in (Decision.RECORDED, Decision.SKIPPED, Decision.NOT_JUDGED))


@dataclass(frozen=True, slots=True)
class CaseHistory:
    """A case: the entry that counts, all others (oldest first), and those of this report's time, with it."""

    now: Entry
    earlier: tuple[Entry, ...]
    recent: tuple[Entry, ...]

    @property
    def system(self) -> str:
        """The kind of machine."""
        return self.now.system

    @property
    def id(self) -> str:
        """The case's id."""
        return self.now.case_id

    @property
    def previous(self) -> Entry | None:
        """The newest earlier entry that is more than "not run"."""
        return next((e for e in reversed(self.earlier) if e.decision is not Decision.SKIPPED), None)

    @property
    def was_mended(self) -> bool:
        """True where it is not red now, was launched, and was red before."""
        before = self.previous
        return before is not None and before.is_red and not self.now.is_red and self.now.times > 0


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two cases of a scaling test, with its tokens/s per GPU."""

    case: str
    tps: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingTold:
    """One scaling test as its record tells it: a rung's efficiency against a smaller one.

    ``change`` and ``tolerance`` are fractions.
    """

    system: str
    suite: str
    pair: str
    gpus: int
    session: str
    finished: float
    decision: Decision
    reason: str
    upper: Side | None = None
    lower: Side | None = None
    efficiency: float | None = None
    baseline: float | None = None
    tolerance: float | None = None
    change: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling(ScalingTold):
    """The same with where it was found."""

    where: str

    @property
    def is_red(self) -> bool:
        """True where pytest was not green because of it."""
        return is_failing(self.decision)


@dataclass(frozen=True, slots=True)
class RehearsedCase:
    """A rehearsal beside the real case of the same fingerprint: tokens/s per GPU, and what communication costs of it.

    ``tax`` is a fraction of the ceiling, ``cause`` what a regression is put down to (empty: there is none).
    """

    rehearsal: Rehearsal
    real_tps: float | None = None
    tax: float | None = None
    cause: str = ""
    sought: bool = False
    """A search asked for it, to find the OOM edge: that it does not fit is its answer, and nothing is wrong."""

    @property
    def is_bad(self) -> bool:
        """True where a rehearsal says that something is wrong."""
        return not (self.sought or self.rehearsal.is_well)


@dataclass(frozen=True, slots=True)
class Session:
    """One session: when it began, with which arguments, what it cost, how many cases it launched and rehearsed."""

    name: str
    started: float | None
    arguments: tuple[str, ...]
    cases: int
    gpu_seconds: float
    is_current: bool
    rehearsed: int = 0


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that was given and could not be read, and why."""

    where: str
    why: str


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that the pages show.

    ``cases`` have an entry of this report's time: of the sessions that ended at most ``max_age`` seconds before the
    newest entry; ``older`` have only earlier ones. ``scalings`` are the newest scaling tests, ``others`` failed tests
    of JUnit files that are neither. ``gpu_seconds`` counts the entries of this report's time, ``all_gpu_seconds`` all.
    """

    cases: tuple[CaseHistory, ...]
    older: tuple[CaseHistory, ...]
    sessions: tuple[Session, ...]
    faults: tuple[Fault, ...]
    others: tuple[Attempt, ...]
    scalings: tuple[Scaling, ...]
    newest: float
    max_age: float
    gpu_seconds: float
    all_gpu_seconds: float
    counts: Mapping[str, int] = field(default_factory=dict)
    rehearsals: tuple[RehearsedCase, ...] = ()
    preflights: tuple[tuple[str, ProbeReport], ...] = ()
    timelines: tuple[SessionTimeline, ...] = ()
    """Those of this report's sessions, with the session's name."""
    published: tuple[Published, ...] = ()
    """What was published for its suites."""

    @property
    def measures_cpu(self) -> bool:
        """True where some case ran on a CPU: its ranks are then no GPUs."""
        return any(c.now.fingerprint is not None and c.now.fingerprint.device == "cpu" for c in self.cases)

    @property
    def is_red(self) -> bool:
        """True where anything failed, or could not be read."""
        red = any(case.now.is_red for case in self.cases) or any(scaling.is_red for scaling in self.scalings)
        return red or bool(self.faults or self.others) or any(each.is_bad for each in self.rehearsals)
