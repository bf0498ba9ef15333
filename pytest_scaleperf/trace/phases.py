"""Which phase of its step a moment on the CPU belongs to: from annotations, or else from what autograd ran."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from pytest_scaleperf.trace.columns import Ints, RankTrace
from pytest_scaleperf.trace.intervals import union
from pytest_scaleperf.trace.rules import PHASES, Phase, Rules
from pytest_scaleperf.trace.steps import Steps
from pytest_scaleperf.trace.work import UNKNOWN, Work

# A backward that runs less than this part of the functions of the step's largest is one inside the loss, not a
# microbatch of its own: torchtitan's chunked loss calls one per chunk (12 functions of 469 in its debug model). Times
# would not do: a rank that waits for another lengthens any of them.
_MINOR = 0.1
# FSDP2's hooks of the backward pass (torch/distributed/fsdp/_fully_shard); the last runs after autograd's last call.
_HOOK = re.compile(r"^FSDP::(?:pre_backward|\w*post_backward)")
_GRAPH_SHARE = 0.05  # of the device's time: above it, phases by launch would say little


@dataclass(frozen=True, slots=True)
class Timeline:
    """From ``start[i]`` on, launches belong to ``phase[i]`` (an index of PHASES); before the first to none."""

    start: Ints
    phase: Ints
    source: str

    def at(self, moments: Ints) -> Ints:
        """Phase of each moment."""
        other = PHASES.index(Phase.OTHER)
        if not len(self.start):
            return np.full(len(moments), other)
        index = np.searchsorted(self.start, moments, side="right") - 1
        return np.where(index >= 0, self.phase[np.maximum(index, 0)], other)


ANNOTATIONS = "annotations"
LAUNCHES = "launches"


def timeline(trace: RankTrace, steps: Steps, work: Work, rules: Rules) -> Timeline | str:
    """The phases of every step, or the sentence that says why they cannot be told."""
    if not steps.cpu:
        return "phases: not told, the trace has no ProfilerStep"
    marked = _annotated(trace, rules)
    backward = [(start, end) for phase, start, end in marked if phase is Phase.BACKWARD]
    if refusal := _graphs(work, np.array([each[1:] for each in marked if backward]).reshape(-1, 2)):
        return refusal
    if backward:
        others = [mark for mark in marked if mark[0] is not Phase.BACKWARD]
        return _build(trace, steps, backward, others, ANNOTATIONS)
    if not len(trace.backward):
        return "phases: not told, the trace has neither scaleperf annotations nor calls of autograd"
    return _build(trace, steps, _segments(trace, steps, work), [], LAUNCHES)


def _annotated(trace: RankTrace, rules: Rules) -> list[tuple[Phase, int, int]]:
    """Annotated phases in order; of nested ones the outermost (a recomputed forward is part of its backward)."""
    phases = {index: phase for index, name in enumerate(trace.names) if (phase := rules.phase(name))}
    found: list[tuple[Phase, int, int]] = []
    spans = trace.annotations
    for at in np.flatnonzero(np.isin(spans.name, list(phases))):
        if not found or spans.start[at] >= found[-1][2]:
            found.append((phases[int(spans.name[at])], int(spans.start[at]), int(spans.end[at])))
    return found


def _graphs(work: Work, marked: Ints) -> str | None:
    """Why phases cannot be told where CUDA graphs run most of a step: one launch stands for all their kernels."""
    at = np.searchsorted(marked[:, 0], work.launch, side="right") - 1 if len(marked) else np.full(len(work.launch), -1)
    told = (at >= 0) & (work.launch < (marked[np.maximum(at, 0), 1] if len(marked) else 0))
    hidden = work.graph & ~told
    lasting = work.end - work.start
    share = int(lasting[hidden].sum()) / max(int(lasting.sum()), 1)
    if share <= _GRAPH_SHARE:
        return None
    return (
        f"phases: not told, CUDA graphs launch {int(hidden.sum())} of {len(hidden)} events ({share:.0%} of the time): "
        "numbers are per step only; record with --training.disable_cuda_graphs for phases (such a run's times differ)"
    )


def _segments(trace: RankTrace, steps: Steps, work: Work) -> list[tuple[int, int]]:
    """Stretches in which autograd ran, without a launch by the main thread outside it in between."""
    engines = np.setdiff1d(np.unique(trace.backward.thread), [steps.thread])
    by_engine = work.launch[np.isin(work.thread, engines)]
    hooks = np.array([bool(_HOOK.match(name)) for name in trace.names], bool)[trace.annotations.name]
    busy = union(
        np.concatenate((trace.backward.start, trace.annotations.start[hooks], by_engine)),
        np.concatenate((trace.backward.end, trace.annotations.end[hooks], by_engine + 1)),
    )
    by_main = np.sort(work.launch[(work.thread == steps.thread) & (work.launch != UNKNOWN)])
    between = np.searchsorted(by_main, busy.start[1:]) - np.searchsorted(by_main, busy.end[:-1])
    crossing = steps.of(busy.start[1:]) != steps.of(busy.start[:-1])
    cuts = np.flatnonzero((between > 0) | crossing)
    first = np.concatenate(([0], cuts + 1))
    last = np.concatenate((cuts, [len(busy.start) - 1]))
    return [(int(low), int(high)) for low, high in zip(busy.start[first], busy.end[last], strict=True)]


def _merged(segments: list[tuple[int, int]], functions: list[int]) -> list[tuple[int, int]]:
    """One step's backwards: minor ones join the next major one, those after the last major one join that."""
    largest = max(functions, default=0)
    found: list[tuple[int, int]] = []
    waiting: int | None = None
    for (low, high), count in zip(segments, functions, strict=True):
        begin = low if waiting is None else waiting
        if count >= _MINOR * largest:
            found.append((begin, high))
            waiting = None
        else:
            waiting = begin
    if waiting is not None:
        found[-1] = (found[-1][0], segments[-1][1])
    return found


