from __future__ import annotations

from pathlib import Path

import pytest

from pytest_scaleperf.model import Search
from pytest_scaleperf.suite import digest
from pytest_scaleperf.suite.schema import FoundBatches
from tests.suite_texts import ids, ladder, ladder_faults

REFERENCE = Path(__file__).parent.parent / "docs" / "suite-files.md"
BASE = "gpus: 4, dp_shard: 4, activation_checkpoint: none"


def test_a_search_is_all_its_candidates_with_the_ids_of_any_case(tmp_path: Path) -> None:
    suite = ladder(tmp_path, f"- {{{BASE}, local_batch: {{search: {{from: 2, step: 4, to: 11}}}}}}")
    given = ladder(tmp_path, f"- {{{BASE}, local_batch: [2, 6, 10]}}")
    assert ids(suite) == ids(given)
    assert {case.search for case in suite.cases()} == {Search("demo-4gpu-fsdp4-dp1-none")}
    assert {case.search for case in given.cases()} == {None}
    assert [digest(case) for case in suite.cases()] == [digest(case) for case in given.cases()]


def test_without_an_end_there_are_sixteen(tmp_path: Path) -> None:
    suite = ladder(tmp_path, f"- {{{BASE}, local_batch: {{search: {{from: 2, step: 4}}}}}}")
    assert [case.batch.local for case in suite.cases()] == list(range(2, 63, 4))


def test_candidates_around_a_peak_are_what_may_lie_near_it(tmp_path: Path) -> None:
    """The larger rungs stand first in the file; the chain goes through both."""
    suite = ladder(
        tmp_path,
        """
        - gpus: 8
          requires: {gpus: 4, same: [activation_checkpoint]}
          dp_shard: 8
          activation_checkpoint: [none, full]
          local_batch: {around: peak, offsets: [0]}
        - gpus: 4
          requires: {gpus: 2, same: [activation_checkpoint]}
          dp_shard: 4
          activation_checkpoint: [none, full]
          local_batch: {around: peak, offsets: [4, -4]}
        - {gpus: 2, dp_shard: 2, activation_checkpoint: none, local_batch: {search: {from: 2, step: 4, to: 10}}}
        - {gpus: 2, dp_shard: 2, activation_checkpoint: full, local_batch: 20}
        """,
    )
    found: dict[tuple[int, str], list[int]] = {}
    for case in suite.cases():
        found.setdefault((case.gpus, case.activation_checkpoint.value), []).append(case.batch.local)
    assert found == {
        (2, "none"): [2, 6, 10],
        (2, "full"): [20],
        (4, "none"): [2, 6, 10, 14],
        (4, "full"): [16, 24],
        (8, "none"): [2, 6, 10, 14],
        (8, "full"): [16, 24],
    }
    offsets = {case.search.offsets for case in suite.cases() if case.search is not None and case.gpus > 2}
    assert offsets == {(-4, 4), (0,)}


def test_candidates_that_cannot_come_near_the_global_batch_are_left_out(tmp_path: Path) -> None:
    suite = ladder(tmp_path, f"- {{{BASE}, global_batch: 16, local_batch: {{search: {{from: 2, step: 4}}}}}}")
    assert [case.batch.local for case in suite.cases()] == [2, 6]


def test_an_included_case_is_not_part_of_the_search(tmp_path: Path) -> None:
    text = f"- {{{BASE}, local_batch: {{search: {{from: 2, step: 4}}}}, include: [{{local_batch: 3}}]}}"
    assert [case.id for case in ladder(tmp_path, text).cases() if case.search is None] == [
        "demo-4gpu-fsdp4-dp1-none-lbs3"
    ]


def test_families_are_told_apart_by_what_the_rung_varies(tmp_path: Path) -> None:
    grid = "local_batch: {search: {from: 1, step: 1, to: 2}}"
    text = f"- {{{BASE}, global_batch: [16, 64], sequence: [64, 128], {grid}}}"
    names = {case.search.family for case in ladder(tmp_path, text).cases() if case.search is not None}
    prefix = "demo-4gpu-fsdp4-dp1-none"
    assert names == {f"{prefix}-gbs{batch}-seq{length}" for batch in (16, 64) for length in (64, 128)}


