"""The words of the field: frozen values, enums and the error tree; imports nothing of ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

GIB = 1 << 30


class ScalePerfError(Exception):
    """Anything this project reports to its user; the text says expected, found, where and what next."""


class SuiteError(ScalePerfError):
    """A suite, dialect or system file cannot be used as written."""


class BaselineError(ScalePerfError):
    """A baseline file is missing, unreadable or may not be changed that way."""


class LaunchError(ScalePerfError):
    """A case could not be started, or the machine took it away."""


class TraceError(ScalePerfError):
    """A profiler trace cannot be read."""


class ActivationCheckpoint(StrEnum):
    """What is recomputed in the backward pass."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"
    MEMORY_BUDGET = "memory_budget"


class Direction(StrEnum):
    """Which side of a baseline is the bad one."""

    HIGHER_IS_BETTER = "higher"
    LOWER_IS_BETTER = "lower"


class Metric(StrEnum):
    """A number that is judged or shown, with its unit and direction."""

    TPS = "tps"
    MFU = "mfu"
    PEAK_MEMORY = "peak_memory"
    STEP_TIME = "step_time"

    @property
    def unit(self) -> str:
        """Unit of the stored value: tokens/s per GPU, per cent, GiB, seconds."""
        return _UNITS[self]

    @property
    def direction(self) -> Direction:
        """Lower TPS and MFU, higher memory and step time are worse."""
        if self in (Metric.TPS, Metric.MFU):
            return Direction.HIGHER_IS_BETTER
        return Direction.LOWER_IS_BETTER


_UNITS = {
    Metric.TPS: "tokens/s/GPU",
    Metric.MFU: "%",
    Metric.PEAK_MEMORY: "GiB",
    Metric.STEP_TIME: "s",
}


class Outcome(StrEnum):
    """How a launched run ended; the first failing rank decides."""

    COMPLETED = "completed"
    OOM = "oom"
    HOST_OOM = "host_oom"
    NCCL_TIMEOUT = "nccl_timeout"
    NCCL_ERROR = "nccl_error"
    HANG = "hang"
    NAN_LOSS = "nan_loss"
    CONFIG_ERROR = "config_error"
    NODE_FAILURE = "node_failure"
    PREEMPTED = "preempted"
    TIME_LIMIT = "time_limit"
    CANCELLED = "cancelled"
    DISK_FULL = "disk_full"
    INTERRUPTED = "interrupted"
    KILLED = "killed"
    INCOMPLETE = "incomplete"
    ERROR = "error"

    @property
    def is_machine(self) -> bool:
        """True where the machine or its operator ended the run, not the code or the configuration."""
        return self in _MACHINE_OUTCOMES


_MACHINE_OUTCOMES = frozenset(
    {Outcome.NODE_FAILURE, Outcome.PREEMPTED, Outcome.CANCELLED, Outcome.DISK_FULL, Outcome.INTERRUPTED}
)


