from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_scaleperf.model import Outcome
from pytest_scaleperf.search import Answer, EdgeSearch, Findings
from tests.search.curves import KINDS, ROOM, Curve, drive, recorded, simulated

OOM = Answer(Outcome.OOM)
GRID = tuple(range(2, 66, 4))


def fits(memory: float | None = None, *, saturated: bool = False) -> Answer:
    return Answer(Outcome.COMPLETED, memory, saturated=saturated)


def search(answers: dict[int, Answer], room: float | None = None, width: int = 1) -> tuple[EdgeSearch, list[int]]:
    """Rehearse until the search is done; the batches in the order in which they were asked for."""
    edge, asked = EdgeSearch(Findings(tuple(answers), room)), list[int]()
    while batches := edge.wanted(width):
        assert not set(batches) & set(asked)
        asked += batches
        edge.findings.rehearsed.update({batch: answers[batch] for batch in batches})
    return edge, asked


def straight(edge: int, room: float = 100.0) -> dict[int, Answer]:
    """Memory on a line that meets ``room`` between ``edge`` and the next batch."""
    each = (room - 30) / (edge + 2)
    return {batch: fits(30 + each * batch) if batch <= edge else OOM for batch in GRID}


@pytest.mark.parametrize("edge", GRID[2:-3])
def test_a_straight_line_takes_seven_rehearsals_of_sixteen_at_most(edge: int) -> None:
    found, asked = search(straight(edge), room=100.0)
    result = found.result()
    assert (result.edge, result.clean, result.beyond, result.at_end) == (edge, edge, (), False)
    assert len(asked) <= 7
    assert {edge - 4, edge, edge + 4, edge + 8} <= set(asked)  # both neighbours, and one more beyond
    assert set(result.tried) | set(result.not_tried) == set(GRID)


@pytest.mark.parametrize("edge", GRID[:-1])
def test_without_knowing_the_memory_it_is_bisected(edge: int) -> None:
    found, asked = search({batch: fits() if batch <= edge else OOM for batch in GRID})
    assert found.result().edge == edge
    assert len(asked) <= 9


def test_a_grid_that_ends_before_memory_does_says_so() -> None:
    found, asked = search({batch: fits(20 + batch / 2) for batch in GRID}, room=100.0)
    assert asked == [2, 18, 62]
    assert found.result().at_end
    assert found.result().sentence() == "fits to the end of the grid, 62; tried 2, 18, 62"


def test_nothing_fits() -> None:
    found, asked = search(dict.fromkeys(GRID, OOM), room=100.0)
    assert asked == [2, 6]
    assert (found.result().edge, found.result().sentence()) == (None, "nothing fits, tried 2, 6")


def test_a_fit_beyond_the_edge_is_found_and_reported() -> None:
    answers = straight(30)
    answers[38] = fits(99.0)
    found, asked = search(answers, room=100.0)
    result = found.result()
    assert (result.edge, result.beyond) == (30, (38,))
    assert {42, 46} <= set(asked)  # and what lies beyond that one
    assert "memory is not monotonic: 38 beyond it fits too" in result.sentence()


def test_a_hole_below_the_edge_moves_it_down() -> None:
    answers = straight(30)
    answers[26] = OOM
    result = search(answers, room=100.0)[0].result()
    assert (result.edge, result.beyond) == (22, (30,))


def test_retries_are_followed_down_to_where_there_are_none() -> None:
    answers = straight(30) | {batch: fits(99.4, saturated=True) for batch in (22, 26, 30)}
    result = search(answers, room=100.0)[0].result()
    assert (result.edge, result.clean) == (30, 18)
    assert "OOM edge 30, allocation retries above 18" in result.sentence()


def test_a_batch_that_says_nothing_of_memory_is_passed_over() -> None:
    hang = Answer(Outcome.HANG)
    result = search(straight(30) | {34: hang}, room=100.0)[0].result()
    assert (result.edge, result.unusable) == (30, (34,))


def test_a_first_answer_high_in_the_grid_is_not_asked_for_again() -> None:
    """It went round in a circle here: the first two said nothing, and the third was a quarter up the rest."""
    answers = {2 + 4 * place: fits(30 + place) for place in range(12)} | dict.fromkeys((2, 6), Answer(Outcome.HANG))
    edge = EdgeSearch(Findings(tuple(answers), None, rehearsed={2: answers[2], 6: answers[6], 18: answers[18]}))
    assert edge.wanted() == (22,)


def test_three_rehearsals_that_say_nothing_end_it() -> None:
    found, asked = search(dict.fromkeys(GRID, Answer(Outcome.CONFIG_ERROR)), room=100.0)
    assert len(asked) == 3
    assert not found.findings.rehearsable


