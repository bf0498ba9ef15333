"""Bytes of a trace file, plain or gzipped, in small pieces."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO

from zlib_ng import zlib_ng

from pytest_scaleperf.model import TraceError

GZIP_MAGIC = b"\x1f\x8b"
# Both sizes keep what is worked on in the processor's cache: measured twice as fast as pieces of 4 MiB. What one read
# unzips to (9 times as much, in a trace) has to fit into one piece: a small rest costs as much as a whole one.
_READ = 64 << 10
_PIECE = 1 << 20


def pieces(path: Path) -> Iterator[memoryview]:
    """The file's JSON text in pieces of at most 1 MiB.

    Raises TraceError where the file cannot be opened, or is gzip that is damaged or cut short.
    """
    for text in _read(path):
        view = memoryview(text)
        for start in range(0, len(text), _PIECE):
            yield view[start : start + _PIECE]


def _read(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as stream:
            zipped = stream.read(2) == GZIP_MAGIC
            stream.seek(0)
            yield from _inflate(stream, path) if zipped else iter(lambda: stream.read(_PIECE), b"")
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from error


def _inflate(stream: IO[bytes], path: Path) -> Iterator[bytes]:
    """Gunzip every member of the stream; zero bytes after the last are padding."""
    inflater = zlib_ng.decompressobj(31)
    read = 0
    while data := stream.read(_READ):
        read += len(data)
        while data := data.lstrip(b"\0") if inflater.eof else data:
            if inflater.eof:
                inflater = zlib_ng.decompressobj(31)
            try:
                text = inflater.decompress(data)
            except zlib_ng.error as error:  # type: ignore[misc]  # its stub calls the class an instance
                raise TraceError(
                    f"{path}: damaged gzip in bytes {read - len(data)} to {read} of the file ({error}); "
                    "copy the trace again, or record a new one"
                ) from error
            yield text
            data = inflater.unused_data
    if not inflater.eof:
        raise TraceError(
            f"{path}: the gzip stream is cut short at byte {read} of the file: "
            "the job ended while it wrote the trace, or the copy is incomplete"
        )
