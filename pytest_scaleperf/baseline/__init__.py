"""Baselines are what earlier runs measured, one file for each system and suite: read them, and add to them."""

from __future__ import annotations

from pytest_scaleperf.baseline.contents import Entry
from pytest_scaleperf.baseline.read import baseline_value, read_baselines
from pytest_scaleperf.baseline.record import record_sample, record_samples

__all__ = ["Entry", "baseline_value", "read_baselines", "record_sample", "record_samples"]
