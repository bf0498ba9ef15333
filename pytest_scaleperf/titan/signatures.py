"""How a run ended: its logs, its exit code, the scheduler's word and ours, made into one class with its reason."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_scaleperf.model import Failure, Outcome, StopReason
from pytest_scaleperf.titan.consequences import consequences
from pytest_scaleperf.titan.finding import Finding, outcome_of_signal, signal_of
from pytest_scaleperf.titan.lines import line_number
from pytest_scaleperf.titan.rules import Weight
from pytest_scaleperf.titan.scene import USAGE_EXIT, Scene, line_of, set_scene
from pytest_scaleperf.titan.weigh import Stated, first_observed, primary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_scaleperf.titan.console import Console
    from pytest_scaleperf.titan.torchrun import Worker

_STATES = {
    "TIMEOUT": Outcome.TIME_LIMIT,
    "DEADLINE": Outcome.TIME_LIMIT,
    "NODE_FAIL": Outcome.NODE_FAILURE,
    "BOOT_FAIL": Outcome.NODE_FAILURE,
    "PREEMPTED": Outcome.PREEMPTED,
    "CANCELLED": Outcome.CANCELLED,
    "REVOKED": Outcome.CANCELLED,
    "OUT_OF_MEMORY": Outcome.HOST_OOM,
    "RUNNING": Outcome.INCOMPLETE,
    "PENDING": Outcome.INCOMPLETE,
    "SUSPENDED": Outcome.INCOMPLETE,
    "COMPLETING": Outcome.INCOMPLETE,
    "CONFIGURING": Outcome.INCOMPLETE,
    "REQUEUED": Outcome.INCOMPLETE,
}
_STOPS = {
    StopReason.STARTUP_LIMIT: Outcome.HANG,
    StopReason.NO_PROGRESS: Outcome.HANG,
    StopReason.TOTAL_LIMIT: Outcome.TIME_LIMIT,
    StopReason.INTERRUPTED: Outcome.INTERRUPTED,
    StopReason.NEVER_STARTED: Outcome.CANCELLED,
}
_SIGTERM = 15
_NOT_FOUND = 127
_CANNOT_START = frozenset({126, _NOT_FOUND})  # a shell's
_TIMEOUT_EXIT = 124  # timeout(1)


@dataclass(frozen=True, slots=True)
class End:
    """What is known of the end beside the log. None: not known.

    ``last_step`` is the last logged step of the last attempt, ``log_freq`` the distance between logged steps, and
    ``nan_step`` the first step whose printed loss was not finite.
    """

    exit_code: int | None = None
    slurm_state: str | None = None
    stopped: StopReason | None = None
    requested_steps: int | None = None
    last_step: int | None = None
    log_freq: int | None = None
    nan_step: int | None = None

    @property
    def state(self) -> str | None:
        """Slurm's state as one upper-case word (``CANCELLED by 0`` and ``CANCELLED+`` are CANCELLED)."""
        word = re.split(r"[\s+]", (self.slurm_state or "").strip())[0].upper()
        return None if word in ("", "UNKNOWN") else word


@dataclass(frozen=True, slots=True)
class Ending:
    """The outcome, what failed, the last step that was reached, and what a reader should know beside it."""

    outcome: Outcome
    failure: Failure | None
    last_step: int | None
    warnings: tuple[str, ...] = ()


def classify(console: Console, end: End) -> Ending:
    """Class of a finished run.

    A run is completed only if its last step was reached and nothing says otherwise; a log that simply ends is
    incomplete. Otherwise the finding that explains the others decides (``weigh.primary``); the scheduler's state
    comes before the exit code; what we ended ourselves is a hang or a time limit unless the log proves better.
    """
    reached = _reached(console, end)
    finite = end.nan_step is None
    if reached and finite and end.exit_code == 0 and end.state in (None, "COMPLETED"):
        return _completed(end)
    scene = set_scene(console, started=end.last_step is not None)
    silent = end.exit_code is None and end.state in (None, "COMPLETED") and end.stopped is None
    if reached and finite and silent and all(_noise_of_shutdown(f, console) for f in scene.findings):
        return _completed(end)
    failure = _failure(scene, console, end, reached=reached)
    return Ending(failure.outcome, failure, end.last_step, scene.recovered)


