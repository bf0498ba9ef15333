"""The published campaign with a SIMULATED trainer on a virtual cluster; `benchmarks/campaign.py` plays it."""
