"""What an analysis finds: integers in nanoseconds and bytes, per rank, step and phase."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from pytest_scaleperf.trace.columns import Clip
from pytest_scaleperf.trace.rules import PHASES, Phase

_LARGE = 1 << 20  # bytes


@dataclass(frozen=True, slots=True)
class Split:
    """Nanoseconds of a window or phase, without rest: the four add up to ``total``."""

    compute: int
    exposed_communication: int
    exposed_copy: int
    idle: int

    @property
    def total(self) -> int:
        """Length of the window, or of the phase's part of it."""
        return self.compute + self.exposed_communication + self.exposed_copy + self.idle


@dataclass(frozen=True, slots=True)
class PhaseSplit:
    """One phase's part of a step; ``exposed_by`` says which collectives are exposed, longest first."""

    phase: Phase
    split: Split
    exposed_by: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Row:
    """What all events of one name did in one phase of a step; ``own`` nanoseconds of all rows add up to the step.

    ``kind`` is compute, communication, copy or idle; ``busy`` is the sum of the durations.
    """

    phase: Phase
    kind: str
    label: str
    name: str
    count: int
    busy: int
    own: int


@dataclass(frozen=True, slots=True)
class Call:
    """One collective as one rank ran it. ``key`` tells process groups apart; sizes are None where not recorded.

    ``bytes`` is the size that bus bandwidth is defined on (NVIDIA nccl-tests, PERFORMANCE.md): the output of an
    all_gather, the input of the others. ``wire`` is what one rank has to move of it.
    """

    op: str
    group: str
    key: str
    size: int | None
    bytes: int | None
    wire: int | None
    duration: int
    exposed: int
    phase: Phase


@dataclass(frozen=True, slots=True)
class StepReport:
    """One step of one rank. ``number`` is None where the trace has no ProfilerStep.

    ``phases`` is empty (and ``backwards`` 0) where they cannot be told; ``backwards`` counts the backward passes.
    ``communication`` is the union of all communication, ``hidden`` the part of it under compute,
    ``hidden_by_copies`` the part of that under FSDP's own copies alone.
    """

    number: int | None
    whole: bool
    split: Split
    phases: tuple[PhaseSplit, ...]
    backwards: int
    communication: int
    hidden: int
    hidden_by_copies: int
    rows: tuple[Row, ...]
    calls: tuple[Call, ...]

    def phase(self, phase: Phase) -> PhaseSplit | None:
        """That phase's part, or None."""
        return next((each for each in self.phases if each.phase is phase), None)


@dataclass(frozen=True, slots=True)
class RankReport:
    """One rank's trace. ``phases_from`` is annotations, launches, or empty with the reason in ``notes``."""

    path: Path
    rank: int
    world_size: int | None
    device: str
    on_gpu: bool
    phases_from: str
    steps: tuple[StepReport, ...]
    clips: tuple[Clip, ...]
    notes: tuple[str, ...]

    @property
    def measured(self) -> tuple[StepReport, ...]:
        """The whole steps; where there is none, all that there are."""
        return tuple(step for step in self.steps if step.whole) or self.steps

    def coverage(self, *ops: str) -> float | None:
        """Share of the calls (of those operations, where given) that say their sizes; None without any."""
        calls = [call for step in self.steps for call in step.calls if not ops or call.op in ops]
        return sum(call.bytes is not None for call in calls) / len(calls) if calls else None

    def median(self, value: Callable[[StepReport], float]) -> float:
        """Median over the measured steps."""
        return median(value(step) for step in self.measured)


@dataclass(frozen=True, slots=True)
class CollectiveReport:
    """One collective on one kind of process group, over all measured steps and all ranks read.

    ``counts`` and ``bytes`` hold the distinct values per step and rank: one each where nothing varies. ``time`` is
    nanoseconds per step, each call taken at the rank where it was shortest (the others waited). ``bandwidth`` is the
    bus bandwidth in GB/s (1e9); ``skew`` the median and the largest difference between ranks, in nanoseconds.
    ``exposed`` is nanoseconds per step at the worst rank. ``marks`` says why a figure is missing or doubtful.
    """

    op: str
    group: str
    size: int | None
    counts: tuple[int, ...]
    bytes: tuple[int, ...]
    time: float
    bandwidth: float | None
    skew: tuple[float, int] | None
    exposed: float
    marks: tuple[str, ...]

    @property
    def is_large(self) -> bool:
        """Whether a call moves 1 MiB or more on average: smaller ones are bound by latency, not bandwidth."""
        return bool(self.bytes) and sum(self.bytes) >= _LARGE * sum(self.counts)

    @property
    def title(self) -> str:
        """Operation and group, as in ``all_gather [mesh_dp_shard x 8]``."""
        return f"{self.op} [{self.group}{f' x {self.size}' if self.size else ''}]"


@dataclass(frozen=True, slots=True)
class RepeatedReduce:
    """Gradients that are all-reduced in every accumulation step, where the last would do.

    ``saving`` is the exposed nanoseconds per step of those before the last backward, at the rank with the least.
    """

    backwards: int
    bytes: int
    saving: float


@dataclass(frozen=True, slots=True)
class TraceReport:
    """All ranks read, in order of rank, and what only several ranks together can say."""

    ranks: tuple[RankReport, ...]
    collectives: tuple[CollectiveReport, ...]
    repeated: RepeatedReduce | None
    notes: tuple[str, ...]

    @property
    def on_gpu(self) -> bool:
        """Whether these are a GPU's times."""
        return self.ranks[0].on_gpu

    @property
    def whole(self) -> bool:
        """Whether every rank has a whole step; otherwise the numbers are no measure of one."""
        return all(any(step.whole for step in rank.steps) for rank in self.ranks)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases that some rank spends time in."""
        found = {
            each.phase for rank in self.ranks for step in rank.measured for each in step.phases if each.split.total
        }
        return tuple(phase for phase in PHASES if phase in found)

    @property
    def slowest(self) -> RankReport:
        """The rank whose steps last longest."""
        return max(self.ranks, key=lambda rank: rank.median(lambda step: step.split.total))

    def worst(self, value: Callable[[StepReport], float]) -> float:
        """Largest over ranks of the median over measured steps: a step is as slow as its slowest rank."""
        return max(rank.median(value) for rank in self.ranks)
