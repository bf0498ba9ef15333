"""What one plain (unquoted) YAML word means here: text, a number, true, false, nothing, or a fault.

YAML 1.1 (PyYAML) and YAML 1.2 read the same word differently. Where both agree, or only one of them reads a
plain number (``1e3``, ``28_400``), the word has that one meaning; where they disagree it is refused.
"""

from __future__ import annotations

import math
import re

Scalar = None | bool | int | float | str

MAX_NUMBER_LENGTH = 64
"""A longer number is no measurement; Python refuses to read integers of more than 4,300 digits at all."""


class RefusedWordError(ValueError):
    """A plain word that must not be written so; ``expected`` and ``found`` are halves of a sentence."""

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(f"expected {expected}, found {found}")
        self.expected = expected
        self.found = found


def _cases(word: str) -> tuple[str, str, str]:
    return word, word.capitalize(), word.upper()


_MEANING: dict[str, Scalar] = {
    "": None,
    "~": None,
    **dict.fromkeys(_cases("null"), None),
    **dict.fromkeys(_cases("true"), True),
    **dict.fromkeys(_cases("false"), False),
}
_BOOLEAN_1_1 = {
    **{form: "true" for word in ("yes", "on", "y") for form in _cases(word)},
    **{form: "false" for word in ("no", "off", "n") for form in _cases(word)},
}
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*(_[0-9]+)*)")
_FLOAT = re.compile(r"[-+]?([0-9]+(_[0-9]+)*(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
_OTHER_BASE = re.compile(r"[-+]?0([0-9_]+|o[0-7_]+|x[0-9a-fA-F_]+|b[01_]+)")
_SEXAGESIMAL = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")
_MAYBE_NUMBER = frozenset("0123456789+-.")


def read_plain(word: str) -> Scalar:
    """Meaning of a plain word.

    Raises RefusedWordError where YAML versions disagree about it (``no``, ``010``, ``1:30``) or it is not finite.
    """
    if word in _MEANING:
        return _MEANING[word]
    if word in _BOOLEAN_1_1:
        raise RefusedWordError(
            "none, true, false, or the word in quotes", f"`{word}`, which YAML 1.1 reads as {_BOOLEAN_1_1[word]}"
        )
    return _read_number(word) if word[0] in _MAYBE_NUMBER else word


def _read_number(word: str) -> int | float | str:
    if _INTEGER.fullmatch(word):
        return int(_short(word))
    if _OTHER_BASE.fullmatch(word):
        raise RefusedWordError(
            "a decimal number, or the text in quotes", f"`{word}`, which YAML 1.1 and 1.2 read differently"
        )
    if _FLOAT.fullmatch(word):
        value = float(_short(word))
        if not math.isfinite(value):
            raise RefusedWordError("a finite number, or the text in quotes", f"`{word}`, which is too large")
        return value
    if _NOT_FINITE.fullmatch(word):
        raise RefusedWordError("a finite number, or the text in quotes", f"`{word}`")
    if _SEXAGESIMAL.fullmatch(word):
        raise RefusedWordError(
            "a decimal number, or the text in quotes", f"`{word}`, which YAML 1.1 reads as a number to the base 60"
        )
    return word


def _short(word: str) -> str:
    if len(word) > MAX_NUMBER_LENGTH:
        raise RefusedWordError(
            f"a number of at most {MAX_NUMBER_LENGTH} characters, or the text in quotes", f"{len(word)} characters"
        )
    return word
