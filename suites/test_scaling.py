"""What is lost between the rungs: tokens/s per GPU of each rung's fastest case against the smaller rungs'.

Only suites that say ``scaling`` are tested. Nothing is launched: the speeds are those of the cases.
"""

from __future__ import annotations

from pytest_scaleperf.plugin import ScalePerfScaling


def test_scaling(scaleperf_scaling: ScalePerfScaling) -> None:
    """The efficiency holds against its own baseline."""
    scaleperf_scaling.check()
