"""A baseline file as plain data that can be changed and written again, so that what people wrote in it stays."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_scaleperf.baseline.read import read_file, shared
from pytest_scaleperf.model import BaselineSample, Fingerprint, Metric
from pytest_scaleperf.yamlfile import Data, dump

SIGNIFICANT_DIGITS = 6
_HEADER = """\
# Baselines of the suite {suite} on the system {system}: what `pytest --record-baselines` measured.
# Written by the plugin. Of what is added by hand only `tolerance` and `why` of a case are kept, comments are not.
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """What is to be stored of one case: samples of one fingerprint, beside the stored ones of that fingerprint.

    With ``replaces`` they take the place of the stored ones even where the fingerprint is the same. ``why``, where
    given, is the new reason that people read at the case.
    """

    case_id: str
    fingerprint: Fingerprint
    samples: tuple[BaselineSample, ...]
    why: str = ""
    replaces: bool = False


@dataclass(slots=True)
class Contents:
    """A file's fingerprints and cases as plain data."""

    fingerprints: dict[str, Any]
    cases: dict[str, Any]

    @classmethod
    def of(cls, path: Path) -> Contents:
        """What the file holds; nothing where there is none.

        Raises BaselineError with every fault of the file.
        """
        if not path.exists():
            return cls({}, {})
        data: dict[str, Any] = read_file(path)[0].data
        return cls(data["fingerprints"], data["cases"])

    def add(self, new: Entry) -> None:
        """Add the entry's samples; samples that they replace are noted in the entry with their date and values."""
        name = self._name(new.fingerprint)
        entry = self.cases.setdefault(new.case_id, {"samples": []})
        if entry["samples"]:
            before = Fingerprint(**self.fingerprints[entry["fingerprint"]], config=entry["config"])
            if new.replaces or before != new.fingerprint:
                entry["replaced"] = _replaced(entry["samples"], before, new.fingerprint, new.samples[0].date)
                entry["samples"] = []
        entry.update(
            fingerprint=name,
            config=new.fingerprint.config,
            samples=[*entry["samples"], *(_plain_sample(sample) for sample in new.samples)],
        )
        if new.why:
            entry["why"] = new.why

    def text(self, suite: str, system: str) -> str:
        """The file's text: sorted, without fingerprints that no entry has."""
        used = {entry["fingerprint"] for entry in self.cases.values()}
        parts: tuple[dict[str, Data], ...] = (
            {"suite": suite},
            {"system": system},
            {"fingerprints": {name: known for name, known in self.fingerprints.items() if name in used}},
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


def _replaced(samples: Sequence[Mapping[str, Any]], before: Fingerprint, after: Fingerprint, date: str) -> Data:
    values = {metric: [s[metric.value] for s in samples if metric.value in s] for metric in Metric}
    medians = {metric: statistics.median(found) for metric, found in values.items() if found}
    differences: dict[str, Data] = {name: [_plain(a), _plain(b)] for name, (a, b) in before.differences(after).items()}
    noted: dict[str, Data] = {"date": date, "values": rounded(medians)}
    return {**noted, "differences": differences} if differences else noted


def _plain_sample(sample: BaselineSample) -> dict[str, Data]:
    """A sample as the file has it; the number is left out where it is the only one that most sessions have."""
    number: dict[str, Data] = {} if sample.number == 1 else {"sample": sample.number}
    return {"date": sample.date, "session": sample.session, **number, **rounded(sample.values)}


def _plain(value: object) -> Data:
    return value if value is None or isinstance(value, int | float) else str(value)


def rounded(values: Mapping[Metric, float]) -> dict[str, Data]:
    """Values as they are kept: to six significant digits."""
    return {metric.value: float(f"{value:.{SIGNIFICANT_DIGITS}g}") for metric, value in values.items()}
