"""A case once more with the profiler on, in a run of its own: read every rank's trace, judge it, keep what it shows."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pytest_scaleperf import baseline as baselines
from pytest_scaleperf import records
from pytest_scaleperf.campaign.core import Campaign, CaseRun
from pytest_scaleperf.campaign.launching import Sample
from pytest_scaleperf.campaign.trace_verdict import Found, TraceVerdict, combined, crept, judge, title
from pytest_scaleperf.model import (
    Case,
    Decision,
    Fingerprint,
    Measure,
    Outcome,
    Progress,
    ScalePerfError,
    Suite,
    TraceError,
    Verdict,
    as_plain,
)
from pytest_scaleperf.titan import command
from pytest_scaleperf.trace.analyse import analyse
from pytest_scaleperf.trace.diff import describe_difference, difference, explained
from pytest_scaleperf.trace.export import collectives_data, phase_means, step_mean
from pytest_scaleperf.trace.measures import counts, metrics
from pytest_scaleperf.trace.result import TraceReport
from pytest_scaleperf.trace.rules import Rules
from pytest_scaleperf.trace.words import describe
from pytest_scaleperf.verdict import judge_outcome

TOLERANCE = 0.02
"""Where neither the suite nor the system says one. Two steps of one trace on H200 differ by up to 1.7 points."""

PICTURE = "step.svg"
_WARMUP = 2  # steps that the profiler runs before it records: its first ones are slow
_DIGEST = 12  # hex digits
_TOP = 10  # lines of a difference in a failure's text


@dataclass(frozen=True, slots=True)
class Traced:
    """What one traced run gave: what it showed, what is kept of it, and the report where it was read just now."""

    found: Found
    fingerprint: Fingerprint
    kept: Mapping[str, Any]
    report: TraceReport | None = None


def schedule(case: Case) -> tuple[Case, command.Profile]:
    """The case as it is traced, and when its profiler records.

    The recorded steps lie behind the suite's warm-up and one step behind a logged one. None of them is logged itself,
    unless every step is: a logged step has collectives of its own and waits for the GPU. Writing a trace takes time,
    so the limit between two steps is at least that of the start.
    """
    suite, measure, limits = case.suite, case.suite.measure, case.suite.limits
    active = suite.trace.steps
    every = 1 if measure.log_freq == 1 else max(measure.log_freq, active + 2)
    before = math.ceil(measure.warmup / every) * every
    freq = before + 1 + active
    traced = replace(
        suite,
        measure=Measure(steps=math.ceil((freq + 1) / every) * every, warmup=measure.warmup, log_freq=every),
        limits=replace(limits, no_progress=max(limits.no_progress, limits.startup)),
    )
    return replace(case, suite=traced), command.Profile(freq, active, min(_WARMUP, before + 1))


@dataclass(slots=True)
class Tracer:
    """Traces the cases of one session."""

    campaign: Campaign
    _stored: dict[str, Mapping[str, baselines.TraceBaseline]] = field(default_factory=dict)

    def check(self, case: Case) -> None:
        """Before anything of the case is launched: it can be traced.

        Raises SuiteError where the dialect has no profiler, or where the suite's arguments set it.
        """
        traced, profile = schedule(case)
        device, spoken = self.campaign.system.device, self.campaign.spoken(case.suite)
        command.flags(traced, spoken, self.campaign.session.path, device=device, profile=profile)

    def add(self, run: CaseRun, progress: Callable[[Progress], None]) -> CaseRun:
        """The case with its trace, judged; as it is, where it did not pass, or regressed with nothing to compare with.

        A trace that could not be made or read makes the case one that is not judged: MACHINE_FAILED, with the reason.
        """
        case = run.case
        if case.expect is not Outcome.COMPLETED:
            note = f"not traced: it is expected to end in {case.expect}"
            return replace(run, verdict=replace(run.verdict, notes=(*run.verdict.notes, note)))
        regressed = run.verdict.decision is Decision.REGRESSION
        if not (run.verdict.decision.opens_gate or (regressed and self._earlier(case) is not None)):
            return run
        traced: Traced | Verdict | None = self._replayed(run)
        run = run if traced else self.campaign.keep(run, "before it was traced")
        try:
            traced = traced or self._run(case, progress)
            if isinstance(traced, Verdict):
                return _failed(run, traced)
            return self._judged(run, traced)
        except ScalePerfError as error:
            return _failed(run, Verdict(Decision.MACHINE_FAILED, (), f"trace: {error}"))
        except BaseException:
            self.campaign.verdicts[case.id] = Decision.MACHINE_FAILED  # as the record that was kept says
            raise

    def _run(self, case: Case, progress: Callable[[Progress], None]) -> Traced | Verdict:
        """Launch the case with the profiler and read what it wrote; a verdict where it did not come to its end."""
        as_traced, profile = schedule(case)
        sample = self.campaign.launch(
            as_traced, lambda now: progress(replace(now, case_id=f"{now.case_id}, traced")), profile
        )
        ended = judge_outcome(Outcome.COMPLETED, sample.observation)
        if ended is not None:
            return replace(ended, reason=f"traced run: {ended.reason}; its log: {sample.folder / 'stdout.log'}")
        rules = _rules(case.suite)
        report = analyse(_files(sample.folder, case), rules, expected_ranks=case.gpus)
        where = report.ranks[0].path.parent
        if not report.whole:
            raise TraceError(
                f"{where}: expected a whole step on every rank, found none: what lies between steps is missing; "
                f"raise trace.steps in {case.suite.path} (now {case.suite.trace.steps})"
            )
        _draw(report, where / PICTURE, rules)
        fingerprint = self._fingerprint(case)
        found = _found(report)
        return Traced(found, fingerprint, _kept(sample, report, found, fingerprint), report)

    def _replayed(self, run: CaseRun) -> Traced | None:
        """The trace of a resumed session's finished case; None where it must be made."""
        record = self.campaign.session.latest(run.case.id) if run.replayed else None
        kept = None if record is None else record.get("trace")
        fingerprint = self._fingerprint(run.case)
        if not kept or kept.get("fingerprint") != as_plain(fingerprint):
            return None
        shown = (kept[name] for name in ("metrics", "counts", "varying", "exposed_by", "on_gpu"))
        return Traced(Found(*shown), fingerprint, kept)

    def _judged(self, run: CaseRun, traced: Traced) -> CaseRun:
        case, suite = run.case, run.case.suite
        stored = self._baselines(suite).get(case.id)
        tolerance = self._tolerance(suite, stored)
        verdict = judge(traced.found, stored, traced.fingerprint, tolerance, suite.compare_across)
        if self.campaign.settings.record_baselines and run.verdict.decision.opens_gate and traced.report is not None:
            verdict = self._recorded(case, traced, stored, verdict, tolerance)
        whole = combined(run.verdict, verdict)
        kept = {
            **traced.kept,
            "decision": verdict.decision,
            "reason": verdict.reason,
            "notes": verdict.notes,
            "tolerance": tolerance,
            "baseline": None if stored is None else stored.where,
            "shares": [{**as_plain(share), "title": title(share.name)} for share in verdict.shares],
        }
        if whole.decision is Decision.REGRESSION and traced.report is not None:
            kept |= self._difference(case, traced.report)
        return replace(run, verdict=whole, trace=kept, replayed=run.replayed and traced.report is None)

    def _recorded(
        self,
        case: Case,
        traced: Traced,
        stored: baselines.TraceBaseline | None,
        verdict: TraceVerdict,
        tolerance: float,
    ) -> TraceVerdict:
        """Store what the trace showed where there was nothing, or where it makes nothing worse.

        What must stay equal and does not is never stored: whoever wants it takes the old entry out of the file.
        """
        path, decision = self._path(case.suite), verdict.decision
        new = decision in (Decision.NO_BASELINE, Decision.FINGERPRINT_MISMATCH)
        if stored is not None:
            against = judge(traced.found, stored, stored.fingerprint, tolerance)
            alone = new or decision is Decision.IMPROVEMENT
            worse = crept(traced.found.shares, stored, tolerance, alone=alone) if traced.found.on_gpu else []
            lost = against.decision in (Decision.REGRESSION, Decision.MISSING_METRIC)
            if lost or worse:
                why = against.reason if lost else "; ".join(worse)
                note = f"not recorded: {why}. To take it, remove `trace` at {stored.where}"
                return replace(verdict, notes=(*verdict.notes, note))
        sample = baselines.TraceSample(time.strftime("%Y-%m-%d"), self.campaign.session.id, traced.found.shares)
        replaces = new or decision is Decision.IMPROVEMENT
        baselines.record_trace(path, case.id, traced.fingerprint, sample, traced.found.counts, replaces=replaces)
        if not new:
            return verdict
        text = f"recorded, not judged: baseline written to {path}; run again without --record-baselines"
        return replace(verdict, decision=Decision.RECORDED, reason=text)

    def _difference(self, case: Case, report: TraceReport) -> dict[str, Any]:
        """What explains the step's difference from the newest earlier trace of the case that passed.

        As lines of text, and as numbers for the reports.
        """
        before = self._earlier(case)
        if before is None:
            return {}
        where, files = before
        try:
            found = difference(analyse(files, _rules(case.suite), expected_ranks=case.gpus), report)
        except TraceError as error:
            return {"difference": [f"the earlier trace cannot be compared with: {error}"]}
        told = [f"against the trace of {where}", *describe_difference(found, _TOP)]
        return {"difference": told, "explained": explained(found, where, _TOP)}

    def _earlier(self, case: Case) -> tuple[str, list[Path]] | None:
        """Record and files of the newest trace of the case that passed and still lies in the run directory."""
        for found, record in records.earlier(self.campaign.settings.run_dir, case.id):
            files = [Path(name) for name in (record.get("trace") or {}).get("files", ())]
            if files and found.decision.opens_gate and all(file.is_file() for file in files):
                return found.where, files
        return None

    def _fingerprint(self, case: Case) -> Fingerprint:
        """The case's, with how it is traced in its digest."""
        own, (traced, profile) = self.campaign.fingerprint(case), schedule(case)
        told = [own.config, as_plain(profile), as_plain(traced.suite.measure), case.suite.trace.rules]
        config = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:_DIGEST]
        return replace(own, config=config)

    def _tolerance(self, suite: Suite, stored: baselines.TraceBaseline | None) -> float:
        said = (None if stored is None else stored.tolerance, suite.trace.tolerance)
        return next((each for each in (*said, self.campaign.system.trace_tolerance) if each is not None), TOLERANCE)

    def _baselines(self, suite: Suite) -> Mapping[str, baselines.TraceBaseline]:
        if suite.name not in self._stored:
            self._stored[suite.name] = baselines.read_traces(self._path(suite))
        return self._stored[suite.name]

    def _path(self, suite: Suite) -> Path:
        return self.campaign.settings.baselines / self.campaign.system.name / f"{suite.name}.yaml"


