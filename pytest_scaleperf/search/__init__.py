"""The OOM edge and the peak of a family over its local batch: what to try next, what need not be tried.

``words`` are answers and what is known, ``edge`` brackets the memory's end by rehearsals, ``peak`` finds the best
speed by real runs under the ``bound``, ``plan`` says of each case of a family whether it is launched.
"""

from __future__ import annotations

from pytest_scaleperf.search.edge import EdgeResult, EdgeSearch
from pytest_scaleperf.search.peak import PeakResult, PeakSearch
from pytest_scaleperf.search.plan import Ask, Fate, Kind, Mode, Peak, SearchPlan, families, find_peak
from pytest_scaleperf.search.words import Answer, Findings

__all__ = [
    "Answer",
    "Ask",
    "EdgeResult",
    "EdgeSearch",
    "Fate",
    "Findings",
    "Kind",
    "Mode",
    "Peak",
    "PeakResult",
    "PeakSearch",
    "SearchPlan",
    "families",
    "find_peak",
]
