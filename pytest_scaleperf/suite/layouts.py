"""The arithmetic of ranks and sequences: which layouts multiply to a GPU count, which batches can be made."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from pytest_scaleperf.model import Batch, Layout

LAYOUT_AXES = ("dp_shard", "dp_replicate", "tp", "cp", "pp", "ep")
_OTHERS = LAYOUT_AXES[2:]
MAX_BATCH_FACTOR = 2
"""A global batch further than this factor from its target is another experiment, not the closest one."""

Degrees = Mapping[str, Sequence[int] | None]
"""Values of each layout axis. None for dp_shard or dp_replicate: what remains; for the others: 1."""


def make_layouts(gpus: int, degrees: Degrees) -> list[Layout]:
    """Every combination that torchtitan accepts for ``gpus`` ranks, in the order of the values.

    Mirrors what ``ParallelDims`` of torchtitan 0.2.2 and 0.3.0 have in common: dp_shard x dp_replicate x tp x
    cp x pp is the world size; expert parallelism borrows ranks from dp_shard, cp and tp, so that it divides
    their product (``efsdp = dp_shard * cp * tp / ep``).
    """
    shards, replicates = degrees.get("dp_shard") or (None,), degrees.get("dp_replicate") or (None,)
    others = [degrees.get(axis) or (1,) for axis in _OTHERS]
    layouts = []
    for dp_shard, dp_replicate, (tp, cp, pp, ep) in itertools.product(shards, replicates, itertools.product(*others)):
        shard, replicate = _fill(dp_shard, dp_replicate, gpus // (tp * cp * pp))
        if shard * replicate * tp * cp * pp == gpus and (shard * cp * tp) % ep == 0:
            layouts.append(Layout(shard, replicate, tp, cp, pp, ep))
    return layouts


def _fill(dp_shard: int | None, dp_replicate: int | None, ranks: int) -> tuple[int, int]:
    """Both degrees, the one that is None as what remains of ``ranks``, rounded down so that a remainder shows."""
    if dp_shard is None:
        known = 1 if dp_replicate is None else dp_replicate
        return ranks // known, known
    return dp_shard, ranks // dp_shard if dp_replicate is None else dp_replicate


def unused(layouts: Sequence[Layout], degrees: Degrees) -> list[tuple[str, int, int]]:
    """Values that are part of no layout: axis, place in its list, value."""
    return [
        (axis, place, value)
        for axis in LAYOUT_AXES
        for place, value in enumerate(degrees.get(axis) or ())
        if not any(getattr(layout, axis) == value for layout in layouts)
    ]


def make_batch(local: int, data_parallel: int, target: int | None, sequence: int) -> Batch:
    """The batch whose global size is closest to ``target`` (sequences); of two equally close ones the larger.

    Without a target there is no gradient accumulation.
    """
    unit = local * data_parallel
    accumulation = 1 if target is None else max(1, (2 * target + unit) // (2 * unit))
    return Batch(local, unit * accumulation, accumulation, sequence, target)


def is_far(batch: Batch) -> bool:
    """True where the closest batch that can be made is not near its target at all."""
    return batch.target is not None and batch.global_ > MAX_BATCH_FACTOR * batch.target