def _failed(run: CaseRun, verdict: Verdict) -> CaseRun:
    """The case without a trace: not judged, or still a regression."""
    kept = {"decision": verdict.decision, "reason": verdict.reason}
    if run.verdict.decision is Decision.REGRESSION:
        whole = replace(run.verdict, notes=(*run.verdict.notes, verdict.reason))
    else:
        whole = replace(run.verdict, decision=verdict.decision, reason=verdict.reason)
    return replace(run, verdict=whole, trace=kept, replayed=False)


def _rules(suite: Suite) -> Rules:
    """Ours with the suite's in front of them."""
    ours = Rules()
    return Rules(**{kind: (*patterns, *getattr(ours, kind)) for kind, patterns in suite.trace.rules})


def _files(folder: Path, case: Case) -> list[Path]:
    """The traces of the newest profiled iteration under a run's folder.

    Raises TraceError where there is none.
    """
    found: dict[Path, list[Path]] = {}
    for path in sorted(folder.rglob("iteration_*/*.json*")):
        if path.name.endswith((".json", ".json.gz")):
            found.setdefault(path.parent, []).append(path)
    if not found:
        raise TraceError(
            f"{folder}: expected the traces of {case.gpus} ranks (…/iteration_*/rank*_trace.json.gz), found none: does "
            f"the trainer profile as the dialect's `profiler` arguments in {folder / command.SCRIPT} ask it to?"
        )
    return found[max(found, key=lambda place: (len(place.name), place.name))]


