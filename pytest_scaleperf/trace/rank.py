"""One rank's trace, analysed: its steps split without rest, by phase, by kernel and by collective."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pytest_scaleperf.model import TraceError
from pytest_scaleperf.trace import names
from pytest_scaleperf.trace.collectives import group_of, message_bytes, wire_bytes
from pytest_scaleperf.trace.columns import Bools, Ints, RankTrace
from pytest_scaleperf.trace.cpu import check_cpu, cpu_windows, cpu_work
from pytest_scaleperf.trace.gather import read_trace
from pytest_scaleperf.trace.grouping import alike
from pytest_scaleperf.trace.intervals import union
from pytest_scaleperf.trace.partition import Kind, Partition, partition
from pytest_scaleperf.trace.phases import Timeline, timeline
from pytest_scaleperf.trace.result import Call, PhaseSplit, RankReport, Row, Split, StepReport
from pytest_scaleperf.trace.rules import PHASES, Phase, Rules
from pytest_scaleperf.trace.steps import Steps, Window, find_steps, gpu_windows
from pytest_scaleperf.trace.work import Work, gpu_work

_IDLE = len(Kind)  # follows the kinds of work in a table of four columns
_KIND_WORDS = ("compute", "communication", "copy", "idle")


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


def analyse_rank(path: Path, rules: Rules) -> RankReport:
    """Read and analyse one rank's trace.

    Raises TraceError where the file is damaged or no trace, and as ``prepare`` does.
    """
    return report(prepare(read_trace(path), rules))


def report(prepared: Prepared) -> RankReport:
    """What one rank's trace says by itself."""
    trace, work = prepared.trace, prepared.work
    calls = _Calls(prepared)
    cuts = [cut(prepared, window) for window in prepared.windows]
    for each in cuts:
        calls.exposed[each.events] += np.where(work.kind[each.events] == Kind.COMMUNICATION, each.parts.own, 0)
    steps = tuple(_step(prepared, window, each, calls) for window, each in zip(prepared.windows, cuts, strict=True))
    communicates = (work.kind == Kind.COMMUNICATION) & calls.counted
    return RankReport(
        path=trace.path,
        rank=-1 if trace.rank is None else trace.rank,
        world_size=trace.world_size,
        device=trace.device,
        on_gpu=bool(len(trace.gpu.start)),
        phases_from=prepared.phases.source if prepared.phases else "",
        steps=steps,
        described=int((communicates & _sized(trace)[work.collective]).sum()),
        communications=int(communicates.sum()),
        clips=trace.clips,
        notes=prepared.notes,
    )


def _step(prepared: Prepared, window: Window, each: Cut, calls: _Calls) -> StepReport:
    work, parts = prepared.work, each.parts
    kind, phase = work.kind[each.events], prepared.event_phase[each.events]
    table = np.zeros((len(PHASES), len(_KIND_WORDS)), np.int64)
    np.add.at(table, (phase, kind), parts.own)
    np.add.at(table[:, _IDLE], each.gap_phase, parts.gap)
    communication = parts.communication
    hidden = parts.compute.within(communication.start, communication.end)
    return StepReport(
        number=window.number,
        whole=window.whole,
        split=Split(*map(int, table.sum(axis=0))),
        phases=_phases(prepared, each, table) if prepared.phases else (),
        backwards=_backwards(prepared, window),
        communication=communication.measure,
        hidden=int(hidden.sum()),
        hidden_by_copies=_hidden_by_copies(work, window, each),
        rows=_rows(prepared, window, each),
        calls=calls.of(window),
    )


def _phases(prepared: Prepared, each: Cut, table: Ints) -> tuple[PhaseSplit, ...]:
    work, own = prepared.work, each.parts.own
    exposed: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for at in np.flatnonzero((work.kind[each.events] == Kind.COMMUNICATION) & (own > 0)):
        event = each.events[at]
        exposed[int(prepared.event_phase[event])][work.labels[work.label[event]]] += int(own[at])
    return tuple(
        PhaseSplit(
            phase, Split(*map(int, table[at])), tuple(sorted(exposed[at].items(), key=lambda item: (-item[1], item[0])))
        )
        for at, phase in enumerate(PHASES)
        if table[at].any()
    )


