"""A baseline file as plain data that can be changed and written again, so that what people wrote in it stays."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_scaleperf.baseline.compare import better, values_of
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

    With ``replaces`` they take the place of the stored ones even where the fingerprint is the same; ``accepted`` says
    why, where they are worse. ``why``, where given, is the new reason that people read at the case.
    """

    case_id: str
    fingerprint: Fingerprint
    samples: tuple[BaselineSample, ...]
    why: str = ""
    replaces: bool = False
    accepted: str = ""


@dataclass(frozen=True, slots=True)
class Stored:
    """What the file holds of one case. ``best`` is what it was at its best since something worse was accepted."""

    fingerprint: Fingerprint
    samples: tuple[BaselineSample, ...]
    best: Mapping[Metric, float]


@dataclass(frozen=True, slots=True)
class StoredScaling:
    """What the file holds of one pair of rungs. ``best`` is as for the cases, ``newest`` the day of the last sample."""

    fingerprint: Fingerprint
    efficiencies: tuple[float, ...]
    sessions: Collection[str]
    newest: str
    best: float

    @property
    def efficiency(self) -> float:
        """The median of the samples, as it is written."""
        return float(f"{statistics.median(self.efficiencies):.{SIGNIFICANT_DIGITS}g}")


@dataclass(slots=True)
class Contents:
    """A file's fingerprints, cases and scaling entries as plain data, and whether they were changed."""

    fingerprints: dict[str, Any]
    cases: dict[str, Any]
    scaling: dict[str, Any]
    changed: bool = False

    @classmethod
    def of(cls, path: Path) -> Contents:
        """What the file holds; nothing where there is none.

        Raises BaselineError with every fault of the file.
        """
        if not path.exists():
            return cls({}, {}, {})
        data: dict[str, Any] = read_file(path)[0].data
        return cls(data["fingerprints"], data["cases"], data.get("scaling", {}))

    def stored(self, case_id: str) -> Stored | None:
        """The case's fingerprint and samples, or None where it has no entry."""
        entry = self.cases.get(case_id)
        if entry is None:
            return None
        fingerprint = Fingerprint(**self.fingerprints[entry["fingerprint"]], config=entry["config"])
        samples = tuple(_sample(raw) for raw in entry["samples"])
        first = [sample for sample in samples if sample.session == samples[0].session]
        return Stored(fingerprint, samples, better(_values(entry.get("best", {})), values_of(first)))

    def add(self, new: Entry) -> None:
        """Add the entry's samples; samples that they replace are noted in the entry with their date and values."""
        name = self._name(new.fingerprint)
        before = self.stored(new.case_id)
        entry = self.cases.setdefault(new.case_id, {"samples": []})
        if before is not None and (new.replaces or before.fingerprint != new.fingerprint):
            noted = _noted(before, new)
            entry["samples"] = []
            entry.pop("best", None)
            if new.accepted:
                accepted = {**noted, "session": new.samples[0].session, "why": new.accepted}
                entry["accepted"] = [*entry.get("accepted", ()), accepted]
            else:
                entry["replaced"] = noted
                _keep_best(entry, before, values_of(new.samples))
        entry.update(
            fingerprint=name,
            config=new.fingerprint.config,
            samples=[*entry["samples"], *(_plain_sample(sample) for sample in new.samples)],
        )
        if new.why:
            entry["why"] = new.why
        self.changed = True

    def stored_scaling(self, pair_id: str) -> StoredScaling | None:
        """The pair's fingerprint and efficiencies, or None where it has no entry."""
        entry = self.scaling.get(pair_id)
        if entry is None:
            return None
        fingerprint = Fingerprint(**self.fingerprints[entry["fingerprint"]], config=entry["config"])
        samples: list[dict[str, Any]] = entry["samples"]
        efficiencies = tuple(float(sample["efficiency"]) for sample in samples)
        best = max(float(entry.get("best", 0.0)), efficiencies[0])
        days = [str(sample["date"]) for sample in samples]
        return StoredScaling(fingerprint, efficiencies, {str(s["session"]) for s in samples}, max(days), best)

    def add_scaling(
        self,
        pair_id: str,
        fingerprint: Fingerprint,
        sample: dict[str, Data],
        *,
        replaces: bool = False,
        accepted: str = "",
    ) -> None:
        """Add a sample of an efficiency, or put it in the place of the stored ones, as ``add`` does."""
        name = self._name(fingerprint)
        before = self.stored_scaling(pair_id)
        entry = self.scaling.setdefault(pair_id, {"samples": []})
        if before is not None and (replaces or before.fingerprint != fingerprint):
            if accepted:
                noted = {"date": sample["date"], "session": sample["session"], "efficiency": before.efficiency}
                entry["accepted"] = [*entry.get("accepted", ()), {**noted, "why": accepted}]
            entry["samples"] = []
            entry.pop("best", None)
            if not replaces:
                entry["best"] = max(before.best, before.efficiency)
        entry.update(fingerprint=name, config=fingerprint.config, samples=[*entry["samples"], sample])
        self.changed = True

    def add_trace(
        self,
        case_id: str,
        fingerprint: Fingerprint,
        sample: dict[str, Data],
        counts: dict[str, Data],
        *,
        replaces: bool,
    ) -> None:
        """Add a sample of what the case's trace showed, or put it in the place of the stored ones; counts are one."""
        name = self._name(fingerprint)
        entry = self.cases[case_id].setdefault("trace", {"samples": []})
        same = (entry.get("fingerprint"), entry.get("config")) == (name, fingerprint.config)
        kept = entry["samples"] if same and not replaces else []
        entry.update(fingerprint=name, config=fingerprint.config, samples=[*kept, sample], counts=counts)
        self.changed = True

    def keep(self, cases: Collection[str], pairs: Collection[str]) -> None:
        """Remove every entry that is not named."""
        unused = [*(self.cases.keys() - set(cases)), *(self.scaling.keys() - set(pairs))]
        self.cases = {case_id: entry for case_id, entry in self.cases.items() if case_id in cases}
        self.scaling = {pair_id: entry for pair_id, entry in self.scaling.items() if pair_id in pairs}
        self.changed = self.changed or bool(unused)

    def text(self, suite: str, system: str) -> str:
        """The file's text: sorted, without fingerprints that no entry has."""
        traces = [entry["trace"] for entry in self.cases.values() if "trace" in entry]
        used = {entry["fingerprint"] for entry in (*self.cases.values(), *self.scaling.values(), *traces)}
        parts: list[dict[str, Data]] = [
            {"suite": suite},
            {"system": system},
            {"fingerprints": {name: known for name, known in self.fingerprints.items() if name in used}},
            {"cases": self.cases},
        ]
        if self.scaling:
            parts.append({"scaling": self.scaling})
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