class JobState(StrEnum):
    """State of a launched job; a state that is not known is UNKNOWN and never counts as finished."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    OUT_OF_MEMORY = "out_of_memory"
    TIMEOUT = "timeout"
    NODE_FAIL = "node_fail"
    PREEMPTED = "preempted"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"

    @property
    def is_finished(self) -> bool:
        """True once nothing of the job runs any more."""
        return self not in (JobState.PENDING, JobState.RUNNING, JobState.UNKNOWN)


class StopReason(StrEnum):
    """Why we ended a job ourselves."""

    STARTUP_LIMIT = "startup_limit"
    NO_PROGRESS = "no_progress"
    TOTAL_LIMIT = "total_limit"
    INTERRUPTED = "interrupted"
    NEVER_STARTED = "never_started"
    """It waited for nodes longer than the system allows, or for what will never come."""


class Decision(StrEnum):
    """What a judgement says of a metric or a case."""

    PASS = "pass"  # noqa: S105 - a verdict, no password
    IMPROVEMENT = "improvement"
    REGRESSION = "regression"
    INCONCLUSIVE = "inconclusive"
    NO_BASELINE = "no_baseline"
    FINGERPRINT_MISMATCH = "fingerprint_mismatch"
    MISSING_METRIC = "missing_metric"
    RUN_FAILED = "run_failed"
    MACHINE_FAILED = "machine_failed"
    RECORDED = "recorded"
    NOT_JUDGED = "not_judged"
    SKIPPED = "skipped"

    @property
    def is_pass(self) -> bool:
        """True for the two decisions that may make a test green."""
        return self in (Decision.PASS, Decision.IMPROVEMENT)

    @property
    def opens_gate(self) -> bool:
        """True where a larger rung may rely on this case; a recording session has no baselines yet."""
        return self.is_pass or self is Decision.RECORDED


class GateState(StrEnum):
    """Whether a case of a larger rung may be launched."""

    OPEN = "open"
    CLOSED = "closed"
    NO_EVIDENCE = "no_evidence"
    BEYOND = "beyond"
    NOT_NEEDED = "not_needed"


@dataclass(frozen=True, slots=True)
class Layout:
    """Parallelism degrees of one run; each is a count of ranks, at least 1."""

    dp_shard: int
    dp_replicate: int
    tp: int = 1
    cp: int = 1
    pp: int = 1
    ep: int = 1

    @property
    def data_parallel(self) -> int:
        """Ranks that see different data: dp_shard x dp_replicate."""
        return self.dp_shard * self.dp_replicate

    @property
    def world_size(self) -> int:
        """Ranks of the run: dp_shard x dp_replicate x tp x cp x pp (ep lies inside data parallelism)."""
        return self.data_parallel * self.tp * self.cp * self.pp

    @property
    def label(self) -> str:
        """Short form for ids: ``fsdp16-dp2`` and, where above 1, ``-tp2-cp2-pp2-ep8``."""
        rest = (("tp", self.tp), ("cp", self.cp), ("pp", self.pp), ("ep", self.ep))
        extra = "".join(f"-{name}{degree}" for name, degree in rest if degree > 1)
        return f"fsdp{self.dp_shard}-dp{self.dp_replicate}{extra}"


@dataclass(frozen=True, slots=True)
class Batch:
    """Batch arithmetic of one run: ``global_`` = ``local`` x data-parallel ranks x ``accumulation`` sequences.

    ``target`` is the global batch that the suite asked for; ``global_`` is the closest that can be made.
    """

    local: int
    global_: int
    accumulation: int
    sequence: int
    target: int | None = None

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimiser step over all ranks."""
        return self.global_ * self.sequence


@dataclass(frozen=True, slots=True)
class Trainer:
    """How a case's training is started; nothing here is evaluated, everything ends as arguments.

    ``entry`` is ``"synthetic"`` (ours: synthetic tokens, CPU device) or the module that a team runs itself.
    ``python`` is the interpreter of the job (None: the one that runs pytest). ``executable``, where given,
    replaces torchrun and Python: a program that starts all ranks by itself.
    """

    dialect: str
    module: str
    config: str
    entry: str = "synthetic"
    python: str | None = None
    executable: str | None = None
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    force_load_balance: bool = False


@dataclass(frozen=True, slots=True)
class Measure:
    """What is measured: ``steps`` in all, the first ``warmup`` never judged, a value every ``log_freq`` steps.

    ``repeats`` samples are taken at least, ``max_samples`` at most while a verdict is undecided. ``exclusive``: no
    other case runs meanwhile, also not on other nodes of the same allocation.
    """

    steps: int
    warmup: int
    log_freq: int
    repeats: int = 1
    max_samples: int = 4
    exclusive: bool = False


