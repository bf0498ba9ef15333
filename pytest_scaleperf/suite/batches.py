"""Which local batches a family of cases can have: given ones, a grid to be searched, or around a peak below."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pytest_scaleperf.model import ActivationCheckpoint, Layout, Outcome, Requirement
from pytest_scaleperf.suite.layouts import LAYOUT_AXES
from pytest_scaleperf.suite.schema import FoundBatches, RungPart
from pytest_scaleperf.yamlfile import Faults, Loc

POINTS = 16
"""Candidates of a grid without an end: from 2 in steps of 4 the last is 62; published peaks are 18 to 38."""

MOST_POINTS = 256
"""Each candidate is a test: a grid with more of them is a slip."""

DECIDED_BY_BATCH = ("local_batch", "global_batch")

Family = tuple[Layout, ActivationCheckpoint, int]
"""Layout, mode and sequence length."""

Below = Callable[[Family], Sequence[int]]
"""Local batches of the cases that a family requires, one rung below."""


def check_found(faults: Faults, part: RungPart, loc: Loc) -> None:
    """What a rung may not say where its local batch is found and not given."""
    found = part.local_batch
    if not isinstance(found, FoundBatches):
        return
    if part.expect is not Outcome.COMPLETED:
        faults.add((*loc, "expect"), "completed: what is to fail has no peak that could be searched")
    if found.around is not None and part.requires is None:
        faults.add((*loc, "local_batch", "around"), "a rung with requires: the peak is that of the rung below")
    for place, axis in enumerate(part.requires.same if part.requires else ()):
        if axis in DECIDED_BY_BATCH:
            form = "other axes than local_batch and global_batch, which are found here"
            faults.add((*loc, "requires", "same", place), form)
    grid = found.search
    if grid is not None and (grid.get("to", 0) - grid["from"]) // grid["step"] >= MOST_POINTS:
        faults.add((*loc, "local_batch", "search", "to"), f"a grid of at most {MOST_POINTS} batches")


def locals_of(part: RungPart, family: Family, below: Below) -> Sequence[int]:
    """The local batches that are candidates for ``family``, rising where they are found."""
    found = part.local_batch
    if not isinstance(found, FoundBatches):
        return found or ()
    if found.search is not None:
        first, step = found.search["from"], found.search["step"]
        return range(first, found.search.get("to", first + step * (POINTS - 1)) + 1, step)
    near = {batch + offset for batch in below(family) for offset in found.offsets or ()}
    return sorted(batch for batch in near if batch > 0)


def batches_below(parents: Iterable[tuple[Family, int]], requires: Requirement) -> Below:
    """The look-up for ``requires`` among ``parents``: cases of the required rung that can pass, with their batches."""
    axes = [axis for axis in requires.same if axis not in DECIDED_BY_BATCH]
    found: dict[tuple[object, ...], set[int]] = {}
    for family, batch in parents:
        found.setdefault(_key(family, axes), set()).add(batch)
    return lambda family: sorted(found.get(_key(family, axes), ()))


def _key(family: Family, axes: Sequence[str]) -> tuple[object, ...]:
    layout, mode, sequence = family
    others = {"activation_checkpoint": mode, "sequence": sequence}
    return tuple(getattr(layout, axis) if axis in LAYOUT_AXES else others[axis] for axis in axes)
