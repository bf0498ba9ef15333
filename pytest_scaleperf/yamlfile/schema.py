"""Check a document against a pydantic model; every fault becomes a line that says what the file should hold.

A field's ``description`` is the accepted form in words: it ends ``expected ...`` in a fault and is what the
reference in ``docs/`` repeats.
"""

from __future__ import annotations

import datetime as dt
import difflib
import re
import typing
from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, Any, TypeVar

import pydantic
from pydantic import AfterValidator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from pytest_scaleperf.model import ScalePerfError
from pytest_scaleperf.yamlfile.document import Document, Faults, Loc

FRACTION = "a percentage such as 3 % or a fraction such as 0.03, more than 0 and less than 100 %"
_EXPECTED = "scaleperf_expected"
_PERCENT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*%")


class NullableModel(pydantic.BaseModel):
    """Base of what people write, where an empty value has a meaning: unknown keys and conversions are faults."""

    model_config = pydantic.ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class FileModel(NullableModel):
    """Base of everything else that people write: an empty value is a fault too."""

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _no_empty_value(cls, value: object) -> object:
        """A key that is given needs a value; to use the default, leave the key out."""
        if value is None:
            raise PydanticCustomError("empty", "empty")
        return value


Model = TypeVar("Model", bound=pydantic.BaseModel)
_Value = TypeVar("_Value")


def expected(form: str) -> PydanticCustomError:
    """What a validator raises: ``form`` is the accepted form in words, in place of the field's description."""
    return PydanticCustomError(_EXPECTED, "{form}", {"form": form})


def iso_date(form: str) -> AfterValidator:
    """A text that is a date, such as 2026-11-30; ``form`` says so in words."""

    def check(value: str) -> str:
        try:
            return dt.date.fromisoformat(value).isoformat()
        except ValueError:
            raise expected(form) from None

    return AfterValidator(check)


def _fraction(value: object) -> float:
    match = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    if match:
        share = float(Decimal(match[1]) / 100)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        share = float(value)
    else:
        raise expected(FRACTION)
    if not 0 < share < 1:
        raise expected(FRACTION)
    return share


def _different(values: list[_Value]) -> list[_Value]:
    seen: set[_Value] = set()
    for value in values:
        if value in seen:
            raise expected(f"different values, not {value} twice")
        seen.add(value)
    return values


different = pydantic.AfterValidator(_different)
"""For a list in which nothing may stand twice."""

Fraction = Annotated[float, pydantic.BeforeValidator(_fraction)]
"""A share of a value, written ``3 %`` or ``0.03``; between 0 and 1, both excluded."""

Text = Annotated[str, pydantic.Field(min_length=1, pattern=r"^[^\x00-\x08\x0e-\x1f\x7f]*$")]
"""Text that may become an argument or a line on a screen: not empty, no control characters."""

