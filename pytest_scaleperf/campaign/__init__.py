"""One session: gate a rung, start its cases, wait, observe, judge, record, and end what still runs."""

from pytest_scaleperf.campaign.core import Campaign, CaseRun
from pytest_scaleperf.campaign.watch import Progress

__all__ = ["Campaign", "CaseRun", "Progress"]
