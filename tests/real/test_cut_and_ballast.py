"""A model cut to its first layers, and memory held on purpose, in real training under both generations."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_scaleperf.model import Layout, Measure
from tests.real import harness
from tests.titan import cases

MEMORY = "memory/max_reserved(GiB)"
SHORT = Measure(steps=4, warmup=1, log_freq=1)
LAYERS = 6  # of the debug model in both


def size(ended: harness.Ended) -> int:
    """Parameters, as torchtitan counts them."""
    match = re.search(r"size: ([0-9,]+) total parameters", ended.log)
    assert match, ended.log[-3000:]
    return int(match[1].replace(",", ""))


@pytest.mark.parametrize("generation", ["0.2", "0.3"])
def test_fewer_layers_are_trained_and_the_ballast_is_reserved(generation: str, tmp_path: Path) -> None:
    case = cases.case(cases.trainer(generation), layout=Layout(1, 1), measure=SHORT)
    whole = harness.run(case, tmp_path / "whole")
    cut = harness.run(case, tmp_path / "cut", extra={"SCALEPERF_LAYERS": "2", "SCALEPERF_BALLAST_GIB": "1.5"})
    harness.check_trained(whole)
    harness.check_trained(cut)
    assert cut.says(f"SCALEPERF_LAYERS=2: the first 2 of the {LAYERS} layers of llama3")
    assert cut.says("SCALEPERF_BALLAST_GIB=1.5: this rank holds that much memory on purpose")
    layer = (size(whole) - size(cut)) / (LAYERS - 2)
    assert 0.5e6 < layer < 1.5e6, "a layer of width 256"
    last = SHORT.steps
    grown = cut.scalars()[0][MEMORY][last] - whole.scalars()[0][MEMORY][last]
    assert grown == pytest.approx(1.5, abs=0.2), "less what the missing layers took"


@pytest.mark.parametrize("generation", ["0.2", "0.3"])
@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("SCALEPERF_LAYERS", "7", "expected at most the 6 layers of llama3"),
        ("SCALEPERF_LAYERS", "two", "expected a whole number of layers, at least 1, found 'two'"),
        ("SCALEPERF_BALLAST_GIB", "-1", "expected a number of GiB from 0 upwards, found '-1'"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(generation: str, name: str, value: str, text: str, tmp_path: Path) -> None:
    case = cases.case(cases.trainer(generation), layout=Layout(1, 1), measure=SHORT)
    ended = harness.run(case, tmp_path, extra={name: value})
    assert ended.code != 0
    assert ended.says(f"[scaleperf] {name}: {text}")
    assert not re.search(r"^\[rank0\]:Traceback", ended.log, re.MULTILINE)
