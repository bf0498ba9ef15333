"""The real traces, analysed once."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_scaleperf.trace.analyse import analyse
from pytest_scaleperf.trace.result import TraceReport

TRACES = Path(__file__).parents[1] / "data" / "traces"


@pytest.fixture(scope="session")
def fsdp() -> TraceReport:
    """Both ranks of the FSDP run, each read in a process of its own."""
    return analyse([TRACES / f"trfsdp-rank{rank}.json.gz" for rank in (0, 1)], processes=2)


@pytest.fixture(scope="session")
def ddp() -> TraceReport:
    """Rank 0 of the DDP run."""
    return analyse([TRACES / "trddp-rank0.json.gz"])
