"""Efficiencies of larger rungs against smaller ones: read them, and take new ones in as ``update`` does for cases."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_scaleperf.baseline.contents import SIGNIFICANT_DIGITS, Contents, StoredScaling
from pytest_scaleperf.baseline.read import named_by, read_file, shared
from pytest_scaleperf.baseline.record import edited
from pytest_scaleperf.baseline.update import CREEP, Kind
from pytest_scaleperf.model import BaselineError, Fingerprint
from pytest_scaleperf.yamlfile import Data


@dataclass(frozen=True, slots=True)
class ScalingSample:
    """What one session measured: tokens/s per GPU of the case ``upper`` over that of the case ``lower``."""

    date: str
    session: str
    efficiency: float
    upper: str
    lower: str


@dataclass(frozen=True, slots=True)
class ScalingBaseline:
    """What an efficiency is compared with. ``tolerance`` is None where the suite's holds.

    The fingerprint's ``config`` is a digest over all cases of the pair.
    """

    pair_id: str
    fingerprint: Fingerprint
    samples: tuple[ScalingSample, ...]
    where: str
    tolerance: float | None = None
    why: str = ""

    @property
    def efficiency(self) -> float:
        """The median of the samples."""
        return statistics.median(sample.efficiency for sample in self.samples)


def read_scaling(path: Path) -> dict[str, ScalingBaseline]:
    """Every efficiency of the file, by the pair's id; none where there is no such file.

    Raises BaselineError with every fault of the file.
    """
    if not path.exists():
        return {}
    document, file = read_file(path)
    lines = document.lines(("scaling",))
    return {
        pair_id: ScalingBaseline(
            pair_id,
            Fingerprint(**shared(file.fingerprints[part.fingerprint]), config=part.config),
            tuple(ScalingSample(s.date, s.session, s.efficiency, s.upper, s.lower) for s in part.samples),
            f"{path}:{lines[pair_id]}",
            part.tolerance,
            part.why,
        )
        for pair_id, part in file.scaling.items()
    }


@dataclass(frozen=True, slots=True)
class MeasuredScaling:
    """One session's efficiency of one pair; ``tolerance`` is a fraction."""

    pair_id: str
    fingerprint: Fingerprint
    sample: ScalingSample
    tolerance: float


@dataclass(frozen=True, slots=True)
class ScalingChange:
    """What a session's efficiency does to the stored one: before (None: none was stored) and after, and why."""

    pair_id: str
    kind: Kind
    session: str
    before: float | None
    after: float
    reason: str = ""


def update_scaling(
    path: Path, many: Sequence[MeasuredScaling], *, accept: str = "", dry_run: bool = False
) -> tuple[ScalingChange, ...]:
    """Take efficiencies in as ``update`` takes measurements: nothing worse without a reason.

    Raises BaselineError as ``record_samples`` does.
    """
    ordered = sorted(many, key=lambda new: (new.sample.date, new.sample.session))
    for new in ordered:
        value = new.sample.efficiency
        if not (math.isfinite(value) and value > 0):
            raise BaselineError(f"{path}: {new.pair_id}: expected an efficiency more than 0, found {value}")
    if dry_run:
        contents = Contents.of(path)
        return tuple(_take(contents, new, accept) for new in ordered)
    with edited(path, *named_by(path)) as contents:
        return tuple(_take(contents, new, accept) for new in ordered)


def _take(contents: Contents, new: MeasuredScaling, accept: str) -> ScalingChange:
    stored = contents.stored_scaling(new.pair_id)
    kind, reason = (Kind.NEW, "") if stored is None else _decide(stored, new)
    if kind is Kind.ACCEPTED and not accept:
        kind = Kind.REFUSED
    if kind.is_change:
        contents.add_scaling(
            new.pair_id,
            new.fingerprint,
            _plain(new.sample),
            replaces=kind in (Kind.IMPROVED, Kind.ACCEPTED),
            accepted=accept if kind is Kind.ACCEPTED else "",
        )
    after = contents.stored_scaling(new.pair_id)
    shown = new.sample.efficiency if after is None or not kind.is_change else after.efficiency
    before = None if stored is None else stored.efficiency
    return ScalingChange(new.pair_id, kind, new.sample.session, before, shown, reason)


def _decide(stored: StoredScaling, new: MeasuredScaling) -> tuple[Kind, str]:
    """What the efficiency would do to an entry; ACCEPTED means that a reason is needed."""
    if new.sample.session in stored.sessions:
        return Kind.KNOWN, "this session is stored already"
    change = new.sample.efficiency / stored.efficiency - 1
    differs = stored.fingerprint != new.fingerprint
    together = statistics.median([*(() if differs else stored.efficiencies), new.sample.efficiency])
    if change < -new.tolerance:
        kind, reason = Kind.ACCEPTED, "worse than the stored value by more than its band"
    elif change > new.tolerance:
        kind, reason = Kind.IMPROVED, ""
    elif together < stored.best * (1 - CREEP * new.tolerance):
        kind, reason = Kind.ACCEPTED, f"more than half the band would be lost since it was {stored.best:.4f}"
    elif differs:
        kind, reason = Kind.REPLACED, ", ".join(stored.fingerprint.differences(new.fingerprint))
    else:
        return Kind.ADDED, ""
    if new.sample.date < stored.newest:
        return Kind.KNOWN, f"older ({new.sample.date}) than what it would replace ({stored.newest})"
    return kind, reason


def _plain(sample: ScalingSample) -> dict[str, Data]:
    return {
        "date": sample.date,
        "session": sample.session,
        "efficiency": float(f"{sample.efficiency:.{SIGNIFICANT_DIGITS}g}"),
        "upper": sample.upper,
        "lower": sample.lower,
    }
