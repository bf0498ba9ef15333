from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_scaleperf.model import Case, Outcome, Suite
from pytest_scaleperf.search import Answer, Ask, Fate, Kind, Mode, Peak, SearchPlan, families, find_peak
from pytest_scaleperf.suite import Ladder
from tests.search.curves import KINDS, Curve, simulated
from tests.suite_texts import ladder

OOM = Answer(Outcome.OOM)
FAMILY = "demo-16gpu-fsdp16-dp1-selective"
RUNGS = """
- gpus: 16
  dp_shard: [8, 16]
  activation_checkpoint: [selective, full]
  local_batch: {search: {from: 2, step: 4}}
- gpus: 128
  requires: {gpus: 16, same: [activation_checkpoint]}
  dp_shard: 128
  activation_checkpoint: [selective, full]
  local_batch: {around: peak, offsets: [0, 4, 8]}
"""


@functools.cache
def demo() -> Suite:
    with tempfile.TemporaryDirectory() as folder:
        return ladder(Path(folder), RUNGS)


@pytest.fixture
def suite() -> Suite:
    return demo()


@pytest.fixture
def family(suite: Suite) -> tuple[Case, ...]:
    return families(suite.cases())[FAMILY]


@pytest.fixture
def above(suite: Suite) -> tuple[Case, ...]:
    return families(suite.cases())["demo-128gpu-fsdp128-dp1-selective"]


class Machine:
    """Answers as a curve has them, in the order in which a session of tests asks."""

    def __init__(self, plan: SearchPlan, cases: tuple[Case, ...], curve: Curve) -> None:
        self.plan, self.cases, self.curve = plan, cases, curve
        self.asked: list[tuple[int, Kind]] = []
        self.fates: dict[int, Fate] = {}
        # The curve's grid may have other batches than the cases: the place counts.
        self.batch = dict(zip([case.batch.local for case in cases], curve.grid, strict=False))

    def start(self, ask: Ask) -> None:
        batch = ask.case.batch.local
        assert (batch, ask.kind) not in self.asked
        assert batch not in self.fates or self.fates[batch].launch
        self.asked.append((batch, ask.kind))
        place = self.batch[batch]
        self.plan.tell(ask, self.curve.rehearse(place) if ask.kind is Kind.REHEARSAL else self.curve.run(place))

    def session(self) -> None:
        """Test after test: until a case is decided, what the search wants is launched ahead."""
        for case in self.cases:
            while (fate := self.plan.fate(case)) is None:
                asks = self.plan.wanted()
                assert asks, f"{case.id} is not decided, and nothing would decide it"
                self.start(asks[0])
            self.fates[case.batch.local] = fate
            if fate.launch and (case.batch.local, Kind.RUN) not in self.asked:
                self.start(Ask(case, Kind.RUN))

    @property
    def runs(self) -> list[int]:
        return [batch for batch, kind in self.asked if kind is Kind.RUN]


def test_families_differ_in_the_batch_alone(suite: Suite) -> None:
    found = families(suite.cases())
    assert {name: len(cases) for name, cases in found.items()} == {
        "demo-16gpu-fsdp8-dp2-selective": 16,
        "demo-16gpu-fsdp8-dp2-full": 16,
        FAMILY: 16,
        "demo-16gpu-fsdp16-dp1-full": 16,
        "demo-128gpu-fsdp128-dp1-selective": 18,
        "demo-128gpu-fsdp128-dp1-full": 18,
    }
    assert [case.batch.local for case in found[FAMILY]] == list(range(2, 63, 4))


def test_cases_of_two_families_are_no_plan(suite: Suite) -> None:
    with pytest.raises(ValueError, match="expected the candidates of one family"):
        SearchPlan(suite.cases())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rehearse", [True, False])