GRID = "local_batch: {search: {from: 2, step: 4}}"
AROUND = "local_batch: {around: peak, offsets: [0]}"
BELOW = "{gpus: 2, dp_shard: 2, activation_checkpoint: none, local_batch: 2}"
FAULTS = [
    (f"[{{{BASE}, local_batch: {{search: {{from: 2}}}}}}]", "local_batch.search: expected a mapping with from, step"),
    (f"[{{{BASE}, local_batch: {{search: {{from: 2, step: 0}}}}}}]", "local_batch.search.step: expected a mapping"),
    (f"[{{{BASE}, local_batch: {{search: {{from: 2, step: 4, end: 9}}}}}}]", "expected one of the keys from, step, to"),
    (f"[{{{BASE}, local_batch: {{search: {{from: 2, step: 4, to: 5}}}}}}]", "to at least 6"),
    (f"[{{{BASE}, local_batch: {{search: {{from: 1, step: 1, to: 999}}}}}}]", "a grid of at most 256 batches"),
    (f"[{{{BASE}, local_batch: {{search: {{from: 10, step: 4, to: 2}}}}}}]", "two batches: to at least 14, not 2"),
    (
        f"[{{{BASE}, local_batch: {{around: peak}}}}]",
        "expected {search: {from: 2, step: 4}} or {around: peak, offsets:",
    ),
    (f"[{{{BASE}, local_batch: {{around: top, offsets: [0]}}}}]", "local_batch.around: expected the word peak"),
    (f"[{{{BASE}, {AROUND}}}]", "local_batch.around: expected a rung with requires"),
    (f"[{{{BASE}, {GRID}, expect: oom}}]", "expect: expected completed"),
    (f"[{{{BASE}, {GRID}, include: [{{activation_checkpoint: full}}]}}]", "expected this key: the rung's is searched"),
    (f"[{{{BASE}, global_batch: 2, {GRID}}}]", "local_batch.search.from: expected a batch within a factor of 2"),
    (
        f"[{BELOW}, {{{BASE}, {AROUND}, requires: {{gpus: 2, same: [local_batch]}}}}]",
        "requires.same[0]: expected other",
    ),
    (f"[{BELOW}, {{{BASE}, {GRID}, requires: {{gpus: 2, same: [global_batch]}}}}]", "requires.same[0]: expected other"),
    (f"[{{{BASE}, {AROUND}, requires: {{gpus: 2, same: []}}}}]", "requires.gpus: expected the GPU count of a smaller"),
    (
        f"[{{{BASE}, {GRID}}}, {{{BASE}, local_batch: {{search: {{from: 3, step: 4}}}}}}]",
        "expected each family searched once: demo-4gpu-fsdp4-dp1-none is searched in line",
    ),
]


@pytest.mark.parametrize(("text", "fault"), FAULTS)
def test_what_cannot_be_searched_is_one_fault(tmp_path: Path, text: str, fault: str) -> None:
    entries = text[1:-1].replace("}, {gpus", "}\n- {gpus")
    [line] = ladder_faults(tmp_path, f"- {entries}")
    assert fault in line


def test_a_mode_without_a_case_below_has_no_peak(tmp_path: Path) -> None:
    above = (
        f"{{{BASE.replace('none', '[none, full]')}, {AROUND}, requires: {{gpus: 2, same: [activation_checkpoint]}}}}"
    )
    [line] = ladder_faults(tmp_path, f"- {BELOW}\n- {above}")
    assert "local_batch.around: expected a case of 2 GPUs with the same activation_checkpoint" in line
    assert line.endswith("found none for fsdp4-dp1 full")


def test_the_reference_names_every_key() -> None:
    text = REFERENCE.read_text()
    assert all(f"`{key}`" in text for key in FoundBatches.model_fields)
