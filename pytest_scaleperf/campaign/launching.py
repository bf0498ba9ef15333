"""One launch of a case: its folder, its command, and what is seen of it once it has ended."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_scaleperf import records, steady
from pytest_scaleperf.launch.protocol import Job
from pytest_scaleperf.model import (
    Case,
    Failure,
    Fingerprint,
    JobResult,
    LaunchSpec,
    Measurement,
    Observation,
    Outcome,
    Placement,
    Resources,
    StopReason,
    Suite,
    System,
    Wanted,
    as_plain,
)
from pytest_scaleperf.rehearsed import room_of
from pytest_scaleperf.suite import digest
from pytest_scaleperf.titan import command, dialect, observe, software


@dataclass(frozen=True, slots=True)
class Sample:
    """One launch of a case: what was started, where its files are, how it ended, what it measured."""

    argv: tuple[str, ...]
    folder: Path
    observation: Observation
    measurement: Measurement
    job: JobResult
    started: float

    def as_record(self) -> dict[str, Any]:
        """What is kept of it in the case's record."""
        failure, job = self.observation.failure, self.job
        record: dict[str, Any] = {
            "argv": self.argv,
            "folder": str(self.folder),
            "outcome": self.observation.outcome,
            "failure": None if failure is None else as_plain(failure),
            "exit_code": job.exit_code,
            "stopped": job.stopped,
            "hosts": job.hosts,
            "started": self.started,
            "seconds": job.seconds,
            "last_step": self.observation.last_step,
            "sources": dict(self.observation.sources),
            "measurement": as_plain(self.measurement),
        }
        if job.scheduler:
            record |= {"waited": job.waited, "scheduler": job.scheduler, "failed_hosts": job.failed_hosts}
        return record | ({"gpu_ids": job.gpu_ids} if job.gpu_ids else {})


@dataclass(frozen=True, slots=True)
class Order:
    """A launch that is asked for: of which case, traced or not, on which hosts it must not run.

    ``rehearsed_rank``, where given: one process that stands for that rank of the case, on one device.
    """

    case: Case
    profile: command.Profile | None = None
    avoid: frozenset[str] = frozenset()
    rehearsed_rank: int | None = None

    def wanted(self, key: str, system: System) -> Wanted:
        """What it needs of a launcher."""
        gpus = self.case.gpus if self.rehearsed_rank is None else 1
        exclusive = self.case.suite.measure.exclusive and self.rehearsed_rank is None
        return Wanted(key, Resources(gpus, system.gpus_per_node, exclusive=exclusive), self.avoid)


@dataclass(frozen=True, slots=True)
class Started:
    """An order under way."""

    order: Order
    spec: LaunchSpec
    folder: Path
    job: Job
    began: float


