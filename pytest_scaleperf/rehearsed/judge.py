"""From what rehearsing processes did to what that says of their case."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_scaleperf.model import Case, Failure, Measurement, Metric, Observation, Outcome, System
from pytest_scaleperf.rehearsed.words import Fit, RankRehearsal, Rehearsal, WithBaseline

DEFAULT_RESERVE_GIB = 2.0
"""Memory kept free, in GiB, for what the allocator does not hold: the CUDA context and NCCL's buffers.

Measured on 2 x H200 (139.80 GiB, torchtitan 0.2.2, torch 2.11): a saturated real run could reserve 138.07 GiB, so
1.73 GiB lay outside, its rehearsal 138.64 GiB, so 1.16 GiB of that are not NCCL's. A larger run has more
communicators; measure it there: what nvidia-smi shows as used less the peak reserved memory of a real run.
"""

_SMALLER = 0.98  # a device with less than this share of the system's memory is another kind
_CAPACITY = re.compile(r"total capacity of (?P<gib>[0-9.]+) GiB")
_KNOWN_LIMITS = (
    (
        re.compile(r"hook result is either a Tensor or a TensorList found None"),
        "replicas alone (dp_shard 1) need a reducer that the fake process group of this torchtitan does not feed",
    ),
)
_NO_REPLICAS_ALONE = frozenset({"0.2"})


@dataclass(frozen=True, slots=True)
class Room:
    """The memory that a case has: ``total_gib`` of a GPU (None: not known), of which ``reserve_gib`` stay free.

    ``on_cpu``: the memory is the host's and shared by all ranks, so that it says nothing of a GPU's.
    """

    total_gib: float | None
    reserve_gib: float
    on_cpu: bool = False

    @property
    def share(self) -> float | None:
        """Share of the device's memory that the allocator may take; None where that is not known."""
        if self.total_gib is None or self.on_cpu:
            return None
        return max(0.0, 1.0 - self.reserve_gib / self.total_gib)


def room_of(case: Case, system: System) -> Room:
    """The memory that the case has on its system."""
    told = case.suite.rehearse.reserve_gib
    reserve = DEFAULT_RESERVE_GIB if told is None else told
    return Room(system.memory_gib, reserve, on_cpu=system.device == "cpu")


def ranks_of(case: Case) -> tuple[int, ...]:
    """The ranks to rehearse, as 0 .. GPUs - 1, each once. Of a model that is sharded unevenly, rank 0 has the most."""
    return tuple(dict.fromkeys(rank % case.gpus for rank in case.suite.rehearse.ranks))


def not_rehearsable(case: Case, dialect: str) -> str:
    """Why one process cannot stand for a rank of the case; empty where nothing is known against it.

    ``dialect`` is the name that the dialect gives itself.
    """
    layout, trainer = case.layout, case.suite.trainer
    if trainer.executable is not None and not case.suite.rehearse.executable:
        return (
            f"trainer.executable ({trainer.executable}) starts its ranks itself. If it starts one process where "
            "COMM_MODE is fake_backend, as torchtitan's run_train.sh does, say rehearse: {executable: true} in "
            f"{case.suite.path}"
        )
    if layout.pp > 1:
        return (
            "the stages of a pipeline ask their neighbours for the shapes of what they send "
            "(torch.distributed.pipelining), and one process has no neighbours that answer"
        )
    if dialect in _NO_REPLICAS_ALONE and layout.data_parallel == layout.dp_replicate == case.gpus > 1:
        return f"under dialect {dialect} {_KNOWN_LIMITS[0][1]}"
    return ""


def judge_rank(rank: int, seen: Observation, measured: Measurement, room: Room) -> RankRehearsal:
    """What one process says. Its losses mean nothing, so one that is not finite is no failure.

    ``seen`` is to be read without losses (``observe(losses=False)``).
    """
    values, failure = measured.values, seen.failure
    peak = values.get(Metric.PEAK_MEMORY)
    total = None if room.on_cpu else room.total_gib
    margin = None if peak is None or total is None else total - room.reserve_gib - peak
    fit, reason = _fit(seen, measured, margin, room)
    return RankRehearsal(
        rank=rank,
        fit=fit,
        reason=reason,
        outcome=seen.outcome,
        peak_gib=peak,
        total_gib=total,
        margin_gib=margin,
        memory_pct=measured.memory_pct,
        alloc_retries=measured.alloc_retries,
        tps=values.get(Metric.TPS),
        mfu=values.get(Metric.MFU),
        requested_gib=None if failure is None else failure.requested_gib,
        device_gib=_device_gib(seen, failure),
        notes=tuple(warning for warning in measured.warnings if not _is_no_news(warning, measured)),
    )


