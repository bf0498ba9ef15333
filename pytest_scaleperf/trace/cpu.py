"""A trace without a GPU: operators on the CPU's threads stand for compute, gloo's work for communication."""

from __future__ import annotations

import re

import numpy as np

from pytest_scaleperf.model import TraceError
from pytest_scaleperf.trace import names
from pytest_scaleperf.trace.columns import Ints, RankTrace, Spans
from pytest_scaleperf.trace.grouping import alike
from pytest_scaleperf.trace.partition import Kind
from pytest_scaleperf.trace.rules import Rules
from pytest_scaleperf.trace.steps import Steps, Window
from pytest_scaleperf.trace.work import Work

# Operators compute; these only call others, or hand work to a process group and wait for it.
_WRAPPER = re.compile(r"^(?:torch::)?autograd::|^c10d|^_c10d_functional|^symm_mem::|^record_param_comms|^FSDP::")
_OPERATOR = re.compile(r"^\w+::")
CPU_NOTE = (
    "a CPU trace, no GPU events: compute is the time in operators of the main and autograd threads, communication is "
    "gloo's work on its own threads (waiting for the other ranks included), idle is Python and what records no operator"
)


def check_cpu(trace: RankTrace) -> None:
    """Refuse a trace of a GPU job in which no GPU event was recorded.

    Raises TraceError that says what the trace holds instead.
    """
    launches = len(trace.launches.ts)
    if launches or trace.device != "CPU":
        raise TraceError(
            f"{trace.path}: no GPU events among {trace.events} ({launches} launches, {trace.device}): expected "
            "kernels, but CUPTI or roctracer recorded none: is ProfilerActivity.CUDA on, is another profiler attached, "
            "and may this user read GPU counters?"
        )
    if not len(trace.operators) + len(trace.transfers):
        raise TraceError(
            f"{trace.path}: neither GPU events nor operators among {trace.events} events: nothing to analyse; "
            "record at least one step with torch.profiler"
        )


def cpu_work(trace: RankTrace, steps: Steps, rules: Rules) -> Work:
    """Operators and gloo's transfers in order of start, in the form of a GPU's work."""
    threads = np.union1d(np.unique(trace.backward.thread), [steps.thread])
    computing = np.array([_computes(name, rules) for name in trace.names], bool)
    operators = trace.operators.where(
        computing[trace.operators.name] & (np.isin(trace.operators.thread, threads) | (steps.thread < 0))
    )
    transfers = trace.transfers
    issued, collective = _issue(trace)
    start = np.concatenate((operators.start, transfers.start))
    end = np.concatenate((operators.end, transfers.end))
    order = np.lexsort((-end, start))
    joined = {
        "start": start,
        "end": end,
        "kind": np.repeat([Kind.COMPUTE, Kind.COMMUNICATION], [len(operators), len(transfers)]).astype(np.int64),
        "name": np.concatenate((operators.name, transfers.name)),
        "launch": np.concatenate((operators.start, issued)),
        "thread": np.concatenate((operators.thread, transfers.thread)),
        "collective": np.concatenate((np.full(len(operators), -1), collective)),
    }
    ordered = {field: column[order] for field, column in joined.items()}
    label, labels = _labels(trace, ordered["name"], ordered["kind"], ordered["collective"])
    if not len(order):
        raise TraceError(
            f"{trace.path}: none of {len(trace.operators)} operators computes or communicates: nothing to analyse"
        )
    nothing = np.zeros(len(order), bool)
    return Work(
        **ordered,
        label=label,
        labels=labels,
        graph=nothing,
        fsdp_copy=nothing,
        call=np.full(len(order), -1),
        lane=ordered["thread"],
    )


def cpu_windows(steps: Steps, work: Work) -> tuple[tuple[Window, ...], tuple[str, ...]]:
    """The CPU's own steps; all are whole."""
    if not steps.cpu:
        note = "no ProfilerStep: the whole trace is one window, and idle time before and after it is not seen"
        return (Window(None, int(work.start[0]), int(work.end.max()), whole=False),), (note,)
    return tuple(Window(step.number, step.start, step.end, whole=True) for step in steps.cpu), ()


def _computes(name: str, rules: Rules) -> bool:
    if rules.is_communication(name):
        return False
    return rules.is_compute(name) or bool(_OPERATOR.match(name) and not _WRAPPER.match(name))


def _issue(trace: RankTrace) -> tuple[Ints, Ints]:
    """When each transfer was issued, and its collective.

    Gloo's queue is first in, first out: where there are as many c10d calls as transfers, and none of these starts
    before its call, the n-th belongs to the n-th. Gloo names a reduce_scatter all_reduce; its call knows better.
    """
    transfers, calls = trace.transfers, _queued(trace)
    paired = len(calls) == len(transfers) and bool((calls.start <= transfers.start).all())
    if not paired:
        return transfers.start, transfers.collective
    sized = np.array([call.dtype is not None for call in trace.collectives] + [False], bool)
    return calls.start, np.where(sized[calls.collective], calls.collective, transfers.collective)


def _queued(trace: RankTrace) -> Spans:
    issuing = np.array([name.startswith("c10d::") for name in trace.names], bool)
    return trace.calls.where(issuing[trace.calls.name])


def _labels(trace: RankTrace, name: Ints, kind: Ints, collective: Ints) -> tuple[Ints, tuple[str, ...]]:
    place, number = alike(name, kind, collective)
    table: dict[str, int] = {}
    said = [_label(trace, int(name[at]), int(kind[at]), int(collective[at])) for at in place]
    found = np.array([table.setdefault(label, len(table)) for label in said], np.int64)[number]
    return found, tuple(table)


def _label(trace: RankTrace, name: int, kind: int, collective: int) -> str:
    if kind == Kind.COMPUTE:
        return trace.names[name]
    return names.operation(trace.collectives[collective].call if collective >= 0 else trace.names[name])
