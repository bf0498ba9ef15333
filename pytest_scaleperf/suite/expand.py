"""One entry of a ladder becomes configurations: its axes multiplied out, less exclusions, and what is included."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from pytest_scaleperf.model import AXES, ActivationCheckpoint, Batch, Layout, Outcome
from pytest_scaleperf.suite.batches import Below, Family, locals_of
from pytest_scaleperf.suite.layouts import LAYOUT_AXES, is_far, make_batch, make_layouts, unused
from pytest_scaleperf.suite.schema import (
    COUNTS,
    LOCAL_BATCHES,
    MODES,
    AxesPart,
    FoundBatches,
    IncludePart,
    LayoutPart,
    RungPart,
)
from pytest_scaleperf.yamlfile import Faults, Loc

_DATA_PARALLEL = ("dp_shard", "dp_replicate")
_NEEDED = ("activation_checkpoint", "local_batch")


class Configuration(NamedTuple):
    """One case that has no id yet, and where in the file it comes from; ``found``: a candidate of that search."""

    loc: Loc
    layout: Layout
    activation_checkpoint: ActivationCheckpoint
    batch: Batch
    expect: Outcome
    found: FoundBatches | None = None


class _Point(NamedTuple):
    """One combination of values as the file writes them; ``target`` is the global batch that it asks for."""

    layout: Layout
    mode: ActivationCheckpoint
    local: int
    target: int | None
    sequence: int


def expand(faults: Faults, part: RungPart, loc: Loc, sequence: int, below: Below) -> list[Configuration]:
    """Every configuration of the entry at ``loc``; what cannot be is added to ``faults``.

    A local batch that is found and not given becomes all its candidates; ``below`` knows those around a peak.
    """
    found = [*_matrix(faults, part, loc, sequence, below), *_included(faults, part, loc, sequence)]
    if not found and faults.clean(loc):
        faults.add(loc, "at least one case", "an empty matrix")
    return found


def _matrix(faults: Faults, part: RungPart, loc: Loc, sequence: int, below: Below) -> list[Configuration]:
    if part.include and all(getattr(part, axis) is None for axis in (*_DATA_PARALLEL, *_NEEDED)):
        return []
    _check_complete(faults, part, loc)
    if part.dp_shard is None and part.dp_replicate is None:
        return []
    layouts = _layouts(faults, part, loc, part.gpus)
    points = list(_points(part, layouts, sequence, lambda family: locals_of(part, family, below)))
    batches = _Batches()
    _check_around(faults, part, loc, layouts, [point for point in points if not is_far(batches.make(point))])
    points = _excluded(faults, part, loc, iter(points))
    searched = part.local_batch if isinstance(part.local_batch, FoundBatches) else None
    found = []
    for point in points:
        batch = batches.make(point)
        if not is_far(batch):
            found.append(Configuration(loc, point.layout, point.mode, batch, part.expect, searched))
        elif (at := _place(part, point.local)) is not None:
            _add_far(faults, (*loc, "local_batch", *at), point, batch)
    return found


def _check_around(faults: Faults, part: RungPart, loc: Loc, layouts: list[Layout], able: list[_Point]) -> None:
    """Every layout with every mode has to have a candidate around the peak: none may be left out in silence."""
    if not isinstance(part.local_batch, FoundBatches) or part.local_batch.around is None or part.requires is None:
        return
    found = {(point.layout, point.mode) for point in able}
    for layout, mode in itertools.product(layouts, part.activation_checkpoint or ()):
        if (layout, mode) not in found:
            same = ", ".join(part.requires.same) or "anything"
            form = f"a case of {part.requires.gpus} GPUs with the same {same} whose batch and an offset can be run here"
            faults.add((*loc, "local_batch", "around"), form, f"none for {layout.label} {mode}")


def _place(part: RungPart, local: int) -> Loc | None:
    """Where the file names a batch, below ``local_batch``; None for a candidate that it does not name."""
    batches = part.local_batch
    if not isinstance(batches, FoundBatches):
        return ((batches or []).index(local),)
    return next(
        (("search", key) for key, value in (batches.search or {}).items() if key != "step" and value == local), None
    )


def _check_complete(faults: Faults, part: RungPart, loc: Loc) -> None:
    if part.dp_shard is None and part.dp_replicate is None:
        faults.add((*loc, "dp_shard"), f"this key or dp_replicate: {COUNTS}", "neither")
    for axis in _NEEDED:
        if getattr(part, axis) is None:
            faults.add((*loc, axis), f"this key: {MODES if axis == _NEEDED[0] else LOCAL_BATCHES}", "no such key")


def _layouts(faults: Faults, part: LayoutPart, loc: Loc, gpus: int) -> list[Layout]:
    """The layouts of the axes; a value that is part of none cannot be meant."""
    degrees = {axis: getattr(part, axis) for axis in LAYOUT_AXES}
    layouts, dense = make_layouts(gpus, degrees), make_layouts(gpus, {**degrees, "ep": None})
    wrong = unused(layouts, degrees)
    if not layouts:
        # Every value is unused then: the ones to name are those that are wrong by themselves.
        wrong = [(axis, place, value) for axis, place, value in wrong if (axis == "ep" if dense else gpus % value)]
    for axis, place, value in wrong:
        is_sparse = axis == "ep" or any(getattr(layout, axis) == value for layout in dense)
        rule = "ep divides dp_shard x cp x tp" if is_sparse else f"dp_shard x dp_replicate x tp x cp x pp = {gpus}"
        faults.add((*loc, axis, place), f"a degree that a layout of {gpus} GPUs can have ({rule})", str(value))
    if not layouts and not wrong:
        given = ", ".join(f"{axis} {_listed(values)}" for axis, values in degrees.items() if values)
        faults.add(loc, f"dp_shard x dp_replicate x tp x cp x pp = {gpus} for some of the values", given)
    return layouts


def _points(
    part: LayoutPart, layouts: Sequence[Layout], sequence: int, locals_: Callable[[Family], Sequence[int]]
) -> Iterator[_Point]:
    for layout, mode, target, length in itertools.product(
        layouts, part.activation_checkpoint or (), part.global_batch or (None,), part.sequence or (sequence,)
    ):
        for local in locals_((layout, mode, length)):
            yield _Point(layout, mode, local, target, length)


def _excluded(faults: Faults, part: RungPart, loc: Loc, points: Iterator[_Point]) -> list[_Point]:
    """The points without those that an ``exclude`` names; one that names nothing is probably a slip."""
    kept = list(points)
    for place, exclude in enumerate(part.exclude):
        at = (*loc, "exclude", place)
        wanted = {axis: set(getattr(exclude, axis)) for axis in AXES if getattr(exclude, axis) is not None}
        if not wanted:
            faults.add(at, "at least one axis with a value")
            continue
        before = len(kept)
        kept = [point for point in kept if not all(_value(point, axis) in values for axis, values in wanted.items())]
        if before and len(kept) == before:
            faults.add(at, "a combination that is in the matrix", "none like that")
    return kept


def _value(point: _Point, axis: str) -> object:
    if axis in LAYOUT_AXES:
        return getattr(point.layout, axis)
    return {
        "activation_checkpoint": point.mode,
        "local_batch": point.local,
        "global_batch": point.target,
        "sequence": point.sequence,
    }[axis]


class _Batches:
    """Batches of one entry, each made once: 10,000 cases have a few hundred different ones."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, int, int | None, int], Batch] = {}

    def make(self, point: _Point) -> Batch:
        key = (point.local, point.layout.data_parallel, point.target, point.sequence)
        if key not in self._made:
            self._made[key] = make_batch(*key)
        return self._made[key]


