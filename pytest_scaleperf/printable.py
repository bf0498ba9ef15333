"""Text of logs, files and traces for a screen or a page: what would steer it written out as its code."""

from __future__ import annotations

_LINES = "\t\n"
# C0 and C1 controls; marks, overrides and isolates of direction; separators of lines; what XML has no place for.
_STEERING = (
    *range(0x20),
    *range(0x7F, 0xA0),
    0x061C,
    *range(0x200E, 0x2010),
    *range(0x2028, 0x202F),
    *range(0x2066, 0x206A),
    *range(0xFFFE, 0x10000),
)
_ALL = {code: chr(code).encode("unicode_escape").decode("ascii") for code in _STEERING}
_BUT_LINES = {code: text for code, text in _ALL.items() if chr(code) not in _LINES}


def printable(text: str) -> str:
    """The text with its lines and tabs kept, and no other character that a terminal or a page would obey."""
    return text.translate(_BUT_LINES)


def one_line(text: str) -> str:
    """The same as one line: line breaks and tabs are codes too."""
    return text.translate(_ALL)
