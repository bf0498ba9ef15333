"""``scaleperf baselines``: show stored values, compare runs with them, take runs in, remove what is unused.

On a floor of its own, below the whole command line, because it needs several rooms: what was measured (``report``
reads records and JUnit files), what is stored (``baseline``) and what there is to measure (``suite``).
"""

from __future__ import annotations

from pytest_scaleperf.baselines_cli.command import baselines_app

__all__ = ["baselines_app"]
