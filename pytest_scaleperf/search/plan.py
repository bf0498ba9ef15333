"""Which cases of one family run, and why the others need not: the search as a session over many tests sees it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pytest_scaleperf.model import Case
from pytest_scaleperf.search.edge import EdgeResult, EdgeSearch
from pytest_scaleperf.search.peak import PeakResult, PeakSearch
from pytest_scaleperf.search.words import Answer, Findings


class Kind(StrEnum):
    """How a case is tried."""

    REHEARSAL = "rehearsal"
    RUN = "run"


@dataclass(frozen=True, slots=True)
class Ask:
    """One launch that the search wants next."""

    case: Case
    kind: Kind


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of a case: it is launched as any other, or it is a skip for this reason."""

    launch: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Peak:
    """The fastest passing case of what a rung requires; ``tps`` in tokens/s per GPU."""

    batch: int
    case_id: str
    tps: float


class Mode(StrEnum):
    """Who chooses the cases of a family."""

    SEARCH = "search"
    AROUND = "around"
    CHOSEN = "chosen"
    STORED = "stored"


def families(cases: Iterable[Case]) -> dict[str, tuple[Case, ...]]:
    """The searched cases by the name of their family, each in the order given; cases without a search are left out."""
    found: dict[str, list[Case]] = {}
    for case in cases:
        if case.search is not None:
            found.setdefault(case.search.family, []).append(case)
    return {family: tuple(members) for family, members in found.items()}


def find_peak(parents: Iterable[Case], speeds: Mapping[str, float]) -> Peak | None:
    """The fastest of ``parents``; of two equally fast ones the smaller batch. None where none of them passed.

    ``speeds`` are the tokens/s per GPU of the cases that passed, by case id.
    """
    passed = [Peak(case.batch.local, case.id, speeds[case.id]) for case in parents if case.id in speeds]
    return max(passed, key=lambda peak: (peak.tps, -peak.batch), default=None)


@dataclass(frozen=True, slots=True)
class _Now:
    """What follows from the answers so far: asked for case by case, worked out once an answer.

    ``runs`` are real runs that are wanted next, by their batches.
    """

    edge_done: bool
    runs: tuple[int, ...]
    islands: tuple[int, ...]
    known: Mapping[int, Answer]
    first_out: int | None
    peak: str