@dataclass(slots=True)
class Launching:
    """How the cases of one session are launched and observed. ``site_env`` is the system's own for its jobs."""

    system: System
    session: records.SessionFolder
    site_env: Mapping[str, str] = field(default_factory=dict)
    _environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    _cwd: Path = field(default_factory=Path.cwd)
    _software: dict[str, software.Software] = field(default_factory=dict)
    _dialects: dict[tuple[str, Path], dialect.Dialect] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """A site's variables take the place of inherited ones; a suite's own take theirs."""
        self._environment = {**self._environment, **self.site_env}

    def start(self, order: Order, placement: Placement, submit: Callable[[LaunchSpec], Job]) -> Started:
        """Start an order where it was placed, in a new folder.

        Raises LaunchError where it cannot be started, SuiteError where the dialect cannot say what the case needs.
        """
        case = order.case
        folder = self.session.attempt_folder(case.id)
        built = self._built(order, folder, placement)
        spec = LaunchSpec(
            job_name=f"{self.session.id}.{case.id}",
            argv=built.argv,
            env=built.env,
            cwd=self._cwd,
            output=folder / "stdout.log",
            resources=order.wanted(case.id, self.system).resources,
            placement=placement,
            avoid=order.avoid,
        )
        began = time.time()
        job = submit(spec)
        try:
            command.write_script(folder, built, self._cwd)  # while the job starts
        except BaseException:
            job.stop(StopReason.INTERRUPTED)
            raise
        return Started(order, spec, folder, job, began)

    def observed(self, started: Started, result: JobResult) -> Sample:
        """What the launch left behind, read and measured."""
        case, order = started.order.case, started.order
        seen = observe.observe(
            started.folder,
            exit_code=result.exit_code,
            slurm_state=result.scheduler.get("state"),
            stopped=result.stopped,
            world_size=case.gpus if order.rehearsed_rank is None else 1,
            requested_steps=case.suite.measure.steps,
            losses=order.rehearsed_rank is None,
        )
        seen = _with_fault(seen, result)
        measured = steady.measure(
            seen,
            warmup=case.suite.measure.warmup,
            peak_flops=self.system.peak_flops,
            memory_total_gib=self.system.memory_gib,
            tokens_per_step_per_gpu=case.batch.tokens_per_step / case.gpus,
        )
        # What the reader doubted is said with the verdict: a log of other settings, event files that disagree.
        doubts = tuple(dict.fromkeys((*seen.warnings, *measured.warnings)))
        measured = dataclasses.replace(measured, warnings=doubts)
        return Sample(started.spec.argv, started.folder, seen, measured, result, started.began)

    def fingerprint(self, case: Case) -> Fingerprint:
        """What this case's numbers depend on, here and now."""
        return software.fingerprint(digest(case), self._probe(case), self.system.device, self.system.peak_flops)

    def surroundings(self, suite: Suite | None) -> tuple[str, Mapping[str, str]]:
        """The interpreter and the environment in which a suite's jobs start."""
        if suite is None:
            return sys.executable, self._environment
        return _python(suite), {**self._environment, **dict(suite.trainer.env)}

    def spoken(self, suite: Suite) -> dialect.Dialect:
        """How the suite's torchtitan is spoken to."""
        key = (suite.trainer.dialect, suite.path)
        if key not in self._dialects:
            self._dialects[key] = dialect.load_dialect(suite.trainer.dialect, relative_to=suite.path.parent)
        return self._dialects[key]

    def _built(self, order: Order, folder: Path, placement: Placement) -> command.Command:
        case = order.case
        device, python, spoken = self.system.device, _python(case.suite), self.spoken(case.suite)
        if order.rehearsed_rank is not None:
            return command.build_rehearsal(
                case,
                spoken,
                folder,
                device=device,
                python=python,
                base_env=self._environment,
                rank=order.rehearsed_rank,
                most_memory=room_of(case, self.system).share,
            )
        return command.build(
            case,
            spoken,
            folder,
            device=device,
            python=python,
            base_env=self._environment,
            profile=order.profile,
            nodes=max(1, case.gpus // placement.gpus_on_each),
        )

    def _probe(self, case: Case) -> software.Software:
        python = _python(case.suite)
        if python not in self._software:
            self._software[python] = software.probe(*self.surroundings(case.suite))
        return self._software[python]


def _with_fault(seen: Observation, result: JobResult) -> Observation:
    """What the scheduler knows better than the log: the machine took the run away, whatever its last words were.

    A run that came to its last step did so, whatever happened afterwards.
    """
    if result.fault is None or seen.outcome in (result.fault, Outcome.COMPLETED):
        return seen
    hosts = ", ".join(result.failed_hosts)
    said = result.detail or f"the scheduler says {result.scheduler.get('state', result.state)}"
    text = f"{said} ({hosts})" if hosts and hosts not in said else said
    consequences = () if seen.failure is None else (seen.failure.reason, *seen.failure.consequences)
    failure = Failure(result.fault, text, host=hosts or None, consequences=consequences)
    return dataclasses.replace(seen, outcome=result.fault, failure=failure)


def _python(suite: Suite) -> str:
    return suite.trainer.python or sys.executable
