"""Plain data as sorted, stable YAML for people, and the atomic way to put text into a file.

Our own emitter and not PyYAML's: it must quote what ``scalars`` reads differently from YAML 1.1 (``y``,
``1e3``), keep one sample on one line for a readable diff, and write 10,000 cases in well under a second.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pytest_scaleperf.yamlfile.document import Data
from pytest_scaleperf.yamlfile.scalars import MAX_NUMBER_LENGTH, RefusedWordError, read_plain

WIDTH = 110
_MAX_KEY = 900
"""YAML allows 1,024 characters before the colon of a simple key."""
_PLAIN = re.compile(r"[A-Za-z0-9_/+][A-Za-z0-9_./+-]*( [A-Za-z0-9_./+%()-]+)*")
_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def dump(data: Mapping[str, Data]) -> str:
    """YAML text of a mapping with sorted keys, such that reading it gives an equal mapping.

    Raises ValueError for what the reader would refuse: not finite, longer than it reads, keys that are no text.
    """
    return "\n".join(_mapping(data, 0) if data else ["{}"]) + "\n"


def write_atomic(path: Path, text: str) -> None:
    """Replace the file's content so that a reader, or a power cut, sees the old text or the new, never a part.

    The file keeps its mode; a new one gets the umask's. Raises OSError where the folder cannot be written.
    """
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "w", encoding="utf-8") as file:
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(file.fileno(), target.stat().st_mode & 0o7777)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _mapping(data: Mapping[str, Data], indent: int) -> Iterator[str]:
    pad = " " * indent
    for key in sorted(data):
        head, value = f"{pad}{_key(key)}:", data[key]
        line = _one_line(value, WIDTH - len(head))
        if line is not None:
            yield f"{head} {line}"
        else:
            yield head
            yield from _block(value, indent + 2)


def _sequence(data: Sequence[Data], indent: int) -> Iterator[str]:
    pad = " " * indent
    for value in data:
        # One item, one line, however long: a diff of recorded samples is then one line for each.
        line = _one_line(value, None)
        if line is not None:
            yield f"{pad}- {line}"
        else:
            yield f"{pad}-"
            yield from _block(value, indent + 2)


def _block(value: Data, indent: int) -> Iterator[str]:
    if isinstance(value, dict):
        return _mapping(value, indent)
    if isinstance(value, list):
        return _sequence(value, indent)
    raise TypeError(f"expected a mapping or a list, found {type(value).__name__}")


def _one_line(value: Data, room: int | None) -> str | None:
    """A scalar, or a collection of scalars that fits into ``room`` characters; None for what needs a block."""
    if isinstance(value, dict):
        if any(isinstance(item, dict | list) and item for item in value.values()):
            return None
        line = "{" + ", ".join(f"{_key(key)}: {_one_line(value[key], None)}" for key in sorted(value)) + "}"
    elif isinstance(value, list):
        if any(isinstance(item, dict | list) and item for item in value):
            return None
        line = "[" + ", ".join(str(_one_line(item, None)) for item in value) + "]"
    else:
        return _scalar(value)
    return line if room is None or not value or len(line) <= room else None


def _scalar(value: Data) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"expected a finite number, found {value}")
    if isinstance(value, int | float):
        text = repr(value)
        if len(text) > MAX_NUMBER_LENGTH:
            raise ValueError(f"expected a number of at most {MAX_NUMBER_LENGTH} characters, found {len(text)}")
        return text
    raise TypeError(f"expected text, a number, true, false or None, found {type(value).__name__}")


def _key(key: str) -> str:
    text = _text(key)
    if len(text) > _MAX_KEY:
        raise ValueError(f"expected a key of at most {_MAX_KEY} characters, found {len(text)}")
    return text


def _text(value: str) -> str:
    if _PLAIN.fullmatch(value):
        with contextlib.suppress(RefusedWordError):
            if read_plain(value) == value:
                return value
    return _ESCAPED.sub(_escape, json.dumps(value, ensure_ascii=False))


def _escape(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"  # noqa: PLR2004 - \x takes two digits
