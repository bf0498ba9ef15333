"""Read a baseline file: every entry as a Baseline, or every fault of the file at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_scaleperf.baseline.compare import values_of
from pytest_scaleperf.baseline.schema import BaselineFile, CasePart, FingerprintPart, ScalingPart, TracePart
from pytest_scaleperf.model import FINGERPRINT_FIELDS, Baseline, BaselineError, BaselineSample, Fingerprint, Metric
from pytest_scaleperf.yamlfile import Document, Faults, Loc, parse
from pytest_scaleperf.yamlfile.schema import check_part, finish

_SHARED_FIELDS = tuple(name for name in FINGERPRINT_FIELDS if name != "config")


def read_baselines(path: Path) -> dict[str, Baseline]:
    """Every baseline of the file, by case id; none where there is no such file.

    Raises BaselineError with every fault of the file, one line each: ``file:line: key: expected ..., found ...``.
    """
    if not path.exists():
        return {}
    document, file = read_file(path)
    lines = document.lines(("cases",))
    shared_parts = {name: shared(part) for name, part in file.fingerprints.items()}
    return {
        case_id: _baseline(case_id, case, shared_parts[case.fingerprint], f"{path}:{lines[case_id]}")
        for case_id, case in file.cases.items()
    }


@dataclass(frozen=True, slots=True)
class Accepted:
    """What stood in an entry before a worse value was accepted, and why it was."""

    date: str
    session: str
    values: Mapping[Metric, float]
    why: str


def read_accepted(path: Path) -> dict[str, tuple[Accepted, ...]]:
    """Every regression that was ever accepted, oldest first, by case id; cases without one are left out.

    Raises BaselineError with every fault of the file.
    """
    if not path.exists():
        return {}
    cases = read_file(path)[1].cases
    return {
        case_id: tuple(Accepted(a.date, a.session, dict(a.values), a.why) for a in case.accepted)
        for case_id, case in cases.items()
        if case.accepted
    }


def baseline_value(baseline: Baseline, metric: Metric) -> float | None:
    """The median over the samples that have the metric, in its unit; None where none has."""
    return values_of(baseline.samples).get(metric)


def read_file(path: Path) -> tuple[Document, BaselineFile]:
    """The file as it is written and as its schema sees it.

    Raises BaselineError with every fault.
    """
    faults = Faults(parse(path, BaselineError))
    file = check_part(faults, BaselineFile, ())
    if file is not None:
        _check(faults, file, path)
    return faults.document, finish(faults, file, BaselineError)


def _check(faults: Faults, file: BaselineFile, path: Path) -> None:
    suite, system = named_by(path)
    if file.suite != suite:
        faults.add(("suite",), f"{suite}, as the file is named")
    if file.system != system:
        faults.add(("system",), f"{system}, as the folder is named")
    known = ", ".join(file.fingerprints) or "there is none"
    entries: dict[Loc, CasePart | ScalingPart | TracePart] = {
        ("cases", name): part for name, part in file.cases.items()
    }
    entries |= {("scaling", name): part for name, part in file.scaling.items()}
    entries |= {("cases", name, "trace"): part.trace for name, part in file.cases.items() if part.trace is not None}
    for loc, entry in entries.items():
        if entry.fingerprint not in file.fingerprints:
            faults.add((*loc, "fingerprint"), f"one of the fingerprints ({known})")
    for case_id, case in file.cases.items():
        for place, sample in enumerate(case.samples):
            at = ("cases", case_id, "samples", place)
            if not sample.values() and faults.clean(at):
                faults.add(at, f"at least one of {', '.join(Metric)}", "none")


def named_by(path: Path) -> tuple[str, str]:
    """Suite and system that the path stands for."""
    absolute = path.absolute()
    return absolute.stem, absolute.parent.name


def _baseline(case_id: str, case: CasePart, shared: Mapping[str, Any], where: str) -> Baseline:
    samples = tuple(BaselineSample(s.date, s.session, s.values(), s.sample) for s in case.samples)
    fingerprint = Fingerprint(**shared, config=case.config)
    return Baseline(case_id, fingerprint, samples, where, dict(case.tolerance), case.why)


def shared(part: FingerprintPart | Fingerprint) -> dict[str, Any]:
    """What fingerprints of different cases have in common: all but the configuration."""
    return {name: getattr(part, name) for name in _SHARED_FIELDS}
