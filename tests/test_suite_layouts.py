from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_scaleperf.model import (
    ActivationCheckpoint,
)
from pytest_scaleperf.suite import digest
from pytest_scaleperf.suite.layouts import MAX_BATCH_FACTOR, is_far, make_batch, make_layouts
from pytest_scaleperf.yamlfile import dump
from tests.suite_texts import load

# Layouts and batches


DEGREES = st.lists(st.sampled_from([1, 2, 3, 4, 6, 8, 16]), min_size=1, max_size=4, unique=True)


@settings(deadline=None)
@given(
    gpus=st.sampled_from([1, 2, 4, 6, 8, 16, 24, 48, 64]),
    degrees=st.fixed_dictionaries(
        {"dp_shard": DEGREES}, optional=dict.fromkeys(("dp_replicate", "tp", "cp", "pp", "ep"), DEGREES)
    ),
)
def test_every_layout_multiplies_to_its_gpu_count(gpus: int, degrees: dict[str, list[int]]) -> None:
    layouts = make_layouts(gpus, degrees)
    assert len(set(layouts)) == len(layouts)
    for layout in layouts:
        assert layout.dp_shard * layout.dp_replicate * layout.tp * layout.cp * layout.pp == gpus
        assert layout.dp_shard * layout.cp * layout.tp % layout.ep == 0
        assert all(getattr(layout, axis) in values for axis, values in degrees.items())


def test_no_layout_is_missed() -> None:
    every = [1, 2, 3, 4, 6, 12]
    found = make_layouts(12, dict.fromkeys(("dp_shard", "dp_replicate", "tp", "cp", "pp"), every))
    # 12 = 2^2 x 3: the twos go to five places in C(6, 4) = 15 ways, the three in 5.
    assert len(found) == 15 * 5


@given(
    local=st.integers(1, 64),
    ranks=st.integers(1, 1024),
    target=st.none() | st.integers(1, 100_000),
    sequence=st.integers(1, 1 << 20),
)
def test_a_batch_adds_up_and_is_the_closest(local: int, ranks: int, target: int | None, sequence: int) -> None:
    batch = make_batch(local, ranks, target, sequence)
    assert batch.global_ == batch.local * ranks * batch.accumulation
    assert (batch.local, batch.sequence, batch.target) == (local, sequence, target)
    assert batch.accumulation >= 1
    if target is None:
        assert batch.accumulation == 1
        return
    unit = local * ranks
    others = [unit * accumulation for accumulation in range(1, target // unit + 3)]
    distance = abs(batch.global_ - target)
    assert distance == min(abs(other - target) for other in others)
    assert batch.global_ == max(other for other in others if abs(other - target) == distance)
    assert is_far(batch) == (unit > MAX_BATCH_FACTOR * target)


@st.composite
def suites(draw: st.DrawFn) -> dict[str, Any]:
    gpus = draw(st.sampled_from([2, 4, 8, 16]))
    divisors = [n for n in (1, 2, 4, 8, 16) if gpus % n == 0]
    modes = [m.value for m in ActivationCheckpoint]
    entry: dict[str, Any] = {
        "gpus": gpus,
        "dp_shard": draw(st.lists(st.sampled_from(divisors), min_size=1, unique=True)),
        "activation_checkpoint": draw(st.lists(st.sampled_from(modes), min_size=1, unique=True)),
        "local_batch": draw(st.lists(st.integers(1, 40), min_size=1, max_size=5, unique=True)),
    }
    if draw(st.booleans()):
        entry["global_batch"] = draw(st.integers(1000, 5000))
    if draw(st.booleans()):
        entry["sequence"] = draw(st.lists(st.sampled_from([1024, 4096, 8192]), min_size=1, unique=True))
    return {
        "name": "drawn",
        "system": "cpu",
        "trainer": {"dialect": "0.3", "module": "llama3", "config": "llama3_debugmodel"},
        "measure": {"steps": 30, "warmup": 10, "log_freq": 5},
        "limits": {"startup": 300, "no_progress": 120, "total": 1800},
        "sequence": 4096,
        "ladder": [entry],
    }


@settings(deadline=None)
@given(suites())
def test_cases_of_any_suite_are_whole_and_distinct(
    tmp_path_factory: pytest.TempPathFactory, data: dict[str, Any]
) -> None:
    suite = load(tmp_path_factory.getbasetemp(), dump(data))
    [entry] = data["ladder"]
    cases = suite.cases()
    sequences = entry.get("sequence", [4096])
    axes = (entry["dp_shard"], entry["activation_checkpoint"], entry["local_batch"], sequences)
    combinations = 1
    for values in axes:
        combinations *= len(values)
    assert len(cases) == combinations
    for case in cases:
        assert case.layout.world_size == case.gpus == entry["gpus"]
        assert case.batch.global_ == case.batch.local * case.layout.data_parallel * case.batch.accumulation
        assert re.fullmatch(r"[a-z0-9.-]+", case.id)
        assert case.axis("local_batch") in entry["local_batch"]
    assert len({case.id for case in cases}) == len({digest(case) for case in cases}) == len(cases)