Name = Annotated[str, pydantic.Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
"""A name that becomes part of test ids and file names."""

Count = Annotated[int, pydantic.Field(ge=1)]


def validate(document: Document, model: type[Model], error: type[ScalePerfError]) -> Model:
    """The document as ``model``.

    Raises ``error`` with every fault of its YAML and of its schema: ``file:line: key.path: expected, found``.
    """
    faults = Faults(document)
    return finish(faults, check_part(faults, model, ()), error)


def finish(faults: Faults, part: Model | None, error: type[ScalePerfError]) -> Model:
    """The part, where nothing at all was wrong.

    Raises ``error`` with every fault that was gathered.
    """
    faults.check(error)
    if part is None:
        raise TypeError("expected a fault for a part that could not be checked, found none")
    return part


def check_part(faults: Faults, model: type[Model], loc: Loc) -> Model | None:
    """The part of the document at ``loc`` as ``model``; None, and its faults added, where it is not one."""
    data: Any = faults.document.data
    for step in loc:
        data = data[step]
    try:
        return model.model_validate(data)
    except pydantic.ValidationError as exc:
        # Where the YAML itself is at fault, the schema sees a hole: that is no second fault.
        errors = [error for error in exc.errors(include_url=False) if not faults.is_hole((*loc, *_plain(error["loc"])))]
        for error in errors:
            _add(faults, model, loc, error)
    return None


def _add(faults: Faults, model: type[pydantic.BaseModel], base: Loc, error: ErrorDetails) -> None:
    loc = (*base, *_plain(error["loc"]))
    is_key, names = error["loc"][-1:] == ("[key]",), _names(error)
    if error["type"] == "extra_forbidden" or (is_key and names):
        names = names or sorted(_model_at(model, _plain(error["loc"])[:-1]).model_fields)
        found = f"`{loc[-1]}`{_did_you_mean(str(loc[-1]), names)}"
        faults.add(loc, f"one of the keys {', '.join(names)}", found)
        return
    form = _form(error, list(_fields(model, _plain(error["loc"]))))
    if error["type"] == "missing":
        faults.add(loc, f"this key: {form}", "no such key")
    elif is_key:
        faults.add(loc, form, f"the key `{loc[-1]}`")
    else:
        faults.add(loc, form, faults.document.found(loc) + _hint(error, faults.document.text(loc)))


_NO_PLACE = frozenset({"[key]", "[given]", "[found]"})
"""What pydantic puts into a place that is not in the document: its word for a key, and the tags of a field's forms."""


def _plain(loc: Loc) -> Loc:
    return tuple(step for step in loc if step not in _NO_PLACE)


def _form(error: ErrorDetails, fields: list[FieldInfo]) -> str:
    """The accepted form in words: the validator's own, the field's, or at least its type."""
    if error["type"] == _EXPECTED:
        return str(error["msg"])
    if fields and fields[-1].description:
        return fields[-1].description
    names = _names(error)
    return f"one of {', '.join(names)}" if names else _TYPES.get(error["type"], error["msg"])


_TYPES = {
    "model_type": "a mapping",
    "dict_type": "a mapping",
    "list_type": "a list",
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "finite_number": "a finite number",
    "empty": "a value, or the key left out",
}


def _hint(error: ErrorDetails, written: str | None) -> str:
    """What is probably meant, where that can be told from what is written."""
    value, kind = error["input"], error["type"]
    if kind in ("string_type", "string_sub_type") and isinstance(value, bool | int | float):
        return f', which is no text; write "{written}" in quotes'
    if kind in ("int_type", "float_type") and isinstance(value, str):
        number = value.replace(",", "").removesuffix("%").strip()
        return f"; write {number}" if re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", number) else ", which is text"
    if kind == "int_type" and isinstance(value, float) and value.is_integer():
        return f"; write {int(value)}"
    names = _names(error)
    if names:
        return _did_you_mean("none" if value is None else str(value), names)
    return ""


def _names(error: ErrorDetails) -> list[str]:
    """The values that an enum or literal error lists; pydantic gives them only as text."""
    if error["type"] not in ("enum", "literal_error"):
        return []
    return re.findall(r"'([^']*)'", str(error.get("ctx", {}).get("expected", "")))


def _did_you_mean(word: str, names: list[str]) -> str:
    folded = {name.casefold(): name for name in names}
    close = difflib.get_close_matches(word.casefold(), folded, n=1)
    return f"; did you mean {folded[close[0]]}?" if close else ""


def _fields(model: type[pydantic.BaseModel], loc: Loc) -> Iterator[FieldInfo]:
    """The fields that ``loc`` leads through, outermost first."""
    at: type[pydantic.BaseModel] | None = model
    for step in loc:
        if at is not None and isinstance(step, str) and step in at.model_fields:
            info = at.model_fields[step]
            yield info
            at = _model_in(info.annotation)


def _model_at(model: type[pydantic.BaseModel], loc: Loc) -> type[pydantic.BaseModel]:
    for info in _fields(model, loc):
        model = _model_in(info.annotation) or model
    return model


def _model_in(annotation: object) -> type[pydantic.BaseModel] | None:
    """The model inside an annotation such as ``list[Model]`` or ``dict[str, Model]``, if there is one."""
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return annotation
    found = (_model_in(part) for part in typing.get_args(annotation))
    return next((model for model in found if model is not None), None)
