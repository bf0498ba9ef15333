"""When a run began again: a requeued or restarted job appends to the same log, and only its last attempt counts."""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_scaleperf.titan.lines import LogText, Speaker

# What torchtitan prints while it starts, in this order. The last one says at which step training begins.
START_LINES = (
    "torchtitan version",
    "Starting job:",
    "Building device mesh",
    "Trainer is initialized",
    "Training starts at step",
)
_TRAINING = len(START_LINES) - 1
# Only asked of the text between two starts that no step separates.
_END_MARKS = (" CANCELLED AT ", "Traceback (most recent call last)", "death signal", "ChildFailedError", "exitcode: ")


@dataclass(frozen=True, slots=True)
class Start:
    """One start-up line: its time, its place in START_LINES, the step (only ``Training starts``), who and where."""

    time: str
    kind: int
    step: int | None
    speaker: Speaker
    position: int


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt: when its first line was printed, where in each file, and the step that it began with (if said)."""

    time: str
    first_step: int | None
    files: tuple[tuple[int, int], ...]

    def begins(self, file: int) -> int | None:
        """Position of the attempt's first line in a file, or None where it printed no start-up line there."""
        return dict(self.files).get(file)


def attempts(starts: Iterable[Start], sample_times: Iterable[str], texts: Sequence[LogText]) -> tuple[Attempt, ...]:
    """Group start-up lines into attempts, oldest first.

    The ranks of one attempt all start before its first step is printed (step 1 needs all of them), so a start-up
    line that is later than a printed step begins a new attempt. Position in the file decides nothing: ranks' lines
    arrive in any order.
    """
    times = sorted(sample_times)
    groups: list[list[Start]] = []
    for start in sorted(starts, key=lambda s: s.time):
        if not groups or _begins_anew(groups[-1], start, times, texts):
            groups.append([])
        groups[-1].append(start)
    return tuple(_attempt(group) for group in groups)


def _begins_anew(group: list[Start], start: Start, times: list[str], texts: Sequence[LogText]) -> bool:
    after = bisect.bisect_left(times, group[0].time)
    if after < len(times) and times[after] < start.time:
        return True
    mine = [s for s in group if s.speaker == start.speaker]
    if not mine or start.kind > max(s.kind for s in mine):
        return False
    between = texts[start.speaker.file].text[mine[-1].position : start.position]
    return any(mark in between for mark in _END_MARKS)


def _attempt(group: list[Start]) -> Attempt:
    files: dict[int, int] = {}
    for start in group:
        file = start.speaker.file
        files[file] = min(start.position, files.get(file, start.position))
    steps = [start.step for start in group if start.step is not None]
    return Attempt(time=group[0].time, first_step=min(steps) if steps else None, files=tuple(files.items()))
