"""Which case ran where and when: the session's ``timeline.json``, and how its GPUs' time was spent."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_scaleperf import records
from pytest_scaleperf.campaign.launching import Started
from pytest_scaleperf.model import JobResult, JobState, LaunchError

FILE = "timeline.json"
_LOST = frozenset({JobState.NODE_FAIL, JobState.PREEMPTED, JobState.CANCELLED, JobState.UNKNOWN})
_EVERY = 2.0  # seconds between two writes: the records hold the same at once


@dataclass(slots=True)
class Timeline:
    """Every launch of a session. ``capacity`` is the session's number of GPUs."""

    folder: Path
    capacity: int
    left_out: list[str] = field(default_factory=list)
    _entries: list[dict[str, Any]] = field(default_factory=list)
    _written: float = 0.0

    def add(self, started: Started, result: JobResult) -> None:
        """Note a launch that has ended."""
        ran = started.began + result.waited
        self._entries.append({
            "case": started.order.case.id,
            "attempt": int(started.folder.name),
            "hosts": result.hosts,
            "gpus": started.spec.resources.gpus,
            "started": ran,
            "ended": ran + result.seconds,
            "waited": result.waited,
            "state": result.state,
        })  # fmt: skip
        if time.time() - self._written > _EVERY:
            with contextlib.suppress(LaunchError):  # the records say so of each case; the last write tells it too
                self.write()

    def write(self) -> None:
        """Put it on the disk; nothing is written where nothing was launched.

        Raises LaunchError where it cannot be written.
        """
        if not self._entries:
            return
        self._written = time.time()
        with records.writing(self.folder / FILE):
            records.write_json(
                self.folder / FILE,
                {
                    "capacity_gpus": self.capacity,
                    "left_out": self.left_out,
                    "gpu_seconds": self._spent(),
                    "timeline": self._entries,
                },
            )

    def _spent(self) -> dict[str, float]:
        """GPU-seconds busy with runs that count, lost to the machine's failures, and idle, first start to last end."""
        busy = sum(_gpu_seconds(entry) for entry in self._entries if entry["state"] not in _LOST)
        lost = sum(_gpu_seconds(entry) for entry in self._entries if entry["state"] in _LOST)
        first, last = min(e["started"] for e in self._entries), max(e["ended"] for e in self._entries)
        return {"busy": busy, "lost": lost, "idle": max(0.0, self.capacity * (last - first) - busy - lost)}


def _gpu_seconds(entry: dict[str, Any]) -> float:
    return float(entry["gpus"] * (entry["ended"] - entry["started"]))