def test_the_recorded_edge_of_the_whole_model_on_one_gpu() -> None:
    selective = next(family for family in recorded("30B-A3B", 16) if family.name == "selective")
    found, asked = search({batch: selective.rehearse(batch) for batch in (2, 6, 10)}, room=139.8)
    assert (found.result().edge, found.result().clean) == (6, 2)
    assert asked == [2, 6, 10]


@pytest.mark.parametrize("kind", KINDS)
def test_simulated_edges(kind: str) -> None:
    """The edge is where every batch up to it fits, or where a hole was not seen: then one that fits is named."""
    for seed in range(40):
        curve = simulated(kind, seed)
        result = drive(curve).edge
        assert result is not None
        fit = [batch for batch in curve.grid if curve.memory[batch] <= 1.06 * ROOM]
        first_out = next((b for b in curve.grid if b not in fit), curve.grid[-1] + 1)
        if kind != "oscillating":
            assert result.edge == max(fit)
        assert result.edge in fit
        assert result.edge >= max(b for b in curve.grid if b < first_out)
        assert set(result.beyond) <= set(fit)


def test_a_real_run_without_memory_moves_the_edge_down() -> None:
    edge, _ = search(straight(30), room=100.0)
    edge.findings.real[26] = OOM
    assert (edge.findings.edge, edge.findings.first_out) == (18, 26)
    assert edge.wanted() == (22,)  # not rehearsed so far: it was not near the edge
    edge.findings.rehearsed[22] = fits(90.0)
    assert (edge.findings.edge, edge.done) == (22, True)
    edge.findings.real[30] = fits(97.0)  # it does fit there, for real
    assert edge.findings.islands == (30,)


@given(
    fit=st.lists(st.sampled_from(["fits", "retries", "out", "hang"]), min_size=1, max_size=16),
    room=st.sampled_from([None, 100.0]),
    width=st.integers(1, 4),
    noise=st.lists(st.floats(-8, 8), min_size=16, max_size=16),
)
def test_any_answers_come_to_an_end_and_are_told_right(
    fit: list[str], room: float | None, width: int, noise: list[float]
) -> None:
    kinds = {"out": OOM, "hang": Answer(Outcome.HANG)}
    answers = {
        2 + 4 * place: kinds.get(kind) or fits(30 + 5 * place + noise[place], saturated=kind == "retries")
        for place, kind in enumerate(fit)
    }
    edge, asked = search(answers, room, width)
    result = edge.result()
    assert set(result.tried) | set(result.unusable) == set(asked) or not edge.findings.rehearsable
    if result.edge is not None:
        assert answers[result.edge].fits
        assert all(answers[batch].fits is not False for batch in asked if batch < result.edge)
        assert all(not answers[b].fits or b in result.beyond for b in asked if b > result.edge)
        following = [b for b in answers if b > result.edge]
        assert not following or following[0] in asked


@given(seed=st.integers(0, 300), kind=st.sampled_from(KINDS), width=st.integers(1, 4))
def test_only_the_answers_count_and_not_their_order(seed: int, kind: str, width: int) -> None:
    """A resumed session tells them in another order, and goes on where the first one was."""
    curve: Curve = simulated(kind, seed)
    first = Findings(curve.grid, curve.room)
    for _ in range(3):
        first.rehearsed.update({batch: curve.rehearse(batch) for batch in EdgeSearch(first).wanted(width)})
    again = Findings(curve.grid, curve.room, rehearsed=dict(reversed(first.rehearsed.items())))
    assert EdgeSearch(again).wanted(width) == EdgeSearch(first).wanted(width)


def test_what_is_pending_is_not_asked_for_again() -> None:
    edge = EdgeSearch(Findings(GRID, 100.0))
    first = edge.wanted()
    second = edge.wanted(3, first)
    assert first == (2,)
    assert len(second) == 3
    assert not set(first) & set(second)


def test_an_edge_that_is_not_bracketed_by_neighbours_is_said_as_a_gap() -> None:
    """A search by real runs may end with batches between the last that fitted and the first that did not."""
    found = EdgeSearch(Findings((2, 6, 10, 14, 18), real={2: fits(20), 6: fits(30), 18: OOM})).result()
    assert (found.edge, found.place) == (6, "between 6 and 18")
    assert found.sentence() == "OOM edge between 6 and 18; tried 2, 6, 18"
    below = EdgeSearch(Findings((2, 6, 10), real={10: OOM})).result()
    assert (below.place, below.sentence()) == ("below 10", "OOM edge below 10; tried 10")
    fitted = EdgeSearch(Findings((2, 6, 10), real={2: fits(20), 6: fits(30)})).result()
    assert fitted.sentence() == "fits up to 6, and nothing is known beyond; tried 2, 6"