class SearchPlan:
    """One family: what to try next, and whether a candidate is decided. It starts nothing and reads nothing.

    ``family``: every candidate of the family, in any order. ``selected``: ids of those that the user selected; where
    that is not all of them, the user chose, and exactly these run. ``stored``: ids of those that have a baseline:
    where there are some and nothing is to be recorded, these run again and are judged, and nothing is searched.
    ``room``: GiB that a rank may reserve, None where that is not known. ``rehearse``: whether rehearsals are possible.
    ``peak``: for a family around a peak, the peak below, as soon as it is known (also by ``found_below``).

    Everything follows from the answers alone: a resumed session tells the old ones, in any order, and goes on.

    Raises ValueError for cases that are not one family.
    """

    def __init__(  # noqa: PLR0913 - what decides a search, each by its name
        self,
        family: Sequence[Case],
        *,
        selected: Collection[str] | None = None,
        stored: Collection[str] = (),
        room: float | None = None,
        rehearse: bool = True,
        peak: Peak | None = None,
    ) -> None:
        names = {None if case.search is None else case.search.family for case in family}
        searches = [case.search for case in family if case.search is not None]
        if len(names) != 1 or not searches:
            raise ValueError(f"expected the candidates of one family, found {sorted(map(str, names))}")
        self.family, self._offsets = searches[0].family, searches[0].offsets
        self._cases = {case.batch.local: case for case in family}
        self._stored = sorted(case.batch.local for case in family if case.id in stored)
        self._rehearse, self.peak = rehearse, peak
        self._last: _Now | None = None
        chosen = selected is not None and any(case.id not in selected for case in family)
        around = self._offsets is not None
        self.mode = Mode.CHOSEN if chosen else Mode.STORED if self._stored else Mode.AROUND if around else Mode.SEARCH
        self.findings = Findings(tuple(sorted(self._cases)), room)
        self._narrow()

    @property
    def needs_peak(self) -> bool:
        """Whether nothing can be decided before the peak of what the rung requires is known."""
        return self.mode is Mode.AROUND and self.peak is None

    def found_below(self, peak: Peak) -> None:
        """Take the peak of what the rung requires; it counts for a family around it."""
        self.peak = peak
        self._narrow()

    def tell(self, ask: Ask, answer: Answer) -> None:
        """Take the answer to ``ask``; also one that was not asked for, such as a record of an earlier session."""
        answers = self.findings.rehearsed if ask.kind is Kind.REHEARSAL else self.findings.real
        answers[ask.case.batch.local] = answer
        self._last = None

    def wanted(self, width: int = 1, pending: Collection[Ask] = ()) -> tuple[Ask, ...]:
        """Up to ``width`` launches that are useful now, beside ``pending``, which were started and have no answer yet.

        None: every case is decided, or decisions wait for what is pending (or for the peak below).
        """
        if self.mode in (Mode.CHOSEN, Mode.STORED) or self.needs_peak:
            return ()
        running = [ask.case.batch.local for ask in pending if ask.kind is Kind.RUN]
        if self._rehearse:
            rehearsing = [ask.case.batch.local for ask in pending if ask.kind is Kind.REHEARSAL]
            batches = self._edge().wanted(width, rehearsing)
            if batches or rehearsing:
                return tuple(Ask(self._cases[batch], Kind.REHEARSAL) for batch in batches)
        return tuple(Ask(self._cases[batch], Kind.RUN) for batch in self._runs(width, running))

    def fate(self, case: Case) -> Fate | None:
        """What becomes of ``case``; None while that depends on answers that are still wanted or pending.

        A skip stays one. A launch that is not yet known to be needed for good is to be started before more is told.
        """
        batch = case.batch.local
        if self.mode in (Mode.CHOSEN, Mode.STORED):
            return self._fate_given(batch)
        if batch in self.findings.real:
            return self._launch()
        near = batch in self.findings.grid
        if self.needs_peak or (near and not self._now().edge_done):
            return None
        return self._fate_open(batch) if near else Fate(False, self._not_near())

    @property
    def finished(self) -> bool:
        """Whether every case of the family is decided."""
        return all(self.fate(case) is not None for case in self._cases.values())

    def edge(self) -> EdgeResult:
        """The OOM edge as far as it is known."""
        return self._edge().result()

    def result(self) -> PeakResult:
        """The peak as far as it is known."""
        return self._search().result()

    def summary(self) -> tuple[str, ...]:
        """What the search found, a sentence a line, for the terminal and the report."""
        if self.mode in (Mode.CHOSEN, Mode.STORED):
            return ()
        lines = [f"{self.family}: {self.edge().sentence()}"] if self.findings.memory_answers() else []
        if self.findings.real:
            result = self.result()
            lines.append(f"{self.family}: {result.sentence()}")
            if len(result.as_good) > 1:
                told = ", ".join(map(str, result.as_good))
                lines.append(
                    f"{self.family}: {told} cannot be told apart by one run each; the smallest needs least memory"
                )
            lines += [f"{self.family}: {doubt}" for doubt in result.doubts]
        return tuple(lines)

    def _narrow(self) -> None:
        """Around a peak only the points near it are the grid."""
        if self.mode is Mode.AROUND and self.peak is not None and self._offsets is not None:
            near = {self.peak.batch + offset for offset in self._offsets}
            self.findings.grid = tuple(sorted(near & self._cases.keys()))
        self._last = None

    def _now(self) -> _Now:
        if self._last is None:
            done = not self._rehearse or self._edge().done
            runs = self._runs(1 if self.mode is Mode.SEARCH else len(self._cases)) if done else ()
            findings = self.findings
            told = self.result().sentence() if done and not runs else ""
            self._last = _Now(done, runs, findings.islands, findings.memory_answers(), findings.first_out, told)
        return self._last

    def _edge(self) -> EdgeSearch:
        return EdgeSearch(self.findings)

    def _search(self) -> PeakSearch:
        """Around a peak every point that fits is run: there are few, and the suite names them."""
        return PeakSearch(self.findings, limit=len(self._cases) if self.mode is Mode.AROUND else None)

    def _runs(self, width: int, pending: Collection[int] = ()) -> tuple[int, ...]:
        search = self._search()
        if self.mode is Mode.SEARCH:
            return search.wanted(width, pending)
        left = [b for b in search.candidates if b not in self.findings.real and b not in pending]
        return tuple(left[:width])

    def _launch(self) -> Fate:
        return Fate(True, f"tried by the search of {self.family}")

    def _fate_given(self, batch: int) -> Fate:
        """Nothing is searched: the user, or the stored baselines, say what runs."""
        if self.mode is Mode.CHOSEN:
            return Fate(True, f"selected by itself: {self.family} is not searched")
        told = ", ".join(map(str, self._stored))
        if batch in self._stored:
            return Fate(True, f"stored by an earlier search of {self.family}")
        return Fate(
            False,
            f"not needed: baselines of {self.family} are stored for {told}, and these are judged; "
            "--record-baselines searches again",
        )

    def _not_near(self) -> str:
        peak = self.peak
        points = ", ".join(map(str, self.findings.grid)) or "none of the candidates"
        where = "" if peak is None else f" the peak {peak.batch} of {peak.case_id} ({peak.tps:,.0f} tokens/s/GPU)"
        return f"not needed: {points} of {self.family} are around{where}"

    def _fate_open(self, batch: int) -> Fate | None:
        """The fate of a candidate without a real run of its own, once the edge is known."""
        now = self._now()
        known, out = now.known.get(batch), now.first_out
        if known is not None and known.fits is False:
            return Fate(False, self._beyond(f"{batch} was out of memory"))
        if out is not None and batch > out and batch not in now.islands:
            return Fate(False, self._beyond(f"{out} was out of memory"))
        if now.runs:
            return self._launch() if batch in now.runs else None
        rehearsed = self.findings.rehearsed.get(batch)
        if batch in self.findings.unusable and rehearsed is not None:
            return Fate(False, f"not launched: its rehearsal ended with {rehearsed.outcome}")
        if known is not None and known.saturated:
            return Fate(False, f"not needed: {batch} of {self.family} was rehearsed with allocation retries")
        return Fate(False, f"not needed: the search of {self.family} {now.peak}")

    def _beyond(self, what: str) -> str:
        failed = self.findings.lowest_real_oom
        how = "run" if failed is not None and self.findings.first_out == failed else "rehearsed"
        return f"beyond the OOM edge {self.edge().place} of {self.family} ({what}, {how})"
