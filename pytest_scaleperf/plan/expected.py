"""How long a case will take: by its own earlier launches, by those of its rung, or a guess that is called one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pytest_scaleperf.model import Case
from pytest_scaleperf.plan.past import Past

_SHARE_OF_LIMIT = 0.5


class Basis(StrEnum):
    """Where an expected time comes from."""

    CASE = "records of the case"
    RUNG = "records of its rung"
    GUESS = "a guess: half of limits.total"


@dataclass(frozen=True, slots=True)
class Expected:
    """Seconds of one case with all the launches that it needs at least."""

    seconds: float
    basis: Basis


def expect(case: Case, past: Past) -> Expected:
    """One launch as long as the median of those that are known, times ``measure.repeats``."""
    repeats = case.suite.measure.repeats
    own = past.seconds(case)
    if own is not None:
        return Expected(own * repeats, Basis.CASE)
    rung = past.rung_seconds(case)
    if rung is not None:
        return Expected(rung * repeats, Basis.RUNG)
    return Expected(_SHARE_OF_LIMIT * case.suite.limits.total * repeats, Basis.GUESS)
