"""A YAML file as plain data that knows the line of every value, and the faults found in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias

import yaml

from pytest_scaleperf.model import ScalePerfError
from pytest_scaleperf.yamlfile.scalars import Scalar

Data: TypeAlias = "Scalar | list[Data] | dict[str, Data]"
Loc: TypeAlias = tuple[str | int, ...]
_SHOWN = 60


class Fault(NamedTuple):
    """One thing that is wrong: its line, the keys that lead there, and ``expected ..., found ...``.

    ``hole`` is True where the value is left out of the data for it; ``extra`` where what is at fault is one value
    too many, and the data is whole without it.
    """

    line: int
    loc: Loc
    text: str
    hole: bool = False
    extra: bool = False


@dataclass(frozen=True, slots=True)
class Document:
    """A file as plain data (mappings, lists and scalars; keys are text), its lines, and the faults of its YAML.

    A value that has a fault of its own is left out of ``data`` (None where it stands in a list).
    """

    path: Path
    data: dict[str, Data]
    faults: tuple[Fault, ...]
    _root: yaml.MappingNode = field(repr=False)

    def line(self, loc: Loc) -> int:
        """Line (from 1) of what ``loc`` leads to; of the nearest thing around it where there is no such value."""
        return self._find(loc)[0]

    def lines(self, loc: Loc = ()) -> dict[str, int]:
        """Line of every key of the mapping at ``loc``, in one go; empty where there is no mapping."""
        node = self._find(loc)[1]
        if not isinstance(node, yaml.MappingNode):
            return {}
        return {key.value: line_of(key) for key, _ in node.value if isinstance(key, yaml.ScalarNode)}

    def where(self, loc: Loc) -> str:
        """``loc`` as a person writes it: ``ladder[0].dp_shard[1]``, without steps into what is no collection."""
        shown = ""
        node: yaml.Node | None = self._root
        for step in loc:
            if isinstance(step, str):
                shown += f".{step}" if shown else step
            elif isinstance(node, yaml.SequenceNode):
                shown += f"[{step}]"
            found = _child(node, step)
            node = found[1] if found else None
        return shown

    def text(self, loc: Loc) -> str | None:
        """The scalar at ``loc`` exactly as it is written, without quotes; None where there is no scalar."""
        _, node, exact = self._find(loc)
        return str(node.value) if exact and isinstance(node, yaml.ScalarNode) else None

    def found(self, loc: Loc) -> str:
        """What stands at ``loc``, in words, for the second half of ``expected ..., found ...``."""
        _, node, exact = self._find(loc)
        if not exact:
            return "nothing"
        if isinstance(node, yaml.ScalarNode):
            return quoted(node)
        return counted(node)

    def _find(self, loc: Loc) -> tuple[int, yaml.Node, bool]:
        """Line, node, and whether the node is what ``loc`` names or only the nearest around it."""
        node: yaml.Node = self._root
        line = line_of(node)
        for step in loc:
            found = _child(node, step)
            if found is None:
                # A number into what is no list is a schema's view (one value as a list of one): the value is meant.
                return line, node, isinstance(step, int) and not isinstance(node, yaml.SequenceNode)
            line, node = found
        return line, node, True


class Faults:
    """The faults of one file, gathered so that a person sees all of them at once."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self._faults = list(document.faults)

    def add(self, loc: Loc, expected: str, found: str | None = None) -> None:
        """Note that ``expected`` was wanted at ``loc``; ``found`` is read from the file where it is not given."""
        found = self.document.found(loc) if found is None else found
        self._faults.append(Fault(self.document.line(loc), loc, f"expected {expected}, found {found}"))

    def clean(self, loc: Loc) -> bool:
        """True where the data at ``loc`` can be relied on: nothing there, below it or above it is at fault."""
        return not any(f.loc[: len(loc)] == loc[: len(f.loc)] for f in self._faults if not f.extra)

    def is_hole(self, loc: Loc) -> bool:
        """True where nothing is seen at ``loc`` only because what is written there has a fault already."""
        return any(f.hole and f.loc == loc[: len(f.loc)] for f in self._faults)

    def lines(self) -> list[str]:
        """``file:line: where: expected ..., found ...`` for each, in the order of the file."""
        path, where = self.document.path, self.document.where
        ordered = dict.fromkeys(sorted(self._faults, key=lambda fault: fault.line))
        texts = (f"{where(f.loc)}: {f.text}" if f.loc else f.text for f in ordered)
        return [f"{path}:{f.line}: {_printable(text)}" for f, text in zip(ordered, texts, strict=True)]

    def check(self, error: type[ScalePerfError]) -> None:
        """Raise ``error`` with every fault, or nothing where there is none."""
        if self._faults:
            raise error("\n".join(self.lines()))


def line_of(node: yaml.Node) -> int:
    """Line on which the node begins, from 1."""
    return int(node.start_mark.line) + 1


def _child(node: yaml.Node | None, step: str | int) -> tuple[int, yaml.Node] | None:
    """Line and node of one step down: a key's own line, so that a block's first line is where it is named."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value == step:
                return line_of(key), value
    elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        return line_of(node.value[step]), node.value[step]
    return None


def quoted(node: yaml.ScalarNode) -> str:
    """The scalar for a message: short, on one line, in backticks where it stands plain and in quotes else."""
    text = str(node.value)
    shown = _printable(text)
    shown = shown if len(shown) <= _SHOWN else shown[: _SHOWN - 3] + "..."
    if not node.style and not text:
        return "nothing after the colon"
    return f'"{shown}"' if node.style else f"`{shown}`"


def counted(node: yaml.Node) -> str:
    """A collection for a message: its kind and size."""
    if isinstance(node, yaml.MappingNode):
        return f"a mapping of {len(node.value)} keys" if node.value else "an empty mapping"
    return f"a list of {len(node.value)} values" if node.value else "an empty list"


def _printable(text: str) -> str:
    """The text on one line and without control characters: what a file says must not move a terminal's cursor."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
