"""Golden files: the exact text that a report becomes. SCALEPERF_WRITE_GOLDEN=1 writes them anew, for the diff."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "golden" / "report"


def compare(name: str, text: str) -> None:
    path = FOLDER / name
    if os.environ.get("SCALEPERF_WRITE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
