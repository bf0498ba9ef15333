"""The definitions, counted tick by tick: slow, obvious, and written without the code it checks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

KINDS = ("compute", "communication", "copy")


@dataclass(frozen=True)
class Ran:
    """One GPU event: [start, end), what it is, the phase and step that launched it (None: not recorded)."""

    start: int
    end: int
    kind: str
    phase: str
    step: int | None


def windows(ran: list[Ran], steps: int) -> list[tuple[int, int]]:
    """Each step's window: from the first start of what it launched to that of the next; the last: to the end of all."""
    starts = [min(each.start for each in ran if each.step == step) for step in range(steps)]
    return list(zip(starts, [*starts[1:], max(each.end for each in ran)], strict=True))


def split(ran: list[Ran], low: int, high: int) -> Counter[tuple[str, str]]:
    """Ticks of the window by (phase, compute | communication | copy | idle)."""
    ordered = sorted(ran, key=lambda each: (each.start, each.end, each.kind == "copy"))
    found: Counter[tuple[str, str]] = Counter()
    for tick in range(low, high):
        running = [each for each in ordered if each.start <= tick < each.end]
        if running:
            owner = min(running, key=lambda each: KINDS.index(each.kind))  # the first of the highest kind
            found[owner.phase, owner.kind] += 1
        else:
            following = [each for each in ordered if each.start > tick and each.end > each.start]
            found[(following[0] if following else ordered[-1]).phase, "idle"] += 1
    return found
