"""Small traces recorded on two H200 for what nobody publishes: annotations, a CUDA graph, symmetric memory, pairs."""

from __future__ import annotations

import pytest

from pytest_scaleperf.trace.analyse import analyse
from pytest_scaleperf.trace.gather import read_trace
from pytest_scaleperf.trace.measures import counts
from pytest_scaleperf.trace.result import CollectiveReport, TraceReport
from pytest_scaleperf.trace.rules import Phase, Rules
from tests.trace.conftest import TRACES


def by_op(report: TraceReport) -> dict[str, CollectiveReport]:
    return {each.op: each for each in report.collectives}


def test_annotations_and_launches_agree() -> None:
    """The same trace, its phases told by either: no kernel of weight changes sides."""
    path = TRACES / "ann-rank0.json.gz"
    (annotated,) = analyse([path]).ranks
    (launched,) = analyse([path], Rules(forward=(), backward=(), optimizer=())).ranks
    assert (annotated.phases_from, launched.phases_from) == ("annotations", "launches")
    for one, other in zip(annotated.steps, launched.steps, strict=True):
        assert one.backwards == other.backwards == 2
        for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.LAST_BACKWARD, Phase.OPTIMIZER):
            parts = one.phase(phase), other.phase(phase)
            assert parts[0] is not None
            assert parts[1] is not None
            assert parts[0].split.compute == pytest.approx(parts[1].split.compute, rel=0.01)
        assert one.split == other.split


def test_a_cuda_graph_is_per_step_and_says_so() -> None:
    """196 kernels, 24 all_reduces among them, share one launch and have no description."""
    report = analyse([TRACES / "graph-rank0.json.gz"])
    (rank,) = report.ranks
    assert report.phases == ()
    assert any("CUDA graphs launch" in note and "per step only" in note for note in rank.notes)
    assert [(step.number, step.whole) for step in rank.steps] == [(3, True), (4, True), (5, False)]
    assert all(len(step.calls) == 24 for step in rank.steps)
    found = by_op(report)["all_reduce"]
    assert (found.counts, found.bytes, found.bandwidth) == ((24,), (), None)
    assert "only 0% of its calls say their sizes" in found.marks


def test_symmetric_memory_communicates() -> None:
    """One- and two-shot kernels, and a copy-engine all_gather: two barriers and a peer copy that are one call."""
    report = analyse([TRACES / f"symm-rank{rank}.json.gz" for rank in (0, 1)])
    found = by_op(report)
    assert counts(report)["calls all_reduce [default_pg x 2]"] == 2
    assert counts(report)["bytes all_reduce [default_pg x 2]"] == (65_536 + 4_194_304) * 2
    assert found["all_gather"].counts == (1,)
    for rank in report.ranks:
        for step in rank.measured:
            labels = {(row.kind, row.label) for row in step.rows if row.count}
            assert ("communication", "all_gather") in labels
            assert ("copy", "memcpy ptop") not in labels
            assert {row.label for row in step.rows if row.kind == "compute"} == {"gemm"}


def test_a_peer_copy_lies_on_its_stream() -> None:
    """It does not say its device as kernels do."""
    assert read_trace(TRACES / "symm-rank0.json.gz").lanes == ("7", "21")


def test_pairs_and_all_to_all() -> None:
    """A batch of sends and receives is one kernel that nobody describes: it does not spoil the others' figures."""
    report = analyse([TRACES / f"p2p-rank{rank}.json.gz" for rank in (0, 1)])
    found = by_op(report)
    assert set(found) == {"all_to_all", "send_recv", "send", "recv", "broadcast", "all_gather"}
    assert (found["send"].counts, found["recv"].counts) == ((0, 1), (0, 1))
    assert found["all_to_all"].marks == found["broadcast"].marks == ()
    assert found["all_to_all"].bytes == (16_777_216 * 2,)
    assert found["send_recv"].bandwidth is None
    assert "only 0% of its calls say their sizes" in found["send_recv"].marks
    assert 200 < (found["broadcast"].bandwidth or 0) < 400