def _backwards(prepared: Prepared, window: Window) -> int:
    """Backward passes of the window's step."""
    step = next((each for each in prepared.steps.cpu if each.number == window.number), None)
    if step is None or prepared.phases is None:
        return 0
    begun = (prepared.phases.start >= step.start) & (prepared.phases.start < step.end)
    backward = [PHASES.index(Phase.BACKWARD), PHASES.index(Phase.LAST_BACKWARD)]
    return int((begun & np.isin(prepared.phases.phase, backward)).sum())


def _hidden_by_copies(work: Work, window: Window, each: Cut) -> int:
    """Communication that only FSDP's own copies cover: 0 % exposed must not be bought with those."""
    events = each.events
    real = (work.kind[events] == Kind.COMPUTE) & ~work.fsdp_copy[events]
    begin, stop = (np.clip(column[events], window.low, window.high) for column in (work.start, work.end))
    computing = union(begin[real], stop[real])
    communication = each.parts.communication
    under = (whole.within(communication.start, communication.end) for whole in (each.parts.compute, computing))
    return int(np.subtract(*under).sum())


def _rows(prepared: Prepared, window: Window, each: Cut) -> tuple[Row, ...]:
    """The step's work by phase and name, and its idle time; what contributes nothing is left out."""
    work, events = prepared.work, each.events
    phase, kind, label, name = (
        column[events] for column in (prepared.event_phase, work.kind, work.label, work.name)
    )  # fmt: skip
    place, number = alike(phase, kind, label, name)
    # What reaches in is counted where it starts; the event after the window only ends its last gap.
    inside = (work.start[events] >= window.low) & (work.start[events] < window.high)
    busy = np.where(inside, work.end[events] - work.start[events], 0)
    totals = np.zeros((len(place), 3), np.int64)
    for at, values in enumerate((inside, busy, each.parts.own)):
        np.add.at(totals[:, at], number, values)
    sums: dict[tuple[int, int, str, str], Ints] = {}
    for at, total in zip(place, totals, strict=True):
        key = int(phase[at]), int(kind[at]), work.labels[label[at]], names.short(prepared.trace.names[name[at]])
        sums[key] = sums[key] + total if key in sums else total
    found = [
        Row(PHASES[key[0]], _KIND_WORDS[key[1]], *key[2:], *map(int, total))
        for key, total in sums.items()
        if total.any()
    ]
    for after in np.unique(each.gap_phase):
        gaps = each.parts.gap[each.gap_phase == after]
        found.append(Row(PHASES[after], "idle", "idle", "idle", len(gaps), int(gaps.sum()), int(gaps.sum())))
    return tuple(sorted(found, key=lambda row: (-row.own, row.phase, row.name)))


def _sized(trace: RankTrace) -> Bools:
    """For each of the trace's collectives whether it says how much it moves, and one False for none."""
    return np.array([call.dtype is not None and call.in_elements is not None for call in trace.collectives] + [False])


class _Calls:
    """The collectives of a rank, by the step that launched them."""

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared
        work = prepared.work
        self.exposed = np.zeros(len(work.start), np.int64)
        self.member = prepared.steps.of(work.launch)
        self.counted = self.member >= 0 if prepared.steps.cpu else np.ones(len(work.start), bool)

    def of(self, window: Window) -> tuple[Call, ...]:
        """The calls of the window's step in order of launch."""
        work, steps = self.prepared.work, self.prepared.steps
        if window.number is None:
            own = work.kind == Kind.COMMUNICATION
        else:
            at = next(index for index, step in enumerate(steps.cpu) if step.number == window.number)
            own = (work.kind == Kind.COMMUNICATION) & (self.member == at)
        chosen = np.flatnonzero(own)
        chosen = chosen[np.argsort(work.launch[chosen], kind="stable")]
        return tuple(self._call(int(event)) for event in chosen)

    def _call(self, event: int) -> Call:
        work, trace = self.prepared.work, self.prepared.trace
        op = work.labels[work.label[event]]
        said = trace.collectives[work.collective[event]] if work.collective[event] >= 0 else None
        group, key, ranks = group_of(trace, said) if said else ("group not recorded", "", None)
        size = message_bytes(op, said) if said else None
        return Call(
            op=op,
            group=group,
            key=key,
            size=ranks,
            bytes=size,
            wire=wire_bytes(op, size, ranks),
            duration=int(work.end[event] - work.start[event]),
            exposed=int(self.exposed[event]),
            phase=PHASES[self.prepared.event_phase[event]],
        )
