"""One printed training or validation step: its layouts in every version, and when a damaged line still counts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pytest_scaleperf.titan.lines import HEADER, PREFIXES, Speaker

_FLOAT = r"-?(?:\d+(?:\.\d+)?|nan|inf)"
_COUNT = r"(?:\d{1,3}(?:,\d{3})+|\d+)"
# The layouts from 2024-04 (wps, no tflops, no grad_norm) to main: every one of them ends with mfu.
_SAMPLE = (
    rf"step:\s*(?P<step>\d+) +loss:\s*(?P<loss>{_FLOAT})(?: +grad_norm:\s*(?P<grad_norm>{_FLOAT}))?"
    rf" +memory:\s*(?P<gib>{_FLOAT})GiB\((?P<pct>{_FLOAT})%\) +(?:tps|wps):\s*(?P<tps>{_COUNT})"
    rf"(?: +tflops:\s*(?P<tflops>(?:{_COUNT}(?:\.\d+)?|nan|inf)))? +mfu:\s*(?:(?P<mfu>{_FLOAT})%|N/A)"
)
_VALIDATION = (
    rf"validate step:\s*(?P<step>\d+) +loss:\s*(?P<loss>{_FLOAT})"
    rf" +memory:\s*(?P<gib>{_FLOAT})GiB\((?P<pct>{_FLOAT})%\) +tps:\s*(?P<tps>{_COUNT})"
)
_LINE = rf"\s*(?:(?P<label>\d+): )?(?P<ranks>{PREFIXES}){HEADER}"
SAMPLE_LINE = re.compile(rf"{_LINE}{_SAMPLE}[ \t]*(?=\r?\n|\r?\Z)")
VALIDATION_LINE = re.compile(rf"{_LINE}{_VALIDATION}[ \t]*(?=\r?\n)")

_SAMPLE_MESSAGE = re.compile(_SAMPLE)
_VALIDATION_MESSAGE = re.compile(rf"{_VALIDATION}\s*\Z")
_INJECTED = re.compile(r"\[[A-Za-z_]+(\d+)\]:")
_FIELD = re.compile(r"([A-Za-z_][\w/]*):\s*(\S+)")
# Colour codes of which a collector dropped the ESC byte.
_LOST_ESCAPE = re.compile(r"\[(?:\d{1,3};?)+m")
_HEAD = re.compile(rf"\s*(?:\d+: )?{PREFIXES}")
# A record that had a foreign piece inside counts only if every number has the digits that torchtitan prints.
_EXACT_DIGITS = re.compile(
    r"step:\s*\d+ +loss:\s*-?(?:\d+\.\d{4,5}|nan|inf)(?: +grad_norm:\s*-?(?:\d+\.\d{4}|nan|inf))?"
    r" +memory:\s*-?\d+\.\d\dGiB\(-?\d+\.\d\d%\) +(?:tps|wps):\s*\d{1,3}(?:,\d{3})*"
    r"(?: +tflops:\s*\d{1,3}(?:,\d{3})*\.\d\d)? +mfu:\s*(?:\d+\.\d\d%|N/A)"
)
_BY_NAME = {
    "loss": re.compile(rf"(?P<loss>{_FLOAT})\Z"),
    "grad_norm": re.compile(rf"(?P<grad_norm>{_FLOAT})\Z"),
    "memory": re.compile(rf"(?P<gib>{_FLOAT})GiB\((?P<pct>{_FLOAT})%\)\Z"),
    "tps": re.compile(rf"(?P<tps>{_COUNT})\Z"),
    "wps": re.compile(rf"(?P<tps>{_COUNT})\Z"),
    "tflops": re.compile(rf"(?P<tflops>{_COUNT}(?:\.\d+)?|nan|inf)\Z"),
    "mfu": re.compile(rf"(?:(?P<mfu>{_FLOAT})%|N/A)\Z"),
}


@dataclass(frozen=True, slots=True)
class Sample:
    """One printed step of one rank. Units: GiB, per cent, tokens/s per GPU, TFLOP/s. None: not printed or N/A.

    ``time`` is the line's own, sortable. ``alloc_retries`` is that rank's cumulative count: torchtitan prints one
    only above 0, so where memory is printed and no count is, it is 0.
    """

    step: int
    loss: float | None
    grad_norm: float | None
    memory_gib: float | None
    memory_pct: float | None
    tps: float | None
    tflops: float | None
    mfu_pct: float | None
    time: str
    speaker: Speaker
    position: int
    alloc_retries: int | None = None


def build(values: dict[str, str | None], time: str, who: Speaker, position: int) -> Sample:
    """A Sample from the fields of a matched line."""
    gib = _positive(values.get("gib"))
    return Sample(
        step=int(values["step"] or 0),
        loss=_number(values.get("loss")),
        grad_norm=_number(values.get("grad_norm")),
        memory_gib=gib,
        memory_pct=None if gib is None else _positive(values.get("pct")),
        tps=_number(values.get("tps")),
        tflops=_number(values.get("tflops")),
        mfu_pct=_number(values.get("mfu")),
        time=sortable(time),
        speaker=who,
        position=position,
        alloc_retries=None if gib is None else 0,
    )


def rejoined_line(line: str, who: Speaker) -> re.Match[str] | None:
    """A whole training line that its own rank's header cut before the message began, put together; else None."""
    head = _HEAD.match(line)
    cut = head.end() if head else 0
    rest = line[cut:].replace("\x00", "")
    if any(rank not in (str(who.outer), str(who.inner)) for rank in _INJECTED.findall(rest)):
        return None
    found = SAMPLE_LINE.match(line[:cut] + _INJECTED.sub("", rest))
    return found if found and _EXACT_DIGITS.match(found.string, found.start("step") - len("step: ")) else None


