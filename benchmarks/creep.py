"""How many nights a creeping loss takes to be named by the history of a case, and how often nothing is named.

``python benchmarks/creep.py [--trials 400] [--seed 1]`` needs the extra ``history``. A case loses 0.3 % a night after
10, 30 or 50 stationary nights with a cv of 0.5 %; each night ``history.changes`` is asked, as a session does. Exits
with 1 where a creep is not named within 14 nights, or where more than 1 of 100 stationary cases is called worse in 60
nights.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence

import numpy as np

from pytest_scaleperf import history
from pytest_scaleperf.history import Night
from pytest_scaleperf.model import Metric

CV, LOSS, WITHIN, STATIONARY = 0.005, 0.003, 14, 60
MOST_FALSE = 0.01
BEFORE = (10, 30, 50)


def nights(values: Sequence[float]) -> list[Night]:
    """Values as nights of one case."""
    return [Night(f"night {n}", f"s{n:03}", value) for n, value in enumerate(values)]


def named(case: Sequence[Night]) -> bool:
    """Whether this night's report says that the case has become worse."""
    return "worse" in history.sentence(history.changes(Metric.TPS, case))


def first_night(values: Sequence[float], since: int) -> int | None:
    """Nights after ``since`` until the loss is named; None where it is not within 14."""
    case = nights(values)
    return next((n for n in range(1, WITHIN + 1) if named(case[: since + n])), None)


def noise(rng: np.random.Generator, count: int, tails: str) -> np.ndarray:
    """Relative noise of so many nights."""
    if tails == "Student's t, 4":
        return rng.standard_t(4, size=count) * (CV / math.sqrt(2))
    if tails == "neighbours alike (0.3)":
        draws = rng.standard_normal(count)
        for place in range(1, count):
            draws[place] = 0.3 * draws[place - 1] + math.sqrt(1 - 0.09) * draws[place]
        return CV * draws
    return CV * rng.standard_normal(count)


def creep(rng: np.random.Generator, before: int, trials: int, loss: float = LOSS) -> list[int | None]:
    """Nights until it is named, for so many cases."""
    found = []
    for _ in range(trials):
        slope = np.concatenate([np.zeros(before), loss * np.arange(1, WITHIN + 1)])
        found.append(first_night((1000 * (1 - slope + noise(rng, before + WITHIN, "normal"))).tolist(), before))
    return found


def stationary(rng: np.random.Generator, trials: int, tails: str) -> tuple[int, int]:
    """Cases that are named in any of 60 nights though nothing changed: worse, and worse or better."""
    worse = any_ = 0
    for _ in range(trials):
        case = nights((1000 * (1 + noise(rng, STATIONARY, tails))).tolist())
        said = [history.sentence(history.changes(Metric.TPS, case[:n])) for n in range(history.FEWEST, STATIONARY + 1)]
        worse += any("worse" in text for text in said)
        any_ += any(said)
    return worse, any_


def show_creep(before: int, found: Sequence[int | None]) -> None:
    """The distribution."""
    known = sorted(n for n in found if n is not None)
    counts = Counter(known)
    print(f"  after {before} nights: named in {len(known)} of {len(found)}; median night {statistics.median(known):g}")
    shares = list(itertools.accumulate(counts[n] for n in range(1, WITHIN + 1)))
    print("    by night " + " ".join(f"{n}:{share / len(found):.0%}" for n, share in enumerate(shares, 1)))


def main() -> int:
    """Print everything; 1 where a promise is not kept."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if not history.available():
        print(f"the history is not tested without its extra: {history.EXTRA}")
        return 2
    rng, began, faults = np.random.default_rng(arguments.seed), time.perf_counter(), []
    print(f"a loss of {LOSS:.1%} a night at a cv of {CV:.1%}, {arguments.trials} cases each:")
    for before in BEFORE:
        found = creep(rng, before, arguments.trials)
        show_creep(before, found)
        if None in found:
            faults.append(f"after {before} nights {found.count(None)} are not named within {WITHIN}")
    print(f"{STATIONARY} stationary nights, asked every night, {arguments.trials} cases each:")
    for tails in ("normal", "Student's t, 4", "neighbours alike (0.3)"):
        worse, any_ = stationary(rng, arguments.trials, tails)
        print(f"  {tails:24} called worse: {worse}, worse or better: {any_}")
        if tails == "normal" and worse > MOST_FALSE * arguments.trials:
            faults.append(f"{worse} of {arguments.trials} stationary cases are called worse")
    print(f"{time.perf_counter() - began:.0f} s; " + ("; ".join(faults) or "every promise is kept"))
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
