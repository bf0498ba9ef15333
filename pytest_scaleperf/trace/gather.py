"""Events to columns: keeps what the analysis needs, checks it, and counts what had to be cut."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from pytest_scaleperf.model import TraceError
from pytest_scaleperf.trace import described
from pytest_scaleperf.trace.checked import durations, integers, nanoseconds
from pytest_scaleperf.trace.columns import (
    GPU_FIELDS,
    LAUNCH_FIELDS,
    SPAN_FIELDS,
    Activity,
    Bools,
    Clip,
    GpuEvents,
    Ints,
    Launches,
    RankTrace,
    Spans,
)
from pytest_scaleperf.trace.decode import NO_ARGS, Batch, Event, Reader
from pytest_scaleperf.trace.overrun import cut_overruns

# Kineto's category names; the capitalised ones are those of PyTorch 1.8 to 1.11.
_GPU = {
    "kernel": Activity.KERNEL,
    "Kernel": Activity.KERNEL,
    "gpu_memcpy": Activity.MEMCPY,
    "Memcpy": Activity.MEMCPY,
    "gpu_memset": Activity.MEMSET,
    "Memset": Activity.MEMSET,
}
_LAUNCH = ("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "Runtime")
_OPERATOR = ("cpu_op", "Operator")
_ANNOTATION = ("user_annotation", "User Annotation")

_EVALUATE = "autograd::engine::evaluate_function"
_NAME, _THREAD = attrgetter("name"), attrgetter("tid")
_CORRELATION, _EXTERNAL, _GRAPH = attrgetter("correlation"), attrgetter("external"), attrgetter("graph")
_CALL = re.compile(r"record_param_comms$|c10d::|symm_mem::")
TRANSFER = re.compile(r"(?:gloo|mpi|ucc):")
_COARSE = 1 << 43  # us; from here on float64 numbers are more than a nanosecond apart


def read_trace(path: Path) -> RankTrace:
    """Read one rank's Kineto trace (JSON, plain or gzipped).

    Raises TraceError with file and byte where the file is damaged or no trace, or a time or id is impossible.
    """
    reader = Reader(path)
    gathering = _Gathering(reader)
    try:
        for batch in reader:
            gathering.add(batch)
    except RecursionError as error:
        where = f"within the first {reader.size} bytes of JSON"
        raise TraceError(f"{path}: lists or objects nested too deep {where}: this is no trace of Kineto's") from error
    return gathering.finish()


class _Interned(dict[Any, int]):
    """A number for each distinct value, in order of appearance."""

    def __missing__(self, key: object) -> int:
        self[key] = number = len(self)
        return number

    def numbers(self, values: Iterable[Any], count: int) -> Ints:
        return np.fromiter(map(self.__getitem__, values), np.int64, count)


class _OperatorKinds(dict[str, str]):
    """Which columns an operator's name belongs to; the answer for each distinct name is found once."""

    def __missing__(self, name: str) -> str:
        self[name] = kind = "backward" if name.startswith(_EVALUATE) else "calls" if _CALL.match(name) else ""
        return kind


