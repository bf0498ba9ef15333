"""What the speeds of two rungs say: efficiency, and its verdict against a baseline; pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_scaleperf.baseline import ScalingBaseline
from pytest_scaleperf.model import Case, Decision, Fingerprint
from pytest_scaleperf.suite import Pair


@dataclass(frozen=True, slots=True)
class Speed:
    """What is known of one case: its verdict, tokens/s per GPU, and the half-width of the interval around it.

    ``noise`` is a fraction. ``where`` is the record, or empty where the verdict is this session's.
    """

    case: Case
    decision: Decision
    tps: float | None
    noise: float = 0.0
    where: str = ""


@dataclass(frozen=True, slots=True)
class Scaling:
    """The judgement of one pair. ``efficiency`` is upper / lower; ``change`` is its relative change from ``baseline``.

    ``noise`` is the half-width of the interval around the change. Everything but the pair, the decision and the
    reason is None where nothing could be compared.
    """

    pair: Pair
    decision: Decision
    reason: str
    upper: Speed | None = None
    lower: Speed | None = None
    efficiency: float | None = None
    baseline: float | None = None
    baseline_where: str = "none"
    tolerance: float | None = None
    change: float | None = None
    noise: float | None = None
    notes: tuple[str, ...] = ()
    fingerprint: Fingerprint | None = None


def passing(side: Sequence[Speed]) -> list[Speed]:
    """The cases of one side whose speed counts."""
    return [speed for speed in side if speed.decision.opens_gate and speed.tps]


def unsure(side: Sequence[Speed], stored: Sequence[float]) -> str:
    """Why the fastest case of a side is not known, naming the cases; empty where it is.

    ``stored`` has each case's baseline in tokens/s per GPU, 0 where there is none. A case that failed counts where
    it is, or was, faster than the best that passed: without it the smaller rung would look slower than it is, and the
    efficiency better.
    """
    fit = passing(side)
    if not fit:
        return named([speed for speed in side if not speed.decision.opens_gate] or side)
    best = max(speed.tps or 0.0 for speed in fit)
    faster = [
        speed
        for speed, base in zip(side, stored, strict=True)
        if not speed.decision.opens_gate and max(speed.tps or 0.0, base) > best
    ]
    return f"{named(faster)}, which may be the fastest" if faster else ""


def judge_pair(
    pair: Pair, upper: Speed, lower: Speed, stored: ScalingBaseline | None, fingerprint: Fingerprint
) -> Scaling:
    """Judge by the suite's tolerance, or the entry's own.

    The noise of both cases' verdicts holds that of their baselines, and so that of the efficiency's. Nothing more can
    be measured here, so an efficiency inside its tolerance passes, as close to the edge as it may be; one outside is
    a regression where the noise cannot explain it, and else inconclusive.
    """
    if not upper.tps or not lower.tps:
        raise ValueError("expected two speeds above 0: only what passed is compared")
    efficiency, noise = upper.tps / lower.tps, math.hypot(upper.noise, lower.noise)
    found = Scaling(
        pair,
        Decision.NO_BASELINE,
        "",
        upper,
        lower,
        efficiency,
        tolerance=pair.tolerance,
        noise=noise,
        fingerprint=fingerprint,
    )
    if stored is None:
        return dataclasses.replace(found, reason=f"{_words(found)}; no baseline is stored for this pair")
    base, tolerance = stored.efficiency, pair.tolerance if stored.tolerance is None else stored.tolerance
    change = (efficiency - base) / base
    decision = _decide(change, tolerance, noise)
    found = dataclasses.replace(
        found, decision=decision, baseline=base, baseline_where=stored.where, tolerance=tolerance, change=change
    )
    differences = fingerprint.differences(stored.fingerprint)
    named_ = ", ".join(f"{name} is {new!s}, the baseline's {old!s}" for name, (new, old) in differences.items())
    reason = _words(found)
    if any(name not in pair.suite.compare_across for name in differences):
        reason = f"the baseline is of another fingerprint: {named_}"
        return dataclasses.replace(found, decision=Decision.FINGERPRINT_MISMATCH, reason=reason)
    if decision is Decision.IMPROVEMENT:
        reason = f"baseline stale, better than its band: {reason}"
    notes = (f"differs from the baseline's run: {named_}",) if differences else ()
    return dataclasses.replace(found, reason=reason, notes=notes)


def named(speeds: Sequence[Speed]) -> str:
    """Cases with their verdicts."""
    return ", ".join(f"{speed.case.id} ({speed.decision})" for speed in speeds)


def _decide(change: float, tolerance: float, noise: float) -> Decision:
    if -change - noise > tolerance:
        return Decision.REGRESSION
    if -change > tolerance:
        return Decision.INCONCLUSIVE
    return Decision.IMPROVEMENT if change > tolerance else Decision.PASS


def _words(found: Scaling) -> str:
    text = f"efficiency {found.efficiency:.4f}"
    if found.baseline is None or found.change is None or found.tolerance is None:
        return text
    text += f" against {found.baseline:.4f} ({found.change:+.1%}, band -{found.tolerance:.1%}"
    return text + (f", noise \N{PLUS-MINUS SIGN}{found.noise:.1%})" if found.noise else ")")