def _draw(report: TraceReport, target: Path, rules: Rules) -> None:
    from pytest_scaleperf.trace.picture import draw  # noqa: PLC0415 - matplotlib takes half a second to load

    draw(report, target, rules)


def _found(report: TraceReport) -> Found:
    varying = tuple(each.title for each in report.collectives if len(each.counts) > 1 or len(each.bytes) > 1)
    return Found(metrics(report), counts(report), varying, _exposed_by(report), report.on_gpu)


def _exposed_by(report: TraceReport) -> dict[str, Sequence[str]]:
    """Collectives by the time that they are exposed, longest first: of each phase, and of the step (``""``)."""
    totals: dict[str, Counter[str]] = {"": Counter()}
    for step in (step for rank in report.ranks for step in rank.measured):
        for part in step.phases:
            for label, nanoseconds in part.exposed_by:
                totals.setdefault(part.phase.value, Counter())[label] += nanoseconds
                totals[""][label] += nanoseconds
    return {phase: [label for label, time_ in found.most_common() if time_] for phase, found in totals.items()}


def _kept(sample: Sample, report: TraceReport, found: Found, fingerprint: Fingerprint) -> dict[str, Any]:
    """What the case's record holds of its trace."""
    files = [rank.path for rank in report.ranks]
    ran = sample.as_record()
    return {
        "run": {name: ran[name] for name in ("argv", "folder", "outcome", "hosts", "started", "seconds")},
        "files": [str(path) for path in files],
        "picture": str(files[0].parent / PICTURE),
        "fingerprint": as_plain(fingerprint),
        "words": describe(report),
        "rank": report.slowest.rank,
        "step": {"title": "step", **step_mean(report.slowest)},
        "phases": [{"title": phase.words, **parts} for phase, parts in phase_means(report.slowest)],
        "collectives": collectives_data(report),
        **as_plain(found),
    }