def _keep_best(entry: dict[str, Any], before: Stored, now: Mapping[Metric, float]) -> None:
    """What it was at its best, where that is better than what it is now."""
    best = better(better(before.best, values_of(before.samples)), now)
    lost = {metric: value for metric, value in best.items() if value != now.get(metric)}
    if lost:
        entry["best"] = rounded(lost)


def _noted(before: Stored, new: Entry) -> dict[str, Data]:
    """What stood here before: when it was replaced, its values, and in what the fingerprints differ."""
    differences = before.fingerprint.differences(new.fingerprint)
    noted: dict[str, Data] = {"date": new.samples[0].date, "values": rounded(values_of(before.samples))}
    if differences:
        noted["differences"] = {name: [_plain(old), _plain(now)] for name, (old, now) in differences.items()}
    return noted


def _sample(raw: Mapping[str, Any]) -> BaselineSample:
    return BaselineSample(raw["date"], raw["session"], _values(raw), raw.get("sample", 1))


def _values(raw: Mapping[str, Any]) -> dict[Metric, float]:
    return {metric: float(raw[metric.value]) for metric in Metric if metric.value in raw}


def _plain_sample(sample: BaselineSample) -> dict[str, Data]:
    """A sample as the file has it; the number is left out where it is the only one that most sessions have."""
    number: dict[str, Data] = {} if sample.number == 1 else {"sample": sample.number}
    return {"date": sample.date, "session": sample.session, **number, **rounded(sample.values)}


def _plain(value: object) -> Data:
    return value if value is None or isinstance(value, int | float) else str(value)


def rounded(values: Mapping[Metric, float]) -> dict[str, Data]:
    """Values as they are kept: to six significant digits."""
    return {metric.value: float(f"{value:.{SIGNIFICANT_DIGITS}g}") for metric, value in values.items()}
