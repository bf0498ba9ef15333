"""What a rank's device did: each event with its kind, its class and when it was launched."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pytest_scaleperf.model import TraceError
from pytest_scaleperf.trace import names
from pytest_scaleperf.trace.columns import Activity, Bools, Ints, RankTrace, Spans
from pytest_scaleperf.trace.grouping import alike
from pytest_scaleperf.trace.partition import Kind
from pytest_scaleperf.trace.rules import Rules

UNKNOWN = -(1 << 62)  # a launch time before every step: no launch was recorded

# FSDP2's record_function names (torch/distributed/fsdp/_fully_shard) around copies in and out of its flat buffers.
_FSDP_COPIES = re.compile(r"^FSDP::(?:all_gather|all_gather_copy_out|post_backward_reduce|post_backward_accumulate)\b")
_REPLAY = re.compile("GraphLaunch")  # cudaGraphLaunch, cuGraphLaunch, hipGraphLaunch
_PEER_COPY = re.compile(r"PtoP|Peer", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Work:
    """Events in order of start, in nanoseconds.

    ``label`` indexes ``labels``: the collective of communication, the class of compute. ``launch`` is when the CPU
    issued the event (UNKNOWN without a record), on ``thread``. ``graph``: by replaying a CUDA graph. ``fsdp_copy``
    marks FSDP's own copies. ``collective`` indexes the trace's collectives, ``call`` its calls, -1 where unknown.
    """

    start: Ints
    end: Ints
    kind: Ints
    name: Ints
    label: Ints
    launch: Ints
    thread: Ints
    graph: Bools
    fsdp_copy: Bools
    collective: Ints
    call: Ints
    lane: Ints
    labels: tuple[str, ...]


def gpu_work(trace: RankTrace, rules: Rules) -> Work:
    """Kernels, copies and memsets of a trace; never told apart by stream, for those are rewritten and shared."""
    gpu, launches = trace.gpu, trace.launches
    at = _places(launches.correlation, gpu.correlation)  # -1, the value appended, where no launch was recorded
    launch, thread = np.append(launches.ts, UNKNOWN)[at], np.append(launches.thread, -1)[at]
    graph = gpu.graph | np.append(np.isin(launches.name, _named(trace, _REPLAY.search)), np.False_)[at]
    external = np.where(gpu.external < 0, np.append(launches.external, -1)[at], gpu.external)
    call = _call_of(trace, external)
    peer = np.isin(gpu.name, _named(trace, _PEER_COPY.search)) & (gpu.activity == Activity.MEMCPY)
    call = np.where((call < 0) & peer, _enclosing(trace.calls, launch, thread), call)
    collective = np.where(gpu.collective < 0, np.append(trace.calls.collective, -1)[call], gpu.collective)
    kernel = gpu.activity == Activity.KERNEL
    communicates, computes = _name_tables(trace, rules)
    is_communication = np.where(
        kernel,
        communicates[gpu.name] | ((collective >= 0) & ~computes[gpu.name]),
        call >= 0,
    )
    kind = np.where(is_communication, Kind.COMMUNICATION, np.where(kernel, Kind.COMPUTE, Kind.COPY))
    fsdp = np.isin(gpu.name, _named(trace, names.is_fsdp_copy))
    copies = trace.annotations.where(np.isin(trace.annotations.name, _named(trace, _FSDP_COPIES.match)))
    fsdp_copy = (kind == Kind.COMPUTE) & (fsdp | (_enclosing(copies, launch, thread) >= 0))
    label, labels = _labels(trace, gpu.name, kind, collective, fsdp_copy)
    return Work(
        gpu.start, gpu.end, kind, gpu.name, label, launch, thread, graph, fsdp_copy, collective, call, gpu.lane, labels
    )  # fmt: skip


def _places(ids: Ints, wanted: Ints) -> Ints:
    """Place of each wanted id in the rising ``ids``, -1 where it is not there or is none."""
    if not len(ids):
        return np.full(len(wanted), -1)
    at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return np.where((ids[at] == wanted) & (wanted >= 0), at, -1)


def _call_of(trace: RankTrace, external: Ints) -> Ints:
    """Place of the collective call that has each External id, -1 for none: what the call itself issued bears its id."""
    order = np.argsort(trace.calls.external, kind="stable")
    return np.append(order, -1)[_places(trace.calls.external[order], external)]


def _named(trace: RankTrace, test: Callable[[str], object]) -> Ints:
    return np.array([index for index, name in enumerate(trace.names) if test(name)], np.int64)


def _enclosing(spans: Spans, when: Ints, thread: Ints) -> Ints:
    """Place of a span that encloses each moment on its own thread, -1 for none; one thread's spans nest."""
    found = np.full(len(when), -1)
    for each in np.unique(spans.thread):
        places = np.flatnonzero(spans.thread == each)
        end = spans.end[places]
        reach = np.maximum.accumulate(end)
        furthest = np.maximum.accumulate(np.where(end == reach, np.arange(len(end)), 0))
        at = np.searchsorted(spans.start[places], when, side="right") - 1
        inside = (thread == each) & (at >= 0) & (when < reach[np.maximum(at, 0)])
        found[inside] = places[furthest[at[inside]]]
    return found


def _name_tables(trace: RankTrace, rules: Rules) -> tuple[Bools, Bools]:
    """For each distinct name: communicates by name; computes whatever else says (the user's list, triton)."""
    computes = np.array([rules.is_compute(name) for name in trace.names], bool)
    told = np.array([rules.is_communication(name) for name in trace.names], bool)
    triton = np.array([name.startswith("triton_") for name in trace.names], bool)
    ours = np.array([names.is_communication(name) for name in trace.names], bool)
    if (both := computes & told).any():
        name = trace.names[int(both.argmax())]
        raise TraceError(f"kernel {name[:80]!r} matches both the communication and the compute list; take it off one")
    return told | (ours & ~computes), computes | (triton & ~told)


def _labels(
    trace: RankTrace, name: Ints, kind: Ints, collective: Ints, fsdp_copy: Bools
) -> tuple[Ints, tuple[str, ...]]:
    """A class for each event: found once per distinct combination."""
    place, number = alike(name, kind, collective, fsdp_copy.astype(np.int64))
    table: dict[str, int] = {}
    said = [
        _label(trace, int(name[at]), int(kind[at]), int(collective[at]), fsdp_copy=bool(fsdp_copy[at])) for at in place
    ]
    found = np.array([table.setdefault(label, len(table)) for label in said], np.int64)[number]
    return found, tuple(table)


def _label(trace: RankTrace, name: int, kind: int, collective: int, *, fsdp_copy: bool) -> str:
    said = trace.names[name]
    if kind == Kind.COMPUTE:
        return "fsdp copy" if fsdp_copy else names.family(said)
    if kind == Kind.COPY:
        return said.partition("(")[0].strip().lower()
    op = names.operation(trace.collectives[collective].call) if collective >= 0 else names.UNNAMED
    return names.operation(said) if op == names.UNNAMED else op
