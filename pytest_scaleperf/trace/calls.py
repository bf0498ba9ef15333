"""One rank's collective calls: what each moved, in which group, how long it took and how much of that was exposed."""

from __future__ import annotations

import re

import numpy as np

from pytest_scaleperf.trace.columns import Collective, Ints, RankTrace
from pytest_scaleperf.trace.partition import Kind
from pytest_scaleperf.trace.prepared import Prepared
from pytest_scaleperf.trace.result import Call
from pytest_scaleperf.trace.rules import PHASES
from pytest_scaleperf.trace.steps import Window

# Bytes of an element, by PyTorch's names (c10/core/ScalarType.h) and by those of recorded shapes.
_BYTES = {
    1: ("byte", "char", "bool", "qint8", "quint8", "unsigned char", "signed char"),
    2: ("short", "half", "bfloat16", "uint16", "short int"),
    4: ("int", "float", "complexhalf", "uint32", "qint32"),
    8: ("long", "double", "complexfloat", "uint64", "long int"),
    16: ("complexdouble",),
}
_SIZE = {name: size for size, names in _BYTES.items() for name in names}
# What a rank moves of S bytes in a group of n, as a fraction of S (nccl-tests, PERFORMANCE.md).
_SHARED = ("all_gather", "reduce_scatter", "all_to_all")


def calls_of(prepared: Prepared, window: Window, exposed: Ints) -> tuple[Call, ...]:
    """The calls that the window's step launched, in order of launch; ``exposed`` is each event's exposed time.

    Several events of one call (the copies and barriers of a copy-engine collective) are one.
    """
    work, steps = prepared.work, prepared.steps
    communicates = work.kind == Kind.COMMUNICATION
    if window.number is not None:
        at = next(index for index, step in enumerate(steps.cpu) if step.number == window.number)
        communicates &= steps.of(work.launch) == at
    chosen = np.flatnonzero(communicates)
    chosen = chosen[np.argsort(work.launch[chosen], kind="stable")]
    together: dict[tuple[int, int], list[int]] = {}
    for event in map(int, chosen):
        call = int(work.call[event])
        together.setdefault((call, -1) if call >= 0 else (-1, event), []).append(event)
    return tuple(_call(prepared, events, exposed) for events in together.values())


def _call(prepared: Prepared, events: list[int], exposed: Ints) -> Call:
    work, trace = prepared.work, prepared.trace
    first = events[0]
    op = work.labels[work.label[first]]
    said = trace.collectives[work.collective[first]] if work.collective[first] >= 0 else None
    group, key, ranks = group_of(trace, said) if said else ("group not recorded", "", None)
    size = message_bytes(op, said) if said else None
    return Call(
        op=op,
        group=group,
        key=key,
        size=ranks,
        bytes=size,
        wire=wire_bytes(op, size, ranks),
        duration=int((work.end[events] - work.start[events]).sum()),
        exposed=int(exposed[events].sum()),
        phase=PHASES[prepared.event_phase[first]],
    )


def element_bytes(dtype: str | None) -> int | None:
    """Bytes of one element, None for a type that is not known."""
    if dtype is None:
        return None
    name = dtype.removeprefix("c10::").lower()
    return 1 if name.startswith(("float8", "float4")) else _SIZE.get(name)


def message_bytes(op: str, call: Collective) -> int | None:
    """The size S of bus bandwidth: an all_gather's output, what the others put in; None where not recorded."""
    size = element_bytes(call.dtype)
    if size is None:
        return None
    if op == "all_gather":
        elements = call.out_elements
        if elements is None and call.in_elements is not None and call.group_size:
            elements = call.in_elements * call.group_size
    elif op in ("recv", "scatter"):
        elements = call.out_elements or call.in_elements
    else:
        elements = call.in_elements
    return None if elements is None else elements * size


def wire_bytes(op: str, size: int | None, ranks: int | None) -> int | None:
    """What one rank moves of ``size`` bytes in a group of ``ranks``."""
    if size is None or not ranks:
        return None
    if op in _SHARED:
        return size * (ranks - 1) // ranks
    return 2 * size * (ranks - 1) // ranks if op == "all_reduce" else size


def group_of(trace: RankTrace, call: Collective) -> tuple[str, str, int | None]:
    """A call's group: what people call it, a key that is equal on all its ranks, its size."""
    if call.group_name is None:
        # Gloo's calls do not say theirs; where all groups are of the same ranks, it does not matter which.
        real = [group for group in trace.groups.values() if group.size > 1]
        if len({group.ranks for group in real}) != 1 or not real[0].ranks:
            return "group not recorded", "", call.group_size
        return real[0].desc or "all ranks", str(real[0].ranks), real[0].size
    desc = call.group_desc if call.group_desc and call.group_desc != "undefined" else f"group {call.group_name}"
    ranks = call.group_ranks or ""
    # Long lists of ranks are cut ("[0, 1, ...]"): then the name has to tell groups apart.
    complete = bool(re.search(r"\d", ranks)) and "..." not in ranks
    return desc, f"{desc}{ranks}" if complete else f"{desc}{call.group_name}{ranks}", call.group_size