def _is_no_news(warning: str, measured: Measurement) -> bool:
    """Few steps are meant, a run that failed is the verdict itself, and torchtitan's own MFU is not used."""
    own = ("numbers are not judged", "torchtitan did not know this GPU")
    return warning == measured.unsteady or any(text in warning for text in own)


def _fit(seen: Observation, measured: Measurement, margin: float | None, room: Room) -> tuple[Fit, str]:
    if seen.outcome is Outcome.COMPLETED:
        return _ran(measured, margin, room)
    reason = f"{seen.outcome}: {seen.failure.reason}" if seen.failure is not None else str(seen.outcome)
    limit = next((why for pattern, why in _KNOWN_LIMITS if pattern.search(reason)), None)
    if limit is not None:
        return Fit.NOT_REHEARSABLE, f"{limit} ({reason})"
    if seen.outcome.is_machine:
        return Fit.MACHINE_FAILED, reason
    if seen.outcome is Outcome.OOM or (room.on_cpu and seen.outcome is Outcome.HOST_OOM):
        return Fit.DOES_NOT_FIT, reason
    begun = any(sample.step for sample in seen.series)
    if not begun and seen.outcome in (Outcome.CONFIG_ERROR, Outcome.ERROR):
        return Fit.INVALID, seen.failure.reason if seen.failure is not None else reason
    return Fit.FAILED, reason


def _ran(measured: Measurement, margin: float | None, room: Room) -> tuple[Fit, str]:
    if measured.alloc_retries:
        return Fit.SATURATED, f"it fits only with {measured.alloc_retries} allocation retries after its warm-up"
    if room.on_cpu:
        return Fit.FITS, "it ran; on a CPU that is all that says whether it fits"
    if margin is None:
        return Fit.FITS, "it ran; how much memory is left is not known"
    if margin < 0:
        return Fit.TIGHT, f"it ran, but {-margin:.2f} GiB of the reserve of {room.reserve_gib:g} GiB were taken"
    return Fit.FITS, f"{margin:.2f} GiB left beside the reserve of {room.reserve_gib:g} GiB"


def _device_gib(seen: Observation, failure: Failure | None) -> float | None:
    """Memory of the device it ran on: as the error says it, else from a step's peak and share (known to 1 %)."""
    told = None if failure is None else _CAPACITY.search(failure.reason)
    if told is not None:
        return float(told["gib"])
    shares = [(s.memory_gib, s.memory_pct) for s in seen.series if s.memory_gib and s.memory_pct]
    return max((100 * gib / pct for gib, pct in shares), default=None)


def judge_case(ranks: Sequence[RankRehearsal], room: Room) -> tuple[Fit, str, tuple[str, ...]]:
    """The worst of a case's ranks: how it fits, why, and what is to be known beside it."""
    worst = max(ranks, key=lambda rank: rank.fit.badness)
    reason = worst.reason if len(ranks) == 1 and worst.rank == 0 else f"rank {worst.rank}: {worst.reason}"
    return worst.fit, reason, (*_other_device(ranks, room), *_notes(ranks))


def _notes(ranks: Sequence[RankRehearsal]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(note for rank in ranks for note in rank.notes))


def _other_device(ranks: Sequence[RankRehearsal], room: Room) -> tuple[str, ...]:
    small = [rank.device_gib for rank in ranks if is_smaller(rank, room.total_gib)]
    if room.on_cpu or not small:
        return ()
    return (f"rehearsed on a device of {small[0]:.1f} GiB, the system's has {room.total_gib:g} GiB",)


def is_smaller(rank: RankRehearsal, total_gib: float | None) -> bool:
    """Whether the process ran on a device with less memory than the system's: an OOM there proves nothing."""
    return rank.device_gib is not None and total_gib is not None and rank.device_gib < _SMALLER * total_gib


def with_baseline(found: Rehearsal, baseline_gib: float | None, tolerance: float | None) -> WithBaseline | None:
    """The case's rehearsed memory against the real one; None where either is not known."""
    fullest = found.fullest
    if fullest is None or fullest.peak_gib is None or not baseline_gib or tolerance is None or not found.fit.fits:
        return None
    change = fullest.peak_gib / baseline_gib - 1
    return WithBaseline(baseline_gib, change, tolerance, abs(change) <= tolerance)
