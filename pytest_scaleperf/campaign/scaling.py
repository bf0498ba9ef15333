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
from pytest_scaleperf.campaign.efficiency import Scaling, Speed, judge_pair, lowers, passing, unsure
from pytest_scaleperf.model import Baseline, Case, Decision, Fingerprint, LaunchError, Metric, Suite
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
        found = {case.id: self._speed(case) for case in cases}
        unknown = [name for name, speed in found.items() if speed is None]
        if unknown:
            more = f" and {len(unknown) - _NAMED} more" if len(unknown) > _NAMED else ""
            raise LaunchError(
                f"{pair.id} compares the fastest cases of two rungs; expected a verdict of "
                f"{', '.join(unknown[:_NAMED])}{more} in this session or a fresh record of the same fingerprint, found "
                f"neither. Run it first: pytest --gpus {pair.gpus}"
            )
        return [speed for speed in found.values() if speed is not None]

    def _speed(self, case: Case) -> Speed | None:
        here = self.campaign.verdicts.get(case.id)
        if here is not None:
            record = self.campaign.session.latest(case.id)
            return None if record is None else _speed_of(case, here, record, "")
        oldest = time.time() - self.campaign.settings.evidence_max_age
        fingerprint = self.campaign.fingerprint(case)
        for found, record in records.earlier(self.campaign.settings.run_dir, case.id):
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
        found = judge_pair(pair, upper, lower, stored, fingerprint)
        if self.campaign.settings.record_baselines and not lowers(found, stored):
            found = self._recorded(path, found, fingerprint)
        folder = self.campaign.session.path / "scaling"
        folder.mkdir(exist_ok=True)
        records.write_json(folder / f"{pair.id}.json", _as_record(found))
        return found

    def _recorded(self, path: Path, found: Scaling, fingerprint: Fingerprint) -> Scaling:
        new = found.decision in (Decision.NO_BASELINE, Decision.FINGERPRINT_MISMATCH)
        if found.efficiency is None or found.upper is None or found.lower is None:
            return found
        if not (new or found.decision.is_pass):
            return found
        date, session = time.strftime("%Y-%m-%d"), self.campaign.session.id
        sample = baselines.ScalingSample(
            date, session, found.efficiency, upper=found.upper.case.id, lower=found.lower.case.id
        )
        stale = found.decision is Decision.IMPROVEMENT
        baselines.record_scaling(path, found.pair.id, fingerprint, sample, replaces=stale)
        if not new:
            return found
        text = f"recorded, not judged: baseline written to {path}; run again without --record-baselines"
        return dataclasses.replace(found, decision=Decision.RECORDED, reason=text)


def _speed_of(case: Case, decision: Decision, record: Mapping[str, Any], where: str) -> Speed:
    tps: Mapping[str, Any] = next((m for m in record["metrics"] if m["metric"] == Metric.TPS), {})
    return Speed(case, decision, tps.get("value"), tps.get("noise") or 0.0, where)


def _as_record(found: Scaling) -> dict[str, Any]:
    """What is kept of a pair, beside the records of the cases."""
    sides = {
        name: None if speed is None else {"case": speed.case.id, "tps": speed.tps, "where": speed.where}
        for name, speed in (("upper", found.upper), ("lower", found.lower))
    }
    kept = {name: getattr(found, name) for name in _KEPT}
    return {"schema": records.SCHEMA, "pair": found.pair.id, "suite": found.pair.suite.name, **sides, **kept}
