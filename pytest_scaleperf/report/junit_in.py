"""JUnit files to attempts: what each file says of each test, whoever wrote it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_scaleperf.report.contents import Attempt, Fault, JUnitState

if TYPE_CHECKING:
    from junitparser import JUnitXml, TestCase, TestSuite

_WORST_LAST = tuple(JUnitState)
_CLOCK_SLACK = 1.0  # seconds: a suite's time is rounded


@dataclass(frozen=True, slots=True)
class Part:
    """One test of one file: its attempt, and the elements that it is made of.

    pytest writes a second element for a test whose body failed and whose teardown had an error; they are one attempt.
    """

    attempt: Attempt
    suite: TestSuite
    elements: tuple[TestCase, ...]


@dataclass(frozen=True, slots=True)
class JUnitFile:
    """One file that could be read."""

    path: Path
    xml: JUnitXml
    parts: tuple[Part, ...]


def read_junit(paths: tuple[Path, ...]) -> tuple[tuple[JUnitFile, ...], tuple[Fault, ...]]:
    """Every given JUnit file, each once, and those that could not be read with the reason."""
    files, faults = [], []
    given: dict[Path, Path] = {}
    for path in paths:
        given.setdefault(path.resolve(), path)
    for path in given.values():
        found = _read(path)
        if isinstance(found, Fault):
            faults.append(found)
        else:
            files.append(found)
    return tuple(files), tuple(faults)


def _read(path: Path) -> JUnitFile | Fault:
    from junitparser import JUnitXml, JUnitXmlError  # noqa: PLC0415 - only a report reads JUnit files

    try:
        text = path.read_bytes()
    except OSError as error:
        return Fault(str(path), error.strerror or str(error))
    if b"<!DOCTYPE" in text or b"<!ENTITY" in text:
        return Fault(str(path), "has a DOCTYPE, which no JUnit file has; it is not read, because entities may be traps")
    try:
        xml = JUnitXml.fromstring(text)
    # ElementTree and lxml, which junitparser takes where it is installed, both raise a SyntaxError for what is no XML.
    except (SyntaxError, ValueError, JUnitXmlError) as error:
        return Fault(str(path), f"no JUnit file: {error}")
    return JUnitFile(path, xml, tuple(_parts(path, xml)))


def all_suites(xml: JUnitXml) -> Iterator[TestSuite]:
    """Every suite of a file that holds tests itself, also those inside others."""
    pending = list(xml)
    while pending:
        suite = pending.pop(0)
        yield suite
        pending[:0] = list(suite.testsuites())


def own_tests(suite: TestSuite) -> list[TestCase]:
    """The tests of a suite, without those of suites inside it."""
    from junitparser import TestCase  # noqa: PLC0415 - as above

    return list(suite.iterchildren(TestCase))


def _parts(path: Path, xml: JUnitXml) -> Iterator[Part]:
    for suite in all_suites(xml):
        began = _time(suite.timestamp)
        ended = None if began is None else began + _seconds(suite) + _CLOCK_SLACK
        grouped: dict[tuple[str, str], list[TestCase]] = {}
        for element in own_tests(suite):
            grouped.setdefault((element.classname or "", element.name or ""), []).append(element)
        for (classname, name), elements in grouped.items():
            yield Part(_attempt(path, classname, name, elements, (began, ended)), suite, tuple(elements))


def _attempt(
    path: Path, classname: str, name: str, elements: list[TestCase], when: tuple[float | None, float | None]
) -> Attempt:
    states = [_state(element) for element in elements]
    properties = tuple(pair for element in elements for pair in _properties(element))
    said = dict(properties)
    bracket = name.partition("[")[2].removesuffix("]")
    return Attempt(
        where=str(path),
        classname=classname,
        name=name,
        state=max(states, key=_WORST_LAST.index),
        message="\n".join(text for element in elements for text in _messages(element)),
        time=when[0],
        until=when[1],
        case_id=said.get("scaleperf.case") or bracket or None,
        properties=properties,
    )


def _state(element: TestCase) -> JUnitState:
    if element.is_error:
        return JUnitState.ERROR
    if element.is_failure:
        return JUnitState.FAILED
    return JUnitState.SKIPPED if element.is_skipped else JUnitState.PASSED


def _messages(element: TestCase) -> Iterator[str]:
    from junitparser import Skipped  # noqa: PLC0415 - as above

    for result in element.result:
        text = result.text or ""
        message = result.message or ""
        if isinstance(result, Skipped) and message:
            yield message  # the text of a skip is the same after a file and a line
            continue
        # pytest puts the first line of the text, or all of it, into the message as well.
        yield text if message in text else f"{message}\n{text}".strip()


def _properties(element: TestCase) -> Iterator[tuple[str, str]]:
    from junitparser import Properties  # noqa: PLC0415 - as above

    holder = element.child(Properties)
    for each in holder if holder is not None else ():
        if each.name is not None:
            yield each.name, each.value or ""


def _seconds(element: TestSuite) -> float:
    try:
        return float(element.time or 0.0)
    except ValueError:  # "1,234.5" of another tool
        return 0.0


def _time(text: str | None) -> float | None:
    """Seconds since 1970 of an ISO time; without a zone it is this machine's."""
    if not text:
        return None
    try:
        return dt.datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
