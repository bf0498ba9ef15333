"""What a traced run showed against its baseline: shares of the step within a band, calls and bytes exactly; pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_scaleperf.baseline import TraceBaseline
from pytest_scaleperf.model import Decision, Fingerprint, Verdict
from pytest_scaleperf.trace.rules import Phase

CREEP = 0.5
"""The share of the tolerance by which a stored value may become worse by samples that are added, as for the cases."""

_JUDGED = {
    "exposed_communication_pct": "exposed communication",
    "exposed_copy_pct": "exposed copies",
    "idle_pct": "idle",
}
_LISTED = 6  # shares in one sentence
_WORST_FIRST = (
    Decision.NO_BASELINE,
    Decision.MISSING_METRIC,
    Decision.REGRESSION,
    Decision.IMPROVEMENT,
    Decision.PASS,
    Decision.NOT_JUDGED,
)


@dataclass(frozen=True, slots=True)
class Found:
    """What a trace showed. ``metrics`` and ``counts`` are named as the trace room names them.

    ``varying`` are titles of collectives whose calls or bytes differ between steps or ranks. ``exposed_by`` says
    by phase, or under ``""`` for the step, which collectives are exposed, longest first. ``on_gpu``: False where these
    are a CPU's times, which are too noisy to judge.
    """

    metrics: Mapping[str, float]
    counts: Mapping[str, int]
    varying: Sequence[str]
    exposed_by: Mapping[str, Sequence[str]]
    on_gpu: bool

    @property
    def shares(self) -> dict[str, float]:
        """What is compared within a band: per cent of the step."""
        return {name: value for name, value in self.metrics.items() if name.rpartition(".")[2] in _JUDGED}


@dataclass(frozen=True, slots=True)
class Share:
    """One share of the step, in per cent; ``change`` in percentage points."""

    name: str
    decision: Decision
    value: float | None
    baseline: float | None
    change: float | None


@dataclass(frozen=True, slots=True)
class TraceVerdict:
    """The judgement of a trace; ``changes`` are the collectives that differ, in words."""

    decision: Decision
    reason: str
    shares: tuple[Share, ...] = ()
    changes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def judge(
    found: Found,
    stored: TraceBaseline | None,
    fingerprint: Fingerprint,
    tolerance: float,
    compare_across: Sequence[str] = (),
) -> TraceVerdict:
    """Compare a trace with its baseline; ``tolerance`` is a fraction of the step, and a higher share is worse.

    One difference in calls or bytes is a regression, also where there are fewer: a collective that is gone may be
    one that is needed.
    """
    if stored is None:
        shares = tuple(Share(name, Decision.NO_BASELINE, value, None, None) for name, value in found.shares.items())
        text = "no baseline of its trace is stored: run it once more with --with-trace --record-baselines"
        return TraceVerdict(Decision.NO_BASELINE, text, shares)
    shares = tuple(_shares(found, stored.shares, 100 * tolerance))
    changes = tuple(_changes(found, stored.counts))
    differences = fingerprint.differences(stored.fingerprint)
    said = ", ".join(f"{name} is {new!s}, the baseline's {old!s}" for name, (new, old) in differences.items())
    if any(name not in compare_across for name in differences):
        reason = f"the baseline of its trace is of another fingerprint: {said}"
        return TraceVerdict(Decision.FINGERPRINT_MISMATCH, reason, shares, changes)
    notes = (f"its trace differs from the baseline's run: {said}",) if differences else ()
    decision = _worst([*(share.decision for share in shares), *([Decision.REGRESSION] if changes else [])])
    told = [*changes, *(_words(share, found, tolerance) for share in _worst_first(shares, decision))]
    more = [f"and {len(told) - _LISTED} more"] if len(told) > _LISTED else []
    return TraceVerdict(decision, "; ".join([*told[:_LISTED], *more]), shares, changes, notes)


def combined(measured: Verdict, traced: TraceVerdict) -> Verdict:
    """A case's verdict from its measured run's and its trace's: the trace can only take a pass away."""
    notes = (*measured.notes, *(f"trace: {note}" for note in traced.notes))
    reason, decision = f"trace: {traced.reason}", traced.decision
    if measured.decision is Decision.REGRESSION or decision in (Decision.PASS, Decision.NOT_JUDGED):
        decision = measured.decision
        notes = (*notes, reason) if traced.reason else notes
        reason = measured.reason
    elif decision is Decision.IMPROVEMENT:
        stale = measured.decision is Decision.PASS
        decision = Decision.IMPROVEMENT if stale else measured.decision
        reason = f"baseline stale, better than its band: {reason}" if stale else f"{measured.reason}; {reason}"
    elif decision is Decision.RECORDED:
        reason = f"{measured.reason}; {reason}" if measured.reason else reason
    return replace(measured, decision=decision, reason=reason, notes=notes)


