"""Text of others cannot steer a terminal or a page, wherever it is shown."""

from __future__ import annotations

import unicodedata

import pytest

from pytest_scaleperf import cli
from pytest_scaleperf.printable import one_line, printable
from pytest_scaleperf.report.escape import code, lines, plain

EVERY = [chr(code) for code in range(0x110000) if not 0xD800 <= code <= 0xDFFF]
DIRECTIONS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
STEERING = [
    c
    for c in EVERY
    if unicodedata.category(c) in ("Cc", "Zl", "Zp")
    or unicodedata.bidirectional(c) in DIRECTIONS
    or c in "\u200e\u200f\u061c"  # marks of direction: invisible, of no class of their own
]


@pytest.mark.parametrize("write", [one_line, plain, code, cli.printable])
def test_no_character_steers_a_line(write: object) -> None:
    assert callable(write)
    assert len(STEERING) == 65 + 2 + 9 + 3
    assert not set(write("".join(STEERING))) & set(STEERING)


@pytest.mark.parametrize("write", [printable, lines])
def test_lines_are_kept_where_they_may_be(write: object) -> None:
    assert callable(write)
    assert set(write("".join(STEERING))) & set(STEERING) == set("\t\n")


def test_codes_can_be_told_from_one_another() -> None:
    assert one_line("a\x1b[31m\u202eb\n\u200f\uffff") == "a\\x1b[31m\\u202eb\\n\\u200f\\uffff"


def test_everything_else_stays() -> None:
    text = "".join(c for c in EVERY if c not in STEERING and c not in "\ufffe\uffff")
    assert printable(text) == text
