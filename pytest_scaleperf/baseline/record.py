"""Add measured samples to a baseline file, so that nobody's text and no other session's sample is lost."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_scaleperf.baseline.contents import Contents, Entry
from pytest_scaleperf.baseline.lock import locked
from pytest_scaleperf.baseline.read import named_by
from pytest_scaleperf.baseline.schema import POSITIVE
from pytest_scaleperf.model import BaselineError, BaselineSample, Fingerprint
from pytest_scaleperf.yamlfile import write_atomic


def record_sample(  # noqa: PLR0913, PLR0917 - what identifies an entry, and what is stored in it
    path: Path,
    suite: str,
    system: str,
    case_id: str,
    fingerprint: Fingerprint,
    sample: BaselineSample,
    *,
    why: str = "",
) -> None:
    """Add one sample to the case's entry; see ``record_samples``."""
    record_samples(path, suite, system, [Entry(case_id, fingerprint, (sample,), why)])


def record_samples(path: Path, suite: str, system: str, many: Sequence[Entry]) -> None:
    """Add the samples of many cases in one go: beside the case's stored ones, or in the place of another fingerprint's.

    What was replaced is noted in the entry: date, values (medians) and the fingerprint's differences. Numbers are
    kept to six significant digits. Sessions that record at the same time wait for each other.
    Raises BaselineError where the file has faults (it is left as it is), belongs to something else, or cannot be
    locked or written, and for a sample without values or with one that is not a positive finite number.
    """
    for entry in many:
        check_entry(path, entry.case_id, entry.samples)
    with edited(path, suite, system) as contents:
        for entry in many:
            contents.add(entry)


@contextlib.contextmanager
def edited(path: Path, suite: str, system: str) -> Iterator[Contents]:
    """The file's contents, to be changed; written when the block ends, if it changed them and did not raise.

    Other sessions wait meanwhile. Raises BaselineError as ``record_samples`` does.
    """
    if (suite, system) != named_by(path):
        raise BaselineError(f"{path}: expected <system>/<suite>.yaml, found it for suite {suite} of system {system}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path):
            contents = Contents.of(path)
            yield contents
            if contents.changed:
                write_atomic(path, contents.text(suite, system))
    except OSError as error:
        raise BaselineError(f"{path}: expected a file that can be written, found: {error.strerror}") from error


def check_entry(path: Path, case_id: str, samples: Sequence[BaselineSample]) -> None:
    """Raise BaselineError unless there is at least one sample, each with values that are positive and finite."""
    if not samples:
        raise BaselineError(f"{path}: {case_id}: expected at least one sample, found none")
    for sample in samples:
        bad = [f"{m} {value}" for m, value in sample.values.items() if not (math.isfinite(value) and value > 0)]
        if bad or not sample.values:
            raise BaselineError(f"{path}: {case_id}: expected {POSITIVE}, found {', '.join(bad) or 'no metric at all'}")
