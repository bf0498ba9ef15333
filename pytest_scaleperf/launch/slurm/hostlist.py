"""Host lists as Slurm writes them (``node[1-3,07],gpu5``), taken apart."""

from __future__ import annotations

import re

_NONE = frozenset({"", "(null)", "None", "None assigned", "n/a", "N/A"})
_TOP = re.compile(r",(?![^\[]*\])")
_BRACKET = re.compile(r"\[([^\]]*)\]")


def expand(text: str) -> tuple[str, ...]:
    """The names in the order in which Slurm gives them; empty where there are none.

    Raises ValueError for text that is no host list.
    """
    if text.strip() in _NONE:
        return ()
    return tuple(name for part in _TOP.split(text.strip()) for name in _one(part))


def _one(part: str) -> list[str]:
    found = _BRACKET.search(part)
    if found is None:
        if not part or "[" in part or "]" in part:
            raise ValueError(f"expected a host list, found {part!r}")
        return [part]
    before, after = part[: found.start()], part[found.end() :]
    rest = _one(after) if after else [""]
    return [f"{before}{number}{tail}" for number in _numbers(found[1]) for tail in rest]


def _numbers(text: str) -> list[str]:
    numbers: list[str] = []
    for piece in text.split(","):
        first, dash, last = piece.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"expected numbers in a host list, found {piece!r}")
        width = len(first)
        numbers += [str(n).zfill(width) for n in range(int(first), int(last or first) + 1)]
    return numbers