def _add_far(faults: Faults, at: Loc, point: _Point, batch: Batch) -> None:
    ranks = point.layout.data_parallel
    found = f"local_batch {point.local} on {ranks} data-parallel ranks: the closest global batch is {batch.global_}"
    faults.add(at, f"a batch within a factor of 2 of global_batch {point.target}", found)


def _included(faults: Faults, part: RungPart, loc: Loc, sequence: int) -> Iterator[Configuration]:
    for place, include in enumerate(part.include):
        at = (*loc, "include", place)
        axes = _single_axes(faults, part, include, at)
        if axes is None:
            continue
        one = AxesPart.model_construct(**axes)
        layouts = _layouts(faults, one, at, part.gpus)
        if not layouts:
            continue
        point = next(_points(one, layouts, sequence, lambda _, one=one: one.local_batch or ()))  # type: ignore[misc]
        batch = _Batches().make(point)
        if is_far(batch):
            _add_far(faults, (*at, "local_batch"), point, batch)
        else:
            yield Configuration(at, point.layout, point.mode, batch, include.expect or part.expect)


def _single_axes(faults: Faults, part: RungPart, include: IncludePart, at: Loc) -> dict[str, Any] | None:
    """One value for every axis: the entry's own, else the rung's where that has only one. None: a fault."""
    axes: dict[str, Any] = {}
    own_layout = any(getattr(include, axis) is not None for axis in _DATA_PARALLEL)
    complete = True
    for axis in AXES:
        own, inherited = getattr(include, axis), getattr(part, axis)
        values = own if own is not None or (own_layout and axis in _DATA_PARALLEL) else inherited
        if isinstance(values, FoundBatches):
            faults.add((*at, axis), "this key: the rung's is searched", "no such key")
            complete = False
        elif values is not None and len(values) > 1:
            found = _listed(values) if own is not None else f"none here and {_listed(values)} in the rung"
            faults.add((*at, axis), "one value", found)
            complete = False
        elif values is None and axis in _NEEDED:
            faults.add((*at, axis), "this key, here or in the rung", "no such key")
            complete = False
        axes[axis] = values
    if axes["dp_shard"] is None and axes["dp_replicate"] is None:
        faults.add((*at, "dp_shard"), "this key or dp_replicate, here or in the rung", "neither")
        complete = False
    return axes if complete else None


def _listed(values: Sequence[object]) -> str:
    return f"[{', '.join(str(value) for value in values)}]"
