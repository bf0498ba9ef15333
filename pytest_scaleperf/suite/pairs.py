"""Which rungs' speeds are compared with each other: a rung with the one that it requires, and with the first."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pytest_scaleperf.model import Case, Outcome, Requirement, Rung, Suite
from pytest_scaleperf.suite.identity import DIGEST_LENGTH, digest
from pytest_scaleperf.suite.ladder import Ladder, key_of

OPTIMUM = "optimum"
_SHORT = {
    "dp_shard": "fsdp",
    "dp_replicate": "dp",
    "tp": "tp",
    "cp": "cp",
    "pp": "pp",
    "ep": "ep",
    "activation_checkpoint": "",
    "local_batch": "lbs",
    "global_batch": "gbs",
    "sequence": "seq",
}
"""How an axis is written in the ids of cases, in their order."""


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """The fastest of ``upper`` against the fastest of ``lower``, in tokens/s per GPU: one scaling test.

    A pair is a family (cases that agree in what the gate asks to be the same) or, as ``optimum``, whole rungs: the
    loss between the optima of two rungs is what is published of a ladder. ``tolerance`` is a fraction.
    """

    id: str
    suite: Suite
    upper: tuple[Case, ...]
    lower: tuple[Case, ...]
    tolerance: float

    @property
    def gpus(self) -> int:
        """GPU count of the larger rung."""
        return self.upper[0].gpus

    @property
    def config(self) -> str:
        """Twelve hex digits over what all its cases train: a suite that changes has another efficiency."""
        digests = ",".join(sorted(digest(case) for case in (*self.upper, *self.lower)))
        return hashlib.sha256(digests.encode()).hexdigest()[:DIGEST_LENGTH]


def pairs(suite: Suite) -> tuple[Pair, ...]:
    """Every pair that the suite asks for with ``scaling``, lowest rung first."""
    ladder = Ladder(suite)
    return tuple(pair for rung in suite.rungs if rung.scaling is not None for pair in _pairs_of(suite, rung, ladder))


def _pairs_of(suite: Suite, rung: Rung, ladder: Ladder) -> Iterator[Pair]:
    requires, tolerance = rung.requires, rung.scaling
    if requires is None or tolerance is None:
        return
    families: dict[tuple[object, ...], list[Case]] = {}
    for case in _training(rung.cases):
        families.setdefault(key_of(case, requires), []).append(case)
    for key, upper in families.items():
        for lower in _below(upper, ladder):
            yield _pair(suite, upper, lower, _label(requires, key), tolerance)
    whole = [case for family in families.values() for case in family]
    for gpus in _rungs_below(suite, rung):
        lower_rung = suite.rung(gpus)
        lower = list(_training(() if lower_rung is None else lower_rung.cases))
        if len(families) > 1 and lower:
            yield _pair(suite, whole, lower, OPTIMUM, tolerance)


def _pair(suite: Suite, upper: list[Case], lower: list[Case], label: str, tolerance: float) -> Pair:
    name = f"{suite.name}-{lower[0].gpus}to{upper[0].gpus}gpu" + (f"-{label}" if label else "")
    return Pair(name, suite, tuple(upper), tuple(lower), tolerance)


def _training(cases: Iterable[Case]) -> Iterator[Case]:
    """Cases that are to complete: what is expected to fail has no speed."""
    return (case for case in cases if case.expect is Outcome.COMPLETED)


def _below(upper: list[Case], ladder: Ladder) -> list[list[Case]]:
    """What opens the gates of ``upper``: one rung below and, where that is another one, on the first rung."""
    found: list[list[Case]] = []
    cases = upper
    while cases := list(dict.fromkeys(parent for case in cases for parent in ladder.parents(case))):
        found.append(cases)
    return [found[0], found[-1]] if len(found) > 1 else found


def _rungs_below(suite: Suite, rung: Rung) -> list[int]:
    """GPU counts of the rung below and of the first one, along the gates."""
    found: list[int] = []
    below: Rung | None = rung
    while below is not None and below.requires is not None:
        found.append(below.requires.gpus)
        below = suite.rung(below.requires.gpus)
    return list(dict.fromkeys([found[0], found[-1]]))


def _label(requires: Requirement, key: tuple[object, ...]) -> str:
    values = dict(zip(requires.same, key, strict=True))
    return "-".join(f"{short}{values[axis]}".replace("_", "-") for axis, short in _SHORT.items() if axis in values)
