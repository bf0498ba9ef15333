"""Values that somebody else published for a suite: ``baselines/<system>/published/<suite>.yaml``, written by people.

They are baselines of that provenance: a case or a pair of rungs that has no baseline of its own is judged against them,
and a report sets them beside what was measured. No session writes such a file, a search is not ended by it (see
docs/campaign.md), and there is no fingerprint: nobody knows what the numbers depended on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from pytest_scaleperf.model import Baseline, BaselineError, BaselineSample, Fingerprint, Metric
from pytest_scaleperf.yamlfile import Faults, parse
from pytest_scaleperf.yamlfile.schema import (
    FRACTION,
    Count,
    FileModel,
    Fraction,
    Name,
    Text,
    check_part,
    finish,
    iso_date,
)

FOLDER = "published"
PROVENANCE = "published"
"""What stands in the place of a session's name."""

_DATE = "a date such as 2026-11-30: when the values were taken from their source"
_POSITIVE = "a number more than 0; a value that was not published is left out"


_MetricName = Annotated[Metric, Field(strict=False)]
_Positive = Annotated[float, Field(gt=0)]
_Bands = dict[_MetricName, Fraction]


class CasePart(FileModel):
    """What was published of one case."""

    gpus: Count = Field(description="the rung's GPUs")
    tps: _Positive | None = Field(default=None, description=_POSITIVE)
    mfu: Annotated[float, Field(gt=0, le=100)] | None = Field(default=None, description="per cent, more than 0")
    memory_pct: Annotated[float, Field(gt=0, le=100)] | None = Field(
        default=None, description="peak reserved memory in per cent of the device's, more than 0"
    )
    tolerance: _Bands = Field(description=f"a mapping from metrics to {FRACTION}")


class ScalingPart(FileModel):
    """What was published of one pair of rungs."""

    efficiency: _Positive = Field(description="a number more than 0: tokens/s per GPU, larger rung over smaller one")
    tolerance: Fraction = Field(description=FRACTION)


class PublishedFile(FileModel):
    """What such a file may hold."""

    suite: Name = Field(description="the suite's name")
    system: Name = Field(description="the system's name")
    source: Text = Field(description="who published the values, and where")
    date: Annotated[str, iso_date(_DATE)] = Field(description=_DATE)
    cases: dict[Text, CasePart] = Field(description="a mapping from case ids to values")
    scaling: dict[Text, ScalingPart] = Field(default_factory=dict, description="a mapping from pairs to efficiencies")


@dataclass(frozen=True, slots=True)
class PublishedCase:
    """One row: tokens/s per GPU, and per cent. What was not published is None."""

    case_id: str
    gpus: int
    tps: float | None
    mfu: float | None
    memory_pct: float | None
    tolerance: Mapping[Metric, float]


@dataclass(frozen=True, slots=True)
class PublishedScaling:
    """The efficiency of one pair of rungs, and its band as a fraction."""

    pair_id: str
    efficiency: float
    tolerance: float


@dataclass(frozen=True, slots=True)
class Published:
    """Everything that was published for one suite on one system."""

    suite: str
    system: str
    source: str
    date: str
    where: str
    cases: Mapping[str, PublishedCase]
    scaling: Mapping[str, PublishedScaling]

    @property
    def told(self) -> str:
        """A note for what is judged by it."""
        return f"judged against what was published, not against a run here: {self.source} ({self.where})"

    def baseline(self, case_id: str, fingerprint: Fingerprint, device_gib: float | None) -> Baseline | None:
        """The case's values as a baseline of the run's own fingerprint; None where nothing was published of it.

        ``device_gib`` turns a share of the device's memory into GiB; without it the memory is not known.
        """
        row = self.cases.get(case_id)
        if row is None:
            return None
        memory = None if row.memory_pct is None or device_gib is None else row.memory_pct / 100 * device_gib
        values = {Metric.TPS: row.tps, Metric.MFU: row.mfu, Metric.PEAK_MEMORY: memory}
        sample = BaselineSample(self.date, PROVENANCE, {m: value for m, value in values.items() if value is not None})
        return Baseline(case_id, fingerprint, (sample,), self.where, dict(row.tolerance), self.source)


def path_of(baselines: Path, system: str, suite: str) -> Path:
    """Where a suite's published values lie."""
    return baselines / system / FOLDER / f"{suite}.yaml"


def read(path: Path) -> Published | None:
    """The file's values; None where there is no such file.

    Raises BaselineError with every fault, one line each.
    """
    if not path.exists():
        return None
    faults = Faults(parse(path, BaselineError))
    file = check_part(faults, PublishedFile, ())
    if file is not None:
        absolute = path.absolute()
        if file.suite != absolute.stem:
            faults.add(("suite",), f"{absolute.stem}, as the file is named")
        if file.system != absolute.parent.parent.name:
            faults.add(("system",), f"{absolute.parent.parent.name}, as the folder is named")
    file = finish(faults, file, BaselineError)
    cases = {
        name: PublishedCase(name, part.gpus, part.tps, part.mfu, part.memory_pct, dict(part.tolerance))
        for name, part in file.cases.items()
    }
    scaling = {name: PublishedScaling(name, part.efficiency, part.tolerance) for name, part in file.scaling.items()}
    return Published(file.suite, file.system, file.source, file.date, str(path), cases, scaling)
