"""A rehearsal as its file, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from pytest_scaleperf.rehearsed.words import Rehearsal

SCHEMA = 1
"""Form of the files; another one is not read."""


def as_record(found: Rehearsal) -> dict[str, Any]:
    """What is written of it; ``where`` is where it will lie and not in it."""
    plain = asdict(found)
    del plain["where"]
    return {"rehearsal": SCHEMA, **plain}


def from_record(record: Mapping[str, Any], where: str) -> Rehearsal | None:
    """The rehearsal of a file, or None where it is none or of another form."""
    import msgspec  # noqa: PLC0415 - 20 ms that collecting cases need not pay

    if record.get("rehearsal") != SCHEMA:
        return None
    try:
        return msgspec.convert({**record, "where": where}, Rehearsal)
    except msgspec.ValidationError:
        return None
