"""What a case of a larger rung requires: its parents, one rung below, found by key and not by search."""

from __future__ import annotations

from collections import defaultdict

from pytest_scaleperf.model import Case, Outcome, Requirement, Rung, Suite

_Key = tuple[object, ...]
_Index = dict[_Key, tuple[Case, ...]]


class Ladder:
    """The gates of one suite. A required rung is indexed once; every question after that is one look-up."""

    def __init__(self, suite: Suite) -> None:
        self._rungs = {rung.gpus: rung for rung in suite.rungs}
        self._indexes: dict[Requirement, _Index] = {}
        self._parents: dict[tuple[Requirement, _Key, Outcome], tuple[Case, ...]] = {}

    def parents(self, case: Case) -> tuple[Case, ...]:
        """Cases that may open the gate of ``case``, in the order of the suite; none on a rung that requires nothing.

        A case that is expected to fail says nothing of one that has to train: such a parent counts only for a
        case with the same expectation.
        """
        requires = self._rungs[case.gpus].requires
        if requires is None:
            return ()
        asked = (requires, key_of(case, requires), case.expect)
        if asked not in self._parents:
            same = self._index(requires).get(asked[1], ())
            self._parents[asked] = tuple(c for c in same if c.expect in (Outcome.COMPLETED, case.expect))
        return self._parents[asked]

    def orphans(self, rung: Rung) -> dict[_Key, list[Case]]:
        """Cases of ``rung`` whose gate nothing could ever open, by the values that no parent has."""
        found: dict[_Key, list[Case]] = defaultdict(list)
        if rung.requires is not None:
            for case in rung.cases:
                if not self.parents(case):
                    found[key_of(case, rung.requires)].append(case)
        return found

    def _index(self, requires: Requirement) -> _Index:
        if requires not in self._indexes:
            found: dict[_Key, list[Case]] = defaultdict(list)
            for case in self._rungs[requires.gpus].cases:
                found[key_of(case, requires)].append(case)
            self._indexes[requires] = {key: tuple(cases) for key, cases in found.items()}
        return self._indexes[requires]


def key_of(case: Case, requires: Requirement) -> _Key:
    """Values of the axes that have to be the same, in the order in which the suite names them."""
    return tuple(case.axis(name) for name in requires.same)
