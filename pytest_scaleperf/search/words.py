"""What a search is told and says: one answer for each local batch that was tried, and what is known of them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pytest_scaleperf.model import Outcome


@dataclass(frozen=True, slots=True)
class Answer:
    """What one launch at one local batch showed, real or rehearsed.

    ``memory``: peak reserved GiB. ``tps``: tokens/s per GPU; of a rehearsal it is the ceiling that communication can
    only lower. ``saturated``: the allocator had to retry, so that memory is at its limit and speed collapses.
    """

    outcome: Outcome
    memory: float | None = None
    tps: float | None = None
    saturated: bool = False

    @property
    def fits(self) -> bool | None:
        """Whether it fits; None where it ended for a reason that says nothing of memory."""
        if self.outcome is Outcome.COMPLETED:
            return True
        return False if self.outcome is Outcome.OOM else None


@dataclass(slots=True)
class Findings:
    """All answers of one family (cases that differ in the local batch alone), by local batch: the shared edge.

    ``grid`` are the candidates, rising. ``room`` is the memory in GiB that a rank may reserve; None: not known. What
    a real run said of a batch counts before what its rehearsal said; a real OOM takes along everything above it that
    no real run has shown to fit.
    """

    grid: tuple[int, ...]
    room: float | None = None
    rehearsed: dict[int, Answer] = field(default_factory=dict)
    real: dict[int, Answer] = field(default_factory=dict)

    def memory_answers(self) -> dict[int, Answer]:
        """What is known of memory: the answers that say whether a batch fits, the real one first."""
        known = {b: a for b, a in self.rehearsed.items() if a.fits is not None}
        known.update({b: a for b, a in self.real.items() if a.fits is not None})
        failed = self.lowest_real_oom
        if failed is None:
            return known
        return {b: a for b, a in known.items() if b <= failed or b in self.real}

    @property
    def lowest_real_oom(self) -> int | None:
        """The smallest batch at which a real run was out of memory."""
        return min((b for b, a in self.real.items() if a.fits is False), default=None)

    @property
    def rehearsable(self) -> bool:
        """Whether rehearsals say anything here: there were some, and one of them ended with or without memory."""
        return any(answer.fits is not None for answer in self.rehearsed.values())

    @property
    def unusable(self) -> tuple[int, ...]:
        """Batches whose last word, a real run's or else the rehearsal's, says nothing of memory or speed.

        Where no rehearsal says anything, it is not the batch: the real runs have to show what is wrong.
        """
        told = {**(self.rehearsed if self.rehearsable else {}), **self.real}
        return tuple(sorted(batch for batch, answer in told.items() if answer.fits is None))

    @property
    def first_out(self) -> int | None:
        """The smallest batch that is known not to fit."""
        return min((b for b, a in self.memory_answers().items() if a.fits is False), default=None)

    @property
    def edge(self) -> int | None:
        """The largest batch that fits with nothing below it that does not; None where none is known."""
        known, out = self.memory_answers(), self.first_out
        return max((b for b, a in known.items() if a.fits and (out is None or b < out)), default=None)

    @property
    def islands(self) -> tuple[int, ...]:
        """Batches that fit although a smaller one does not: memory is not monotonic there."""
        out = self.first_out
        return tuple(sorted(b for b, a in self.memory_answers().items() if out is not None and a.fits and b > out))


def on_line(answers: Mapping[int, Answer], batch: int) -> float | None:
    """Memory in GiB at ``batch``, as the two largest batches without retries have it; None with fewer than two."""
    points: Sequence[tuple[int, float]] = [
        (b, a.memory) for b, a in sorted(answers.items()) if a.fits and not a.saturated and a.memory is not None
    ][-2:]
    if len(points) < 2:  # noqa: PLR2004 - a line has two points
        return None
    (b1, m1), (b2, m2) = points
    return m2 + (m2 - m1) * (batch - b2) / (b2 - b1)
