"""One rank's trace, analysed: its steps split without rest, by phase, by kernel and by collective."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np

from pytest_scaleperf.trace import names
from pytest_scaleperf.trace.calls import calls_of
from pytest_scaleperf.trace.columns import Ints
from pytest_scaleperf.trace.gather import read_trace
from pytest_scaleperf.trace.grouping import alike
from pytest_scaleperf.trace.intervals import union
from pytest_scaleperf.trace.partition import Kind
from pytest_scaleperf.trace.prepared import Cut, Prepared, cut, prepare
from pytest_scaleperf.trace.result import Call, PhaseSplit, RankReport, Row, Split, StepReport
from pytest_scaleperf.trace.rules import PHASES, Phase, Rules
from pytest_scaleperf.trace.steps import Window
from pytest_scaleperf.trace.work import Work

_IDLE = len(Kind)  # follows the kinds of work in a table of four columns
_KIND_WORDS = ("compute", "communication", "copy", "idle")


def analyse_rank(path: Path, rules: Rules) -> RankReport:
    """Read and analyse one rank's trace.

    Raises TraceError where the file is damaged or no trace, and as ``prepare`` does.
    """
    return report(prepare(read_trace(path), rules))


def report(prepared: Prepared) -> RankReport:
    """What one rank's trace says by itself."""
    trace, work = prepared.trace, prepared.work
    cuts = [cut(prepared, window) for window in prepared.windows]
    exposed = np.zeros(len(work.start), np.int64)
    for each in cuts:
        exposed[each.events] += np.where(work.kind[each.events] == Kind.COMMUNICATION, each.parts.own, 0)
    steps = tuple(
        _step(prepared, window, each, calls_of(prepared, window, exposed))
        for window, each in zip(prepared.windows, cuts, strict=True)
    )
    return RankReport(
        path=trace.path,
        rank=-1 if trace.rank is None else trace.rank,
        world_size=trace.world_size,
        device=trace.device,
        on_gpu=bool(len(trace.gpu.start)),
        phases_from=prepared.phases.source if prepared.phases else "",
        steps=steps,
        clips=trace.clips,
        notes=prepared.notes,
    )


def _step(prepared: Prepared, window: Window, each: Cut, calls: tuple[Call, ...]) -> StepReport:
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
        calls=calls,
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
