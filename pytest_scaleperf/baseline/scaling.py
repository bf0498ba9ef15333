"""Efficiencies of larger rungs against smaller ones, in the same file as the baselines of the cases."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from pathlib import Path

from pytest_scaleperf.baseline.contents import SIGNIFICANT_DIGITS
from pytest_scaleperf.baseline.read import named_by, read_file, shared
from pytest_scaleperf.baseline.record import edited
from pytest_scaleperf.model import BaselineError, Fingerprint


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


def record_scaling(
    path: Path, pair_id: str, fingerprint: Fingerprint, sample: ScalingSample, *, replaces: bool = False
) -> None:
    """Add an efficiency beside the stored ones of the same fingerprint, or (``replaces``) in their place.

    Raises BaselineError as ``record_samples`` does.
    """
    if not (math.isfinite(sample.efficiency) and sample.efficiency > 0):
        raise BaselineError(f"{path}: {pair_id}: expected an efficiency more than 0, found {sample.efficiency}")
    with edited(path, *named_by(path)) as contents:
        contents.add_scaling(
            pair_id,
            fingerprint,
            {
                "date": sample.date,
                "session": sample.session,
                "efficiency": float(f"{sample.efficiency:.{SIGNIFICANT_DIGITS}g}"),
                "upper": sample.upper,
                "lower": sample.lower,
            },
            replaces=replaces,
        )
