"""A rank's trace made ready: its work, steps, windows and phases, and how a window is split among its events."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pytest_scaleperf.model import TraceError
from pytest_scaleperf.trace.columns import Ints, RankTrace
from pytest_scaleperf.trace.cpu import check_cpu, cpu_windows, cpu_work
from pytest_scaleperf.trace.partition import Partition, partition
from pytest_scaleperf.trace.phases import Timeline, timeline
from pytest_scaleperf.trace.rules import PHASES, Phase, Rules
from pytest_scaleperf.trace.steps import Steps, Window, find_steps, gpu_windows
from pytest_scaleperf.trace.work import Work, gpu_work


@dataclass(frozen=True, slots=True)
class Prepared:
    """A trace with its work, steps, windows and phases: what reports and pictures are made of."""

    trace: RankTrace
    work: Work
    steps: Steps
    windows: tuple[Window, ...]
    phases: Timeline | None
    event_phase: Ints
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """One window's events: their places in the work, in order of start, and how the window is split among them.

    ``gap_phase`` is the phase of the event that ends each idle stretch (of the last event where none does).
    """

    events: Ints
    parts: Partition
    gap_phase: Ints


def prepare(trace: RankTrace, rules: Rules) -> Prepared:
    """Find a trace's steps, phases and kinds of work.

    Raises TraceError where it mixes several recordings, or a GPU's trace has no GPU events.
    """
    steps = find_steps(trace)
    if len(trace.gpu.start):
        work = gpu_work(trace, rules)
        windows, notes = gpu_windows(trace, steps, work)
    else:
        check_cpu(trace)
        work = cpu_work(trace, steps, rules)
        windows, notes = cpu_windows(steps, work)
    _check_windows(trace, windows)
    phases = timeline(trace, steps, work, rules)
    told = phases if isinstance(phases, Timeline) else None
    if not told:
        notes = (*notes, str(phases))
    where = told.at(work.launch) if told else np.full(len(work.launch), PHASES.index(Phase.OTHER))
    return Prepared(trace, work, steps, windows, told, where, (*notes, *trace.warnings))


def _check_windows(trace: RankTrace, windows: tuple[Window, ...]) -> None:
    """Refuse windows of no length: nothing could be a share of them."""
    for window in windows:
        if window.high <= window.low:
            which = "the whole trace" if window.number is None else f"step {window.number}"
            raise TraceError(f"{trace.path}: {which} lasts {window.high - window.low} ns: expected a step of training")


def cut(prepared: Prepared, window: Window) -> Cut:
    """Split one window among the events that overlap it, and the one that starts next."""
    work = prepared.work
    reach = np.maximum.accumulate(work.end)
    first = int(np.searchsorted(reach, window.low, side="right"))
    stop = int(np.searchsorted(work.start, window.high, side="left"))
    following = np.flatnonzero(work.end[stop:] > work.start[stop:])[:1] + stop + 1
    events = np.arange(first, int(following[0]) if len(following) else len(work.start))
    parts = partition(window.low, window.high, work.start[events], work.end[events], work.kind[events])
    phase = prepared.event_phase[events]
    last = phase[-1:] if len(phase) else [PHASES.index(Phase.OTHER)]
    return Cut(events, parts, np.append(phase, last)[parts.gap_next])
