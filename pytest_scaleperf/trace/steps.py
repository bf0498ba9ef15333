"""Where training steps begin and end: on the CPU by ProfilerStep, on the GPU by the first kernel of each."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pytest_scaleperf.model import TraceError
from pytest_scaleperf.trace.columns import Ints, RankTrace
from pytest_scaleperf.trace.work import Work

_STEP = re.compile(r"^ProfilerStep#(\d+)$")


@dataclass(frozen=True, slots=True)
class CpuStep:
    """One ProfilerStep annotation; it lasts until the next begins (the last: until its end)."""

    number: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Window:
    """The device's time of one step; ``number`` is None where the trace has no ProfilerStep.

    ``whole``: both ends are the starts of steps. Otherwise the window ends with the trace's last event, or work
    of its beginning may be missing, and its numbers are no measure of a step.
    """

    number: int | None
    low: int
    high: int
    whole: bool


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a trace and the thread that runs them (-1: not known)."""

    cpu: tuple[CpuStep, ...]
    thread: int

    def of(self, moments: Ints) -> Ints:
        """Index of the step in which each moment lies, -1 for none."""
        if not self.cpu:
            return np.full(len(moments), -1)
        at = np.searchsorted([step.start for step in self.cpu], moments, side="right") - 1
        return np.where(moments < self.cpu[-1].end, at, -1)


def find_steps(trace: RankTrace) -> Steps:
    """The trace's ProfilerStep annotations in order.

    Raises TraceError where they are not consecutive, or overlap: then the file mixes several recordings.
    """
    spans = trace.annotations
    numbers = {index: int(match[1]) for index, name in enumerate(trace.names) if (match := _STEP.match(name))}
    found = [at for at in range(len(spans)) if int(spans.name[at]) in numbers]
    if not found:
        return Steps((), -1)
    thread = Counter(int(spans.thread[at]) for at in found).most_common(1)[0][0]
    marks = [
        (numbers[int(spans.name[at])], int(spans.start[at]), int(spans.end[at]))
        for at in found
        if spans.thread[at] == thread
    ]
    for (number, _, end), (following, start, _) in pairwise(marks):
        if following != number + 1 or start < end:
            raise TraceError(
                f"{trace.path}: mixed steps: after step {number} (ends at {end} ns) expected step {number + 1}, found "
                f"step {following} (starts at {start} ns): the file mixes several recordings"
            )
    ends = [start for _, start, _ in marks[1:]] + [marks[-1][2]]
    return Steps(tuple(CpuStep(mark[0], mark[1], end) for mark, end in zip(marks, ends, strict=True)), thread)


def gpu_windows(trace: RankTrace, steps: Steps, work: Work) -> tuple[tuple[Window, ...], tuple[str, ...]]:
    """The GPU's time of each step, and what has to be said about them.

    A step's window runs from the first start of what it launched to the first start of what the next one did; the
    CPU's own step times are no measure, for the GPU may run more than a step behind.

    Raises TraceError where the GPU's steps are not in order.
    """
    finish = int(work.end.max())
    if not steps.cpu:
        note = "no ProfilerStep: the whole trace is one window, and idle time before and after it is not seen"
        return (Window(None, int(work.start[0]), finish, whole=False),), (note,)
    member = steps.of(work.launch)
    index, first = np.unique(member, return_index=True)
    lows = {int(at): int(work.start[place]) for at, place in zip(index, first, strict=True) if at >= 0}
    if not lows:
        raise TraceError(
            f"{trace.path}: none of the {len(work.start)} GPU events was launched within a step "
            f"({steps.cpu[0].number} to {steps.cpu[-1].number}): expected each step's kernels with the calls that "
            "launched them; record CPU and GPU activities together"
        )
    silent = [step.number for at, step in enumerate(steps.cpu) if at not in lows]
    notes = tuple(f"step {number} launched nothing on the GPU" for number in silent)
    present = sorted(lows)
    edges = [lows[at] for at in present] + [finish]
    if any(low >= high for low, high in pairwise(edges)):
        raise TraceError(f"{trace.path}: mixed steps: the GPU starts them at {edges} ns, which does not rise")
    earlier = bool(present) and bool((work.start < edges[0]).any())
    last = len(steps.cpu) - 1
    windows = tuple(
        Window(
            steps.cpu[at].number,
            edges[place],
            edges[place + 1],
            whole=at != last and place + 1 < len(present) and present[place + 1] == at + 1 and (at > 0 or earlier),
        )
        for place, at in enumerate(present)
    )
    return windows, notes