@dataclass(frozen=True, slots=True)
class Tracing:
    """How a suite's cases are traced in a run of their own: ``steps`` that the profiler records, three at least.

    ``always``: also without the option. ``tolerance`` is how much a share of the step may change, as a fraction of the
    step (None: the system's). ``rules`` are the user's patterns by kind, searched in names; see the trace room.
    """

    always: bool = False
    steps: int = 3
    tolerance: float | None = None
    rules: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Rehearse:
    """How a suite's cases are rehearsed: ``steps`` by one process for each of ``ranks``, on one device.

    A negative rank counts from the end. ``reserve_gib`` is kept free for what the allocator does not hold (None: the
    project's). ``closes_gate``: a case that does not fit is not launched. ``executable``: the trainer's own program
    starts one process where COMM_MODE is fake_backend.
    """

    steps: int = 5
    ranks: tuple[int, ...] = (0,)
    reserve_gib: float | None = None
    closes_gate: bool = True
    executable: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds after which we end a run: to its first step, between two steps, in all."""

    startup: float
    no_progress: float
    total: float


@dataclass(frozen=True, slots=True)
class Requirement:
    """A rung's gate: a passing case at ``gpus`` that has the same value in every field of ``same``."""

    gpus: int
    same: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Search:
    """That the local batch of a family (cases that differ in nothing else) is found and not given.

    ``offsets``: None where the family's own peak is searched; else its cases are those at the peak of what its rung
    requires plus these, in sequences.
    """

    family: str
    offsets: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """One launch: a suite's configuration at one GPU count. ``id`` is unique within a run and stable.

    ``search``, where given: a candidate of that search, which may turn out not to be needed.
    """

    id: str
    suite: Suite = field(repr=False, compare=False)
    gpus: int
    layout: Layout
    activation_checkpoint: ActivationCheckpoint
    batch: Batch
    expect: Outcome = Outcome.COMPLETED
    search: Search | None = field(default=None, repr=False, compare=False)

    def axis(self, name: str) -> object:
        """Value of one axis that a gate may ask to be the same.

        Raises KeyError for a name that is no axis.
        """
        if name in _LAYOUT_AXES:
            return getattr(self.layout, name)
        return {
            "activation_checkpoint": self.activation_checkpoint,
            "local_batch": self.batch.local,
            "global_batch": self.batch.global_,
            "sequence": self.batch.sequence,
        }[name]


_LAYOUT_AXES = frozenset({"dp_shard", "dp_replicate", "tp", "cp", "pp", "ep"})
AXES = (*sorted(_LAYOUT_AXES), "activation_checkpoint", "local_batch", "global_batch", "sequence")


@dataclass(frozen=True, slots=True)
class Rung:
    """All cases of one GPU count, and what opens them (None: the lowest rung, always open).

    ``scaling`` is the tolerance, as a fraction, of its efficiency against the rungs below; None: not tested.
    """

    gpus: int
    requires: Requirement | None
    cases: tuple[Case, ...]
    scaling: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Suite:
    """One suite file: a model, a ladder of rungs in rising GPU count, and how it is measured.

    ``tolerance`` overrides the system's, as fractions (0.03 is 3 %). ``compare_across`` names fingerprint
    fields that may differ from the baseline's (what a nightly run varies on purpose); the difference is shown.
    """

    name: str
    path: Path
    system: str
    trainer: Trainer
    measure: Measure
    limits: Limits
    tolerance: Mapping[Metric, float]
    compare_across: tuple[str, ...]
    rungs: tuple[Rung, ...] = ()
    trace: Tracing = field(default_factory=Tracing)
    rehearse: Rehearse = field(default_factory=Rehearse)

    def cases(self) -> tuple[Case, ...]:
        """Every case, lowest rung first."""
        return tuple(case for rung in self.rungs for case in rung.cases)

    def rung(self, gpus: int) -> Rung | None:
        """The rung of that GPU count, or None."""
        return next((rung for rung in self.rungs if rung.gpus == gpus), None)


@dataclass(frozen=True, slots=True)
class Preflight:
    """What a healthy GPU and its links reach in a pre-flight on this system.

    ``rates`` by name, in TFLOP/s (``matmul_tflops``) and GB/s (``memory_gb_s``). ``inside_node`` and ``across_nodes``
    hold bus bandwidths in GB/s by (collective, MiB). ``tolerance`` is how far below these a value may lie,
    ``fleet_tolerance`` how far below the fleet's median (None: the pre-flight's own), both as fractions.
    ``always``: every session begins with a pre-flight.
    """

    tolerance: float
    rates: Mapping[str, float]
    inside_node: Mapping[tuple[str, int], float]
    across_nodes: Mapping[tuple[str, int], float]
    fleet_tolerance: float | None = None
    always: bool = False

    def link(self, across_nodes: bool, operation: str, mib: int) -> float | None:  # noqa: FBT001 - one of two tables
        """The bus bandwidth that is expected in GB/s, or None where none is stated."""
        table = self.across_nodes if across_nodes else self.inside_node
        return table.get((operation, mib))


@dataclass(frozen=True, slots=True)
class Link:
    """One level of a network, for one GPU and one direction: GB/s (1e9 bytes), and microseconds of one ring step."""

    gb_s: float
    latency_us: float


