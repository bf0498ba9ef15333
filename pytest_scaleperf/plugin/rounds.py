"""A case's training steps as rounds of pytest-benchmark, for its files, comparisons and histograms.

Its own regression check is never the verdict: it fails outside the test, so JUnit would show no failure.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_scaleperf.model import Verdict

_STORING = ("benchmark_json", "benchmark_save", "benchmark_autosave", "benchmark_compare", "benchmark_histogram")


class StepClock:
    """A timer that advances by measured step times instead of time."""

    def __init__(self, step_times: Sequence[float]) -> None:
        self._left = list(reversed(step_times))
        self._now = 0.0

    def __call__(self) -> float:
        """Seconds since the first round."""
        return self._now

    def step(self) -> None:
        """Let the next measured step pass."""
        if self._left:
            self._now += self._left.pop()


def store(request: pytest.FixtureRequest, step_times: Sequence[float], verdict: Verdict) -> None:
    """Hand the steps to pytest-benchmark where the user asked it to keep something; seconds per step."""
    config = request.config
    wanted = any(config.getoption(name, None) for name in _STORING)
    if not step_times or not wanted or not config.pluginmanager.hasplugin("benchmark"):
        return
    clock = StepClock(step_times)
    request.node.add_marker(pytest.mark.benchmark(timer=clock))
    benchmark = request.getfixturevalue("benchmark")
    benchmark.pedantic(clock.step, rounds=len(step_times), iterations=1)
    benchmark.extra_info["verdict"] = str(verdict.decision)
    for metric in verdict.metrics:
        if metric.value is not None:
            benchmark.extra_info[str(metric.metric)] = metric.value
