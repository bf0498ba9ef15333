"""What a baseline file may hold, key by key; each ``description`` is the accepted form in words."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from pytest_scaleperf.model import Metric
from pytest_scaleperf.yamlfile.schema import FRACTION, Count, FileModel, Fraction, Name, NullableModel, Text, iso_date

POSITIVE = "a finite number more than 0; a metric that was not measured is left out"
_METRICS = ", ".join(Metric)
_DATE = "a date such as 2026-11-30"


_MetricName = Annotated[Metric, Field(strict=False)]
_Positive = Annotated[float, Field(gt=0)]
_Share = Annotated[float, Field(ge=0, le=100)]
_Whole = Annotated[int, Field(ge=0)]


class FingerprintPart(NullableModel):
    """What the cases of one or more sessions share; null: there is no such thing on that machine."""

    device: Text = Field(description="the device's name")
    driver: Text | None = Field(description="a version as text, or null")
    torch: Text | None = Field(description="a version as text, or null")
    nccl: Text | None = Field(description="a version as text, or null")
    torchtitan: Text | None = Field(description="a version as text, or null")
    torchtitan_commit: Text | None = Field(description="a commit as text, or null")
    peak_flops: _Positive | None = Field(description="a number of FLOP/s, or null where it is measured in the run")


class SamplePart(FileModel):
    """What one launch measured; a field for each metric."""

    date: Annotated[str, iso_date(_DATE)] = Field(description=_DATE)
    session: Text = Field(description="the session's name")
    sample: Count = Field(default=1, description="which launch of its session this is, counted from 1")
    tps: _Positive | None = Field(default=None, description=POSITIVE)
    mfu: _Positive | None = Field(default=None, description=POSITIVE)
    peak_memory: _Positive | None = Field(default=None, description=POSITIVE)
    step_time: _Positive | None = Field(default=None, description=POSITIVE)

    def values(self) -> dict[Metric, float]:
        """The metrics that were measured."""
        found = ((metric, getattr(self, metric.value)) for metric in Metric)
        return {metric: value for metric, value in found if value is not None}


class ReplacedPart(FileModel):
    """What stood here before: of another fingerprint, or worse than what was measured then."""

    date: Annotated[str, iso_date(_DATE)] = Field(description=_DATE)
    values: dict[_MetricName, _Positive] = Field(description=f"a mapping from {_METRICS} to numbers")
    differences: dict[str, list[Any]] = Field(
        default_factory=dict, description="a mapping from fingerprint fields to [old, new]"
    )


class AcceptedPart(ReplacedPart):
    """What stood here before a worse value was accepted, and why it was."""

    session: Text = Field(description="the session whose values were accepted")
    why: Text = Field(description="text")


class TraceSamplePart(FileModel):
    """What one traced run showed."""

    date: Annotated[str, iso_date(_DATE)] = Field(description=_DATE)
    session: Text = Field(description="the session's name")
    shares: dict[Text, _Share] = Field(description="a mapping from names to per cent of the step, 0 to 100")


class TracePart(FileModel):
    """A case's trace: what is compared within a band, and what must be equal."""

    fingerprint: Text = Field(description="the name of one of the fingerprints")
    config: Text = Field(description="the digest of the case and of how it is traced, as text")
    samples: list[TraceSamplePart] = Field(min_length=1, description="a list of samples, at least one")
    counts: dict[Text, _Whole] = Field(description="a mapping from names to whole numbers per step")
    tolerance: Fraction | None = Field(default=None, description=FRACTION)
    why: Text = Field(default="", description="text")


class CasePart(FileModel):
    """One case's entry."""

    fingerprint: Text = Field(description="the name of one of the fingerprints")
    config: Text = Field(description="the digest of the case's configuration, as text")
    samples: list[SamplePart] = Field(min_length=1, description="a list of samples, at least one")
    tolerance: dict[_MetricName, Fraction] = Field(
        default_factory=dict, description=f"a mapping from {_METRICS} to {FRACTION}"
    )
    why: Text = Field(default="", description="text")
    replaced: ReplacedPart | None = Field(default=None, description="a mapping with date, values and differences")
    best: dict[_MetricName, _Positive] = Field(
        default_factory=dict, description=f"a mapping from {_METRICS} to numbers"
    )
    accepted: list[AcceptedPart] = Field(
        default_factory=list, description="a list of mappings with date, session, values and why"
    )
    trace: TracePart | None = Field(default=None, description="a mapping with fingerprint, config, samples and counts")


class ScalingSamplePart(FileModel):
    """One session's efficiency, and of which two cases."""

    date: Annotated[str, iso_date(_DATE)] = Field(description=_DATE)
    session: Text = Field(description="the session's name")
    efficiency: _Positive = Field(description="a number more than 0: tokens/s per GPU, larger rung over smaller one")
    upper: Text = Field(description="the case of the larger rung")
    lower: Text = Field(description="the case of the smaller rung")


class AcceptedScalingPart(FileModel):
    """What stood here before a worse efficiency was accepted, and why it was."""

    date: Annotated[str, iso_date(_DATE)] = Field(description=_DATE)
    session: Text = Field(description="the session whose efficiency was accepted")
    efficiency: _Positive = Field(description="a number more than 0")
    why: Text = Field(description="text")


class ScalingPart(FileModel):
    """One pair of rungs."""

    fingerprint: Text = Field(description="the name of one of the fingerprints")
    config: Text = Field(description="the digest of the configurations of all cases of the pair, as text")
    samples: list[ScalingSamplePart] = Field(min_length=1, description="a list of samples, at least one")
    best: _Positive | None = Field(default=None, description="a number more than 0")
    accepted: list[AcceptedScalingPart] = Field(
        default_factory=list, description="a list of mappings with date, session, efficiency and why"
    )
    tolerance: Fraction | None = Field(default=None, description=FRACTION)
    why: Text = Field(default="", description="text")


class BaselineFile(FileModel):
    """What a baseline file may hold."""

    suite: Name = Field(description="the suite's name")
    system: Name = Field(description="the system's name")
    fingerprints: dict[Text, FingerprintPart] = Field(description="a mapping from names to fingerprints")
    cases: dict[Text, CasePart] = Field(description="a mapping from case ids to entries")
    scaling: dict[Text, ScalingPart] = Field(
        default_factory=dict, description="a mapping from pairs of rungs to entries"
    )
