"""The verbs of one session: gate, run, finish, close."""

from __future__ import annotations

import dataclasses
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_scaleperf import baseline as baselines
from pytest_scaleperf import published, records
from pytest_scaleperf.campaign import gate as gates
from pytest_scaleperf.campaign.checking import Checkup
from pytest_scaleperf.campaign.launching import Launching, Order, Sample
from pytest_scaleperf.campaign.nights import Lookback
from pytest_scaleperf.campaign.pool import Ended, Pool
from pytest_scaleperf.campaign.rehearsed_before import fresh
from pytest_scaleperf.campaign.timeline import Timeline
from pytest_scaleperf.launch.protocol import Launcher
from pytest_scaleperf.model import (
    Baseline,
    BaselineSample,
    Case,
    Decision,
    Evidence,
    Fingerprint,
    Gate,
    GateState,
    LaunchError,
    Measurement,
    Metric,
    Outcome,
    ProbePlace,
    Progress,
    ScalePerfError,
    Settings,
    Suite,
    System,
    Verdict,
    as_plain,
)
from pytest_scaleperf.noise import Noise, noise_of
from pytest_scaleperf.rehearsed import Rehearsal, rehearsal_gate
from pytest_scaleperf.suite import Ladder
from pytest_scaleperf.titan import command, dialect
from pytest_scaleperf.verdict import Rule, judge, judge_outcome

_TRIED_AGAIN = frozenset({Outcome.NODE_FAILURE, Outcome.PREEMPTED})
"""What the machine did to a launch, and what another launch elsewhere may be spared."""

MACHINE_RETRIES = 2
"""Launches of one case that the machine may take away before the case is given up as an error of the machine."""

_CLOCK_SKEW = 300.0
"""Seconds by which a record of another machine may lie in the future; a record from further on is no evidence."""


@dataclass(frozen=True, slots=True)
class CaseRun:
    """A case that was launched (or taken from a resumed session) and judged; ``trace`` is what its trace showed."""

    case: Case
    fingerprint: Fingerprint
    baseline: Baseline | None
    samples: tuple[Mapping[str, Any], ...]
    verdict: Verdict
    gate: Gate
    replayed: bool = False
    trace: Mapping[str, Any] | None = None
    provisional: Path | None = None

    @property
    def folder(self) -> Path:
        """Run directory of the last launch: its log, event files and the script that repeats it."""
        return Path(self.samples[-1]["folder"])

    @property
    def step_times(self) -> tuple[float, ...]:
        """Seconds per step over the steady windows of all samples."""
        return tuple(t for sample in counted(self.samples) for t in sample["measurement"]["step_times"])


