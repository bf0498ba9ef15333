"""What a rank's device did: each event with its kind, its class and when it was launched."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pytest_scaleperf.model import TraceError
from pytest_scaleperf.trace import names
from pytest_scaleperf.trace.columns import Activity, Bools, Ints, RankTrace, Spans
from pytest_scaleperf.trace.partition import Kind
from pytest_scaleperf.trace.rules import Rules

UNKNOWN = -(1 << 62)  # a launch time before every step: no launch was recorded

# FSDP2's record_function names (torch/distributed/fsdp/_fully_shard) around copies in and out of its flat buffers.
_FSDP_COPIES = re.compile(r"^FSDP::(?:all_gather|all_gather_copy_out|post_backward_reduce|post_backward_accumulate)\b")
_PEER_COPY = re.compile(r"PtoP|Peer", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Work:
    """Events in order of start, in nanoseconds.

    ``label`` indexes ``labels``: the collective of communication, the class of compute. ``launch`` is when the CPU
    issued the event (UNKNOWN without a record), on ``thread``. ``graph``: by replaying a CUDA graph. ``fsdp_copy``
    marks FSDP's own copies. ``collective`` indexes the trace's collectives, -1 where sizes are not known.
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
    lane: Ints
    labels: tuple[str, ...]


def gpu_work(trace: RankTrace, rules: Rules) -> Work:
    """Kernels, copies and memsets of a trace; never told apart by stream, for those are rewritten and shared."""
    gpu, launches = trace.gpu, trace.launches
    at = _places(launches.correlation, gpu.correlation)  # -1, the value appended, where no launch was recorded
    launch, thread = np.append(launches.ts, UNKNOWN)[at], np.append(launches.thread, -1)[at]
    graph = gpu.graph | np.append(launches.graph, np.False_)[at]
    external = np.where(gpu.external < 0, np.append(launches.external, -1)[at], gpu.external)
    collective, called = _calls(trace, gpu.collective, external)
    peer = np.isin(gpu.name, _named(trace, _PEER_COPY.search)) & _inside(trace.calls, launch, thread)
    kernel = gpu.activity == Activity.KERNEL
    communicates, computes = _name_tables(trace, rules)
    is_communication = np.where(
        kernel,
        communicates[gpu.name] | ((collective >= 0) & ~computes[gpu.name]),
        called | peer,
    )
    kind = np.where(is_communication, Kind.COMMUNICATION, np.where(kernel, Kind.COMPUTE, Kind.COPY))
    fsdp = np.isin(gpu.name, _named(trace, names.is_fsdp_copy))
    copies = trace.annotations.where(np.isin(trace.annotations.name, _named(trace, _FSDP_COPIES.match)))
    fsdp_copy = (kind == Kind.COMPUTE) & (fsdp | _inside(copies, launch, thread))
    label, labels = _labels(trace, gpu.name, kind, collective, fsdp_copy)
    return Work(
        gpu.start, gpu.end, kind, gpu.name, label, launch, thread, graph, fsdp_copy, collective, gpu.lane, labels
    )  # fmt: skip


def _places(ids: Ints, wanted: Ints) -> Ints:
    """Place of each wanted id in the rising ``ids``, -1 where it is not there or is none."""
    if not len(ids):
        return np.full(len(wanted), -1)
    at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return np.where((ids[at] == wanted) & (wanted >= 0), at, -1)


def _calls(trace: RankTrace, collective: Ints, external: Ints) -> tuple[Ints, Bools]:
    """Each event's collective, its own or that of the call with its External id; and whether there is such a call."""
    order = np.argsort(trace.calls.external, kind="stable")
    at = _places(trace.calls.external[order], external)
    return np.where(collective < 0, np.append(trace.calls.collective[order], -1)[at], collective), at >= 0


def _named(trace: RankTrace, test: Callable[[str], object]) -> Ints:
    return np.array([index for index, name in enumerate(trace.names) if test(name)], np.int64)


def _inside(spans: Spans, when: Ints, thread: Ints) -> Bools:
    """Whether each moment lies in a span on its own thread; spans of one thread nest or are disjoint."""
    found = np.zeros(len(when), bool)
    for each in np.unique(spans.thread):
        own = spans.where(spans.thread == each)
        reach = np.maximum.accumulate(own.end)
        at = np.searchsorted(own.start, when, side="right") - 1
        found |= (thread == each) & (at >= 0) & (when < reach[np.maximum(at, 0)])
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
    """A class for each event: computed once per distinct combination."""
    keys = np.stack((name, kind, collective, fsdp_copy.astype(np.int64)))
    distinct, inverse = np.unique(keys, axis=1, return_inverse=True)
    table: dict[str, int] = {}
    numbers = [table.setdefault(_label(trace, *map(int, key)), len(table)) for key in distinct.T]
    return np.array(numbers, np.int64)[inverse.reshape(-1)], tuple(table)


def _label(trace: RankTrace, name: int, kind: int, collective: int, fsdp_copy: int) -> str:
    said = trace.names[name]
    if kind == Kind.COMPUTE:
        return "fsdp copy" if fsdp_copy else names.family(said)
    if kind == Kind.COPY:
        return said.partition("(")[0].strip().lower()
    op = names.operation(trace.collectives[collective].call) if collective >= 0 else names.UNNAMED
    return names.operation(said) if op == names.UNNAMED else op
