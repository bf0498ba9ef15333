"""Trace JSON to typed events, a piece at a time; every fault is an error that names file and byte."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from pytest_scaleperf.model import TraceError
from pytest_scaleperf.trace.source import GZIP_MAGIC, pieces

_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
# Between two events. Unescaped quotes cannot stand inside a JSON string, so this never matches within one. It can
# match inside an array of objects in some event's args; then the part decodes as truncated and is extended.
_BETWEEN = re.compile(rb'\}\s*(,)\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts)")')
_BYTE = re.compile(r"\(byte (\d+)\)")
_INDEX = re.compile(r"\$(?:\.traceEvents)?\[(\d+)\]")
_NEAR = 8 << 10
_EXCERPT = 24


class Args(
    msgspec.Struct,
    gc=False,
    rename={
        "external": "External id",
        "collective": "Collective name",
        "in_elements": "In msg nelems",
        "out_elements": "Out msg nelems",
        "group_size": "Group size",
        "group_name": "Process Group Name",
        "group_desc": "Process Group Description",
        "group_ranks": "Process Group Ranks",
        "graph": "graph id",
        "input_dims": "Input Dims",
        "input_type": "Input type",
    },
):
    """The arguments that are used. Kineto writes numbers, its Python exporter strings: hence Any."""

    external: Any = -1
    correlation: Any = -1
    stream: int | str | None = -1
    graph: Any = 0
    collective: Any = None
    in_elements: Any = None
    out_elements: Any = None
    group_size: Any = None
    dtype: Any = None
    group_name: Any = None
    group_desc: Any = None
    group_ranks: Any = None
    input_dims: msgspec.Raw = msgspec.Raw(b"[]")
    input_type: msgspec.Raw = msgspec.Raw(b"[]")


NO_ARGS = Args()


class Event(msgspec.Struct, gc=False):
    """One event; ``ts`` and ``dur`` are microseconds. What Kineto times has ``cat`` and is a complete event (``X``)."""

    cat: str | None = None
    name: str = ""
    pid: int | str | float | None = None
    tid: int | str | float | None = None
    ts: Any = None
    dur: Any = None
    args: Args | None = None


class Header(msgspec.Struct):
    """What stands beside the events."""

    traceEvents: list[Event] = msgspec.field(default_factory=list)  # noqa: N815 - the format's name
    deviceProperties: Any = None  # noqa: N815 - the format's name
    distributedInfo: Any = None  # noqa: N815 - the format's name
    baseTimeNanoseconds: Any = None  # noqa: N815 - the format's name


class _RawEvents(msgspec.Struct):
    traceEvents: list[msgspec.Raw]  # noqa: N815 - the format's name


_OPENING = b'{"traceEvents":['
_events = msgspec.json.Decoder(list[Event])
_header = msgspec.json.Decoder(Header)
_raws = msgspec.json.Decoder(list[msgspec.Raw])
_raw_events = msgspec.json.Decoder(_RawEvents)


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive events and the JSON they came from; ``text[0]`` stands for byte ``offset`` of the file's JSON."""

    events: list[Event]
    text: bytes
    offset: int
    path: Path

    def fault(self, index: int, what: str) -> TraceError:
        """An error that names the place of event ``index``."""
        at = _start_of(self.text, index)
        return fault(self.path, self.offset + at, what, self.text[at:])


def fault(path: Path, byte: int, what: str, near: bytes = b"") -> TraceError:
    """An error with file and byte; what the file says there is quoted, never interpreted."""
    excerpt = f", near {near[:_EXCERPT]!r}" if near else ""
    return TraceError(f"{path}: {what} at byte {byte}{_where(path)}{excerpt}")


def _where(path: Path) -> str:
    with path.open("rb") as stream:
        return " of the unzipped JSON" if stream.read(2) == GZIP_MAGIC else ""


def _start_of(text: bytes, index: int) -> int:
    """Byte of ``text`` where event ``index`` starts; looked for only when something is wrong."""
    raws = _raw_events.decode(text).traceEvents if text.startswith(b"{") else _raws.decode(text)
    at = 0
    for raw in raws[:index]:
        element = bytes(raw)
        at = text.index(element, at) + len(element)
    return text.index(bytes(raws[index]), at)


