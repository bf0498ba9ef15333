"""A trace written by hand: what ran when, in nanoseconds, as the JSON that Kineto would write."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

MAIN, ENGINE = 100, 200  # threads: the training loop's, and autograd's device thread
US = 1000


class Script:
    """Collects events; ``write`` makes the file."""

    def __init__(self, rank: int = 0, world: int = 1, device: str | None = "NVIDIA H200") -> None:
        self.events: list[dict[str, Any]] = []
        self.correlation = 0
        self.header: dict[str, Any] = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": device}] if device else [],
            "distributedInfo": {"backend": "nccl" if device else "gloo", "rank": rank, "world_size": world},
        }

    def _event(self, cat: str, name: str, start: int, end: int, tid: object, **args: object) -> dict[str, Any]:
        event = {
            "ph": "X",
            "cat": cat,
            "name": name,
            "pid": 1,
            "tid": tid,
            "ts": start / US,
            "dur": (end - start) / US,
            "args": {key.replace("_", " "): value for key, value in args.items()},
        }
        self.events.append(event)
        return event

    def step(self, number: int, start: int, end: int) -> None:
        """One ProfilerStep on the main thread."""
        self._event("user_annotation", f"ProfilerStep#{number}", start, end, MAIN)

    def annotate(self, name: str, start: int, end: int, tid: int = MAIN) -> None:
        self._event("user_annotation", name, start, end, tid)

    def evaluate(self, start: int, end: int, tid: int = ENGINE) -> None:
        """Autograd runs one function."""
        self._event("cpu_op", "autograd::engine::evaluate_function: MmBackward0", start, end, tid)

    def operator(self, name: str, start: int, end: int, **args: Any) -> dict[str, Any]:
        """An operator on ``tid`` (the main thread)."""
        return self._event("cpu_op", name, start, end, args.pop("tid", MAIN), **args)

    def launch(self, at: int, tid: int = MAIN, name: str = "cudaLaunchKernel", **args: object) -> int:
        """A launch, whose correlation id is returned."""
        self.correlation += 1
        self._event("cuda_runtime", name, at, at + 1, tid, correlation=self.correlation, **args)
        return self.correlation

    def kernel(self, name: str, start: int, end: int, launched: int | None = None, **args: Any) -> dict[str, Any]:
        """A GPU event; ``launched`` is when the CPU issued it on ``tid`` (None: no record of that)."""
        tid, cat, stream = args.pop("tid", MAIN), args.pop("cat", "kernel"), args.pop("stream", 7)
        if launched is not None:
            args["correlation"] = self.launch(launched, tid)
        return self._event(cat, name, start, end, stream, device=0, stream=stream, **args)

    def collective(self, call: str, elements: int, start: int, end: int, **more: Any) -> dict[str, Any]:
        """An NCCL kernel described as Kineto does, in a group of two ranks unless ``said`` otherwise."""
        said = more.pop("said", {})
        event = self.kernel(f"ncclDevKernel_{call}", start, end, stream=20, **more)
        event["args"] |= described(call, elements) | said
        return event

    def text(self, **layout: Any) -> bytes:
        return json.dumps({**self.header, "traceEvents": self.events, "traceName": "by hand"}, **layout).encode()

    def write(self, path: Path, **layout: Any) -> Path:
        """Write the file, gzipped where its name says so."""
        data = self.text(**layout)
        path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)
        return path


def described(call: str, elements: int) -> dict[str, Any]:
    """What Kineto says of a collective call of fp32 elements."""
    return {
        "Collective name": call,
        "In msg nelems": elements,
        "Out msg nelems": 2 * elements if "gather" in call else elements,
        "Group size": 2,
        "dtype": "Float",
        "Process Group Name": "0",
        "Process Group Description": "mesh",
        "Process Group Ranks": "[0, 1]",
    }
