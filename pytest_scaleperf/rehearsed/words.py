"""The words of rehearsals: how one rank's ended, and what all rehearsed ranks of a case say together."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pytest_scaleperf.model import ActivationCheckpoint, Batch, Fingerprint, Layout, Outcome


class Fit(StrEnum):
    """What a rehearsal says of a configuration; in rising order of badness."""

    FITS = "fits"
    TIGHT = "tight"
    """It ran, but less than the reserve is left: the real run lacks what communication takes."""
    SATURATED = "saturated"
    """It ran, but the allocator had to give memory back and try again: the speed suffers."""
    NOT_REHEARSABLE = "not_rehearsable"
    """This torchtitan cannot do it with one process; nothing is known of the configuration."""
    MACHINE_FAILED = "machine_failed"
    """The machine or its operator ended it; nothing is known of the configuration."""
    FAILED = "failed"
    """It trained, and then failed by something else than the device's memory."""
    DOES_NOT_FIT = "does_not_fit"
    """The device's memory ran out."""
    INVALID = "invalid"
    """It ended with an error before its first step: torchtitan or the code does not accept the configuration."""

    @property
    def fits(self) -> bool:
        """True where the configuration is valid and ran to its last step within the device's memory."""
        return self in (Fit.FITS, Fit.TIGHT, Fit.SATURATED)

    @property
    def is_known(self) -> bool:
        """False where the rehearsal says nothing of the configuration."""
        return self not in (Fit.NOT_REHEARSABLE, Fit.MACHINE_FAILED)

    @property
    def badness(self) -> int:
        """Place in the order above."""
        return list(Fit).index(self)


@dataclass(frozen=True, slots=True)
class RankRehearsal:
    """One process that stood for ``rank``.

    ``peak_gib`` is its peak reserved memory, ``total_gib`` the device's (None: not known, as on a CPU), ``margin_gib``
    what is left of it without the reserve. ``tps`` is in tokens/s per GPU without any communication, ``mfu`` in per
    cent, ``alloc_retries`` those of the window, ``requested_gib`` what could not be allocated. ``device_gib`` is the
    memory of the device it ran on, where it said so. ``started`` and ``seconds`` are in seconds.
    """

    rank: int
    fit: Fit
    reason: str = ""
    outcome: Outcome = Outcome.COMPLETED
    peak_gib: float | None = None
    total_gib: float | None = None
    margin_gib: float | None = None
    memory_pct: float | None = None
    alloc_retries: int | None = None
    tps: float | None = None
    mfu: float | None = None
    requested_gib: float | None = None
    device_gib: float | None = None
    notes: tuple[str, ...] = ()
    folder: str = ""
    argv: tuple[str, ...] = ()
    started: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class WithBaseline:
    """The rehearsed peak memory against the real case's stored one, in GiB.

    ``change`` is (rehearsed - baseline) / baseline, ``is_equal`` whether it is within ``tolerance`` (both fractions).
    """

    baseline_gib: float
    change: float
    tolerance: float
    is_equal: bool


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A rehearsed case: the worst of its ranks.

    ``fingerprint`` is the real case's, ``expect`` how the suite says that it ends, ``finished`` in seconds since 1970.
    Never a measurement: nothing of it is compared with a baseline but memory, and it opens no gate.
    """

    case_id: str
    suite: str
    system: str
    gpus: int
    layout: Layout
    activation_checkpoint: ActivationCheckpoint
    batch: Batch
    fit: Fit
    reason: str
    ranks: tuple[RankRehearsal, ...]
    steps: int
    reserve_gib: float | None
    fingerprint: Fingerprint | None
    expect: Outcome = Outcome.COMPLETED
    with_baseline: WithBaseline | None = None
    notes: tuple[str, ...] = ()
    session: str = ""
    finished: float = 0.0
    where: str = ""

    @property
    def is_well(self) -> bool:
        """False where its test is red: it does not fit, is not valid or failed, and the suite expects no such end."""
        expected = self.expect is not Outcome.COMPLETED and any(rank.outcome is self.expect for rank in self.ranks)
        return self.fit.fits or expected or self.fit is Fit.NOT_REHEARSABLE

    @property
    def fullest(self) -> RankRehearsal | None:
        """The rank with the highest peak; None where none said one."""
        return max((r for r in self.ranks if r.peak_gib is not None), key=lambda r: r.peak_gib or 0.0, default=None)

    @property
    def ceiling(self) -> float | None:
        """Tokens/s per GPU without communication: the slowest rehearsed rank's, as the others wait for it."""
        return min((r.tps for r in self.ranks if r.tps is not None), default=None)

    @property
    def mfu(self) -> float | None:
        """MFU of the ceiling in per cent."""
        return min((r.mfu for r in self.ranks if r.mfu is not None), default=None)

    @property
    def seconds(self) -> float:
        """Seconds that its processes ran, together."""
        return sum(r.seconds for r in self.ranks)
