"""What is kept of one rank's trace: int64 columns in nanoseconds, with names and collectives interned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class Activity(IntEnum):
    """What kind of GPU event Kineto recorded."""

    KERNEL = 0
    MEMCPY = 1
    MEMSET = 2


class Collective(NamedTuple):
    """What the trace says of one collective call; None where it does not say it.

    ``call`` is PyTorch's name (``_allgather_base``), the sizes are in elements of ``dtype``. ``ranks`` is text
    (``[0, 1]``).
    """

    call: str
    in_elements: int | None = None
    out_elements: int | None = None
    group_size: int | None = None
    dtype: str | None = None
    group_name: str | None = None
    group_desc: str | None = None
    group_ranks: str | None = None


class Group(NamedTuple):
    """A process group as the trace's header says it; ``ranks`` may be left out there."""

    desc: str
    size: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GpuEvents:
    """Kernels, copies and memsets in order of start, then of end; kernels before copies, then as in the file.

    ``lane`` numbers (device, stream); ``collective`` indexes the trace's collectives (-1: none).
    """

    start: Ints
    end: Ints
    name: Ints
    activity: Ints
    correlation: Ints
    external: Ints
    lane: Ints
    graph: Bools
    collective: Ints


GPU_FIELDS = ("start", "end", "name", "activity", "correlation", "external", "lane", "graph", "collective")


@dataclass(frozen=True, slots=True)
class Launches:
    """CUDA or HIP calls that carry a correlation id, in order of it (then of time)."""

    correlation: Ints
    ts: Ints
    thread: Ints
    external: Ints
    name: Ints


LAUNCH_FIELDS = ("correlation", "ts", "thread", "external", "name")


@dataclass(frozen=True, slots=True)
class Spans:
    """Intervals on CPU threads in order of start, outer before inner.

    ``collective`` indexes the trace's collectives (-1: none, or sizes not known).
    """

    start: Ints
    end: Ints
    name: Ints
    thread: Ints
    external: Ints
    collective: Ints

    def __len__(self) -> int:
        """Count of spans."""
        return len(self.start)

    def where(self, keep: Bools) -> Spans:
        """The spans for which ``keep`` holds."""
        return Spans(*(getattr(self, field)[keep] for field in SPAN_FIELDS))


SPAN_FIELDS = ("start", "end", "name", "thread", "external", "collective")


@dataclass(frozen=True, slots=True)
class Clip:
    """Durations that were cut because they cannot be true: how many, why, and the first event's name."""

    reason: str
    count: int
    first: str


@dataclass(frozen=True, slots=True)
class RankTrace:
    """One rank's trace. Times are nanoseconds on the trace's own clock.

    ``backward`` holds autograd's evaluate_function calls, ``calls`` the collective calls on the CPU side
    (record_param_comms, c10d, symmetric memory), ``transfers`` gloo's work on its own threads. ``operators`` are
    kept only where the trace lists no GPU. ``lanes`` are the streams' names.
    """

    path: Path
    json_bytes: int
    events: int
    rank: int | None
    world_size: int | None
    device: str
    names: tuple[str, ...]
    lanes: tuple[str, ...]
    collectives: tuple[Collective, ...]
    gpu: GpuEvents
    launches: Launches
    annotations: Spans
    backward: Spans
    calls: Spans
    operators: Spans
    transfers: Spans
    groups: Mapping[str, Group]
    clips: tuple[Clip, ...]
    warnings: tuple[str, ...]