@dataclass(frozen=True, slots=True)
class Network:
    """What connects GPUs inside a node and between nodes, as the system file states it; used by projections only."""

    intra_node: Link
    inter_node: Link


@dataclass(frozen=True, slots=True)
class System:
    """One kind of machine, from ``baselines/<name>/system.yaml``.

    ``peak_flops`` is the BF16 peak of one GPU in FLOP/s; None where it is measured in each run (``cpu``).
    ``memory_gib`` is one GPU's memory; None where it is read from the run. ``judge`` lists what is asserted,
    ``tolerance`` its band as a fraction of the baseline. ``device_match`` is found in the device's name.
    ``slurm`` is how its cluster is asked for nodes (None: it says nothing of it).
    ``trace_tolerance`` is how much a share in a trace may change, as a fraction of the step. ``network`` is None where
    the file does not state it: then nothing is projected to larger rungs.
    """

    name: str
    device: str
    device_match: str
    gpus_per_node: int
    peak_flops: float | None
    memory_gib: float | None
    judge: tuple[Metric, ...]
    tolerance: Mapping[Metric, float]
    note: str = ""
    trace_tolerance: float | None = None
    network: Network | None = None
    preflight: Preflight | None = None
    slurm: SlurmOptions | None = None


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What a number depends on. Two numbers are compared only where these are equal, or the difference is named.

    ``config`` is a digest of everything that decides what one case runs (trainer, layout, batch, steps).
    None means that the value does not exist there (no driver on a CPU), not that it was not looked for.
    """

    device: str
    driver: str | None
    torch: str | None
    nccl: str | None
    torchtitan: str | None
    torchtitan_commit: str | None
    config: str
    peak_flops: float | None

    def differences(self, other: Fingerprint) -> dict[str, tuple[object, object]]:
        """Fields that differ, each with (this value, the other's)."""
        return {
            name: (getattr(self, name), getattr(other, name))
            for name in FINGERPRINT_FIELDS
            if getattr(self, name) != getattr(other, name)
        }


FINGERPRINT_FIELDS = ("device", "driver", "torch", "nccl", "torchtitan", "torchtitan_commit", "config", "peak_flops")


class Source(StrEnum):
    """Where a number came from."""

    EVENT_FILES = "event files"
    CONSOLE = "console"
    RANK_FILES = "rank files"


@dataclass(frozen=True, slots=True)
class StepSample:
    """What the ranks said of one logged step, already merged over ranks.

    ``tps`` is the median over ranks in tokens/s per GPU, ``tps_min`` the slowest rank's. ``memory_gib`` and
    ``memory_pct`` are the highest rank's peak reserved memory since the line before. ``alloc_retries`` is the
    cumulative count, highest rank. None: not said.
    """

    step: int
    tps: float | None = None
    tps_min: float | None = None
    tflops: float | None = None
    mfu_pct: float | None = None
    memory_gib: float | None = None
    memory_pct: float | None = None
    loss: float | None = None
    grad_norm: float | None = None
    alloc_retries: int | None = None
    ranks: int = 1


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a run failed: the line that says so and who said it; ``consequences`` followed from it."""

    outcome: Outcome
    reason: str
    rank: int | None = None
    host: str | None = None
    step: int | None = None
    line: int | None = None
    signal: int | None = None
    requested_gib: float | None = None
    consequences: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Observation:
    """What a finished run did, read from its files; holds no judgement and no statistics.

    ``series`` is the last attempt's logged steps in rising order. ``first_step`` is the step at which the
    last attempt began (1, or later after a resume). ``rank_peak_flops`` is each rank's measured matmul rate
    in FLOP/s where our entry measured it.
    """

    outcome: Outcome
    series: tuple[StepSample, ...] = ()
    failure: Failure | None = None
    requested_steps: int | None = None
    last_step: int | None = None
    first_step: int = 1
    attempts: int = 1
    world_size: int | None = None
    rank_peak_flops: tuple[float, ...] = ()
    sources: Mapping[str, Source] = field(default_factory=dict)
    software: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    malformed_lines: int = 0


@dataclass(frozen=True, slots=True)
class Measurement:
    """The numbers of one completed run over its steady window.

    ``values`` holds only what could be measured. ``spread`` is the standard error of the value as a fraction
    of it, from the steps of the window (0 where the metric does not vary). ``steps`` are the window's logged steps.
    ``interval`` holds the true value in 95 % of runs, from the same steps and in the metric's unit. ``dropped`` counts
    the logged steps after the warm-up that were not yet steady. ``unsteady`` says why the speed is not to be judged.
    """

    values: Mapping[Metric, float]
    spread: Mapping[Metric, float]
    steps: tuple[int, ...]
    step_times: tuple[float, ...] = ()
    tps_min: float | None = None
    memory_pct: float | None = None
    alloc_retries: int | None = None
    warnings: tuple[str, ...] = ()
    interval: Mapping[Metric, tuple[float, float]] = field(default_factory=dict)
    dropped: int = 0
    unsteady: str = ""


@dataclass(frozen=True, slots=True)
class BaselineSample:
    """One recorded launch of one case; ``number`` counts the launches of its session, from 1."""

    date: str
    session: str
    values: Mapping[Metric, float]
    number: int = 1


@dataclass(frozen=True, slots=True)
class Baseline:
    """What a case is compared with: every recorded sample, all of one fingerprint."""

    case_id: str
    fingerprint: Fingerprint
    samples: tuple[BaselineSample, ...]
    where: str
    tolerance: Mapping[Metric, float] = field(default_factory=dict)
    why: str = ""


@dataclass(frozen=True, slots=True)
class MetricVerdict:
    """The judgement of one metric. ``change`` is (value - baseline) / baseline; ``noise`` the half-width around it.

    ``tolerance`` is the band that was judged by, ``allowed`` the narrowest that the recorded samples' ``spread``
    allows; both None where too little is recorded. All five are fractions. ``undecided`` means that another launch
    may still decide. ``note`` says what is to be known about the tolerance.
    """

    metric: Metric
    decision: Decision
    value: float | None
    baseline: float | None
    tolerance: float | None
    change: float | None
    noise: float | None = None
    spread: float | None = None
    allowed: float | None = None
    undecided: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class LevelChange:
    """A change of a metric's level over the nights: ``before`` and ``after`` in its unit.

    ``since`` is the first day of the new level, ``session`` its session; ``nights`` counts from there to the newest.
    """

    metric: Metric
    since: str
    session: str
    before: float
    after: float
    nights: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of a case: the worst of its metrics, with the sentence that a person reads.

    ``undecided`` is True where it is INCONCLUSIVE and another launch may still decide it. ``changes`` are those of the
    case's history; they stand beside the judgement and have no part in it.
    """

    decision: Decision
    metrics: tuple[MetricVerdict, ...]
    reason: str
    samples: int = 0
    notes: tuple[str, ...] = ()
    undecided: bool = False
    changes: tuple[LevelChange, ...] = ()


@dataclass(frozen=True, slots=True)
class Evidence:
    """An earlier verdict that a gate may rely on."""

    case_id: str
    decision: Decision
    fingerprint: Fingerprint
    finished: float
    where: str


@dataclass(frozen=True, slots=True)
class Gate:
    """Whether a case may be launched, and by whom that was decided."""

    state: GateState
    reason: str
    parents: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Settings:
    """One session's settings, read once.

    ``gpus`` is None where the user did not say it (nothing may be launched then). ``evidence_max_age`` is in
    seconds. ``resume`` names an earlier session, or ``latest``; None starts a new one. ``repeats``, where given,
    takes the place of the suites' own: launches of each case at least. ``trace``: trace every selected case.
    ``slurm`` holds what was said of SlurmOptions for this session, by their names.
    ``rehearse``: launch none, rehearse each. ``preflight``: probe the GPUs first (None: as the system file says).
    """

    gpus: int | None
    system: str
    launcher: str
    run_dir: Path
    baselines: Path
    record_baselines: bool
    evidence_max_age: float
    resume: str | None
    repeats: int | None = None
    trace: bool = False
    rehearse: bool = False
    slurm: Mapping[str, object] = field(default_factory=dict)
    preflight: bool | None = None


@dataclass(frozen=True, slots=True)
class Resources:
    """What one launch needs. ``exclusive``: nothing else may run beside it, also on other nodes."""

    gpus: int
    gpus_per_node: int
    exclusive: bool = False

    @property
    def nodes(self) -> int:
        """Whole nodes, rounded up."""
        return -(-self.gpus // self.gpus_per_node)


class ContainerKind(StrEnum):
    """How a job's processes are put into a container."""

    PYXIS = "pyxis"
    APPTAINER = "apptainer"


@dataclass(frozen=True, slots=True)
class Container:
    """The container of every process of a job; ``mounts`` as its tool writes them (``/data:/data:ro``)."""

    kind: ContainerKind
    image: str
    mounts: tuple[str, ...] = ()
    args: tuple[str, ...] = ()


class Submit(StrEnum):
    """What one Slurm job holds where we submit it ourselves."""

    CASE = "case"
    RUNG = "rung"


@dataclass(frozen=True, slots=True)
class SlurmOptions:
    """How a site's Slurm is asked for nodes, from ``slurm:`` of a system file; None and empty: not said to Slurm.

    ``time_limit`` is a job's own in seconds (Slurm counts minutes, rounded up). ``pending_limit``: seconds after which
    a job that has not started is given up (None: never). ``max_jobs`` of ours at a time. ``args`` are passed to sbatch
    as they are, ``srun_args`` to srun. ``setup`` are shell lines of the site, run before srun; ``env`` is added to a
    job's environment.
    """

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    reservation: str | None = None
    exclude: tuple[str, ...] = ()
    time_limit: float | None = None
    args: tuple[str, ...] = ()
    srun_args: tuple[str, ...] = ()
    setup: str = ""
    env: tuple[tuple[str, str], ...] = ()
    container: Container | None = None
    submit: Submit = Submit.CASE
    pending_limit: float | None = None
    max_jobs: int = 32


@dataclass(frozen=True, slots=True)
class Wanted:
    """A launch that waits for room. ``avoid`` are hosts on which it must not run (again)."""

    key: str
    resources: Resources
    avoid: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a launch runs: ``gpus_on_each`` GPUs of every node.

    ``nodes`` is empty where the scheduler chooses them. ``gpu_ids`` are the devices where the launcher chooses them
    itself (one node only); empty: the scheduler hands them out, or all of the node's are meant.
    """

    nodes: tuple[str, ...]
    gpus_on_each: int
    gpu_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ProbePlace:
    """What a pre-flight covers: ``gpus`` in all on ``nodes`` nodes.

    ``may_leave_out``: its launcher goes on without a node that is ill. ``why_not``, where given: none can be made here.
    """

    gpus: int
    nodes: int = 1
    may_leave_out: bool = False
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """One process tree to start: arguments (never a shell string), full environment, folder and output file.

    ``argv`` is started once on every node of the job. ``folder`` is the run's own, on storage that every node sees.
    ``placement`` is what ``Launcher.choose`` gave; ``avoid`` are hosts that the scheduler is told to leave out.
    """

    job_name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    output: Path
    resources: Resources
    placement: Placement | None = None
    avoid: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class JobResult:
    """How a job ended. ``exit_code`` is None where nobody could read it, negative for a signal.

    ``seconds`` it ran, ``waited`` seconds it was queued before. ``scheduler`` holds what a scheduler said of it: its
    job and step id, its own word for the state, reason. ``gpu_ids`` are the devices by host, where they were read.
    ``failed_hosts`` are those that the machine's failure is put down to. ``fault`` is what the machine or its operator
    did, where the launcher knows it better than the log: node failure, preemption, time limit, cancelled, disk full.
    """

    state: JobState
    exit_code: int | None
    stopped: StopReason | None = None
    hosts: tuple[str, ...] = ()
    leftovers: int = 0
    seconds: float = 0.0
    detail: str = ""
    waited: float = 0.0
    scheduler: Mapping[str, str] = field(default_factory=dict)
    gpu_ids: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    failed_hosts: tuple[str, ...] = ()
    fault: Outcome | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a running case is. ``step`` and ``tps`` are None until the log says them; ``seconds`` have passed.

    ``seconds`` is None while a scheduler has it queued; ``beside`` other launches run at the same time.
    """

    case_id: str
    step: int | None
    steps: int
    tps: float | None
    seconds: float | None
    seconds_left: float | None
    beside: int = 0


def as_plain(value: object) -> dict[str, Any]:
    """A word's fields by name, for JSON: one level deep and without copies (dataclasses.asdict copies, slowly)."""
    return {f.name: getattr(value, f.name) for f in fields(value)}  # type: ignore[arg-type]  # any word of this file
