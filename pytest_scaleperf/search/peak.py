"""The best speed over the local batch below the OOM edge, by as few real runs as can be."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pytest_scaleperf.search.bound import NOISE, SURE, bends_upwards, bound
from pytest_scaleperf.search.words import Findings, on_line

TOLERANCE = 0.01
"""A batch whose speed is this close to the best one's is as good."""

CAUTION = 0.5
"""Standard deviations of noise that the bound is raised by before it may end a search."""

GIVE_UP = 3
"""So many runs that gave no speed, with none that did: it is not the batch."""

_SMALL = 6
"""Below so many candidates two runs are all there is: the second stands beside the first, at the top."""


@dataclass(frozen=True, slots=True)
class PeakResult:
    """The peak as far as it is known, and how far that is.

    ``sure_within``: with 95 % confidence no candidate is better than ``best`` by more than this share, if speed over
    the batch is concave (see bound.py) and runs vary by 0.5 %; None: nothing can be said. ``as_good``: batches whose
    measured speed cannot be told from the best one's. ``doubts``: why the assumption may not hold.
    """

    best: int | None
    tps: float | None
    tried: tuple[int, ...]
    saturated: tuple[int, ...]
    out_of_memory: tuple[int, ...]
    unusable: tuple[int, ...]
    not_tried: tuple[int, ...]
    as_good: tuple[int, ...]
    why: str
    sure_within: float | None
    doubts: tuple[str, ...] = ()

    def sentence(self) -> str:
        """The result in words."""
        runs = f"{len(self.tried)} run{'s' if len(self.tried) != 1 else ''}"
        if self.best is None:
            return f"found no peak after {runs}: {self.why}"
        sure = "" if self.sure_within is None else f"; nothing better by more than {self.sure_within:.1%} (95 %)"
        return f"found the peak at {self.best} after {runs}: {self.why}{sure}"