def _completed(end: End) -> Ending:
    warnings: tuple[str, ...] = ()
    if end.requested_steps is None:
        warnings = ("nothing says how many steps were requested: that the run was whole rests on its own end mark",)
    return Ending(Outcome.COMPLETED, None, end.requested_steps or end.last_step, warnings)


def _reached(console: Console, end: End) -> bool:
    """Whether the last step was done. torchtitan logs every log_freq steps: the last logged one may be earlier."""
    if end.last_step is None or _in_last_attempt(console, console.out_of_data):
        return False
    marked = _in_last_attempt(console, console.completed)
    if end.requested_steps is None:
        return marked and end.exit_code == 0
    if end.last_step >= end.requested_steps:
        return True
    return marked and end.log_freq is not None and end.last_step + end.log_freq > end.requested_steps


def _in_last_attempt(console: Console, marks: Sequence[tuple[int, int]]) -> bool:
    last = console.last_attempt
    return any(last is None or at >= (last.begins(file) or 0) for file, at in marks)


def _noise_of_shutdown(finding: Finding, console: Console) -> bool:
    """Ranks that lose each other while they shut down: written after ``Training completed``, and no cause."""
    file, position = finding.place
    ends = [at for mark, at in console.completed if mark == file]
    return finding.weight is Weight.COMMUNICATION and bool(ends) and position > min(ends)


def _failure(scene: Scene, console: Console, end: End, *, reached: bool) -> Failure:
    stated = _stated(end)
    chosen = None
    if end.nan_step is not None:
        chosen = next((f for f in scene.findings if f.outcome is Outcome.NAN_LOSS), None)
    elif end.stopped is not StopReason.INTERRUPTED:
        chosen = primary(scene.findings, stated)
    if chosen is None:
        return _without_finding(scene, console, end, stated, reached=reached)
    chosen = first_observed(chosen, scene.findings, scene.root)
    worker = _worker_of(chosen, scene)
    rank = chosen.rank if chosen.rank is not None or worker is None else worker.rank
    return Failure(
        outcome=chosen.outcome,
        reason=chosen.reason,
        rank=rank,
        host=chosen.host or (worker.host if worker else _only_host(scene)),
        step=chosen.step,
        line=line_of(chosen, console),
        signal=chosen.signal or _own_signal(worker),
        requested_gib=chosen.requested_gib,
        consequences=consequences(chosen, scene, console),
        details=_details(chosen, worker, scene, console),
    )


def _stated(end: End) -> Stated | None:
    """What the printed loss, we ourselves or the scheduler's state say of the end, in this order."""
    if end.nan_step is not None:
        return Stated(Outcome.NAN_LOSS, f"the loss printed at step {end.nan_step} is not finite", by_us=False)
    if end.stopped is not None:
        when = "before the first step" if end.last_step is None else f"after step {end.last_step}"
        return Stated(_STOPS[end.stopped], f"ended by us {when}: {end.stopped.replace('_', ' ')}", by_us=True)
    if end.state in _STATES:
        return Stated(_STATES[end.state], f"Slurm says {end.slurm_state}", by_us=False)
    return None


def _without_finding(scene: Scene, console: Console, end: End, stated: Stated | None, *, reached: bool) -> Failure:
    """No line of the log decides: what was stated does, then the exit code; else the end is not known."""
    details: dict[str, Any] = {}
    if stated is None:
        stated = _by_exit_code(scene, end, reached=reached)
    if stated.outcome in (Outcome.CANCELLED, Outcome.PREEMPTED):
        details["reason"] = "preemption" if stated.outcome is Outcome.PREEMPTED else "unspecified"
    return Failure(
        outcome=stated.outcome,
        reason=stated.reason,
        host=_only_host(scene),
        **_printed_nan(console, end),
        signal=signal_of(end.exit_code) if end.stopped is None else None,
        consequences=consequences(None, scene, console),
        details=details,
    )


