"""Scaling tests of one session: find the speeds of a pair's cases, judge, record.

Nothing is launched here. The speeds are what the cases' own verdicts rest on, of this session or of fresh records.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_scaleperf import baseline as baselines
from pytest_scaleperf import records
from pytest_scaleperf.campaign.core import Campaign
from pytest_scaleperf.campaign.efficiency import Scaling, Speed, judge_pair, passing, unsure
from pytest_scaleperf.model import Baseline, Case, Decision, Fingerprint, LaunchError, Metric, Suite, as_plain
from pytest_scaleperf.published import PROVENANCE, Published
from pytest_scaleperf.suite import Pair

_KEPT = ("decision", "reason", "efficiency", "baseline", "tolerance", "change", "noise", "notes")
_NAMED = 3


@dataclass(slots=True)
class ScalingJudge:
    """Judges the pairs of one session."""

    campaign: Campaign
    _baselines: dict[str, Mapping[str, Baseline]] = field(default_factory=dict)

    def judge(self, pair: Pair) -> Scaling:
        """The verdict of a pair; SKIPPED where one of its sides was not measured, with the reason.

        Raises LaunchError where it is not known how a case of the pair ended, with the command that would tell.
        """
        allowed = self.campaign.settings.gpus
        if allowed is not None and pair.gpus > allowed:
            reason = f"needs {pair.gpus} GPUs, this session has {allowed} (--gpus {allowed})"
            return Scaling(pair, Decision.SKIPPED, reason)
        sides = [self._known(pair, cases) for cases in (pair.upper, pair.lower)]
        stored = [[self._stored_tps(speed.case) for speed in side] for side in sides]
        reasons = [why for side, base in zip(sides, stored, strict=True) if (why := unsure(side, base))]
        if reasons:
            return Scaling(pair, Decision.SKIPPED, f"not measured: {'; '.join(reasons)}")
        upper, lower = (max(passing(side), key=lambda speed: speed.tps or 0.0) for side in sides)
        return self._judged(pair, upper, lower)

    def _known(self, pair: Pair, cases: Sequence[Case]) -> list[Speed]:
        found = {case.id: self.speed(case) for case in cases}
        unknown = [name for name, speed in found.items() if speed is None]
        if unknown:
            more = f" and {len(unknown) - _NAMED} more" if len(unknown) > _NAMED else ""
            raise LaunchError(
                f"{pair.id} compares the fastest cases of two rungs; expected a verdict of "
                f"{', '.join(unknown[:_NAMED])}{more} in this session or a fresh record of the same fingerprint, found "
                f"neither. Run it first: pytest --gpus {pair.gpus}"
            )
        return [speed for speed in found.values() if speed is not None]

    def speed(self, case: Case) -> Speed | None:
        """How fast a case was in this session, or by a fresh record of the same fingerprint; None: not known."""
        here = self.campaign.verdicts.get(case.id)
        if here is not None:
            record = self.campaign.session.latest(case.id)
            return None if record is None else _speed_of(case, here, record, "")
        oldest = time.time() - self.campaign.settings.evidence_max_age
        fingerprint = self.campaign.fingerprint(case)
        for found, record in records.earlier(self.campaign.settings.run_dir, case.id, searched=True):
            if found.finished >= oldest and found.fingerprint == fingerprint:
                return _speed_of(case, found.decision, record, found.where)
        return None

    def _stored_tps(self, case: Case) -> float:
        suite = case.suite
        if suite.name not in self._baselines:
            self._baselines[suite.name] = baselines.read_baselines(self._path(suite))
        stored = self._baselines[suite.name].get(case.id)
        return 0.0 if stored is None else baselines.baseline_value(stored, Metric.TPS) or 0.0

    def _path(self, suite: Suite) -> Path:
        return self.campaign.settings.baselines / self.campaign.system.name / f"{suite.name}.yaml"

    def _judged(self, pair: Pair, upper: Speed, lower: Speed) -> Scaling:
        path = self._path(pair.suite)
        fingerprint = dataclasses.replace(self.campaign.fingerprint(upper.case), config=pair.config)
        stored = baselines.read_scaling(path).get(pair.id)
        said = self.campaign.published(pair.suite) if stored is None else None
        if said is not None and pair.id in said.scaling:
            stored = _of_published(said, pair, fingerprint, upper, lower)
        found = judge_pair(pair, upper, lower, stored, fingerprint)
        if stored is not None and said is not None:
            found = dataclasses.replace(found, notes=(*found.notes, said.told))
        if self.campaign.settings.record_baselines:
            found = self._recorded(path, found)
        folder = self.campaign.session.path / records.SCALING
        folder.mkdir(exist_ok=True)
        records.write_json(folder / f"{pair.id}.json", self._as_record(found))
        return found

    def _recorded(self, path: Path, found: Scaling) -> Scaling:
        """Store the efficiency where there was none, or take it in where it does not make the stored one worse."""
        new = found.decision in (Decision.NO_BASELINE, Decision.FINGERPRINT_MISMATCH)
        measured = _measured(found, self.campaign.session.id)
        if measured is None or not (new or found.decision.is_pass):
            return found
        [change] = baselines.update_scaling(path, [measured])
        if change.kind is baselines.Kind.REFUSED:
            note = f"not recorded: {change.reason}; `scaleperf baselines update --accept-regression WHY` takes it"
            return dataclasses.replace(found, notes=(*found.notes, note))
        if not new:
            return found
        text = f"recorded, not judged: baseline written to {path}; run again without --record-baselines"
        return dataclasses.replace(found, decision=Decision.RECORDED, reason=text)

    def _as_record(self, found: Scaling) -> dict[str, Any]:
        """What is kept of a pair, beside the records of the cases."""
        sides = {
            name: None if speed is None else {"case": speed.case.id, "tps": speed.tps, "where": speed.where}
            for name, speed in (("upper", found.upper), ("lower", found.lower))
        }
        about = {
            "schema": records.SCHEMA,
            "session": self.campaign.session.id,
            "pair": found.pair.id,
            "suite": found.pair.suite.name,
            "system": self.campaign.system.name,
            "gpus": found.pair.gpus,
            "finished": time.time(),
            "fingerprint": None if found.fingerprint is None else as_plain(found.fingerprint),
        }
        return {**about, **sides, **{name: getattr(found, name) for name in _KEPT}}


def _of_published(
    said: Published, pair: Pair, fingerprint: Fingerprint, upper: Speed, lower: Speed
) -> baselines.ScalingBaseline:
    """A published efficiency as the baseline of a pair."""
    row = said.scaling[pair.id]
    sample = baselines.ScalingSample(said.date, PROVENANCE, row.efficiency, upper.case.id, lower.case.id)
    return baselines.ScalingBaseline(pair.id, fingerprint, (sample,), said.where, row.tolerance, said.source)


def _measured(found: Scaling, session: str) -> baselines.MeasuredScaling | None:
    sides, fingerprint = (found.upper, found.lower), found.fingerprint
    if found.efficiency is None or found.tolerance is None or fingerprint is None or None in sides:
        return None
    upper, lower = (speed.case.id for speed in sides if speed is not None)
    sample = baselines.ScalingSample(time.strftime("%Y-%m-%d"), session, found.efficiency, upper, lower)
    return baselines.MeasuredScaling(found.pair.id, fingerprint, sample, found.tolerance)


def _speed_of(case: Case, decision: Decision, record: Mapping[str, Any], where: str) -> Speed:
    tps: Mapping[str, Any] = next((m for m in record["metrics"] if m["metric"] == Metric.TPS), {})
    return Speed(case, decision, tps.get("value"), tps.get("noise") or 0.0, where)
