"""The report as OpenMetrics text, which GitLab compares between branches as its metrics report (``metrics.txt``).

GitLab drops what follows a ``#``, splits a line as a shell would, and compares values as text; so labels hold no blank
and no ``#``, and a number is written with six significant digits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pytest_scaleperf.model import Metric
from pytest_scaleperf.report import views
from pytest_scaleperf.report.contents import Entry, Report

_UNSAFE = re.compile(r"[^A-Za-z0-9._/:+=-]")
_UNITS = {
    Metric.TPS: ("scaleperf_tps", "Tokens per second and GPU."),
    Metric.MFU: ("scaleperf_mfu_percent", "Model FLOP/s utilisation."),
    Metric.PEAK_MEMORY: ("scaleperf_peak_memory_gib", "Peak reserved memory of one GPU."),
    Metric.STEP_TIME: ("scaleperf_step_time_seconds", "Time of one step."),
}


def render(report: Report) -> str:
    """Every case's numbers, each rung's optimum, the counts of verdicts and the GPU-hours; ends with ``# EOF``."""
    return "\n".join([*_cases(report), *_rungs(report), *_scalings(report), *_totals(report), "# EOF"]) + "\n"


def _cases(report: Report) -> Iterator[str]:
    for metric in Metric:
        name, meaning = _UNITS.get(metric, (f"scaleperf_{metric}", f"{metric} in {metric.unit}."))
        values = [(case.now, case.now.value(metric)) for case in report.cases]
        yield from _family(name, meaning, [(_labels(e), v) for e, v in values if v is not None])
    shares = [(_labels(c.now), c.now.memory_pct) for c in report.cases if c.now.memory_pct is not None]
    yield from _family("scaleperf_memory_percent", "Peak reserved share of the device's memory.", shares)
    retries = [(_labels(c.now), c.now.alloc_retries) for c in report.cases if c.now.alloc_retries is not None]
    yield from _family("scaleperf_alloc_retries", "Allocation retries in the steady window.", retries)


def _rungs(report: Report) -> Iterator[str]:
    steps = [(_labels_of(system=s.system, suite=s.suite, gpus=s.gpus), s) for s in views.ladder(report)]
    best = [(labels, None if s.best is None else s.best.now.value(Metric.TPS), s) for labels, s in steps]
    yield from _family("scaleperf_best_tps", "The rung's optimum.", [(at, v) for at, v, _ in best if v is not None])
    kept = [(at, 100 * (1 + s.first)) for at, s in steps if s.first is not None]
    yield from _family("scaleperf_efficiency_percent", "The optimum's TPS, of the first rung's.", kept)


def _scalings(report: Report) -> Iterator[str]:
    told = [
        (_labels_of(system=s.system, suite=s.suite, gpus=s.gpus, pair=s.pair), s.efficiency) for s in report.scalings
    ]
    kept = [(labels, value) for labels, value in told if value is not None]
    yield from _family("scaleperf_scaling_efficiency", "TPS of the larger rung by that of the smaller.", kept)


def _totals(report: Report) -> Iterator[str]:
    counts = [(_labels_of(verdict=word.replace(", ", "-")), n) for word, n in views.summary(report)]
    yield from _family("scaleperf_cases", "Cases by verdict.", counts)
    red = sum(1 for case in report.cases if case.now.is_red)
    yield from _family("scaleperf_red_cases", "Cases that made a session red.", [("", red)])
    yield from _family("scaleperf_gpu_hours", "GPU-hours spent.", [("", report.gpu_seconds / 3600)])


def _family(name: str, meaning: str, samples: Sequence[tuple[str, float]]) -> Iterator[str]:
    if samples:
        yield f"# TYPE {name} gauge"
        yield f"# HELP {name} {meaning}"
        yield from (f"{name}{labels} {value:.6g}" for labels, value in samples)


def _labels(entry: Entry) -> str:
    return _labels_of(system=entry.system, suite=entry.suite, gpus=entry.gpus, case=entry.case_id)


def _labels_of(**labels: str | int) -> str:
    inside = ",".join(f'{name}="{_UNSAFE.sub("_", str(value))}"' for name, value in labels.items())
    return f"{{{inside}}}"
