"""Read a YAML file strictly: what PyYAML composes becomes plain data, and every fault is found at once.

PyYAML only composes nodes here (in C where it can); what they mean is decided in ``scalars``. Nothing is
constructed from a tag, so nothing in a file can be evaluated.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import yaml

from pytest_scaleperf.model import ScalePerfError
from pytest_scaleperf.yamlfile.document import Data, Document, Fault, Faults, counted, line_of, quoted
from pytest_scaleperf.yamlfile.scalars import RefusedWordError, read_plain

MAX_BYTES = 32 << 20
"""Larger than a baseline of 10,000 cases with twenty samples each."""
MAX_DEPTH = 40
MAX_ALIASED = 100_000
"""Values that aliases may repeat in all: what is written out is bounded by the file's size, aliases multiply."""


_Child = TypeVar("_Child")


class _Untagged:
    """Leave every node without a tag of its own untagged, so that only a written tag is seen as one."""

    def resolve(self, _kind: object, _value: object, _implicit: object) -> None:
        return None


class PythonLoader(_Untagged, yaml.SafeLoader):
    """The loader where PyYAML was built without libyaml."""


_loader: type[yaml.SafeLoader | yaml.CSafeLoader] = PythonLoader
if yaml.__with_libyaml__:

    class _CLoader(_Untagged, yaml.CSafeLoader):
        pass

    _loader = _CLoader


def read(path: Path, error: type[ScalePerfError]) -> Document:
    """The file's data and lines.

    Raises ``error`` with every fault of its YAML: file, line, key, expected, found.
    """
    document = parse(path, error)
    Faults(document).check(error)
    return document


def parse(path: Path, error: type[ScalePerfError]) -> Document:
    """As ``read``, but faults that leave the rest readable are kept in the document for the schema to add to.

    Raises ``error`` where there is no mapping to go on with: unreadable, not UTF-8, too large, no YAML.
    """
    root = _compose(path, _read_text(path, error), error)
    builder = _Builder(path, error)
    data = builder.mapping(root)
    return Document(path, data, tuple(builder.faults), root)


def _read_text(path: Path, error: type[ScalePerfError]) -> str:
    try:
        if path.exists() and not path.is_file():
            raise error(f"{path}: expected a YAML file, found a folder or a device")
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as exc:
        raise error(f"{path}: expected a YAML file that can be read, found: {exc.strerror}") from None
    if len(raw) > MAX_BYTES:
        raise error(f"{path}: expected at most {MAX_BYTES >> 20} MiB, found more")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = raw.count(b"\n", 0, exc.start) + 1
        raise error(f"{path}:{line}: expected UTF-8 text, found the byte 0x{raw[exc.start]:02x}") from None


def _compose(path: Path, text: str, error: type[ScalePerfError]) -> yaml.MappingNode:
    try:
        loader = _loader(text)
        try:
            root = loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as exc:
        raise error(_syntax(path, text, exc)) from None
    except yaml.reader.ReaderError as exc:
        line, shown = _unprintable(text)
        raise error(f"{path}:{line}: expected printable text, found {shown or exc.reason}") from None
    except RecursionError:
        raise error(f"{path}: expected values at most {MAX_DEPTH} levels deep, found more") from None
    if root is None:
        raise error(f"{path}: expected a mapping (key: value), found an empty file")
    if not isinstance(root, yaml.MappingNode):
        found = quoted(root) if isinstance(root, yaml.ScalarNode) else counted(root)
        raise error(f"{path}:{line_of(root)}: expected a mapping (key: value), found {found}")
    return root


def _syntax(path: Path, text: str, exc: yaml.MarkedYAMLError) -> str:
    mark = exc.problem_mark or exc.context_mark
    if mark is None:
        return f"{path}: expected YAML, found: {exc.problem}"
    lines = text.splitlines()
    rest = lines[mark.line][mark.column :] if mark.line < len(lines) else ""
    where = f"{path}:{mark.line + 1}: column {mark.column + 1}"
    if rest.startswith("\t"):
        return f"{where}: expected spaces as indentation, found a tab"
    context = f" ({exc.context})" if exc.context else ""
    return f"{where}: expected YAML, found an error: {exc.problem}{context}"


