"""Times and ids of events as int64, or an error that names the event that has an impossible one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from pytest_scaleperf.model import TraceError
from pytest_scaleperf.trace.columns import Ints
from pytest_scaleperf.trace.decode import Batch, Event

_LIMIT_US = float(1 << 62) / 1000  # 146 years: two such times can be added in int64 nanoseconds


def integers(batch: Batch, events: list[Event], what: str, values: Iterable[Any]) -> Ints:
    """Ids; text that holds a number is one (PyTorch's Python exporter writes strings).

    Raises TraceError with file and byte for anything else, and for what is too large for int64.
    """
    listed = list(values)
    try:
        found = np.array(listed, np.int64)
    except (TypeError, ValueError, OverflowError):
        found = np.empty((0, 0), np.int64)
    if found.shape == (len(listed),):
        return found
    raise _first_bad(batch, events, listed, what, lambda value: np.int64(int(value)))


def nanoseconds(batch: Batch, events: list[Event], what: str, values: list[Any]) -> Ints:
    """Microseconds, as Kineto writes them, rounded to whole nanoseconds.

    Raises TraceError with file and byte where one is missing, no number, not finite or beyond 146 years.
    """
    try:
        found = np.array(values, np.float64)
    except (TypeError, ValueError, OverflowError):
        found = np.empty((0, 0))
    if found.shape != (len(values),) or not (np.abs(found) < _LIMIT_US).all():
        raise _first_bad(batch, events, values, f"{what} (microseconds)", _microseconds)
    return np.rint(found * 1000).astype(np.int64)


def durations(batch: Batch, events: list[Event]) -> Ints:
    """Durations of GPU events in nanoseconds; finite ones beyond 146 years (a wrapped counter) become 73 years.

    Raises TraceError with file and byte where one is missing or no number.
    """
    values = [min(dur, _LIMIT_US / 2) if isinstance(dur := event.dur, int | float) else dur for event in events]
    return nanoseconds(batch, events, "dur", values)


def _microseconds(value: Any) -> None:  # noqa: ANN401 - whatever JSON holds
    if not abs(float(value)) < _LIMIT_US:
        raise ValueError


def _first_bad(
    batch: Batch, events: list[Event], values: list[Any], what: str, convert: Callable[[Any], object]
) -> TraceError:
    """The error for the first value that ``convert`` refuses."""
    for event, value in zip(events, values, strict=True):
        try:
            convert(value)
        except (TypeError, ValueError, OverflowError):
            at = next(index for index, each in enumerate(batch.events) if each is event)
            said = "missing" if value is None else f"{str(value)[:40]!r}, which is no possible value"
            return batch.fault(at, f"{what} of event {event.name[:60]!r} is {said}")
    return batch.fault(0, f"{what} of some event from here on is no possible value")
