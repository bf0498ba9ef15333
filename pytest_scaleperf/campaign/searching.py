"""The searches of one session: runs what a search asks for, ahead of the tests, and says what becomes of a case."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pytest_scaleperf.campaign.core import Campaign, CaseRun, counted
from pytest_scaleperf.campaign.rehearsal import Rehearser
from pytest_scaleperf.campaign.rehearsed_before import fresh
from pytest_scaleperf.campaign.scaling import ScalingJudge
from pytest_scaleperf.model import Case, GateState, LaunchError, Outcome, Progress
from pytest_scaleperf.rehearsed import Fit, Rehearsal, not_rehearsable, room_of
from pytest_scaleperf.search import Answer, Ask, Fate, Kind, Mode, SearchPlan, find_peak

_WIDTH = 2
"""Points of one family under way at once, where launches run side by side: more would be tried than are needed."""


@dataclass(slots=True)
class Searcher:
    """The families of one session whose local batch is searched."""

    campaign: Campaign
    _plans: dict[str, SearchPlan] = field(default_factory=dict)
    _pending: dict[str, list[Ask]] = field(default_factory=dict)
    _rehearser: Rehearser = field(init=False)

    def __post_init__(self) -> None:
        """Rehearse in the campaign's own pool: what it has room for is shared."""
        self._rehearser = Rehearser(self.campaign, self.campaign.launcher, self.campaign.pool)

    def fate(self, case: Case, progress: Callable[[Progress], None]) -> Fate:
        """What becomes of a searched case whose gate is open; launches what has to be known for it.

        Raises LaunchError where the peak of the rung below is not known, with the command that would tell it.
        """
        plan = self._plan(case)
        while (fate := plan.fate(case)) is None:
            self._advance(plan, progress)
        if not fate.launch and Ask(case, Kind.RUN) in self._pending[plan.family]:
            # Begun beside another one, whose answer decided the search: it is measured, and has to be said.
            return Fate(True, f"begun by the search of {plan.family} before it was decided")
        return fate

    def told(self, run: CaseRun) -> str | None:
        """Take what a case's own test measured: its search goes on from there.

        A sentence where the case showed the OOM edge: that is what its launch was for, and no failure of anything.
        """
        plan, answer = self._plan(run.case), _ran(run)
        plan.tell(Ask(run.case, Kind.RUN), answer)
        pending = self._pending[plan.family]
        pending[:] = [ask for ask in pending if ask != Ask(run.case, Kind.RUN)]
        looking = plan.mode in (Mode.SEARCH, Mode.AROUND)
        if not looking or answer.fits is not False or run.baseline is not None or run.case.expect is Outcome.OOM:
            return None
        return f"out of memory: it shows the OOM edge {plan.edge().place} of {plan.family}"

    def summary(self) -> list[str]:
        """What the searches found, a sentence a line."""
        return [line for plan in self._plans.values() for line in plan.summary()]

    def _advance(self, plan: SearchPlan, progress: Callable[[Progress], None]) -> None:
        """Start what the search wants next, and wait until one of its launches has ended."""
        pending = self._pending[plan.family]
        width = _WIDTH if self.campaign.launcher.side_by_side else 1
        asked = plan.wanted(width, tuple(pending))
        pending += [ask for ask in asked if self._start(plan, ask)]
        if not pending:
            if not asked:
                raise LaunchError(
                    f"the search of {plan.family} waits for nothing and is not decided: this is our fault"
                )
            return
        self.campaign.pool.drive(lambda: any(self._has_ended(ask) for ask in pending), progress)
        for ask in [ask for ask in pending if self._has_ended(ask)]:
            pending.remove(ask)
            plan.tell(ask, self._answer(ask))

    def _start(self, plan: SearchPlan, ask: Ask) -> bool:
        """Begin a launch; False where its answer is known without one."""
        if ask.kind is Kind.REHEARSAL:
            found = fresh(self.campaign.settings, ask.case.id, self.campaign.fingerprint(ask.case))
            if found is not None:
                plan.tell(ask, _rehearsed(found))
                return False
            self._rehearser.take_up([ask.case])
            return True
        gate = self.campaign.gate(ask.case)
        if gate.state is not GateState.OPEN or ask.case.id in self.campaign.verdicts:
            plan.tell(ask, Answer(Outcome.CANCELLED))
            return False
        self.campaign.take_up(ask.case, gate)
        return True

    def _has_ended(self, ask: Ask) -> bool:
        return self.campaign.pool.peek(self._key(ask)) is not None

    def _key(self, ask: Ask) -> str:
        return ask.case.id if ask.kind is Kind.RUN else self._rehearser.key(ask.case)

    def _answer(self, ask: Ask) -> Answer:
        ended = self.campaign.pool.peek(self._key(ask))
        if ask.kind is Kind.REHEARSAL:
            self.campaign.pool.forget(self._key(ask))
        if ended is not None and isinstance(ended.result, CaseRun):
            return _ran(ended.result)
        if ended is not None and isinstance(ended.result, Rehearsal):
            return _rehearsed(ended.result)
        return Answer(Outcome.ERROR)

    def _plan(self, case: Case) -> SearchPlan:
        if case.search is None:
            raise ValueError(f"{case.id}: expected a case whose local batch is searched")
        family = case.search.family
        if family not in self._plans:
            self._plans[family] = self._planned(case, family)
            self._pending[family] = []
        plan = self._plans[family]
        if plan.needs_peak:
            peak = find_peak(self.campaign.parents(case), self._speeds(case))
            if peak is None:
                raise LaunchError(
                    f"{case.id}: expected the peak of the rung that it requires, found no case there that passed and "
                    f"said its speed, in this session or in a fresh record of the same fingerprint. Run it first: "
                    f"{self.campaign.gate(case).reason}"
                )
            plan.found_below(peak)
        return plan

    def _planned(self, case: Case, family: str) -> SearchPlan:
        campaign, room = self.campaign, room_of(case, self.campaign.system)
        members = [c for c in case.suite.cases() if c.search is not None and c.search.family == family]
        chosen = {c.id for c in campaign.selected}
        recording = campaign.settings.record_baselines
        return SearchPlan(
            members,
            selected=chosen,
            stored=() if recording else [c.id for c in members if campaign.baseline(c) is not None],
            room=None if room.total_gib is None or room.on_cpu else room.total_gib - room.reserve_gib,
            rehearse=not not_rehearsable(case, campaign.spoken(case.suite).name),
        )

    def _speeds(self, case: Case) -> dict[str, float]:
        """Tokens/s per GPU of the cases below that passed, here or by their records."""
        judge = ScalingJudge(self.campaign)
        speeds = (judge.speed(parent) for parent in self.campaign.parents(case))
        return {s.case.id: s.tps for s in speeds if s is not None and s.decision.opens_gate and s.tps is not None}


def _ran(run: CaseRun) -> Answer:
    """What a measured case says of its batch."""
    last = run.samples[-1]
    counting = [sample["measurement"] for sample in counted(run.samples)]
    speeds = [m["values"]["tps"] for m in counting if "tps" in m["values"]]
    memory = [m["values"]["peak_memory"] for m in counting if "peak_memory" in m["values"]]
    return Answer(
        Outcome(last["outcome"]),
        memory=max(memory, default=None),
        tps=sum(speeds) / len(speeds) if speeds else None,
        saturated=any(m["alloc_retries"] for m in counting),
    )


def _rehearsed(found: Rehearsal) -> Answer:
    """What a rehearsal says of its batch."""
    fullest = found.fullest
    outcome = Outcome.COMPLETED if found.fit.fits else next((r.outcome for r in found.ranks), Outcome.ERROR)
    if found.fit is Fit.DOES_NOT_FIT:
        outcome = Outcome.OOM
    return Answer(
        outcome,
        memory=None if fullest is None else fullest.peak_gib,
        tps=None if fullest is None else fullest.tps,
        saturated=found.fit is Fit.SATURATED,
    )
