"""What a suite says of its rehearsals."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_scaleperf.model import Rehearse
from tests.suite_texts import HEAD, RUNG, faults_of, load


def test_without_the_key_rank_0_is_rehearsed_and_closes_gates(tmp_path: Path) -> None:
    assert load(tmp_path, HEAD + RUNG).rehearse == Rehearse(steps=5, ranks=(0,), reserve_gib=None, closes_gate=True)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("{steps: 3}", Rehearse(steps=3)),
        ("{ranks: -1}", Rehearse(ranks=(-1,))),
        ("{ranks: [0, 3], reserve_gib: 0}", Rehearse(ranks=(0, 3), reserve_gib=0.0)),
        ("{reserve_gib: 3.5, closes_gate: false}", Rehearse(reserve_gib=3.5, closes_gate=False)),
        ("{executable: true}", Rehearse(executable=True)),
    ],
)
def test_every_key(tmp_path: Path, text: str, meant: Rehearse) -> None:
    assert load(tmp_path, f"{HEAD}rehearse: {text}\n{RUNG}").rehearse == meant


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{steps: 2}", "rehearse.steps: expected a whole number of steps, at least 3, found `2`"),
        ("{ranks: [0, 0]}", "rehearse.ranks: expected different values, not 0 twice, found a list of 2 values"),
        ("{ranks: []}", "rehearse.ranks: "),
        ("{ranks: [-1, 4]}", "rehearse.ranks[1]: expected a rank that every rung has, from -4 (the first) to 3"),
        ("{reserve_gib: -1}", "rehearse.reserve_gib: expected a number of GiB, at least 0, found `-1`"),
        ("{closes_gates: true}", "rehearse.closes_gates: "),
        ("true", "rehearse: expected a mapping with steps, ranks, reserve_gib, closes_gate and executable"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_a_fault_at_its_place(tmp_path: Path, text: str, fault: str) -> None:
    [found] = faults_of(tmp_path, f"{HEAD}rehearse: {text}\n{RUNG}")
    assert found.partition(" ")[2].startswith(fault)
