"""What a case's trace showed, kept in the case's entry: shares of the step to compare, counts that must be equal."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_scaleperf.baseline.contents import SIGNIFICANT_DIGITS
from pytest_scaleperf.baseline.read import named_by, read_file, shared
from pytest_scaleperf.baseline.record import edited
from pytest_scaleperf.model import BaselineError, Fingerprint


@dataclass(frozen=True, slots=True)
class TraceSample:
    """What one traced run showed: shares of the step in per cent, by name."""

    date: str
    session: str
    shares: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class TraceBaseline:
    """What a case's trace is compared with. ``tolerance`` is a fraction of the step; None where the suite's holds.

    ``counts`` are calls and bytes per step by name; all samples have the same. The fingerprint's ``config`` is a
    digest of the case and of how it is traced.
    """

    case_id: str
    fingerprint: Fingerprint
    samples: tuple[TraceSample, ...]
    counts: Mapping[str, int]
    where: str
    tolerance: float | None = None
    why: str = ""

    @property
    def shares(self) -> dict[str, float]:
        """The median of each share over the samples that have it, in per cent of the step."""
        names = dict.fromkeys(name for sample in self.samples for name in sample.shares)
        return {
            name: statistics.median(s.shares[name] for s in self.samples if name in s.shares) for name in sorted(names)
        }


def read_traces(path: Path) -> dict[str, TraceBaseline]:
    """What the file holds of traces, by case id; none where there is no such file.

    Raises BaselineError with every fault of the file.
    """
    if not path.exists():
        return {}
    document, file = read_file(path)
    found = {}
    for case_id, case in file.cases.items():
        if case.trace is None:
            continue
        part = case.trace
        found[case_id] = TraceBaseline(
            case_id,
            Fingerprint(**shared(file.fingerprints[part.fingerprint]), config=part.config),
            tuple(TraceSample(s.date, s.session, s.shares) for s in part.samples),
            part.counts,
            f"{path}:{document.line(('cases', case_id, 'trace'))}",
            part.tolerance,
            part.why,
        )
    return found


def record_trace(  # noqa: PLR0913 - what identifies an entry, and what is stored in it
    path: Path,
    case_id: str,
    fingerprint: Fingerprint,
    sample: TraceSample,
    counts: Mapping[str, int],
    *,
    replaces: bool = False,
) -> None:
    """Add a trace's numbers beside the stored ones of the same fingerprint, or (``replaces``) in their place.

    Raises BaselineError where the case has no entry yet, for a share that is no percentage, and as ``record_samples``
    does.
    """
    wrong = [f"{name} {value}" for name, value in sample.shares.items() if not _is_share(value)]
    if wrong or not (sample.shares or counts):
        found = ", ".join(wrong) or "nothing at all"
        raise BaselineError(f"{path}: {case_id}: trace: expected shares from 0 to 100 % and counts, found {found}")
    with edited(path, *named_by(path)) as contents:
        if case_id not in contents.cases:
            raise BaselineError(
                f"{path}: {case_id}: expected an entry of the case before that of its trace, found none"
            )
        rounded = {name: float(f"{value:.{SIGNIFICANT_DIGITS}g}") for name, value in sample.shares.items()}
        contents.add_trace(
            case_id,
            fingerprint,
            {"date": sample.date, "session": sample.session, "shares": dict(rounded)},
            dict(counts),
            replaces=replaces,
        )


def _is_share(value: float) -> bool:
    return math.isfinite(value) and 0 <= value <= 100  # noqa: PLR2004 - per cent