def training_fields(message: str, who: Speaker) -> dict[str, str | None] | None:
    """The fields of a message that begins with ``step:``, or None where any of them is not whole.

    A message that the speaker's own header or NULs cut is put together again; one that another rank cut is not.
    """
    message = _LOST_ESCAPE.sub("", message)
    found = _SAMPLE_MESSAGE.match(message)
    if found is not None:  # mfu's % (or N/A) closes it, whatever is glued to it
        return found.groupdict()
    joined = message.replace("\x00", "")
    own = {str(who.outer), str(who.inner)}
    injected = _INJECTED.findall(joined)
    if not injected and joined == message:
        return _fields_by_name(message)
    if any(rank not in own for rank in injected):
        return None
    joined = _INJECTED.sub("", joined)
    found = _EXACT_DIGITS.match(joined) and _SAMPLE_MESSAGE.match(joined)
    return found.groupdict() if found else None


def validation_fields(message: str) -> dict[str, str | None] | None:
    """The fields of a whole ``validate step:`` message, or None."""
    found = _VALIDATION_MESSAGE.match(_LOST_ESCAPE.sub("", message))
    return found.groupdict() if found else None


def _fields_by_name(message: str) -> dict[str, str | None] | None:
    """A fork's line with fields of its own: the known ones by name; None unless all that belong there are whole."""
    values: dict[str, str | None] = {}
    names = set()
    for name, value in _FIELD.findall(message):
        if name == "step" and value.isdigit():
            values["step"] = value
        elif name in _BY_NAME:
            found = _BY_NAME[name].match(value.rstrip(",;|"))
            if found is None:
                return None
            names.add(name)
            values.update(found.groupdict())
    complete = {"loss", "mfu"} <= names and names & {"tps", "wps"} and "step" in values
    return values if complete else None


def _number(text: str | None) -> float | None:
    return None if text is None else float(text.replace(",", ""))


def _positive(text: str | None) -> float | None:
    """None for ``-0.00``: torchtitan asks for a statistic that the device does not have and gets -1 byte."""
    value = _number(text)
    return value if value is not None and value > 0 else None


def sortable(time: str) -> str:
    """A header's time stamp with one decimal mark, so that stamps compare as text."""
    return time.replace(",", ".")