@dataclass(slots=True)
class PeakSearch:
    """Asks for real runs, the most telling first, until none can be better by more than the tolerance.

    The first run is at the top of what fits without retries, because speed rises until memory saturates; the second
    far enough below to tell a slope from noise; each further one where the bound on what was not tried is highest.
    ``limit`` is the number of runs at most; None: half of the batches that fit. It keeps no state but ``findings``.
    """

    findings: Findings
    limit: int | None = None
    tolerance: float = TOLERANCE

    def wanted(self, width: int = 1, pending: Collection[int] = ()) -> tuple[int, ...]:
        """Up to ``width`` batches to run now, beside those that are ``pending``; none: done, or wait for these.

        Pending ones are taken to be as fast as the bound has them.
        """
        found: list[int] = []
        assumed: dict[int, float] = {}
        for batch in pending:
            assumed[batch] = self._guess(assumed, batch)
        while len(found) < width:
            following = self._next(assumed)
            if following is None:
                break
            assumed[following] = self._guess(assumed, following)
            found.append(following)
        return tuple(found)

    @property
    def done(self) -> bool:
        """Whether nothing more has to be run."""
        return not self.wanted()

    @property
    def candidates(self) -> tuple[int, ...]:
        """Batches that are worth a run: up to the edge, and beyond it where one fits, without retries as far as known.

        Where nothing is without retries, what fits with them.
        """
        findings = self.findings
        known, top = findings.memory_answers(), self._top()
        inside = [b for b in findings.grid if b <= top and (b not in known or known[b].fits)]
        fitting = [b for b in (*inside, *findings.islands) if b not in findings.unusable]
        retries = [b for b, a in findings.real.items() if a.saturated]
        ceiling = min((b for b in retries if not self._clean_above(b)), default=math.inf)
        clean = [b for b in fitting if b < ceiling and not (b in known and known[b].saturated)]
        return tuple(clean or fitting)

    def result(self) -> PeakResult:
        """What is known now; final once ``done``."""
        findings, speeds = self.findings, self._speeds()
        real = findings.real
        best = max(speeds, key=lambda b: speeds[b], default=None)
        left = tuple(b for b in self.candidates if b not in real)
        doubts = tuple(
            f"speed at {batch} is below the line between its neighbours: two humps, or a bad run"
            for batch in bends_upwards(self._clean_speeds())
        )
        near = () if best is None else tuple(b for b in sorted(speeds) if speeds[b] >= speeds[best] * _INDISTINCT)
        return PeakResult(
            best=best,
            tps=None if best is None else speeds[best],
            tried=tuple(sorted(real)),
            saturated=tuple(sorted(b for b, a in real.items() if a.saturated)),
            out_of_memory=tuple(sorted(b for b, a in real.items() if a.fits is False)),
            unusable=findings.unusable,
            not_tried=left,
            as_good=near,
            why=self._why(best, left),
            sure_within=None if best is None or doubts else self._sure_within(left),
            doubts=doubts,
        )

    def _why(self, best: int | None, left: tuple[int, ...]) -> str:
        real = self.findings.real
        if best is None and len(real) >= GIVE_UP:
            return f"the runs at {', '.join(map(str, sorted(real)))} gave no speed"
        if not left:
            return "every batch that is worth it was run" if real else "no batch fits"
        speeds = self._clean_speeds()
        if speeds and not self._open(speeds, left):
            return f"no other can be better by more than {self.tolerance:.0%}"
        if len(real) >= self._most_runs():
            return "that is half of the full grid" if self.limit is None else f"that is the limit of {self.limit}"
        return "not finished"

    def _sure_within(self, left: tuple[int, ...]) -> float | None:
        speeds = self._clean_speeds()
        if not speeds:
            return None
        ceilings = [ceiling for batch in self._with_retries() if (ceiling := self._ceiling(batch)) is not None]
        highest = max([*(bound(speeds, batch, SURE) for batch in left), *ceilings], default=0.0)
        share = max(highest / max(speeds.values()) - 1, SURE * math.sqrt(2) * NOISE if len(speeds) > 1 or left else 0)
        return share if math.isfinite(share) else None

    def _next(self, assumed: Mapping[int, float]) -> int | None:
        real = self.findings.real
        speeds = {**self._clean_speeds(), **assumed}
        candidates = self.candidates
        left = tuple(b for b in candidates if b not in real and b not in assumed)
        if len(real) + len(assumed) >= self._most_runs():
            return None
        if not speeds and len(real) >= GIVE_UP and not any(a.fits for a in real.values()):
            return None
        if left and (not speeds or left[-1] > max(speeds)):
            return left[-1]
        if left and len(speeds) == 1:
            return left[-1] if len(candidates) < _SMALL else min(left, key=lambda b: abs(b - candidates[-1] / 2))
        worth = self._open(speeds, left) or self._gaps(speeds, left)
        return self._widest(speeds, worth) if worth else self._retried(speeds, assumed)

    def _with_retries(self) -> tuple[int, ...]:
        """What was rehearsed with allocation retries and has no real run: not a candidate, where others have none."""
        findings, candidates = self.findings, self.candidates
        known = findings.rehearsed.items()
        return tuple(
            b for b, a in sorted(known) if a.fits and a.saturated and b not in findings.real and b not in candidates
        )

    def _retried(self, speeds: Mapping[int, float], assumed: Mapping[int, float]) -> int | None:
        """The smallest batch with retries whose ceiling is above the best: it may win where few batches have none.

        None once a real run with retries was slower: further on there are only more of them.
        """
        findings = self.findings
        best = max(speeds.values(), default=0.0)
        slower = [b for b, a in findings.real.items() if a.saturated and (a.tps or 0.0) < best]
        for batch in self._with_retries():
            ceiling = self._ceiling(batch)
            if batch in assumed or (slower and batch > min(slower)) or not self._may_fit(batch):
                continue
            if ceiling is not None and ceiling > best * (1 + self.tolerance):
                return batch
        return None

    def _may_fit(self, batch: int) -> bool:
        return batch <= self._top() or batch in self.findings.islands

    def _ceiling(self, batch: int) -> float | None:
        """Speed of the rehearsal, which communication can only lower."""
        answer = self.findings.rehearsed.get(batch)
        return None if answer is None else answer.tps

    def _open(self, speeds: Mapping[int, float], left: tuple[int, ...]) -> tuple[int, ...]:
        """What may still be better than the best by more than the tolerance."""
        best = max(speeds.values(), default=0.0)
        return tuple(b for b in left if bound(speeds, b, CAUTION) > best * (1 + self.tolerance))

    def _gaps(self, speeds: Mapping[int, float], left: tuple[int, ...]) -> tuple[int, ...]:
        """With two humps the bound holds no more: whatever is left is worth a look."""
        return left if bends_upwards(speeds) else ()

    def _widest(self, speeds: Mapping[int, float], worth: tuple[int, ...]) -> int:
        """The middle of the gap between tried batches in which the bound is highest."""
        top = max(worth, key=lambda b: bound(speeds, b))
        low = max((b for b in speeds if b < top), default=0)
        high = min((b for b in speeds if b > top), default=worth[-1] + 1)
        gap = [b for b in worth if low < b < high]
        return min(gap, key=lambda b: abs(b - (low + high) / 2))

    def _guess(self, assumed: Mapping[int, float], batch: int) -> float:
        speeds = {**self._clean_speeds(), **assumed}
        if not speeds:
            return 1.0
        value = bound(speeds, batch)
        near = min(speeds, key=lambda b: abs(b - batch))
        return value if math.isfinite(value) else speeds[near]

    def _speeds(self) -> dict[int, float]:
        return {b: a.tps for b, a in self.findings.real.items() if a.fits and a.tps is not None}

    def _clean_speeds(self) -> dict[int, float]:
        """Speeds that the bound may use: a batch with retries is on another curve, unless there is no other left."""
        clean = {b: tps for b, tps in self._speeds().items() if not self.findings.real[b].saturated}
        return self._speeds() if not clean and set(self.candidates) <= set(self.findings.real) else clean

    def _clean_above(self, batch: int) -> bool:
        return any(b > batch and a.fits and not a.saturated for b, a in self.findings.real.items())

    def _top(self) -> int:
        """The highest batch that may be tried: what was rehearsed to fit; without, what memory's line promises."""
        findings = self.findings
        if findings.rehearsable:
            return -1 if findings.edge is None else findings.edge
        fitting = [b for b, a in findings.memory_answers().items() if a.fits]
        below = [b for b in findings.grid if findings.first_out is None or b < findings.first_out]
        places = [i for i, b in enumerate(below) if b in fitting]
        if not below or not places:
            return below[0] if below else -1
        reach = places[-1] + max(1, len(findings.grid) // 4)
        if findings.room is not None and len(fitting) > 1:
            room = findings.room
            known = findings.memory_answers()
            promised = [i for i, b in enumerate(below) if (on_line(known, b) or 0.0) <= room]
            reach = max(places[-1], promised[-1] if promised else 0)
        return below[min(reach, len(below) - 1)]

    def _most_runs(self) -> int:
        """Half of what running the whole grid would take: every batch that fits, those with retries included.

        Without rehearsals the first one that does not fit has to be run too, and what fits is known by and by.
        """
        if self.limit is not None:
            return self.limit
        findings, known = self.findings, self.findings.memory_answers()
        if findings.rehearsable:
            top = self._top()
            whole = [b for b in findings.grid if b <= top and (b not in known or known[b].fits)]
            return max(1, (len(whole) + len(findings.islands)) // 2)
        knows_top = findings.room is not None and on_line(known, findings.grid[-1]) is not None
        top = self._top() if knows_top else findings.grid[-1]
        whole = [b for b in findings.grid if b <= top]
        return max(1, (len(whole) + 1) // 2)


_INDISTINCT = 1 - SURE * math.sqrt(2) * NOISE