def _build(
    trace: RankTrace,
    steps: Steps,
    backward: list[tuple[int, int]],
    marked: list[tuple[Phase, int, int]],
    source: str,
) -> Timeline:
    """Phases of each step: what is before its last backward and in none is forward, what comes after is optimiser."""
    edges: dict[int, Phase] = {}
    for step in steps.cpu:
        own = [each for each in backward if step.start <= each[0] < step.end]
        counts = [int(np.diff(np.searchsorted(trace.backward.start, each))[0]) for each in own]
        own = _merged(own, counts)
        edges[step.start] = Phase.FORWARD if own else Phase.OTHER
        for low, high in own:
            last = (low, high) == own[-1]
            edges[low] = Phase.LAST_BACKWARD if last else Phase.BACKWARD
            edges[high] = Phase.OPTIMIZER if last else Phase.FORWARD
    edges[steps.cpu[-1].end] = Phase.OTHER
    return _overlaid(_ordered(edges, source), marked)


def _overlaid(base: Timeline, marked: list[tuple[Phase, int, int]]) -> Timeline:
    """The timeline with the marked stretches, which are disjoint and in order, set to their phases."""
    if not marked:
        return base
    lows, highs = (np.array([mark[at] for mark in marked]) for at in (1, 2))
    after = base.at(highs)
    inside = np.searchsorted(lows, base.start, side="right") - 1
    kept = (inside < 0) | (base.start >= highs[np.maximum(inside, 0)])
    edges = {int(at): PHASES[phase] for at, phase in zip(base.start[kept], base.phase[kept], strict=True)}
    edges |= {int(at): PHASES[phase] for at, phase in zip(highs, after, strict=True) if int(at) not in edges}
    edges |= {low: phase for phase, low, _ in marked}
    return _ordered(edges, base.source)


def _ordered(edges: dict[int, Phase], source: str) -> Timeline:
    ordered = sorted(edges)
    return Timeline(np.array(ordered), np.array([PHASES.index(edges[at]) for at in ordered]), source)
