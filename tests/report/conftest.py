"""Reports of built records, and the project of the plugin's tests for records that the plugin writes itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_scaleperf.report.assemble import read
from pytest_scaleperf.report.contents import Report
from tests.plugin.conftest import bare, project, recorded
from tests.report import build

__all__ = ["bare", "ladder", "ladder_dir", "project", "recorded"]


@pytest.fixture(scope="session")
def ladder_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory with a night of the published ladder, and nights before it."""
    night = build.ladder()
    slow = next(r for r in night if r["decision"] == "regression")
    best = next(r for r in night if r["gpus"] == 512)
    records = [*build.nights(13, best), *build.nights(9, slow, drift=0.005), *night]
    return build.write(tmp_path_factory.mktemp("ladder") / "run", records)


@pytest.fixture(scope="session")
def ladder(ladder_dir: Path) -> Report:
    return read([ladder_dir])[0]
