"""The OOM edge over the local batch, by as few rehearsals as can be: jump along the memory's line, then verify."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pytest_scaleperf.model import Outcome
from pytest_scaleperf.search.words import Answer, Findings, on_line

LOOK_BEYOND = 2
"""Batches beyond the edge that are tried too: under full activation checkpointing memory is not monotonic."""

GIVE_UP = 3
"""So many rehearsals that said nothing of memory, with none that did: it is not the batch."""

_FAR = 1.25
"""Memory on the line above this share of what there is: fragmentation (about 10 % were seen) does not make that fit."""

_JUMPS = 6
"""After so many answers the line has misled often enough: halve what is left."""

_Known = Mapping[int, Answer]


@dataclass(frozen=True, slots=True)
class EdgeResult:
    """Where memory ends, and what is known of it.

    ``edge``: the largest local batch that fits with nothing below that does not (None: none is known to fit).
    ``out``: the smallest that does not. ``clean``: the largest up to the edge without allocation retries. ``beyond``:
    batches that fit above the edge. ``at_end``: nothing is known that does not fit.
    """

    edge: int | None
    out: int | None
    clean: int | None
    beyond: tuple[int, ...]
    tried: tuple[int, ...]
    not_tried: tuple[int, ...]
    unusable: tuple[int, ...]
    at_end: bool

    @property
    def place(self) -> str:
        """The edge where its neighbour on the grid does not fit, else what it lies between: no more is known."""
        if self._between():
            return f"below {self.out}" if self.edge is None else f"between {self.edge} and {self.out}"
        return "(nothing fits)" if self.edge is None else str(self.edge)

    def _between(self) -> list[int]:
        """Batches above the edge of which it is not known whether they fit, up to the first that does not."""
        low, high = self.edge or 0, self.out
        return [b for b in (*self.not_tried, *self.unusable) if low < b and (high is None or b < high)]

    def sentence(self) -> str:
        """The result in words."""
        if self.edge is None and not self._between():
            return f"nothing fits, tried {_listed(self.tried)}"
        if not self.at_end:
            text = f"OOM edge {self.place}"
        elif self._between():
            text = f"fits up to {self.edge}, and nothing is known beyond"
        else:
            text = f"fits to the end of the grid, {self.edge}"
        if self.clean != self.edge:
            text += (
                f", allocation retries above {self.clean}" if self.clean is not None else ", with allocation retries"
            )
        if self.beyond:
            text += f"; memory is not monotonic: {_listed(self.beyond)} beyond it fits too"
        return f"{text}; tried {_listed(self.tried)}"


@dataclass(slots=True)
class EdgeSearch:
    """Asks for rehearsals until the edge is bracketed by neighbours and its surroundings are seen.

    It keeps no state but ``findings``: told the same answers in any order, it asks for the same next.
    """

    findings: Findings
    look_beyond: int = LOOK_BEYOND

    def wanted(self, width: int = 1, pending: Collection[int] = ()) -> tuple[int, ...]:
        """Up to ``width`` batches to rehearse now, beside those that are ``pending``; none: done, or wait for these.

        Pending ones are taken to end as the line predicts.
        """
        found: list[int] = []
        known = self.findings.memory_answers()
        for batch in pending:
            known.setdefault(batch, self._guess(known, batch))
        while len(found) < width:
            following = self._next(known)
            if following is None:
                break
            known[following] = self._guess(known, following)
            found.append(following)
        return tuple(found)

    @property
    def done(self) -> bool:
        """Whether nothing more has to be rehearsed."""
        return not self.wanted()

    def result(self) -> EdgeResult:
        """What is known now; final once ``done``."""
        findings = self.findings
        known, edge = findings.memory_answers(), findings.edge
        clean = [b for b, a in known.items() if a.fits and not a.saturated and edge is not None and b <= edge]
        return EdgeResult(
            edge=edge,
            out=findings.first_out,
            clean=max(clean, default=None),
            beyond=findings.islands,
            tried=tuple(sorted(known)),
            not_tried=tuple(b for b in findings.grid if b not in known and b not in findings.unusable),
            unusable=findings.unusable,
            at_end=edge is not None and findings.first_out is None,
        )

    def _guess(self, known: _Known, batch: int) -> Answer:
        memory, room = on_line(known, batch), self.findings.room
        if memory is not None and room is not None and memory > room:
            return Answer(Outcome.OOM)
        return Answer(Outcome.COMPLETED, memory)

    def _next(self, known: _Known) -> int | None:
        silent = [b for b, a in self.findings.rehearsed.items() if a.fits is None]
        if len(silent) >= GIVE_UP and not self.findings.rehearsable:
            return None
        # Beyond a real run that was out of memory a rehearsal counts no more: there is nothing to look for.
        end = self.findings.lowest_real_oom
        inside = [b for b in self.findings.grid if end is None or b <= end]
        grid = [b for b in inside if b not in silent and b not in self.findings.unusable]
        fits = {i: known[b].fits for i, b in enumerate(grid) if b in known}
        if not fits:
            return grid[0] if grid else None
        high = min((i for i, fit in fits.items() if not fit), default=len(grid))
        low = max((i for i, fit in fits.items() if fit and i < high), default=-1)
        if high - low > 1:
            return grid[self._between(known, grid, low, high)]
        return self._around(known, grid, low)

    def _between(self, known: _Known, grid: list[int], low: int, high: int) -> int:
        """A place in the gap: where the line meets what there is, else the middle; upwards, while nothing failed."""
        room = self.findings.room
        predicted = [on_line(known, batch) for batch in grid[low + 1 : high]]
        if room is not None and predicted[0] is not None and (high == len(grid) or len(known) < _JUMPS):
            place = low + sum(memory is not None and memory <= room for memory in predicted)
            return min(max(place, low + 1), high - 1)
        if high < len(grid):
            return (low + high) // 2 if low >= 0 else high // 2
        upwards = len(grid) // 4 if len(known) == 1 else 2 * low + 1
        return min(max(upwards, low + 1), high - 1)

    def _around(self, known: _Known, grid: list[int], low: int) -> int | None:
        """The neighbours of a closed gap: what fits beyond it, and from where on there are retries."""
        last = max((i for i, batch in enumerate(grid) if batch in known and known[batch].fits), default=-1)
        for place in range(last + 1, min(last + 1 + self.look_beyond, len(grid))):
            is_next = place <= low + 2
            if grid[place] not in known and (is_next or not self._is_far(known, grid[place])):
                return grid[place]
        below = low - 1
        while below >= 0 and known.get(grid[below + 1], Answer(Outcome.OOM)).saturated:
            if grid[below] not in known:
                return grid[below]
            below -= 1
        return grid[low - 1] if low > 0 and low + 1 < len(grid) and grid[low - 1] not in known else None

    def _is_far(self, known: _Known, batch: int) -> bool:
        memory, room = on_line(known, batch), self.findings.room
        return memory is not None and room is not None and memory > _FAR * room


def _listed(batches: tuple[int, ...]) -> str:
    return ", ".join(map(str, batches)) or "nothing"
