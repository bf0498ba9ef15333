"""Every configuration of every suite file in this folder, against its stored baseline.

The YAML files hold the matrix; this test is yours to extend: ``scaleperf.run`` has what was measured.
"""

from __future__ import annotations

from pytest_scaleperf.plugin import ScalePerf


def test_throughput(scaleperf: ScalePerf) -> None:
    """TPS, MFU and peak reserved memory hold, as far as the system judges them."""
    scaleperf.check()