class _Gathering:
    """Columns in the making."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.names = _Interned()
        self.threads = _Interned()
        self.streams = _Interned()
        self.collectives = _Interned()
        self.operator_kinds = _OperatorKinds()
        self.columns: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
        self.clips: dict[str, Clip] = {}
        self.latest = 0
        self.count = 0

    def add(self, batch: Batch) -> None:
        """Take over one batch."""
        self.count += len(batch.events)
        grouped: dict[Any, list[Event]] = defaultdict(list)
        for event in batch.events:
            grouped[event.cat].append(event)
        for category, events in grouped.items():
            if category in _GPU:
                self._gpu(batch, events, _GPU[category])
            elif category in _LAUNCH:
                self._launches(batch, [event for event in events if event.args and event.args.correlation != -1])
            elif category in _OPERATOR:
                self._operators(batch, events)
            elif category in _ANNOTATION:
                self._annotations(batch, events)

    def _gpu(self, batch: Batch, events: list[Event], activity: Activity) -> None:
        args = [event.args or NO_ARGS for event in events]
        count = len(events)
        # The process stands for the device: peer copies do not say theirs. The thread is the stream, or its lane.
        lanes = [
            (event.pid, event.tid if arg.stream == -1 else arg.stream) for event, arg in zip(events, args, strict=True)
        ]
        self.columns["gpu"].append((
            *self._times(batch, events, on_gpu=True),
            self.names.numbers(map(_NAME, events), count),
            np.full(count, activity),
            integers(batch, events, "correlation", map(_CORRELATION, args)),
            integers(batch, events, "External id", map(_EXTERNAL, args)),
            self.streams.numbers(lanes, count),
            integers(batch, events, "graph id", map(_GRAPH, args)) > 0,
            self._described(batch, events),
        ))  # fmt: skip

    def _launches(self, batch: Batch, events: list[Event]) -> None:
        args = [event.args or NO_ARGS for event in events]
        self.columns["launches"].append((
            integers(batch, events, "correlation", map(_CORRELATION, args)),
            nanoseconds(batch, events, "ts", [event.ts for event in events]),
            self.threads.numbers(map(_THREAD, events), len(events)),
            integers(batch, events, "External id", map(_EXTERNAL, args)),
            self.names.numbers(map(_NAME, events), len(events)),
        ))  # fmt: skip

    def _operators(self, batch: Batch, events: list[Event]) -> None:
        kinds = list(map(self.operator_kinds.__getitem__, map(_NAME, events)))
        if any(kinds):
            for kind in ("backward", "calls"):
                chosen = [event for event, own in zip(events, kinds, strict=True) if own == kind]
                self._spans(batch, chosen, kind, describe=kind == "calls")
        if not self.reader.header.deviceProperties:
            self._spans(batch, events, "operators")

    def _annotations(self, batch: Batch, events: list[Event]) -> None:
        transfers = [event for event in events if TRANSFER.match(event.name)]
        self._spans(batch, transfers, "transfers", describe=True)
        self._spans(batch, events, "annotations")

    def _spans(self, batch: Batch, events: list[Event], kind: str, *, describe: bool = False) -> None:
        if not events:
            return
        self.columns[kind].append((
            *self._times(batch, events),
            self.names.numbers(map(_NAME, events), len(events)),
            self.threads.numbers(map(_THREAD, events), len(events)),
            integers(batch, events, "External id", ((event.args or NO_ARGS).external for event in events)),
            self._described(batch, events, by_shapes=True) if describe else np.full(len(events), -1),
        ))  # fmt: skip

    def _times(self, batch: Batch, events: list[Event], *, on_gpu: bool = False) -> tuple[Ints, Ints]:
        """Start and end; a negative duration becomes zero, counted."""
        start = nanoseconds(batch, events, "ts", [event.ts for event in events])
        if on_gpu:
            lasting = durations(batch, events)
        else:
            lasting = nanoseconds(batch, events, "dur", [event.dur for event in events])
        self.latest = max(self.latest, int(start.max()))
        if (negative := lasting < 0).any():
            self._clip("a negative duration, taken as 0", negative, [event.name for event in events])
            lasting = np.maximum(lasting, 0)
        return start, start + lasting

    def _described(self, batch: Batch, events: list[Event], *, by_shapes: bool = False) -> Ints:
        """Index of each event's collective, -1 for none."""
        found = np.full(len(events), -1)
        for index, event, args in [
            (index, event, args)
            for index, event in enumerate(events)
            if (args := event.args) is not None and (by_shapes or args.collective is not None)
        ]:
            if args.collective is not None:
                try:
                    found[index] = self.collectives[described.from_params(args)]
                except (TypeError, ValueError) as error:
                    at = next(place for place, each in enumerate(batch.events) if each is event)
                    raise batch.fault(at, f"sizes of a collective that are no numbers ({error})") from error
            elif call := described.from_shapes(event.name, args):
                found[index] = self.collectives[call]
        return found

    def _clip(self, reason: str, which: Bools, names: list[str]) -> None:
        first = names[int(which.argmax())]
        before = self.clips.get(reason)
        count = int(which.sum()) + (before.count if before else 0)
        self.clips[reason] = Clip(reason, count, before.first if before else first)

    def finish(self) -> RankTrace:
        """Put the columns in order."""
        gpu = self._ordered_gpu()
        launches = self._joined("launches", LAUNCH_FIELDS)
        by_id = np.lexsort((launches["ts"], launches["correlation"]))
        process = described.process(self.reader.header, self.reader.path)
        return RankTrace(
            path=self.reader.path,
            json_bytes=self.reader.size,
            events=self.count,
            rank=process.rank,
            world_size=process.world_size,
            device=described.device(self.reader.header),
            names=tuple(self.names),
            lanes=tuple(str(lane[1]) for lane in self.streams),
            collectives=tuple(self.collectives),
            gpu=gpu,
            launches=Launches(**{field: launches[field][by_id] for field in LAUNCH_FIELDS}),
            annotations=self._ordered_spans("annotations"),
            backward=self._ordered_spans("backward"),
            calls=self._ordered_spans("calls"),
            operators=self._ordered_spans("operators"),
            transfers=self._ordered_spans("transfers"),
            groups=process.groups,
            clips=tuple(self.clips.values()),
            warnings=self._warnings(gpu.lane),
        )

    def _joined(self, kind: str, fields: tuple[str, ...]) -> dict[str, Any]:
        parts = self.columns.pop(kind, [])
        if not parts:
            return {field: np.empty(0, bool if field == "graph" else np.int64) for field in fields}
        return {field: np.concatenate([part[at] for part in parts]) for at, field in enumerate(fields)}

    def _ordered_gpu(self) -> GpuEvents:
        columns = self._joined("gpu", GPU_FIELDS)
        end, cut = cut_overruns(columns["start"], columns["end"], columns["lane"], columns["graph"])
        if cut.any():
            names = list(self.names)
            self._clip(
                "running over the next kernel of its stream, ended there",
                cut,
                [names[at] for at in columns["name"]],
            )
        columns["end"] = end
        order = np.lexsort((columns["activity"], end, columns["start"]))
        return GpuEvents(**{field: columns[field][order] for field in GPU_FIELDS})

    def _ordered_spans(self, kind: str) -> Spans:
        columns = self._joined(kind, SPAN_FIELDS)
        order = np.lexsort((-columns["end"], columns["start"]))
        return Spans(**{field: columns[field][order] for field in SPAN_FIELDS})

    def _warnings(self, lanes: Ints) -> tuple[str, ...]:
        found = []
        if self.latest >= _COARSE * 1000:
            spacing = float(np.spacing(self.latest / 1000)) * 1000
            found.append(
                f"timestamps are {spacing:.0f} ns apart as numbers: this PyTorch (before 2.4) wrote no base time, "
                "so short kernels are not exact"
            )
        devices: Counter[str] = Counter()
        for (device, _), count in zip(self.streams, np.bincount(lanes, minlength=len(self.streams)), strict=True):
            devices[str(device)] += int(count)
        if len(devices) > 1:
            each = ", ".join(f"{name}: {count} events" for name, count in devices.most_common())
            found.append(f"several devices in one trace are taken as one GPU ({each}); record one process per GPU")
        return tuple(found)
