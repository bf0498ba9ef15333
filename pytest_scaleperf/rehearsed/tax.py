"""A real speed against its rehearsed ceiling: what communication costs, and what a regression is to be put down to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

HELD = 0.01
"""A ceiling that fell by at most this fraction held: two rehearsals of a few steps differ by about that."""

_MOSTLY = 0.75


class Cause(StrEnum):
    """Where the time of a regression went."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class Speeds:
    """Tokens/s per GPU of one build: of the real run, and of its rehearsal without communication."""

    real: float
    ceiling: float


@dataclass(frozen=True, slots=True)
class Attribution:
    """A regression's cause. ``compute`` is the fraction of the lost time per token that the ceiling lost too."""

    cause: Cause
    compute: float
    sentence: str


def communication_tax(real: float | None, ceiling: float | None) -> float | None:
    """Fraction of the speed that communication and waiting cost: 1 - real / ceiling, both in tokens/s per GPU.

    None where either is not known. Slightly below 0 where communication is hidden and the ceiling was noisy.
    """
    return None if real is None or not ceiling else 1 - real / ceiling


def attribute(before: Speeds, now: Speeds) -> Attribution | None:
    """What made the real run slower: time per token is compute (1 / ceiling) plus the rest (communication, waiting).

    None where it is not slower.
    """
    lost = 1 / now.real - 1 / before.real
    if lost <= 0:
        return None
    fell = 1 - now.ceiling / before.ceiling
    compute = 0.0 if abs(fell) <= HELD else (1 / now.ceiling - 1 / before.ceiling) / lost
    cause = _cause(compute)
    ceiling = f"{before.ceiling:,.0f} to {now.ceiling:,.0f} tokens/s/GPU ({-fell:+.1%})"
    real = f"{before.real:,.0f} to {now.real:,.0f} ({now.real / before.real - 1:+.1%})"
    return Attribution(cause, compute, _sentence(cause, compute, ceiling, real))


def _cause(compute: float) -> Cause:
    if compute >= _MOSTLY:
        return Cause.COMPUTE
    return Cause.COMMUNICATION if compute <= 1 - _MOSTLY else Cause.BOTH


def _sentence(cause: Cause, compute: float, ceiling: str, real: str) -> str:
    if cause is Cause.COMPUTE:
        return (
            f"compute: the ceiling without communication fell too, {ceiling}, as the real run did, {real}: look at "
            "kernels, compilation and the host, not at the network"
        )
    if cause is Cause.COMMUNICATION:
        return (
            f"communication: the ceiling held, {ceiling}, only the real run fell, {real}: look at collectives, the "
            "network and slow nodes"
        )
    return (
        f"both: the ceiling fell, {ceiling}, and explains {compute:.0%} of what the real run lost, {real}: the rest is "
        "communication, the network or a slow node"
    )