def test_a_session_launches_what_the_search_wants_and_skips_the_rest(
    family: tuple[Case, ...],
    kind: str,
    rehearse: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    for seed in range(12):
        curve = simulated(kind, seed)
        plan = SearchPlan(family, room=curve.room, rehearse=rehearse)
        machine = Machine(plan, family, curve)
        machine.session()
        assert plan.finished
        assert plan.wanted() == ()
        launched = [batch for batch, fate in machine.fates.items() if fate.launch]
        assert sorted(machine.runs) == launched
        assert all(fate.reason for fate in machine.fates.values())
        assert rehearse or all(kind is Kind.RUN for _, kind in machine.asked)


def test_what_is_skipped_says_why(family: tuple[Case, ...]) -> None:
    curve = simulated("rising", 6)
    plan = SearchPlan(family, room=curve.room)
    machine = Machine(plan, family, curve)
    machine.session()
    peak, edge = plan.result(), plan.edge()
    assert edge.edge is not None
    assert peak.best is not None
    reasons = {batch: fate.reason for batch, fate in machine.fates.items() if not fate.launch}
    beyond = [batch for batch in reasons if batch > edge.edge]
    assert beyond
    for batch in beyond:
        assert reasons[batch].startswith(f"beyond the OOM edge {edge.edge} of {FAMILY} (")
        assert reasons[batch].endswith("was out of memory, rehearsed)")
    needless = [reason for batch, reason in reasons.items() if batch < peak.best]
    assert needless
    found = f"not needed: the search of {FAMILY} found the peak at {peak.best} after {len(machine.runs)} runs: "
    assert all(reason.startswith(found) for reason in needless)
    assert plan.summary()[0].startswith(f"{FAMILY}: OOM edge {edge.edge}")


def test_a_case_that_is_chosen_runs_and_nothing_is_searched(family: tuple[Case, ...]) -> None:
    plan = SearchPlan(family, selected=[family[3].id], room=100.0)
    assert plan.mode is Mode.CHOSEN
    assert plan.wanted() == ()
    assert plan.fate(family[3]) == Fate(True, f"selected by itself: {FAMILY} is not searched")
    whole = SearchPlan(family, selected=[case.id for case in family], room=100.0)
    assert whole.mode is Mode.SEARCH


def test_stored_points_are_run_again_and_not_searched(family: tuple[Case, ...]) -> None:
    plan = SearchPlan(family, stored={family[2].id, family[4].id}, room=100.0)
    assert (plan.mode, plan.wanted(), plan.finished) == (Mode.STORED, (), True)
    launched = [case.batch.local for case in family if (fate := plan.fate(case)) and fate.launch]
    assert launched == [10, 18]
    assert plan.fate(family[3]) == Fate(
        False,
        f"not needed: baselines of {FAMILY} are stored for 10, 18, and these are judged; "
        "--record-baselines searches again",
    )


def test_answers_of_an_earlier_session_are_taken_in_any_order(family: tuple[Case, ...]) -> None:
    curve = simulated("rising", 5)
    first = Machine(SearchPlan(family, room=curve.room), family, curve)
    first.session()
    again = SearchPlan(family, room=curve.room)
    for kind, told in ((Kind.RUN, first.plan.findings.real), (Kind.REHEARSAL, first.plan.findings.rehearsed)):
        for batch, answer in reversed(told.items()):
            again.tell(Ask(next(case for case in family if case.batch.local == batch), kind), answer)
    assert again.finished
    assert {case.batch.local: again.fate(case) for case in family} == first.fates


def test_several_points_in_flight(family: tuple[Case, ...]) -> None:
    plan = SearchPlan(family, room=100.0)
    first = plan.wanted(2)
    assert [ask.kind for ask in first] == [Kind.REHEARSAL] * 2
    beside = plan.wanted(2, first)
    assert not {ask.case.id for ask in first} & {ask.case.id for ask in beside}
    for batch in (2, 6, 18, 22, 26, 30, 34, 38):
        case = next(case for case in family if case.batch.local == batch)
        plan.tell(Ask(case, Kind.REHEARSAL), Answer(Outcome.COMPLETED, 20 + 3 * batch) if batch < 27 else OOM)
    runs = plan.wanted(2)
    assert [(ask.case.batch.local, ask.kind) for ask in runs] == [(26, Kind.RUN), (14, Kind.RUN)]
    assert all(ask.case.batch.local not in (26, 14) for ask in plan.wanted(2, runs))
    assert plan.fate(runs[0].case) == Fate(True, f"tried by the search of {FAMILY}")


# Around a peak


def test_the_peak_is_the_fastest_case_that_passed(suite: Suite, above: tuple[Case, ...]) -> None:
    parents = Ladder(suite).parents(above[0])
    assert len(parents) == 32
    by_id = {case.id: case for case in parents}
    fast = "demo-16gpu-fsdp16-dp1-selective-lbs18"
    speeds = {fast: 28_400.0, "demo-16gpu-fsdp8-dp2-selective-lbs22": 28_100.0, "demo-16gpu-fsdp16-dp1-full-lbs38": 3e4}
    assert find_peak(parents, speeds) == Peak(18, fast, 28_400.0)
    assert find_peak(parents, {}) is None
    assert find_peak([by_id[fast]], {fast: 28_400.0}) == Peak(18, fast, 28_400.0)


def test_without_a_peak_nothing_is_decided(above: tuple[Case, ...]) -> None:
    plan = SearchPlan(above, room=178.0)
    assert plan.needs_peak
    assert plan.wanted() == ()
    assert {plan.fate(case) for case in above} == {None}


def test_a_batch_that_only_fits_on_the_larger_rung_is_tried(above: tuple[Case, ...]) -> None:
    """Published: 18 is the peak at 16 GPUs and 22 was out of memory there; 22 is the peak at 128."""
    plan = SearchPlan(above, room=178.0)
    plan.found_below(Peak(18, "demo-16gpu-fsdp16-dp1-selective-lbs18", 28_400.0))
    asked = []
    while asks := plan.wanted():
        [ask] = asks
        batch = ask.case.batch.local
        asked.append((batch, ask.kind))
        fits = Answer(Outcome.COMPLETED, 60 + 4.8 * batch, 27_000 + 45 * batch)
        plan.tell(ask, fits if batch < 26 else OOM)
    assert {batch for batch, kind in asked if kind is Kind.REHEARSAL} == {18, 22, 26}
    assert [batch for batch, kind in asked if kind is Kind.RUN] == [18, 22]
    assert plan.result().best == 22
    fates = {case.batch.local: plan.fate(case) for case in above}
    assert fates[26] == Fate(
        False, "beyond the OOM edge 22 of demo-128gpu-fsdp128-dp1-selective (26 was out of memory, rehearsed)"
    )
    assert fates[14] == Fate(
        False,
        "not needed: 18, 22, 26 of demo-128gpu-fsdp128-dp1-selective are around the peak 18 of "
        "demo-16gpu-fsdp16-dp1-selective-lbs18 (28,400 tokens/s/GPU)",
    )


# Whatever the machine says


def _answers(words: list[str], memory: float) -> Iterator[Answer]:
    for place, word in enumerate(words):
        if word in ("fits", "retries"):
            yield Answer(Outcome.COMPLETED, memory + 5 * place, 1e4 + 100 * place, word == "retries")
        else:
            yield Answer(Outcome.OOM if word == "out" else Outcome.NODE_FAILURE)


WORDS = st.lists(st.sampled_from(["fits", "fits", "retries", "out", "lost"]), min_size=18, max_size=18)


@dataclass(frozen=True, slots=True)
class World:
    rehearsed: list[str]
    real: list[str]
    rehearse: bool
    around: bool
    width: int


WORLDS = st.builds(World, WORDS, WORDS, st.booleans(), st.booleans(), st.integers(1, 4))


@given(world=WORLDS)
def test_every_case_is_decided_once_whatever_is_answered(world: World) -> None:
    cases = families(demo().cases())["demo-128gpu-fsdp128-dp1-full" if world.around else FAMILY]
    peak = Peak(18, "below", 1e4) if world.around else None
    plan = SearchPlan(cases, room=120.0, rehearse=world.rehearse, peak=peak)
    batches = [case.batch.local for case in cases]
    answers = {
        Kind.REHEARSAL: dict(zip(batches, _answers(world.rehearsed, 40), strict=False)),
        Kind.RUN: dict(zip(batches, _answers(world.real, 45), strict=False)),
    }
    asked: set[tuple[int, Kind]] = set()
    skipped: set[int] = set()

    def launch(ask: Ask) -> None:
        batch = ask.case.batch.local
        assert (batch, ask.kind) not in asked
        assert batch not in skipped
        asked.add((batch, ask.kind))
        plan.tell(ask, answers[ask.kind][batch])

    for case in cases:
        while (fate := plan.fate(case)) is None:
            asks = plan.wanted(world.width)
            assert asks
            for ask in asks:
                launch(ask)
        assert fate.reason
        if not fate.launch:
            skipped.add(case.batch.local)
        elif (case.batch.local, Kind.RUN) not in asked:
            launch(Ask(case, Kind.RUN))
    assert plan.finished
    assert {batch for batch, kind in asked if kind is Kind.RUN} == set(batches) - skipped
    assert world.around or len(plan.findings.real) <= len(cases) // 2 + world.width
    assert all(line.startswith(plan.family) for line in plan.summary())
