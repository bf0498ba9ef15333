"""Add a measured sample to a baseline file, so that nobody's text and no other session's sample is lost."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_scaleperf.baseline.lock import locked
from pytest_scaleperf.baseline.read import named_by, read_file, shared
from pytest_scaleperf.baseline.schema import POSITIVE
from pytest_scaleperf.model import BaselineError, BaselineSample, Fingerprint, Metric
from pytest_scaleperf.yamlfile import Data, dump, write_atomic

SIGNIFICANT_DIGITS = 6
_HEADER = """\
# Baselines of the suite {suite} on the system {system}: what `pytest --record-baselines` measured.
# Written by the plugin. Of what is added by hand only `tolerance` and `why` of a case are kept, comments are not.
"""


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
    """Add ``sample`` to the case's entry, or put it in the place of samples of another fingerprint.

    What was replaced is noted in the entry: date, values (medians) and the fingerprint's differences. Numbers are
    kept to six significant digits. Sessions that record at the same time wait for each other.
    Raises BaselineError where the file has faults (it is left as it is), belongs to something else, or cannot be
    locked or written, and for a sample without values or with one that is not a positive finite number.
    """
    if (suite, system) != named_by(path):
        raise BaselineError(f"{path}: expected <system>/<suite>.yaml, found it for suite {suite} of system {system}")
    bad = [f"{metric} {value}" for metric, value in sample.values.items() if not (math.isfinite(value) and value > 0)]
    if bad or not sample.values:
        raise BaselineError(f"{path}: {case_id}: expected {POSITIVE}, found {', '.join(bad) or 'no metric at all'}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path):
            contents = _Contents.of(path)
            contents.add(case_id, fingerprint, sample, why)
            write_atomic(path, contents.text(suite, system))
    except OSError as error:
        raise BaselineError(f"{path}: expected a file that can be written, found: {error.strerror}") from error


@dataclass(slots=True)
class _Contents:
    """A file's fingerprints and cases as plain data, so that what people wrote stays as they wrote it."""

    fingerprints: dict[str, Any]
    cases: dict[str, Any]

    @classmethod
    def of(cls, path: Path) -> _Contents:
        if not path.exists():
            return cls({}, {})
        data: dict[str, Any] = read_file(path)[0].data
        return cls(data["fingerprints"], data["cases"])

    def add(self, case_id: str, fingerprint: Fingerprint, sample: BaselineSample, why: str) -> None:
        name = self._name(fingerprint)
        entry = self.cases.setdefault(case_id, {"samples": []})
        if entry["samples"]:
            before = Fingerprint(**self.fingerprints[entry["fingerprint"]], config=entry["config"])
            if before != fingerprint:
                entry["replaced"] = _replaced(entry["samples"], before, fingerprint, sample.date)
                entry["samples"] = []
        new = {"date": sample.date, "session": sample.session, **_rounded(sample.values)}
        entry.update(fingerprint=name, config=fingerprint.config, samples=[*entry["samples"], new])
        if why:
            entry["why"] = why
        used = {case["fingerprint"] for case in self.cases.values()}
        self.fingerprints = {name: known for name, known in self.fingerprints.items() if name in used}

    def text(self, suite: str, system: str) -> str:
        parts: tuple[dict[str, Data], ...] = (
            {"suite": suite},
            {"system": system},
            {"fingerprints": self.fingerprints},
            {"cases": self.cases},
        )
        return _HEADER.format(suite=suite, system=system) + "".join(dump(part) for part in parts)

    def _name(self, fingerprint: Fingerprint) -> str:
        """The name of an equal fingerprint, else a new one; names that are in use are never given again."""
        wanted = shared(fingerprint)
        for name, known in self.fingerprints.items():
            if known == wanted:
                return name
        numbered = (f"f{number}" for number in itertools.count(1))
        name = next(name for name in numbered if name not in self.fingerprints)
        self.fingerprints[name] = wanted
        return name


def _replaced(samples: list[dict[str, Any]], before: Fingerprint, after: Fingerprint, date: str) -> dict[str, Data]:
    values = {metric: [s[metric.value] for s in samples if metric.value in s] for metric in Metric}
    medians = {metric: statistics.median(found) for metric, found in values.items() if found}
    differences: dict[str, Data] = {name: [_plain(a), _plain(b)] for name, (a, b) in before.differences(after).items()}
    return {"date": date, "values": _rounded(medians), "differences": differences}


def _plain(value: object) -> Data:
    return value if value is None or isinstance(value, int | float) else str(value)


def _rounded(values: Mapping[Metric, float]) -> dict[str, Data]:
    return {metric.value: float(f"{value:.{SIGNIFICANT_DIGITS}g}") for metric, value in values.items()}
