"""Suite files become Suites: a ladder of rungs with every case written out, or all faults of the file at once.

``schema`` is what a file may hold, ``layouts`` the arithmetic of ranks and sequences, ``expand``
multiplies a rung's axes out, ``identity`` names cases, ``load`` puts a file together, ``ladder`` answers what
a case requires, ``pairs`` which rungs' speeds are compared with each other.
"""

from __future__ import annotations

from pytest_scaleperf.suite.identity import digest
from pytest_scaleperf.suite.ladder import Ladder
from pytest_scaleperf.suite.load import load_suite, load_suites
from pytest_scaleperf.suite.pairs import Pair, pairs

__all__ = ["Ladder", "Pair", "digest", "load_suite", "load_suites", "pairs"]
