"""One session: gate a rung, start its cases, wait, observe, judge, record, and end what still runs."""

from pytest_scaleperf.campaign.core import Campaign, CaseRun

__all__ = ["Campaign", "CaseRun"]
