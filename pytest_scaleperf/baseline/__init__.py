"""Baselines are what earlier runs measured, one file for each system and suite: read them, add to them, tend them.

``schema`` is what a file may hold, ``read`` reads it, ``contents`` is the file as data that can be changed, ``record``
adds samples, ``compare`` sets measurements against stored values, ``update`` takes them in and says what changes,
``scaling`` keeps the efficiencies of larger rungs, ``trace`` what the cases' traces showed,
``lock`` keeps other sessions out meanwhile.
"""

from __future__ import annotations

from pytest_scaleperf.baseline.compare import Measured, Shift, shifts, values_of
from pytest_scaleperf.baseline.contents import Entry
from pytest_scaleperf.baseline.read import Accepted, baseline_value, read_accepted, read_baselines
from pytest_scaleperf.baseline.record import record_sample, record_samples
from pytest_scaleperf.baseline.scaling import (
    MeasuredScaling,
    ScalingBaseline,
    ScalingChange,
    ScalingSample,
    read_scaling,
    update_scaling,
)
from pytest_scaleperf.baseline.trace import TraceBaseline, TraceSample, read_traces, record_trace
from pytest_scaleperf.baseline.update import Change, Kind, prune, update

__all__ = [
    "Accepted",
    "Change",
    "Entry",
    "Kind",
    "Measured",
    "MeasuredScaling",
    "ScalingBaseline",
    "ScalingChange",
    "ScalingSample",
    "Shift",
    "TraceBaseline",
    "TraceSample",
    "baseline_value",
    "prune",
    "read_accepted",
    "read_baselines",
    "read_scaling",
    "read_traces",
    "record_sample",
    "record_samples",
    "record_trace",
    "shifts",
    "update",
    "update_scaling",
    "values_of",
]