@dataclass(slots=True)
class Campaign:
    """One session over its cases. Everything that it starts, ``close`` ends. ``lost``: each node that failed."""

    settings: Settings
    system: System
    session: records.SessionFolder
    launcher: Launcher
    selected: Sequence[Case] = ()
    capacity: int | None = None
    verdicts: dict[str, Decision] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    launching: Launching = field(init=False)
    pool: Pool = field(init=False)
    _ladders: dict[str, Ladder] = field(default_factory=dict)
    _baselines: dict[str, Mapping[str, Baseline]] = field(default_factory=dict)
    _published: dict[str, published.Published | None] = field(default_factory=dict)
    _noise: dict[str, Mapping[Metric, Noise]] = field(default_factory=dict)
    _lookback: Lookback = field(init=False)
    _were_rehearsals: bool = field(init=False)
    _blocked: dict[str, list[Case]] | None = None
    _checkup: Checkup | None = None

    def __post_init__(self) -> None:
        """Look back over the sessions of the same run directory."""
        self._lookback = Lookback(self.settings.run_dir, self.session.id)
        self._were_rehearsals = records.has_rehearsals(self.settings.run_dir)
        site = () if self.system.slurm is None or self.settings.launcher == "local" else self.system.slurm.env
        self.launching = Launching(self.system, self.session, dict(site))
        timeline = Timeline(self.session.path, self.capacity or self.settings.gpus or self.system.gpus_per_node)
        self.pool = Pool(self.launcher, self.launching, timeline, self._kept)

    @property
    def launched(self) -> int:
        """Launches so far."""
        return self.pool.launched

    def check_first(self, place: ProbePlace) -> None:
        """Let a pre-flight of ``place`` go before the first launch."""
        largest = max((case.gpus for case in self.selected if case.gpus <= place.gpus), default=place.gpus)
        if place.nodes == 1 and not place.may_leave_out:
            place = dataclasses.replace(place, gpus=largest)  # the cases of one machine take its first GPUs
        python, env = self.launching.surroundings(self.selected[0].suite if self.selected else None)
        self._checkup = Checkup(self.system, self.launcher, self.session.path, place, python, env)

    def prepare(self, case: Case) -> None:
        """The pre-flight, where one was asked for, before anything is launched for this case or another."""
        if self._checkup is not None and self._replay(case, self.fingerprint(case)) is None:
            self.pool.timeline.left_out += self._checkup.make()

    @property
    def checked(self) -> list[str]:
        """What the pre-flight found, a line each."""
        return [] if self._checkup is None else self._checkup.lines()

    def gate(self, case: Case) -> Gate:
        """Whether ``case`` may be launched now."""
        allowed = self.settings.gpus
        if allowed is None or case.gpus > allowed:
            return Gate(GateState.BEYOND, f"needs {case.gpus} GPUs, this session has {allowed} (--gpus {allowed})")
        parents = self.parents(case)
        needed = case.gpus if not parents else parents[0].gpus
        gate = gates.decide(case, parents, self.verdicts, self._stored, _evidence_command(parents, needed))
        if gate.state is not GateState.OPEN or not case.suite.rehearse.closes_gate:
            return gate
        return rehearsal_gate(case, self._rehearsed(case)) or gate

    def parents(self, case: Case) -> tuple[Case, ...]:
        """The cases of which one has to pass before this one may run."""
        return self._ladder(case.suite).parents(case)

    def _rehearsed(self, case: Case) -> Rehearsal | None:
        if not self._were_rehearsals:
            return None
        return fresh(self.settings, case.id, self.fingerprint(case))

    def run(self, case: Case, gate: Gate, progress: Callable[[Progress], None]) -> CaseRun:
        """Launch ``case`` until its verdict is decided or its samples are spent, and judge it.

        Where the launcher runs jobs side by side, the other selected cases whose gates are open go on meanwhile.
        Raises LaunchError where it cannot be started and BaselineError where its baseline cannot be read.
        """
        self.prepare(case)
        if case.id not in self.pool:
            self.pool.add(case.id, self._work(case, gate), Order(case))
        if self.launcher.side_by_side and self._blocked is None:
            self._look_ahead()
        run: CaseRun = self.pool.result(case.id, progress)
        return run

    def launch(
        self, case: Case, progress: Callable[[Progress], None], profile: command.Profile | None = None
    ) -> Sample:
        """One more launch of a case, beside its measured ones; with ``profile`` its ranks are traced.

        Raises LaunchError where it cannot be started.
        """
        order = Order(case, profile)
        key = f"{case.id} traced"
        self.pool.add(key, _once(order), order)
        sample: Sample = self.pool.result(key, progress)
        return sample

    def take_up(self, case: Case, gate: Gate) -> None:
        """Begin with a case whose gate is open, ahead of its test."""
        if case.id not in self.pool and case.id not in self.verdicts:
            self.pool.add(case.id, self._work(case, gate), Order(case))

    def _look_ahead(self) -> None:
        """Take up every selected case whose gate is open already; remember which verdicts the others wait for."""
        self._blocked = defaultdict(list)
        for case in self.selected:
            if case.search is not None:
                continue  # its search says whether it runs
            gate = self.gate(case)
            if gate.state is GateState.OPEN:
                self.take_up(case, gate)
            elif gate.state is not GateState.BEYOND:
                for parent in gate.parents:
                    self._blocked[parent].append(case)

    def _open_behind(self, parent: str) -> None:
        """Take up what waited for this case's verdict and may run now."""
        for case in () if self._blocked is None else self._blocked.pop(parent, ()):
            gate = self.gate(case)
            if gate.state is GateState.OPEN:
                self.take_up(case, gate)

    def _kept(self, ended: Ended) -> Ended:
        """Write down what ended before its test asked for it."""
        if isinstance(ended.result, CaseRun) and not ended.result.replayed:
            try:
                return Ended(self.keep(ended.result, "before its test was reached"))
            except LaunchError as error:  # it cannot be written: that ends this case, not the others
                return Ended(error=error)
        return ended

    def _work(self, case: Case, gate: Gate) -> Generator[Order, Sample, CaseRun]:
        """The case from its first launch to its verdict; yields an order for each launch."""
        fingerprint = self.fingerprint(case)
        stored = self.baseline(case)
        replayed = self._replay(case, fingerprint)
        samples: list[Mapping[str, Any]] = [] if replayed is None else list(replayed)
        taken = [_measurement(s) for s in counted(samples)]
        verdict = None if replayed is None else self._judge(case, taken, stored, fingerprint)
        if verdict is not None and verdict.undecided:  # cut off before the samples that it still needed
            replayed, samples, verdict = None, [], None
        if verdict is None:
            try:
                verdict = yield from self._sample(case, samples, stored, fingerprint)
            except BaseException as error:
                self._cut_short(case, gate, fingerprint, samples, error)
                raise
        verdict = self._lookback.add(verdict, case, fingerprint, stored)
        run = CaseRun(case, fingerprint, stored, tuple(samples), verdict, gate, replayed=replayed is not None)
        return self._with_baseline(run) if self.settings.record_baselines else run

    def finish(self, run: CaseRun, verdict: Verdict) -> Path | None:
        """Write the record of a case with its final verdict; from now on gates may rely on it."""
        before = self.verdicts.get(run.case.id)
        if before is None or before.opens_gate:  # a second test of the same case cannot undo a failure
            self.verdicts[run.case.id] = verdict.decision
        self._open_behind(run.case.id)
        if run.replayed and self._said_before(run.case) == verdict.decision:
            return None
        return self._record(
            run.case, verdict, run.gate, run.fingerprint, run.samples, trace=run.trace, over=run.provisional
        )

    def keep(self, run: CaseRun, reason: str) -> CaseRun:
        """Write down what was measured before more is done with the case, so that not even SIGKILL loses it.

        It is no evidence: were this process to end now, a resumed session would take the measurement and go on with
        ``reason``. ``finish`` puts the final record in its place.
        """
        verdict = Verdict(Decision.MACHINE_FAILED, run.verdict.metrics, f"{Outcome.INTERRUPTED}: {reason}")
        path = self._record(run.case, verdict, run.gate, run.fingerprint, run.samples)
        return dataclasses.replace(run, provisional=path)

    def _said_before(self, case: Case) -> object:
        record = self.session.latest(case.id)
        return None if record is None else record.get("decision")

    def skip(self, case: Case, gate: Gate) -> None:
        """Write down that a case was not launched, and why."""
        if gate.state in (GateState.CLOSED, GateState.NOT_NEEDED):
            self.verdicts[case.id] = Decision.SKIPPED
            self._open_behind(case.id)
        verdict = Verdict(Decision.SKIPPED, (), gate.reason)
        searched = gate.state is GateState.NOT_NEEDED  # a later session may rely on it, under the same fingerprint
        self._record(case, verdict, gate, self.fingerprint(case) if searched else None, ())

    def fingerprint(self, case: Case) -> Fingerprint:
        """What this case's numbers depend on, here and now."""
        return self.launching.fingerprint(case)

    def spoken(self, suite: Suite) -> dialect.Dialect:
        """How the suite's torchtitan is spoken to."""
        return self.launching.spoken(suite)

    def close(self) -> None:
        """End whatever still runs and give the session's lock back."""
        try:
            self.launcher.close()
            self.pool.timeline.write()
        finally:
            self.session.close()

    def _sample(
        self, case: Case, samples: list[Mapping[str, Any]], stored: Baseline | None, fingerprint: Fingerprint
    ) -> Generator[Order, Sample, Verdict]:
        taken, repeats, avoid = list[Measurement](), self._repeats(case), frozenset[str]()
        lost = 0
        if self._checkup is not None:
            self._checkup.require(case)
        while True:
            sample = yield Order(case, avoid=avoid)
            samples.append(sample.as_record())
            ended = _of_the_machine(judge_outcome(case.expect, sample.observation), sample)
            if ended is None:
                taken.append(sample.measurement)
                verdict = self._judge(case, taken, stored, fingerprint)
                if len(taken) >= repeats and not verdict.undecided:
                    return verdict
                continue
            avoid |= self._blame(case, sample)
            lost += 1
            if sample.observation.outcome not in _TRIED_AGAIN or lost > MACHINE_RETRIES:
                return ended

    def _blame(self, case: Case, sample: Sample) -> frozenset[str]:
        """The hosts that lost a launch; they get nothing more in this session, of this case or of another."""
        hosts = frozenset(sample.job.failed_hosts)
        for host in sorted(hosts.difference(self.pool.timeline.left_out)):
            self.launcher.leave_out(host)
            self.pool.timeline.left_out.append(host)
            self.lost.append(f"{host} was given nothing more: it lost {case.id}, launch {sample.folder.name}")
        return hosts

    def _with_baseline(self, run: CaseRun) -> CaseRun:
        """Store what each launch measured where no baseline was, or take it in where it does not make that worse.

        A case whose outcome alone was judged needs no baseline; one that lacks a judged number has none to give.
        """
        verdict = run.verdict
        new = verdict.decision in (Decision.NO_BASELINE, Decision.FINGERPRINT_MISMATCH)
        judged = [m for m in verdict.metrics if m.decision is not Decision.NOT_JUDGED]
        bands = {m.metric: m.tolerance for m in judged if m.tolerance is not None}
        if not bands or len(bands) < len(judged) or run.replayed or not (new or verdict.decision.is_pass):
            return run
        path = self._baseline_path(run.case.suite)
        measured = baselines.Measured(run.case.id, run.fingerprint, self._recorded(run.samples), bands)
        [change] = baselines.update(path, [measured])
        if change.kind is baselines.Kind.REFUSED:
            note = f"not recorded: {change.reason}; `scaleperf baselines update --accept-regression WHY` takes it"
            return dataclasses.replace(run, verdict=dataclasses.replace(verdict, notes=(*verdict.notes, note)))
        if not new:
            return run
        text = f"recorded, not judged: baseline written to {path}; run again without --record-baselines"
        return dataclasses.replace(run, verdict=dataclasses.replace(verdict, decision=Decision.RECORDED, reason=text))

    def _recorded(self, samples: Sequence[Mapping[str, Any]]) -> tuple[BaselineSample, ...]:
        date = time.strftime("%Y-%m-%d")
        return tuple(
            BaselineSample(date, self.session.id, _measurement(sample).values, number)
            for number, sample in enumerate(counted(samples), 1)
        )

    def _cut_short(
        self,
        case: Case,
        gate: Gate,
        fingerprint: Fingerprint,
        samples: Sequence[Mapping[str, Any]],
        error: BaseException,
    ) -> None:
        """Write down a case that did not come to its end; it is no evidence, and a resumed session runs it again."""
        told = str(error) or type(error).__name__
        reason = told if isinstance(error, ScalePerfError) else f"{Outcome.INTERRUPTED}: {told}"
        verdict = Verdict(Decision.MACHINE_FAILED, (), reason)
        self.verdicts[case.id] = verdict.decision
        self._record(case, verdict, gate, fingerprint, samples)

    def _judge(
        self, case: Case, measured: Sequence[Measurement], stored: Baseline | None, fingerprint: Fingerprint
    ) -> Verdict:
        suite = case.suite
        tolerance = {**self.system.tolerance, **suite.tolerance}
        most = max(self._repeats(case), suite.measure.max_samples)
        rule = Rule(self.system.judge, tolerance, suite.compare_across, most, self._noise_of(suite))
        said = self.published(suite) if stored is None else None
        stored = stored if said is None else said.baseline(case.id, fingerprint, _device_gib(measured))
        verdict = judge(measured, stored, fingerprint, rule)
        if said is None or stored is None:
            return verdict
        return dataclasses.replace(verdict, notes=(*verdict.notes, said.told))

    def published(self, suite: Suite) -> published.Published | None:
        """What holds where nothing is stored; None where nothing was published, or what is measured is recorded.

        Raises BaselineError where its file cannot be read.
        """
        if self.settings.record_baselines:
            return None
        if suite.name not in self._published:
            path = published.path_of(self.settings.baselines, self.system.name, suite.name)
            self._published[suite.name] = published.read(path)
        return self._published[suite.name]

    def _repeats(self, case: Case) -> int:
        return self.settings.repeats or case.suite.measure.repeats

    def _noise_of(self, suite: Suite) -> Mapping[Metric, Noise]:
        """What all recorded samples of the suite say of its noise; learned once a session."""
        if suite.name not in self._noise:
            self._noise[suite.name] = noise_of(self._baselines[suite.name].values())
        return self._noise[suite.name]

    def _record(  # noqa: PLR0913 - what a record is made of
        self,
        case: Case,
        verdict: Verdict,
        gate: Gate,
        fingerprint: Fingerprint | None,
        samples: Sequence[Mapping[str, Any]],
        *,
        trace: Mapping[str, Any] | None = None,
        over: Path | None = None,
    ) -> Path:
        return self.session.write(
            case.id,
            {
                "suite": case.suite.name,
                "system": self.system.name,
                "gpus": case.gpus,
                "layout": as_plain(case.layout),
                "activation_checkpoint": case.activation_checkpoint,
                "batch": as_plain(case.batch),
                "decision": verdict.decision,
                "reason": verdict.reason,
                "notes": verdict.notes,
                "metrics": [as_plain(m) for m in verdict.metrics],
                "changes": [as_plain(c) for c in verdict.changes],
                "gate": as_plain(gate),
                "fingerprint": None if fingerprint is None else as_plain(fingerprint),
                "samples": samples,
                **({} if trace is None else {"trace": trace}),
                **({} if self._checkup is None else self._checkup.noted(samples)),
                "finished": time.time(),
            },
            over=over,
        )

    def _replay(self, case: Case, fingerprint: Fingerprint) -> Sequence[Mapping[str, Any]] | None:
        """Samples of a resumed session's finished case; None where it must be launched (again)."""
        record = self.session.latest(case.id) if self.session.resumed else None
        if record is None or case.expect is not Outcome.COMPLETED:
            return None
        samples: Sequence[Mapping[str, Any]] = record.get("samples") or ()
        taken = counted(samples)
        whole = (
            record.get("decision") not in (None, Decision.SKIPPED)
            and record.get("fingerprint") == as_plain(fingerprint)
            and record.get("finished", 0.0) >= time.time() - self.settings.evidence_max_age
            and len(taken) >= self._repeats(case)
            and all(sample.get("outcome") == Outcome.COMPLETED and "measurement" in sample for sample in taken)
        )
        return samples if whole else None

    def _stored(self, parent: Case) -> Evidence | None:
        fingerprint = self.fingerprint(parent)
        oldest = time.time() - self.settings.evidence_max_age
        for found in records.evidence(self.settings.run_dir, parent.id):
            fresh = oldest <= found.finished <= time.time() + _CLOCK_SKEW
            # A run that the machine ended says nothing of the configuration.
            if fresh and found.fingerprint == fingerprint and found.decision is not Decision.MACHINE_FAILED:
                return found
        return self._kept_out(parent, fingerprint)

    def _kept_out(self, case: Case, fingerprint: Fingerprint) -> Evidence | None:
        """That a case could not run because of what failed further below: a stage that skipped it left no verdict."""
        parents = self.parents(case)
        if not parents:
            return None
        gate = gates.decide(case, parents, self.verdicts, self._stored, "")
        closed = gate.state is GateState.CLOSED
        return Evidence(case.id, Decision.SKIPPED, fingerprint, time.time(), gate.reason) if closed else None

    def _ladder(self, suite: Suite) -> Ladder:
        if suite.name not in self._ladders:
            self._ladders[suite.name] = Ladder(suite)
        return self._ladders[suite.name]

    def _baseline_path(self, suite: Suite) -> Path:
        return self.settings.baselines / self.system.name / f"{suite.name}.yaml"

    def baseline(self, case: Case) -> Baseline | None:
        """What is stored of the case.

        Raises BaselineError where its file cannot be read.
        """
        suite = case.suite
        if suite.name not in self._baselines:
            self._baselines[suite.name] = baselines.read_baselines(self._baseline_path(suite))
        return self._baselines[suite.name].get(case.id)