class Reader:
    """Reads one trace: iterate over its batches, then ``header`` is complete.

    What stands before the events is in ``header`` from the start of the iteration.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header = Header()
        self.size = 0

    def __iter__(self) -> Iterator[Batch]:
        """Yield the events in file order; raises TraceError at the first fault."""
        stream = self._count(pieces(self.path))
        left, offset, opening = self._head(stream)  # left: bytes read and not yet decoded
        parts = [left]
        enough = 0
        for piece in stream:
            parts.append(piece)
            cut = _last_cut(piece) if sum(map(len, parts)) >= enough else None
            if cut is None:
                continue
            array = b"".join((b"[", *parts[:-1], piece[:cut], b"]"))
            try:
                yield Batch(_events.decode(array), array, offset - 1, self.path)
            except msgspec.DecodeError as error:
                if "trailing" in str(error):  # the array of events ends in here
                    break
                if "truncated" not in str(error):
                    raise self._explain(error, array, offset - 1) from error
                enough = 2 * len(array)  # this was no place between two events: take more
            else:
                offset += len(array) - 1  # less the two brackets, and the comma
                parts, enough = [piece[cut + 1 :]], 0
        yield self._tail(b"".join((opening, *parts, *stream)), offset - len(opening))

    def _count(self, stream: Iterator[memoryview]) -> Iterator[memoryview]:
        for piece in stream:
            self.size += len(piece)
            yield piece

    def _head(self, stream: Iterator[memoryview]) -> tuple[memoryview, int, bytes]:
        """Read up to the events: the text after ``[``, its offset, and what opens the array."""
        buffer = b""
        for piece in stream:
            searched = max(0, len(buffer) - 64)
            buffer += piece
            start = buffer.lstrip()
            if start[:1] == b"[":
                offset = len(buffer) - len(start) + 1
                return memoryview(buffer)[offset:], offset, b"["
            if match := _ARRAY.search(buffer, searched):
                self._merge(buffer[: match.end()] + b"]}", 0)
                return memoryview(buffer)[match.end() :], match.end(), _OPENING
        if not buffer.strip():
            raise TraceError(f"{self.path}: the file is empty: the job ended before it wrote the trace")
        self._merge(buffer, 0)
        raise TraceError(f'{self.path}: no "traceEvents" in {len(buffer)} bytes of JSON: this is not a Kineto trace')

    def _tail(self, text: bytes, offset: int) -> Batch:
        if text.startswith(_OPENING):
            return Batch(self._merge(text, offset), text, offset, self.path)
        try:
            return Batch(_events.decode(text), text, offset, self.path)
        except msgspec.DecodeError as error:
            raise self._explain(error, text, offset) from error

    def _merge(self, text: bytes, offset: int) -> list[Event]:
        """Decode an object, keep what it says beside the events, return its events."""
        try:
            found = _header.decode(text)
        except msgspec.DecodeError as error:
            raise self._explain(error, text, offset) from error
        for name in ("deviceProperties", "distributedInfo", "baseTimeNanoseconds"):
            if (value := getattr(found, name)) is not None:
                setattr(self.header, name, value)
        return found.traceEvents

    def _explain(self, error: msgspec.DecodeError, text: bytes, offset: int) -> TraceError:
        """Turn a decoder's message into one with file and byte; ``offset`` is where ``text`` starts in the JSON."""
        message = str(error)
        if match := _BYTE.search(message):
            at = int(match[1])
            what = message[: match.start()].rstrip().removeprefix("JSON is malformed: ")
            return fault(self.path, offset + at, f"malformed JSON ({what})", text[max(0, at - 8) :])
        if match := _INDEX.search(message):
            at = _start_of(text, int(match[1]))
            return fault(self.path, offset + at, f"an event is not what it should be ({message})", text[at:])
        if "UTF-8" in message:
            at = _bad_utf8(text)
            return fault(self.path, offset + at, "text that is not UTF-8", text[at:])
        if "truncated" in message:
            return TraceError(
                f"{self.path}: the JSON ends early, after byte {self.size}{_where(self.path)}: "
                "the job ended while it wrote the trace, or the copy is incomplete"
            )
        return TraceError(f"{self.path}: this is not a Kineto trace: {message}")


def _last_cut(piece: memoryview) -> int | None:
    """Byte of the last comma between two events, or None."""
    for start in (max(0, len(piece) - _NEAR), 0):
        cut = None
        for match in _BETWEEN.finditer(piece, start):
            cut = match.start(1)
        if cut is not None:
            return cut
    return None


def _bad_utf8(text: bytes) -> int:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return error.start
    return 0
