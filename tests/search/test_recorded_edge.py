"""The edge of the whole 30B-A3B at world size 16, as far as recorded rehearsals of one H200 tell it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_scaleperf.model import ActivationCheckpoint
from pytest_scaleperf.rehearsed import Fit, from_record
from tests.search.recorded_edge import EXAMPLE, Searched, outcome, searches, write


@pytest.fixture(scope="module")
def found() -> dict[ActivationCheckpoint, Searched]:
    return {each.mode: each for each in searches()}


def test_selective_is_bracketed_by_neighbours(found: dict[ActivationCheckpoint, Searched]) -> None:
    selective = found[ActivationCheckpoint.SELECTIVE]
    assert (selective.result.edge, selective.result.clean, selective.result.at_end) == (6, 2, False)
    said = {batch: rehearsal.fit for batch, rehearsal in selective.asked if rehearsal is not None}
    assert said == {2: Fit.FITS, 6: Fit.SATURATED, 10: Fit.DOES_NOT_FIT}


def test_of_full_only_the_fit_is_known_and_the_edge_is_not(found: dict[ActivationCheckpoint, Searched]) -> None:
    full = found[ActivationCheckpoint.FULL]
    assert (full.result.edge, full.result.at_end, full.line_ends) == (18, True, 33)
    assert [batch for batch, said in full.asked if said is None] == [2, 6, 14, 26, 22]


def test_the_peaks_are_those_of_the_logs(found: dict[ActivationCheckpoint, Searched]) -> None:
    peaks = {
        (mode, batch): rehearsal.ranks[0].peak_gib
        for mode, each in found.items()
        for batch, rehearsal in each.asked
        if rehearsal is not None and rehearsal.ranks[0].peak_gib is not None
    }
    selective, full = ActivationCheckpoint.SELECTIVE, ActivationCheckpoint.FULL
    printed = {(selective, 2): 72.83, (selective, 6): 138.97, (full, 10): 63.87, (full, 18): 88.68}
    assert peaks == {key: pytest.approx(value, abs=0.005) for key, value in printed.items()}


def test_what_is_committed_is_what_comes_out(found: dict[ActivationCheckpoint, Searched], tmp_path: Path) -> None:
    assert json.loads((EXAMPLE / "search.json").read_text()) == outcome(list(found.values()))
    write(tmp_path)
    made = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*.json")}
    assert made == {path: (EXAMPLE / path).read_text() for path in made}
    rehearsals = [path for path in made if "rehearsals" in path.parts]
    assert len(rehearsals) == 5
    assert all(from_record(json.loads(made[path]), str(path)) is not None for path in rehearsals)
