"""JUnit files of several jobs as one: of a test that ran more than once the last attempt counts, and says so."""

from __future__ import annotations

import contextlib
import copy
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_scaleperf.model import GateState, ScalePerfError
from pytest_scaleperf.report.contents import Fault, JUnitState
from pytest_scaleperf.report.escape import lines, plain
from pytest_scaleperf.report.junit_in import JUnitFile, Part, all_suites, own_tests

if TYPE_CHECKING:
    from junitparser import JUnitXml, TestCase, TestSuite

LONGEST_TEXT = 20_000
"""Characters kept of one text (a captured output, a failure): its head and its tail; the whole is in its own file."""

# Everything that XML 1.0 does not allow (https://www.w3.org/TR/xml/#charsets), lone surrogates included.
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def merge(files: Sequence[JUnitFile], faults: Sequence[Fault] = ()) -> JUnitXml:
    """One JUnit document; the given files are not changed.

    A test is known by its class name and name. A skip for too few GPUs gives way to any other attempt. Properties,
    skips and texts are kept. A file that could not be read is a test with an error, so that nothing is green without
    it.
    """
    from junitparser import JUnitXml  # noqa: PLC0415 - only a merge needs it

    merged = JUnitXml()
    attempts = _attempts(files)
    losing = {id(part) for parts in attempts.values() for part in parts if part is not _last(parts)}
    for file in files:
        kept = _copies(file, losing, attempts)
        for suite in kept:
            merged.append(suite)
    if faults:
        merged.append(_unreadable(faults))
    merged.update_statistics()
    return merged


def write(merged: JUnitXml, path: Path) -> None:
    """Write the document; a reader sees all of it or nothing.

    Raises ScalePerfError where the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        merged.write(str(temporary))
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise ScalePerfError(f"{path}: cannot be written: {error.strerror or error}") from error


def _attempts(files: Sequence[JUnitFile]) -> dict[tuple[str, str], list[Part]]:
    """The attempts of each test in the order in which they ran; without a time, in the order given."""
    found: dict[tuple[str, str], list[Part]] = defaultdict(list)
    for file in files:
        for part in file.parts:
            found[part.attempt.classname, part.attempt.name].append(part)
    for parts in found.values():
        if all(part.attempt.time is not None for part in parts):
            parts.sort(key=lambda part: part.attempt.time or 0.0)
    return found


def _last(parts: Sequence[Part]) -> Part:
    telling = [part for part in parts if not _says_nothing(part)]
    return (telling or parts)[-1]


def _says_nothing(part: Part) -> bool:
    """True for a skip whose session had too few GPUs for the case."""
    return part.attempt.state is JUnitState.SKIPPED and part.attempt.said("gate") == GateState.BEYOND


def _copies(file: JUnitFile, losing: set[int], attempts: dict[tuple[str, str], list[Part]]) -> Iterator[TestSuite]:
    """The file's suites, one level deep, with the tests that count."""
    parts = {id(element._elem): part for part in file.parts for element in part.elements}  # noqa: SLF001 - no public way
    for suite in all_suites(file.xml):
        new = _empty_copy(suite)
        for element in own_tests(suite):
            part = parts[id(element._elem)]  # noqa: SLF001 - as above
            if id(part) in losing:
                continue
            tries = attempts[part.attempt.classname, part.attempt.name]
            new.append(_clean(copy.deepcopy(element), tries, part))
        if len(new):
            yield new


def _empty_copy(suite: TestSuite) -> TestSuite:
    """A suite with the attributes, properties and outputs of another, without its tests and inner suites."""
    from junitparser import TestSuite as Suite  # noqa: PLC0415 - as above

    new = Suite()
    for name, value in suite._elem.attrib.items():  # noqa: SLF001 - junitparser copies no attributes that it does not know
        new._elem.set(name, value)  # noqa: SLF001 - as above
    for child in suite._elem:  # noqa: SLF001 - as above
        if child.tag not in ("testcase", "testsuite"):
            new._elem.append(copy.deepcopy(child))  # noqa: SLF001 - as above
    return new


def _clean(element: TestCase, tries: Sequence[Part], part: Part) -> TestCase:
    """The test with short texts, and with how many attempts there were."""
    for result in element:
        text = result.text
        if text is not None and len(text) > LONGEST_TEXT:
            result.text = _shortened(text)
    if len(tries) > 1:
        _say(element, "scaleperf.attempts", str(len(tries)))
        others = [f"{t.attempt.state} in {t.attempt.where}" for t in tries if t is not part]
        position = next(number for number, t in enumerate(tries, 1) if t is part)
        _say(
            element,
            "scaleperf.attempt",
            f"attempt {position} of {len(tries)} counts, from {part.attempt.where}; others: {'; '.join(others)}",
        )
    return element


def _say(element: TestCase, name: str, value: str) -> None:
    from junitparser import Properties, Property  # noqa: PLC0415 - as above

    holder = element.child(Properties)
    if holder is None:
        holder = Properties()
        element._elem.insert(0, holder._elem)  # noqa: SLF001 - properties come first, junitparser only appends
    holder.add_property(Property(name, allowed(value)))


def _shortened(text: str) -> str:
    half = LONGEST_TEXT // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters left out …\n{text[-half:]}"


def _unreadable(faults: Sequence[Fault]) -> TestSuite:
    from junitparser import Error, TestCase, TestSuite  # noqa: PLC0415 - as above

    suite = TestSuite("scaleperf report")
    for fault in faults:
        test = TestCase(allowed(plain(fault.where)), "scaleperf.report", 0.0)
        error = Error(allowed(f"could not be read: {plain(fault.why)}"), "unreadable")
        error.text = allowed(lines(f"{fault.where}: {fault.why}"))
        test.append(error)
        suite.append(test)
    return suite


def allowed(text: str) -> str:
    """Text with every character that XML cannot hold written out as its code."""
    return _NO_XML.sub(lambda found: found.group().encode("unicode_escape", "surrogatepass").decode("ascii"), text)