def _unprintable(text: str) -> tuple[int, str | None]:
    """Line and name of the first character that YAML does not allow; found here, as PyYAML counts bytes."""
    bad = yaml.reader.Reader.NON_PRINTABLE.search(text)
    if bad is None:
        return 1, None
    return text.count("\n", 0, bad.start()) + 1, f"the character U+{ord(bad.group()):04X}"


class _Builder:
    """Turns nodes into data; notes every fault and goes on."""

    def __init__(self, path: Path, error: type[ScalePerfError]) -> None:
        self.faults: list[Fault] = []
        self._path = path
        self._error = error
        self._loc: list[str | int] = []
        self._seen: set[int] = set()
        self._open: set[int] = set()
        self._aliased = 0

    def mapping(self, node: yaml.MappingNode) -> dict[str, Data]:
        result: dict[str, Data] = {}
        first: dict[str, int] = {}
        for key_node, value_node in self._entered(node, node.value):
            key = self._key(key_node)
            if key is None:
                continue
            if key in first:
                again = f"{quoted(key_node)} again; it is in line {first[key]} already"
                self._note(key_node, "each key once", again, key, extra=True)
                continue
            first[key] = line_of(key_node)
            self._loc.append(key)
            try:
                result[key] = self._value(value_node)
            except RefusedWordError as exc:
                self._note(value_node, exc.expected, exc.found, hole=True)
            self._loc.pop()
        return result

    def _sequence(self, node: yaml.SequenceNode) -> list[Data]:
        result: list[Data] = []
        for index, item in enumerate(self._entered(node, node.value)):
            self._loc.append(index)
            try:
                result.append(self._value(item))
            except RefusedWordError as exc:
                self._note(item, exc.expected, exc.found, hole=True)
                result.append(None)  # so that the items behind it keep their place
            self._loc.pop()
        return result

    def _value(self, node: yaml.Node) -> Data:
        _refuse_tag(node, "a value without a tag")
        if isinstance(node, yaml.ScalarNode):
            # A style means quotes, or a block of text.
            return str(node.value) if node.style else read_plain(node.value)
        if id(node) in self._open:
            raise RefusedWordError("an alias to something else", "an alias that contains itself")
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node)
        if isinstance(node, yaml.SequenceNode):
            return self._sequence(node)
        raise TypeError(f"expected a node of YAML, found {type(node).__name__}")

    def _key(self, node: yaml.Node) -> str | None:
        name = str(node.value) if isinstance(node, yaml.ScalarNode) else "?"
        try:
            return _read_key(node)
        except RefusedWordError as exc:
            self._note(node, exc.expected, exc.found, name)
            return None

    def _entered(self, node: yaml.CollectionNode, children: list[_Child]) -> Iterator[_Child]:
        """The node's children, with the guards against what aliases and nesting can do."""
        where = f"{self._path}:{line_of(node)}"
        if len(self._loc) >= MAX_DEPTH:
            raise self._error(f"{where}: expected values at most {MAX_DEPTH} levels deep, found more")
        if id(node) in self._seen:
            self._aliased += len(children)
            if self._aliased > MAX_ALIASED:
                raise self._error(f"{where}: expected aliases that repeat at most {MAX_ALIASED:,} values, found more")
        self._seen.add(id(node))
        self._open.add(id(node))
        yield from children
        self._open.discard(id(node))

    def _note(self, node: yaml.Node, expected: str, found: str, *below: str, **kind: bool) -> None:
        self.faults.append(Fault(line_of(node), (*self._loc, *below), f"expected {expected}, found {found}", **kind))


def _read_key(node: yaml.Node) -> str:
    _refuse_tag(node, "text as a key")
    if not isinstance(node, yaml.ScalarNode):
        raise RefusedWordError("text as a key", counted(node))
    if node.style:
        return str(node.value)
    if node.value == "<<":
        raise RefusedWordError("every key written out, or an alias as a whole value", "the merge key `<<`")
    text = "a key that is text (put it in quotes)"
    try:
        key = read_plain(node.value)
    except RefusedWordError as exc:
        raise RefusedWordError(text, exc.found) from None
    if isinstance(key, str):
        return key
    raise RefusedWordError(text, quoted(node))


def _refuse_tag(node: yaml.Node, expected: str) -> None:
    tag: str | None = node.tag
    if tag is not None:
        raise RefusedWordError(expected, f"the tag `{tag}`")
