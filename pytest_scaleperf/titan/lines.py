"""Log bytes to clean text, and who wrote a line: the part of reading a log that knows no metric and no failure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# CSI and OSC sequences (ECMA-48): colours, among them 24-bit ones whose parameters are digits, and cursor moves.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[()*+][0-9A-Za-z]|[0-Z\\^_])")

# torchrun's --tee prefix is ``[<role><local rank>]:``; PyTorch puts ``[rank<global rank>]:`` and a blank in front of
# tracebacks and C++ messages. Only those two forms can stand in front of a message.
# Bounded: a line of nothing but prefixes would otherwise be read again from each of them.
_PREFIX = r"\[[A-Za-z_]{1,40}\d{1,9}\]:[ ]?"
PREFIXES = rf"(?:{_PREFIX}){{0,4}}"
SOME_PREFIXES = rf"(?:{_PREFIX}){{1,4}}"
TIMESTAMP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[,.]\d+"
# torchtitan's logging format; ``[titan]`` came on 2025-02-19.
HEADER = rf"(?:\[titan\] )?(?P<time>{TIMESTAMP}) - [\w.-]+ - (?P<level>[A-Z]+) - "

# Blanks at the beginning stay with the message: they tell a quoted source line from a report.
_PREFIXES = re.compile(rf"(?:\s*(?P<label>\d+): )?(?P<ranks>{PREFIXES})")
_PREFIX_RANKS = re.compile(r"\[[A-Za-z_]+(\d+)\]:")
_RANK_IN_NAME = re.compile(r"(?:^|[/_.-])rank[_-]?(\d+)(?:[/_.-]|$)")
# torchrun --log-dir without --tee: <dir>/<run id>/attempt_<n>/<local rank>/stdout.log
_TORCHRUN_FOLDER = re.compile(r"attempt_\d+/(\d+)/(?:stdout|stderr)\.log$")

# Month, day and time of day of the clocks that stand in front of lines (torchrun's report has another form: its times
# are of the failure and not of the line, and cut to the second).
_CLOCKS = re.compile(
    r"\d{4}-(?P<month>\d\d)-(?P<day>\d\d)[ T](?P<time>\d\d:\d\d:\d\d(?:[,.]\d+)?)"
    r"|\[?[EWIF](?P<gmonth>\d{1,2})(?P<gday>\d\d) (?P<gtime>\d\d:\d\d:\d\d\.\d+)"
)


@dataclass(frozen=True, slots=True)
class LogText:
    """One log file: clean text whose line numbers are the file's own. ``rank`` is what the file's name says."""

    name: str
    text: str
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Speaker:
    """Who wrote a line: the file, the srun label and the ranks in front of it (outer: torchrun's local rank)."""

    file: int
    label: int | None = None
    outer: int | None = None
    inner: int | None = None


_LONGEST_LINE = 1 << 14
_NO_NUMBER = re.compile(r"\d{100,}")  # nothing that torchtitan prints; Python refuses to read 4,300 digits


def clean(data: bytes) -> str:
    r"""Text without escape sequences; bad UTF-8 becomes U+FFFD, CRLF becomes LF.

    A lone carriage return stays (a progress bar's), and so does NUL: both may stand inside a record, and whoever
    reads that record has to know.
    """
    text = data.decode("utf-8", errors="replace")
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    if "\r\n" in text:
        text = text.replace("\r\n", "\n")
    if _NO_NUMBER.search(text):
        text = _NO_NUMBER.sub("\ufffd", text)
    return _without_endless_lines(text)


def _without_endless_lines(text: str) -> str:
    """Lines of a sane length: no record has 16 KiB, and patterns that look back in a line must not see megabytes."""
    if len(text) <= _LONGEST_LINE or max(map(len, text.split("\n"))) <= _LONGEST_LINE:
        return text
    half = _LONGEST_LINE // 2
    lines = (
        line if len(line) <= _LONGEST_LINE else f"{line[:half]} \ufffd {line[-half:]}" for line in text.split("\n")
    )
    return "\n".join(lines)


def load(path: Path) -> LogText:
    """Read one log file; OSError where it cannot be read."""
    return LogText(name=str(path), text=clean(path.read_bytes()), rank=rank_in_name(path.as_posix()))


def rank_in_name(name: str) -> int | None:
    """The rank that a file's name or folder states (``rank_3/``, ``train.rank3.log``), or None."""
    found = _TORCHRUN_FOLDER.search(name) or _last(_RANK_IN_NAME.finditer(name))
    return int(found.group(1)) if found else None


def _last(matches: Iterator[re.Match[str]]) -> re.Match[str] | None:
    newest = None
    for match in matches:
        newest = match
    return newest


def positions(text: str, needle: str, start: int = 0) -> Iterator[int]:
    """Every position of ``needle`` in ``text``, rising."""
    at = text.find(needle, start)
    while at >= 0:
        yield at
        at = text.find(needle, at + len(needle))


def line_bounds(text: str, position: int) -> tuple[int, int]:
    """Start and end (without the line feed) of the line that holds ``position``."""
    end = text.find("\n", position)
    return text.rfind("\n", 0, position) + 1, len(text) if end < 0 else end


def line_number(text: str, position: int) -> int:
    """Number of the line that holds ``position``, from 1, as an editor counts."""
    return text.count("\n", 0, position) + 1


def split_prefix(line: str, file: int, rank: int | None = None) -> tuple[Speaker, str]:
    """Who speaks, and the rest of the line. ``rank`` is what the file's name says, used where the line says none."""
    found = _PREFIXES.match(line)
    if found is None:
        return Speaker(file=file, outer=rank), line
    return speaker(found["label"], found["ranks"], file, rank), line[found.end() :]


def speaker(label: str | None, ranks: str, file: int, rank: int | None) -> Speaker:
    """A Speaker from the text in front of a message: ``0: `` and ``[rank1]:[rank9]: ``."""
    numbers = [int(number) for number in _PREFIX_RANKS.findall(ranks)] if ranks else []
    return Speaker(
        file=file,
        label=int(label) if label else None,
        outer=numbers[0] if numbers else rank,
        inner=numbers[-1] if len(numbers) > 1 else None,
    )


def clock_before(text: str, position: int, reach: int = 20_000) -> str | None:
    """Time of the nearest time stamp at or before a line, as sortable ``MM-DD HH:MM:SS.ffffff``; None without one."""
    _, end = line_bounds(text, position)
    found = _last(_CLOCKS.finditer(text, max(0, position - reach), end))
    if found is None:
        return None
    month, day = found["month"] or found["gmonth"].zfill(2), found["day"] or found["gday"]
    time = (found["time"] or found["gtime"]).replace(",", ".")
    return f"{month}-{day} {time}"