def _evidence_command(parents: Sequence[Case], gpus: int) -> str:
    chosen = f" -k {parents[0].id}" if parents else ""
    return f"pytest suites/ --gpus {gpus}{chosen}"


def counted(samples: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those of a case's launches that count: not those that the machine took away, which were made again."""
    return [sample for sample in samples if sample.get("outcome") not in _TRIED_AGAIN]


def _of_the_machine(ended: Verdict | None, sample: Sample) -> Verdict | None:
    """A time limit of the scheduler's that came before the suite's own says nothing of the configuration."""
    limit = sample.job.fault is sample.observation.outcome is Outcome.TIME_LIMIT
    if ended is None or not limit or ended.decision is not Decision.RUN_FAILED:
        return ended
    return dataclasses.replace(ended, decision=Decision.MACHINE_FAILED)


def _device_gib(measured: Sequence[Measurement]) -> float | None:
    """The memory of one device, by what the runs said of their peak; None where they did not say both."""
    told = [(m.values.get(Metric.PEAK_MEMORY), m.memory_pct) for m in measured]
    return next((100 * peak / share for peak, share in told if peak and share), None)


def _once(order: Order) -> Generator[Order, Sample, Sample]:
    return (yield order)


def _measurement(sample: Mapping[str, Any]) -> Measurement:
    stored = sample["measurement"]
    return Measurement(
        values={Metric(k): float(v) for k, v in stored["values"].items()},
        spread={Metric(k): float(v) for k, v in stored["spread"].items()},
        steps=tuple(stored["steps"]),
        step_times=tuple(stored["step_times"]),
        tps_min=stored["tps_min"],
        memory_pct=stored["memory_pct"],
        alloc_retries=stored["alloc_retries"],
        warnings=tuple(stored["warnings"]),
        interval={Metric(k): (float(low), float(high)) for k, (low, high) in stored.get("interval", {}).items()},
        dropped=stored.get("dropped", 0),
        unsteady=stored.get("unsteady", ""),
    )