def crept(new: Mapping[str, float], stored: TraceBaseline, tolerance: float, *, alone: bool) -> list[str]:
    """Shares that would become worse than the first stored sample by more than half of the tolerance, in words."""
    first, found = stored.samples[0].shares, []
    for name, value in new.items():
        kept = [] if alone else [sample.shares[name] for sample in stored.samples if name in sample.shares]
        after = statistics.median([*kept, value])
        if after - first.get(name, 0.0) > CREEP * 100 * tolerance:
            found.append(f"{title(name)} {first.get(name, 0.0):.2f} % -> {after:.2f} %")
    return found


def title(name: str) -> str:
    """A share as a person reads it: ``last backward: exposed communication``."""
    phase, _, part = name.rpartition(".")
    return f"{Phase(phase).words if phase in set(Phase) else phase or 'step'}: {_JUDGED.get(part, part)}"


def _shares(found: Found, stored: Mapping[str, float], points: float) -> Iterator[Share]:
    here = found.shares
    # A phase without time is not named; its shares are 0, but only on a side that tells phases at all.
    told = [any("." in name for name in side) for side in (here, stored)]
    for name in dict.fromkeys((*here, *stored)):
        value, base = (
            side.get(name, 0.0 if "." in name and tells else None)
            for side, tells in zip((here, stored), told, strict=True)
        )
        change = None if value is None or base is None else value - base
        yield Share(name, _decide(value, change, points, on_gpu=found.on_gpu), value, base, change)


def _decide(value: float | None, change: float | None, points: float, *, on_gpu: bool) -> Decision:
    if not on_gpu:
        return Decision.NOT_JUDGED
    if change is None:
        return Decision.MISSING_METRIC if value is None else Decision.NO_BASELINE
    if change > points:
        return Decision.REGRESSION
    return Decision.IMPROVEMENT if change < -points else Decision.PASS


def _worst(decisions: Sequence[Decision]) -> Decision:
    return next((each for each in _WORST_FIRST if each in decisions), Decision.PASS)


def _worst_first(shares: Sequence[Share], decision: Decision) -> list[Share]:
    """The shares that decided, the largest change first; nothing to say of a pass."""
    if decision in (Decision.PASS, Decision.NOT_JUDGED):
        return []
    return sorted(
        (share for share in shares if share.decision is decision), key=lambda share: -abs(share.change or 0.0)
    )


def _words(share: Share, found: Found, tolerance: float) -> str:
    if share.value is None:
        return f"{title(share.name)} is not told by this trace, the baseline's did"
    if share.change is None:
        return f"{title(share.name)} {share.value:.2f} % has no baseline: the baseline's trace did not tell it"
    sign = "+" if share.decision is Decision.REGRESSION else "-"
    text = (
        f"{title(share.name)} {share.baseline:.2f} % -> {share.value:.2f} % of the step "
        f"({share.change:+.2f} points, band {sign}{100 * tolerance:.2f})"
    )
    phase, _, part = share.name.rpartition(".")
    culprits = found.exposed_by.get(phase, ())
    if part == "exposed_communication_pct" and culprits and share.decision is Decision.REGRESSION:
        text += f", most of it {culprits[0]}"
    return text


def _changes(found: Found, stored: Mapping[str, int]) -> Iterator[str]:
    """Each collective whose calls or bytes differ; bytes that the baseline does not tell varied there."""
    titles = dict.fromkeys(name.partition(" ")[2] for name in (*stored, *found.counts))
    for each in titles:
        here, there = (
            {what: side[f"{what} {each}"] for what in ("calls", "bytes") if f"{what} {each}" in side}
            for side in (found.counts, stored)
        )
        if not there:
            yield f"{each} is new: {_amount(here)} a step"
        elif not here and each not in found.varying:
            yield f"{each} is gone: {_amount(there)} a step in the baseline"
        else:
            differ = [what for what in there if here.get(what) != there[what]]
            parts = [f"{there[what]:,} -> {_now(here, what)} {what}" for what in differ]
            if parts:
                yield f"{each}: {', '.join(parts)} a step"


def _now(here: Mapping[str, int], what: str) -> str:
    return f"{here[what]:,}" if what in here else "varying"


def _amount(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{value:,} {what.removesuffix('s') if value == 1 else what}" for what, value in counts.items())
