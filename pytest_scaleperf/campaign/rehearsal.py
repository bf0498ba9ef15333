"""Cases of any size on one device each: one process stands for one rank of a case, several side by side.

Nothing of it is a measurement: it is written apart from the cases' records, opens no gate, and of a baseline only the
memory is looked at.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace

from pytest_scaleperf import baseline as baselines
from pytest_scaleperf.campaign.core import Campaign
from pytest_scaleperf.campaign.launching import Order, Sample
from pytest_scaleperf.campaign.pool import Pool
from pytest_scaleperf.campaign.rehearsed_before import fresh
from pytest_scaleperf.campaign.timeline import Timeline
from pytest_scaleperf.launch.protocol import Launcher
from pytest_scaleperf.model import Baseline, Case, Fingerprint, Measure, Metric, Progress, Suite
from pytest_scaleperf.rehearsed import (
    Fit,
    RankRehearsal,
    Rehearsal,
    as_record,
    judge_case,
    judge_rank,
    not_rehearsable,
    ranks_of,
    room_of,
    with_baseline,
)


def as_rehearsed(case: Case) -> Case:
    """The case with the few steps of a rehearsal, each logged; its name, layout and batch stay."""
    suite = case.suite
    return replace(case, suite=replace(suite, measure=Measure(steps=suite.rehearse.steps, warmup=1, log_freq=1)))


@dataclass(slots=True)
class Rehearser:
    """Rehearses the cases of one session, as many side by side as ``launcher`` has devices.

    ``launcher`` is one with slots (``LocalLauncher(slots=…)``), given back with ``close``; or the campaign's own, with
    its pool ``shared``: rehearsals then take their turn among what is measured. ``devices`` is the number of slots.
    """

    campaign: Campaign
    launcher: Launcher
    shared: Pool | None = None
    devices: int = 1
    _pool: Pool = field(init=False)
    _done: dict[str, Rehearsal] = field(default_factory=dict)
    _baselines: dict[str, Mapping[str, Baseline]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Work beside the campaign's own pool, which measures, or in it."""
        timeline = Timeline(self.campaign.session.path, self.devices)
        own = Pool(self.launcher, self.campaign.launching, timeline, lambda ended: ended)
        self._pool = self.shared or own

    @staticmethod
    def key(case: Case) -> str:
        """What a case's rehearsal is called in the pool, where its real launch has the case's own name."""
        return f"{case.id} rehearsed"

    @property
    def launched(self) -> int:
        """Processes that were started."""
        return self._pool.launched

    def take_up(self, cases: Iterable[Case]) -> None:
        """Begin with these cases, in their order, as soon as there is room; they go on while others are waited for."""
        for case in cases:
            if self.key(case) not in self._pool and case.id not in self._done:
                self._pool.add(self.key(case), self._work(case), Order(as_rehearsed(case), rehearsed_rank=0))

    def result(self, case: Case, progress: Callable[[Progress], None]) -> Rehearsal:
        """What the case's rehearsal says; waited for where it is not finished, and the same for all who ask.

        Raises LaunchError where it cannot be started, SuiteError where the dialect cannot say what the case needs.
        """
        if case.id not in self._done:
            self.take_up([case])
            self._done[case.id] = self._pool.result(self.key(case), progress)
        return self._done[case.id]

    def close(self) -> None:
        """End what still runs, and write down which process ran when: the last ones may not be in the file yet."""
        self.launcher.close()
        if self.shared is None:
            self._pool.timeline.write()

    def _work(self, case: Case) -> Generator[Order, Sample, Rehearsal]:
        fingerprint = self.campaign.fingerprint(case)
        before = self._replayed(case, fingerprint)
        if before is not None:
            return before
        ranks: list[RankRehearsal] = []
        why = not_rehearsable(case, self.campaign.spoken(case.suite).name)
        if not why:
            for rank in ranks_of(case):
                sample = yield Order(as_rehearsed(case), rehearsed_rank=rank)
                ranks.append(self._seen(case, rank, sample))
                if not ranks[-1].fit.fits:
                    break  # the case is decided
        return self._kept(case, fingerprint, ranks, why)

    def _seen(self, case: Case, rank: int, sample: Sample) -> RankRehearsal:
        found = judge_rank(rank, sample.observation, sample.measurement, room_of(case, self.campaign.system))
        return replace(
            found,
            folder=str(sample.folder),
            argv=sample.argv,
            started=sample.started,
            seconds=sample.job.seconds,
        )

    def _kept(self, case: Case, fingerprint: Fingerprint, ranks: list[RankRehearsal], why: str) -> Rehearsal:
        """Everything of the case in one value, written down as soon as it is known."""
        campaign, room = self.campaign, room_of(case, self.campaign.system)
        fit, reason, notes = judge_case(ranks, room) if ranks else (Fit.NOT_REHEARSABLE, why, ())
        found = Rehearsal(
            case_id=case.id,
            suite=case.suite.name,
            system=campaign.system.name,
            gpus=case.gpus,
            layout=case.layout,
            activation_checkpoint=case.activation_checkpoint,
            batch=case.batch,
            fit=fit,
            reason=reason,
            ranks=tuple(ranks),
            steps=case.suite.rehearse.steps,
            reserve_gib=None if room.share is None else room.reserve_gib,
            fingerprint=fingerprint,
            expect=case.expect,
            notes=notes,
            session=campaign.session.id,
            finished=time.time(),
        )
        found = self._against_baseline(case, found)
        return replace(found, where=str(campaign.session.write_rehearsal(case.id, as_record(found))))

    def _against_baseline(self, case: Case, found: Rehearsal) -> Rehearsal:
        stored = self._stored(case.suite).get(case.id)
        if stored is None:
            return found
        tolerance = {**self.campaign.system.tolerance, **case.suite.tolerance, **stored.tolerance}
        compared = with_baseline(
            found, baselines.baseline_value(stored, Metric.PEAK_MEMORY), tolerance.get(Metric.PEAK_MEMORY)
        )
        if compared is None or found.fingerprint is None:
            return found
        differs = ", ".join(found.fingerprint.differences(stored.fingerprint))
        notes = (f"the memory's baseline is of another fingerprint: {differs}",) if differs else ()
        return replace(found, with_baseline=compared, notes=(*found.notes, *notes))

    def _stored(self, suite: Suite) -> Mapping[str, Baseline]:
        if suite.name not in self._baselines:
            path = self.campaign.settings.baselines / self.campaign.system.name / f"{suite.name}.yaml"
            self._baselines[suite.name] = baselines.read_baselines(path)
        return self._baselines[suite.name]

    def _replayed(self, case: Case, fingerprint: Fingerprint) -> Rehearsal | None:
        """What a resumed session's own rehearsal of the case said; None where it must be done (again)."""
        if not self.campaign.session.resumed:
            return None
        found = fresh(self.campaign.settings, case.id, fingerprint)
        if found is None or found.session != self.campaign.session.id or found.steps != case.suite.rehearse.steps:
            return None
        done, asked = tuple(rank.rank for rank in found.ranks), ranks_of(case)
        whole = done == asked if found.fit.fits else done == asked[: len(done)]
        return found if whole else None
