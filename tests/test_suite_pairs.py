"""Which rungs' speeds are compared: ids, families, the optimum of whole rungs, and the faults of ``scaling``."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_scaleperf.model import AXES, Suite
from pytest_scaleperf.suite import pairs
from pytest_scaleperf.suite.pairs import _SHORT
from tests.suite_texts import HEAD, RUNG, faults_of, load

PUBLISHED = """\
scaling: {tolerance: 2 %}
ladder:
  - gpus: 16
    dp_shard: 16
    activation_checkpoint: [none, selective, full]
    local_batch: [14, 18, 22]
    include:
      - {activation_checkpoint: none, local_batch: 38, expect: oom}
  - gpus: 128
    requires: {gpus: 16, same: [activation_checkpoint]}
    dp_shard: 128
    activation_checkpoint: [selective, full]
    local_batch: [18, 22]
  - gpus: 512
    requires: {gpus: 128, same: [activation_checkpoint, dp_shard, local_batch]}
    dp_shard: 128
    activation_checkpoint: selective
    local_batch: 22
"""


@pytest.fixture
def published(tmp_path: Path) -> Suite:
    return load(tmp_path, HEAD + PUBLISHED)


def test_a_rung_is_compared_with_the_one_below_and_with_the_first(published: Suite) -> None:
    found = {pair.id: (len(pair.upper), len(pair.lower), pair.gpus) for pair in pairs(published)}
    assert found == {
        "demo-16to128gpu-selective": (2, 3, 128),
        "demo-16to128gpu-full": (2, 3, 128),
        "demo-16to128gpu-optimum": (4, 9, 128),
        "demo-128to512gpu-fsdp128-selective-lbs22": (1, 1, 512),
        "demo-16to512gpu-fsdp128-selective-lbs22": (1, 3, 512),
    }


def test_what_is_expected_to_fail_has_no_speed(published: Suite) -> None:
    cases = [case for pair in pairs(published) for case in (*pair.upper, *pair.lower)]
    assert not any("lbs38" in case.id for case in cases)


def test_the_digest_follows_what_the_cases_train(tmp_path: Path, published: Suite) -> None:
    same = load(tmp_path, HEAD.replace("startup: 300", "startup: 200") + PUBLISHED)
    other = load(
        tmp_path, HEAD + PUBLISHED.replace("[18, 22]", "[18, 20]").replace("local_batch: 22", "local_batch: 20")
    )
    for before, now, changed in zip(pairs(published), pairs(same), pairs(other), strict=True):
        assert before.config == now.config
        assert before.config != changed.config


def test_a_rung_may_have_its_own_tolerance_or_be_the_only_one(tmp_path: Path) -> None:
    own = PUBLISHED.replace("  - gpus: 512\n", "  - gpus: 512\n    scaling: {tolerance: 0.05}\n")
    assert [p.tolerance for p in pairs(load(tmp_path, HEAD + own))] == [0.02, 0.02, 0.02, 0.05, 0.05]
    only = own.removeprefix("scaling: {tolerance: 2 %}\n")
    assert [p.gpus for p in pairs(load(tmp_path, HEAD + only))] == [512, 512]


def test_a_suite_that_does_not_ask_has_none(tmp_path: Path) -> None:
    assert pairs(load(tmp_path, HEAD + PUBLISHED.removeprefix("scaling: {tolerance: 2 %}\n"))) == ()


def test_a_gate_that_asks_for_nothing_is_one_family(tmp_path: Path) -> None:
    text = PUBLISHED[: PUBLISHED.index("  - gpus: 512")].replace("same: [activation_checkpoint]", "same: []")
    assert [pair.id for pair in pairs(load(tmp_path, HEAD + text))] == ["demo-16to128gpu"]


def test_every_axis_has_its_place_in_an_id() -> None:
    assert set(_SHORT) == set(AXES)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("scaling: {tolerance: 2 %}\n" + RUNG, "scaling: expected a ladder in which at least one rung has requires"),
        (RUNG + "    scaling: {tolerance: 2 %}\n", "scaling: expected a rung with requires: there is nothing below"),
        (PUBLISHED.replace("2 %", "-2 %"), "10: scaling.tolerance: expected a percentage such as 3 %"),
        (PUBLISHED.replace("tolerance: 2 %", "tolerence: 2 %"), "did you mean tolerance?"),
        (PUBLISHED.replace("scaling: {tolerance: 2 %}", "scaling: 2 %"), "expected a mapping with tolerance"),
        (
            PUBLISHED.replace("    local_batch: 22\n", "    local_batch: 22\n    scaling: {tolerance: 2 %}\n")
            + "  - gpus: 512\n    requires: {gpus: 128, same: [activation_checkpoint, dp_shard, local_batch]}\n"
            "    dp_shard: 128\n    activation_checkpoint: selective\n    local_batch: 18\n"
            "    scaling: {tolerance: 3 %}\n",
            "ladder[3].scaling: expected the same as in the other entry of 512 GPUs, 0.02",
        ),
    ],
)  # fmt: skip
def test_a_fault_of_scaling(tmp_path: Path, text: str, fault: str) -> None:
    assert any(fault in line for line in faults_of(tmp_path, HEAD + text)), faults_of(tmp_path, HEAD + text)
