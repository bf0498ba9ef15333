"""A rung as a grid, layout and activation checkpointing by local batch: what is in a cell, and where memory ends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pytest_scaleperf.model import ActivationCheckpoint, Decision, Metric, Outcome
from pytest_scaleperf.report.contents import CaseHistory, Entry
from pytest_scaleperf.report.views import optimum

_MODES = tuple(ActivationCheckpoint)


class CellKind(StrEnum):
    """What is known of one cell."""

    MEASURED = "measured"
    OOM = "oom"
    FAILED = "failed"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class Cell:
    """One case in its grid. ``is_best``: the most TPS of its row."""

    case: CaseHistory
    kind: CellKind
    is_best: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """One layout with one kind of checkpointing; ``cells`` by local batch.

    ``oom_from`` is the smallest local batch that ran out of memory, None where none did.
    """

    label: str
    mode: ActivationCheckpoint
    layout: str
    cells: dict[int, Cell]
    oom_from: int | None


@dataclass(frozen=True, slots=True)
class Grid:
    """All cases of one rung that say their layout and batch; ``batches`` are the columns, in rising order."""

    batches: tuple[int, ...]
    lines: tuple[Line, ...]

    def cells(self) -> list[Cell]:
        """Every cell, line by line."""
        return [cell for line in self.lines for cell in line.cells.values()]


def grid(cases: Sequence[CaseHistory]) -> Grid:
    """The grid of one rung. Cases that differ in more than the two axes have lines of their own, named by that."""
    known = [c for c in cases if c.now.layout and c.now.batch and c.now.activation_checkpoint]
    targets = {_target(c.now) for c in known}
    lengths = {c.now.batch.sequence for c in known if c.now.batch}
    groups: dict[tuple[object, ...], list[CaseHistory]] = defaultdict(list)
    for case in known:
        groups[_place(case.now)].append(case)
    lines = [
        _line(cases_of_line, name_target=len(targets) > 1, name_length=len(lengths) > 1)
        for key in sorted(groups, key=_order)
        for cases_of_line in _without_doubles(groups[key])
    ]
    batches = sorted({batch for line in lines for batch in line.cells})
    return Grid(tuple(batches), tuple(lines))


def kind_of(entry: Entry) -> CellKind:
    """What is known of a case from the entry that counts."""
    if entry.outcome is Outcome.OOM:
        return CellKind.OOM
    if entry.value(Metric.TPS) is not None:
        return CellKind.MEASURED
    return CellKind.NOT_RUN if entry.decision is Decision.SKIPPED else CellKind.FAILED


def _place(entry: Entry) -> tuple[object, ...]:
    layout, batch = entry.layout, entry.batch
    return (layout, entry.activation_checkpoint, _target(entry), batch.sequence if batch else 0)


def _order(place: tuple[object, ...]) -> tuple[object, ...]:
    layout, mode, target, sequence = place
    degrees = tuple(getattr(layout, name) for name in ("dp_shard", "dp_replicate", "tp", "cp", "pp", "ep"))
    return (degrees, _MODES.index(ActivationCheckpoint(str(mode))), target or 0, sequence)


def _target(entry: Entry) -> int | None:
    """The global batch that the suite asked for; without accumulation it follows from the other axes."""
    if entry.batch is None:
        return None
    if entry.batch.target is not None:
        return entry.batch.target
    return entry.batch.global_ if entry.batch.accumulation > 1 else None


def _without_doubles(cases: Sequence[CaseHistory]) -> Iterable[list[CaseHistory]]:
    """The cases of one line, and where two have the same local batch further lines, so that none is covered."""
    lines: list[dict[int, CaseHistory]] = []
    for case in cases:
        local = case.now.batch.local if case.now.batch else 0
        free = next((line for line in lines if local not in line), None)
        if free is None:
            free = {}
            lines.append(free)
        free[local] = case
    return [list(line.values()) for line in lines]


def _line(cases: Sequence[CaseHistory], *, name_target: bool, name_length: bool) -> Line:
    first = cases[0].now
    layout, mode = first.layout, first.activation_checkpoint or ActivationCheckpoint.NONE
    label = f"{layout.label if layout else ''} {mode}"
    target = _target(first)
    if name_target and target is not None:
        label += f" gbs{target}"
    if name_length and first.batch is not None:
        label += f" seq{first.batch.sequence}"
    best = optimum(cases)
    cells = {c.now.batch.local: Cell(c, kind_of(c.now), c is best) for c in cases if c.now.batch}
    full = [local for local, cell in cells.items() if cell.kind is CellKind.OOM]
    return Line(label, mode, layout.label if layout else "", cells, min(full, default=None))
