"""Which cases an expression like pytest's ``-k`` means: words of ids joined by and, or, not and parentheses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from pytest_scaleperf.model import ScalePerfError

Chooses = Callable[[str], bool]
_TOKEN = re.compile(r"\s*(\(|\)|[^\s()]+)")


def selection(expression: str) -> Chooses:
    """A function that says of an id whether the expression means it; letter case does not count.

    Raises ScalePerfError where the expression is not whole.
    """
    parser = _Parser(expression, list(_TOKEN.findall(expression)))
    chosen = parser.any_of()
    if parser.rest:
        raise parser.fault("and, or or the end")
    return chosen


@dataclass(slots=True)
class _Parser:
    """``or`` binds less than ``and``, ``and`` less than ``not``."""

    expression: str
    rest: list[str] = field(default_factory=list)

    def any_of(self) -> Chooses:
        parts = list(self._joined("or", self._all_of))
        return lambda name: any(part(name) for part in parts)

    def _all_of(self) -> Chooses:
        parts = list(self._joined("and", self._one))
        return lambda name: all(part(name) for part in parts)

    def _joined(self, word: str, part: Callable[[], Chooses]) -> Iterator[Chooses]:
        yield part()
        while self.rest[:1] == [word]:
            del self.rest[0]
            yield part()

    def _one(self) -> Chooses:
        if not self.rest or self.rest[0] in (")", "and", "or"):
            raise self.fault("a word of an id, not or (")
        word = self.rest.pop(0)
        if word == "not":
            inner = self._one()
            return lambda name: not inner(name)
        if word != "(":
            return lambda name: word.casefold() in name.casefold()
        inside = self.any_of()
        if self.rest[:1] != [")"]:
            raise self.fault(")")
        del self.rest[0]
        return inside

    def fault(self, expected: str) -> ScalePerfError:
        """What is wrong, and where."""
        found = repr(self.rest[0]) if self.rest else "its end"
        return ScalePerfError(f"-k {self.expression!r}: expected {expected}, found {found}")
