"""Strict YAML for the files that people write: read, check against a schema, write.

``scalars`` says what one plain word means, ``reader`` turns a file into a ``document``, ``schema`` turns a
pydantic fault into a line that a person can act on, ``writer`` writes what ``reader`` reads back unchanged.
"""

from __future__ import annotations

import typing

from pytest_scaleperf.model import ScalePerfError
from pytest_scaleperf.yamlfile.document import Data, Document, Faults, Loc
from pytest_scaleperf.yamlfile.reader import parse, read
from pytest_scaleperf.yamlfile.writer import dump, write_atomic

if typing.TYPE_CHECKING:
    import pydantic

__all__ = ["Data", "Document", "Faults", "Loc", "dump", "parse", "read", "validate", "write_atomic"]

_Model = typing.TypeVar("_Model", bound="pydantic.BaseModel")


def validate(document: Document, model: type[_Model], error: type[ScalePerfError]) -> _Model:
    """The document as ``model``; see ``schema.validate``.

    Raises ``error`` with every fault at once, one line each: ``file:line: key.path: expected ..., found ...``.
    """
    from pytest_scaleperf.yamlfile import schema  # noqa: PLC0415 - pydantic takes 0.1 s; reading alone needs none

    return schema.validate(document, model, error)
