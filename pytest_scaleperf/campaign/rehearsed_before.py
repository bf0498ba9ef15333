"""Looking up what a case's earlier rehearsals said; nothing is rehearsed here."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from pytest_scaleperf import records
from pytest_scaleperf.model import Fingerprint, Settings
from pytest_scaleperf.rehearsed import Rehearsal, from_record

_CLOCK_SKEW = 300.0


def rehearsals(run_dir: Path, case_id: str) -> Iterator[Rehearsal]:
    """Every readable rehearsal of a case, newest first."""
    for where, record in records.rehearsals(run_dir, case_id):
        found = from_record(record, where)
        if found is not None:
            yield found


def fresh(settings: Settings, case_id: str, fingerprint: Fingerprint) -> Rehearsal | None:
    """The newest rehearsal of a case that knows something of it, of an equal fingerprint and not too old, or None."""
    now = time.time()
    for found in rehearsals(settings.run_dir, case_id):
        in_time = now - settings.evidence_max_age <= found.finished <= now + _CLOCK_SKEW
        if in_time and found.fit.is_known and found.fingerprint == fingerprint:
            return found
    return None
