"""What a case's trace showed, as its record keeps it: frozen values for the pages. Times are in nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_scaleperf.model import Decision
from pytest_scaleperf.report.traced import phase_lines


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """What a step or one phase of it went to, a mean over the measured steps of one rank."""

    title: str
    compute: float
    exposed_communication: float
    exposed_copy: float
    idle: float

    @property
    def total(self) -> float:
        """The phase's length."""
        return self.compute + self.exposed_communication + self.exposed_copy + self.idle


@dataclass(frozen=True, slots=True)
class Skew:
    """Between ranks: over the calls."""

    median: float
    largest: float


@dataclass(frozen=True, slots=True)
class CollectiveTime:
    """One collective on one kind of process group, per step; ``marks`` say why its bandwidth is doubtful.

    ``calls_per_step`` and ``bytes_per_step`` hold one value, or all distinct ones where they vary.
    """

    op: str
    group: str
    group_size: int | None
    calls_per_step: tuple[int, ...]
    bytes_per_step: tuple[int, ...]
    time_per_step: float
    bus_bandwidth_gb_s: float | None
    skew: Skew | None
    exposed_per_step: float
    marks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Share:
    """One share of the step against its baseline, in per cent; ``change`` in percentage points."""

    name: str
    decision: Decision
    value: float | None
    baseline: float | None
    change: float | None
    title: str = ""  # older records have the name alone


@dataclass(frozen=True, slots=True)
class Part:
    """One kernel, collective or idle time of one phase, before and after; ``change`` is what it adds to the step."""

    title: str
    phase: str
    count: tuple[float, float]
    busy: tuple[float, float]
    change: float


@dataclass(frozen=True, slots=True)
class Others:
    """How many parts are not listed, and what they add together."""

    count: int
    change: float


@dataclass(frozen=True, slots=True)
class Explained:
    """Which parts make a step longer than that of an earlier trace: ``parts`` and ``others`` add up to ``change``."""

    against: str
    step: tuple[float, float]
    change: float
    parts: tuple[Part, ...]
    others: Others
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TracedRun:
    """The extra launch that was traced; ``seconds`` it took."""

    folder: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Trace:
    """A case's trace and its verdict. Without ``words`` it could not be made or read, and ``reason`` says why.

    ``step`` and ``phases`` are those of ``rank``, the slowest; without phases they cannot be told.
    """

    decision: Decision
    reason: str
    words: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    shares: tuple[Share, ...] = ()
    tolerance: float | None = None
    baseline: str | None = None
    run: TracedRun | None = None
    files: tuple[str, ...] = ()
    picture: str | None = None
    rank: int | None = None
    step: PhaseTime | None = None
    phases: tuple[PhaseTime, ...] = ()
    collectives: tuple[CollectiveTime, ...] = ()
    explained: Explained | None = None
    difference: tuple[str, ...] = ()

    @property
    def summary(self) -> list[str]:
        """The step, what each phase is bound by, and what could be done, a line each."""
        return phase_lines(self.words)

    @property
    def outside(self) -> tuple[Share, ...]:
        """The shares that are not inside their band, or have none."""
        return tuple(share for share in self.shares if share.decision not in (Decision.PASS, Decision.NOT_JUDGED))
