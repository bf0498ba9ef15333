"""TensorBoard event files to scalars per rank and step; what cannot be read is said, never left out silently."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_scaleperf.titan.lines import rank_in_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

# Fields of a StepSample by torchtitan's tags (components/metrics.py, 0.1.0 to main; ``wps`` before 2024-11-25).
TAGS = {
    "throughput(tps)": "tps",
    "wps": "tps",
    "tflops": "tflops",
    "mfu(%)": "mfu_pct",
    "memory/max_reserved(GiB)": "memory_gib",
    "memory/max_reserved(%)": "memory_pct",
    "memory/num_alloc_retries": "alloc_retries",
    "loss_metrics/global_avg_loss": "loss",
    "grad_norm": "grad_norm",
}
TOKENS_SEEN = "n_tokens_seen"
# torchtitan divides this one by log_freq and not by the steps of the window: shown, never used.
WRONG_STEP_TIME = "time_metrics/end_to_end(s)"
_OTHER_TAGS = frozenset({TOKENS_SEEN, WRONG_STEP_TIME})
_VALIDATION = "validation_metrics/"
_RECORD_OVERHEAD = 16  # length (8), its checksum (4), the data's checksum (4): the TFRecord format
_NAMES = "events.out.tfevents"

Scalars = dict[int, dict[str, float]]
"""Step -> tag -> value."""


@dataclass(frozen=True, slots=True)
class EventFile:
    """One event file. ``rank`` is what its folder says (None: no rank folder); times are seconds since 1970."""

    path: Path
    rank: int | None
    started: float
    ended: float
    scalars: Scalars
    warning: str | None = None
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class Events:
    """Scalars of the last attempt by rank, and how many attempts the files tell of (0: no files)."""

    ranks: Mapping[int | None, Scalars] = field(default_factory=dict)
    attempts: int = 0
    warnings: tuple[str, ...] = ()

    def steps(self) -> tuple[int, ...]:
        """Every logged step of any rank, rising."""
        return tuple(sorted({step for scalars in self.ranks.values() for step in scalars}))

    def values(self, step: int, tag: str) -> list[tuple[int | None, float]]:
        """(rank, value) of every rank that has this tag at this step."""
        return [(rank, found[step][tag]) for rank, found in self.ranks.items() if tag in found.get(step, {})]


def is_event_file(name: str) -> bool:
    """Whether a file's name is that of an event file."""
    return _NAMES in name


def read_events(paths: Iterable[Path]) -> Events:
    """Read the event files of one run, of all ranks and attempts.

    Never raises for a bad file: what is readable counts, and a warning says which bytes of which file were not.
    """
    return last_attempt([_read(path) for path in sorted(paths)])


def last_attempt(files: Sequence[EventFile]) -> Events:
    """Of each rank its newest file, without ranks whose newest file had ended before the last attempt began."""
    by_rank: dict[int | None, list[EventFile]] = defaultdict(list)
    for file in files:
        by_rank[file.rank].append(file)
    newest = {rank: max(mine, key=lambda f: f.started) for rank, mine in by_rank.items()}
    warnings = [file.warning for file in files if file.warning]
    if not newest:
        return Events(warnings=tuple(warnings))
    begun = max(file.started for file in newest.values())
    ranks: dict[int | None, Scalars] = {}
    for rank, file in sorted(newest.items(), key=lambda item: -1 if item[0] is None else item[0]):
        if file.ended < begun and file.scalars and len(newest) > 1:
            warnings.append(
                f"{file.path}: rank {rank} wrote nothing in the last attempt; its older values are left out"
            )
        elif file.scalars:
            ranks[rank] = file.scalars
    attempts = max(len(mine) - 1 + newest[rank].attempts for rank, mine in by_rank.items())
    return Events(ranks, attempts, tuple(warnings))


def _read(path: Path) -> EventFile:
    rank = rank_in_name(path.parent.as_posix())
    scalars: Scalars = defaultdict(dict)
    started = ended = math.nan
    used, warning = 0, None
    try:
        size = path.stat().st_size
        for length, event in _records(path):
            used += length
            started = event.wall_time if math.isnan(started) else started
            ended = event.wall_time
            for tag, value in _scalars(event):
                scalars[event.step][tag] = value
        if used < size:
            warning = (
                f"{path}: only {used} of {size} bytes are readable (truncated or corrupt); last step {_last(scalars)}"
            )
        elif not size:
            warning = f"{path}: the event file is empty"
    except Exception as error:  # noqa: BLE001 - the reader's own error classes are not public; none may end a session
        warning = f"{path}: unreadable after {used} bytes: {type(error).__name__}: {error}"
    started = 0.0 if math.isnan(started) else started
    return EventFile(path, rank, started, started if math.isnan(ended) else ended, dict(scalars), warning)


def _last(scalars: Scalars) -> str:
    return str(max(scalars)) if scalars else "none"


def _records(path: Path) -> Iterator[tuple[int, Any]]:
    """(bytes, event) of each whole record. tensorboard stops without a word at the first that is not whole."""
    from tensorboard.backend.event_processing.event_file_loader import (  # noqa: PLC0415 - 0.3 s, only where files are
        RawEventFileLoader,
    )
    from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415 - as above

    for data in RawEventFileLoader(str(path)).Load():
        yield len(data) + _RECORD_OVERHEAD, Event.FromString(data)


def _scalars(event: Any) -> Iterator[tuple[str, float]]:  # noqa: ANN401 - tensorboard has no types
    for value in event.summary.value:
        tag = known_tag(value.tag)
        if tag is None:
            continue
        if value.WhichOneof("value") == "simple_value":
            yield tag, float(value.simple_value)
        elif value.tensor.float_val:
            yield tag, float(value.tensor.float_val[0])


def known_tag(tag: str) -> str | None:
    """The plain tag, also where a fork puts its own name in front of it (``train/tflops``); None for any other."""
    if tag in TAGS or tag in _OTHER_TAGS:
        return tag
    if tag.startswith(_VALIDATION) or f"/{_VALIDATION}" in tag:
        return None
    return next((known for known in (*TAGS, *_OTHER_TAGS) if tag.endswith(f"/{known}")), None)


def read_dump(path: Path) -> EventFile | None:
    """A JSON list of ``{"step": 10, "tag": "throughput(tps)", "value": 4000.0}``; None where it is anything else.

    Where a tag goes back to a step that it had passed, the run began again: only what follows counts.
    """
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError, RecursionError):
        return None
    if not isinstance(rows, list) or not rows or not all(map(_is_row, rows)):
        return None
    scalars: Scalars = defaultdict(dict)
    newest: dict[str, tuple[int, float]] = {}
    attempts = 1
    for row in rows:
        tag, step, value = known_tag(row["tag"]), row["step"], float(row["value"])
        if tag is None:
            continue
        if tag in newest and (step, value) != newest[tag] and step <= newest[tag][0]:
            attempts += 1
            scalars.clear()
            newest.clear()
        newest[tag] = step, value
        scalars[step][tag] = value
    return EventFile(path, rank_in_name(path.as_posix()), 0.0, 0.0, dict(scalars), attempts=attempts)


def _is_row(row: object) -> bool:
    if not isinstance(row, dict):
        return False
    step, tag, value = row.get("step"), row.get("tag"), row.get("value")
    return type(step) is int and isinstance(tag, str) and type(value) in (int, float)