def _printed_nan(console: Console, end: End) -> dict[str, int | None]:
    """Step, rank and line of the first printed loss that is not finite."""
    for sample in console.last(console.samples) if end.nan_step is not None else ():
        if sample.step == end.nan_step and sample.loss is not None and not math.isfinite(sample.loss):
            line = line_number(console.texts[sample.speaker.file].text, sample.position)
            return {"step": end.nan_step, "rank": sample.speaker.outer, "line": line}
    return {"step": end.nan_step}


def _by_exit_code(scene: Scene, end: End, *, reached: bool) -> Stated:
    signal = signal_of(end.exit_code)
    code = end.exit_code
    if signal is not None:
        return Stated(outcome_of_signal(signal), f"exit code {code} (signal {signal}); no line says why", by_us=False)
    if code in _CANNOT_START and scene.startup:
        what = "command not found" if code == _NOT_FOUND else "command not executable"
        return Stated(Outcome.CONFIG_ERROR, f"exit code {code}: {what}", by_us=False)
    if code == _TIMEOUT_EXIT:
        return Stated(Outcome.TIME_LIMIT, "exit code 124: ended by timeout(1)", by_us=False)
    if code == USAGE_EXIT and scene.startup:
        return Stated(Outcome.CONFIG_ERROR, "exit code 2 before training began: a usage error", by_us=False)
    if code or end.state == "FAILED":
        said = f"exit code {code}" if code else f"Slurm says {end.slurm_state}"
        when = "after the last step" if reached else _how_far(end)
        return Stated(Outcome.ERROR, f"{said}, {when}; no line of the log says why", by_us=False)
    said = "the exit code is not known" if code is None else "exit code 0"
    return Stated(Outcome.INCOMPLETE, f"{said}, and the log ends {_how_far(end)}", by_us=False)


def _how_far(end: End) -> str:
    if end.last_step is None:
        return "before the first step"
    if end.requested_steps is None:
        return f"at step {end.last_step}; how many were requested is not known (--requested-steps)"
    return f"at step {end.last_step} of {end.requested_steps}"


def _worker_of(chosen: Finding, scene: Scene) -> Worker | None:
    """The report of torchrun on the rank of a finding; where it names none, on the first observed failure."""
    if chosen.rank is not None:
        return next((w for w in scene.workers if w.rank == chosen.rank), None)
    if chosen.weight is Weight.ENDING or chosen.outcome is Outcome.NODE_FAILURE or scene.root is None:
        return None
    killed = signal_of(scene.root.exit_code) is not None
    return scene.root if killed or chosen.outcome is not Outcome.HOST_OOM else None


def _own_signal(worker: Worker | None) -> int | None:
    """The signal that a rank died of, unless it is the SIGTERM with which torchrun ends the others."""
    signal = signal_of(worker.exit_code) if worker else None
    return None if signal == _SIGTERM else signal


def _only_host(scene: Scene) -> str | None:
    """The host of torchrun's reports where all of them are of one node that has every rank from 0 on."""
    hosts = {w.host for w in scene.workers}
    one_node = all(w.rank == w.local_rank for w in scene.workers) and scene.single_node
    return hosts.pop() if len(hosts) == 1 and one_node else None


def _details(chosen: Finding, worker: Worker | None, scene: Scene, console: Console) -> dict[str, Any]:
    details = {name: value for name, value in chosen.details.items() if name not in ("pid", "task")}
    if worker is not None:
        details["exit_code"] = worker.exit_code
    if chosen.outcome is Outcome.NCCL_TIMEOUT and (quiet := _quiet_ranks(scene, console)):
        details["quiet_ranks"] = quiet
    if len(console.texts) > 1:
        details["file"] = console.texts[chosen.speaker.file].name
    if chosen.rank is None and chosen.speaker.outer is not None:
        details["local_rank"] = chosen.speaker.outer
    return details


def _quiet_ranks(scene: Scene, console: Console) -> list[int]:
    """Ranks that trained and did not report the timeout: where to look first, since those that wait are the others.

    Only on one node, where a printed rank is a rank.
    """
    if not scene.single_node:
        return []
    trained = {s.speaker.outer for s in console.last(console.samples) if s.speaker.outer is not None}
    waiting = {f.rank for f in scene.findings if f.outcome is Outcome.NCCL_TIMEOUT}
    return sorted(trained - waiting)
