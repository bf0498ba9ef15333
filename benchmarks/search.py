"""How many real runs the search for the best local batch takes, against the full grid, and how often it finds it.

    python benchmarks/search.py [--curves 200] [--seed 0]

Searches the recorded grid of 2 x H200 (tests/data/h200), simulated curves (0.5 % noise from run to run; memory that a
rehearsal does not see; retries that begin anywhere), and curves made to break it. The full grid: every batch from
below until one is out of memory. Found: a batch within 1 % of the best speed. Exits with 1 where a promise is not kept:
found in 95 %, with at most half of the full grid's runs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # the curves are those of the tests

from tests.search.curves import (
    KINDS,
    Curve,
    Recorded,
    Searched,
    adversarial,
    drive,
    recorded,
    simulated,
)

GOOD = 0.01
FOUND, SHARE = 0.95, 0.5


@dataclass(frozen=True, slots=True)
class Tally:
    """What many searches add up to."""

    name: str
    curves: Sequence[Curve | Recorded]
    searches: Sequence[Searched]

    @property
    def found(self) -> float:
        """The share of searches that chose a batch within 1 % of the best."""
        return sum(loss <= GOOD for loss in self.losses) / len(self.losses)

    @property
    def losses(self) -> list[float]:
        """What the choices cost."""
        return [c.loss(s.peak.best) for c, s in zip(self.curves, self.searches, strict=True)]

    @property
    def share(self) -> float:
        """Real runs over those of the full grids."""
        return sum(len(s.peak.tried) for s in self.searches) / sum(c.full_grid for c in self.curves)

    @property
    def over(self) -> int:
        """Searches that took more than half of their grid; one run is always needed."""
        pairs = zip(self.curves, self.searches, strict=True)
        return sum(len(s.peak.tried) > max(1, c.full_grid * SHARE) for c, s in pairs)

    @property
    def kept(self) -> str:
        """How often the choice was as good as the search was sure of."""
        said = [
            (loss, s.peak.sure_within)
            for loss, s in zip(self.losses, self.searches, strict=True)
            if s.peak.sure_within is not None
        ]
        return f"{sum(loss <= sure for loss, sure in said)} of {len(said)}"

    def line(self) -> str:
        """One line of the table."""
        runs = statistics.fmean(len(s.peak.tried) for s in self.searches)
        whole = statistics.fmean(c.full_grid for c in self.curves)
        rehearsals = statistics.fmean(len(s.findings.rehearsed) for s in self.searches)
        return (
            f"{self.name:36}{len(self.curves):6}{rehearsals:8.1f}{runs:7.1f}{whole:7.1f}{self.share:7.0%}{self.over:6}"
            f"{self.found:8.1%}{max(self.losses):8.1%}{self.kept:>14}"
        )


HEAD = (
    f"{'':36}{'curves':>6}{'rehears':>8}{'runs':>7}{'full':>7}{'share':>7}{'>half':>6}{'found':>8}{'worst':>8}"
    f"{'sure, and was':>14}"
)


def tally(name: str, curves: Sequence[Curve | Recorded], *, rehearse: bool = True, width: int = 1) -> Tally:
    """Search every curve."""
    return Tally(name, curves, [drive(curve, rehearse=rehearse, width=width) for curve in curves])


def show_recorded() -> Tally:
    """The recorded grid, family by family."""
    every = tally("all", recorded())
    print("2 x H200, Qwen3-30B-A3B of 8 layers, recorded")
    for curve, searched in zip(every.curves, every.searches, strict=True):
        peak, edge = searched.peak, searched.edge
        told = "" if edge is None else edge.sentence()
        print(
            f"  {curve.name:10} of {', '.join(map(str, curve.grid))}: {len(peak.tried)} of {curve.full_grid} runs, "
            f"loss {curve.loss(peak.best):.1%}; {peak.sentence()}; {told}"
        )
    print(f"  found {every.found:.0%} with {every.share:.0%} of the runs\n")
    return every


def show_simulated(curves: int, seed: int) -> list[Tally]:
    """Simulated curves: with rehearsals, without, and several at a time."""
    kinds = {kind: [simulated(kind, seed + number) for number in range(curves)] for kind in KINDS}
    print(f"simulated, {curves} of a kind\n{HEAD}")
    tallies = [tally(kind, made) for kind, made in kinds.items()]
    every = [simulated(kind, seed + number) for kind in KINDS for number in range(curves)]
    tallies.append(tally("all", every))
    print("\n".join(made.line() for made in tallies))
    for width in (2, 4):
        made = tally(f"all, {width} at a time", every, width=width)
        waves = statistics.fmean(searched.waves for searched in made.searches)
        print(f"{made.line()}   {waves:.1f} waves of runs")
    print("\nwithout rehearsals: out of memory has to be met by real runs")
    print("\n".join(tally(kind, made, rehearse=False).line() for kind, made in kinds.items()))
    return tallies


def show_adversarial(curves: int, seed: int) -> None:
    """Curves made to break it, each with many noises."""
    print(f"\nmade to break it, {curves} noises each\n{HEAD}")
    made = [adversarial(seed + number) for number in range(curves)]
    for place in range(len(made[0])):
        family = [noises[place] for noises in made]
        found = tally(family[0].name, family)
        doubts = sum(bool(searched.peak.doubts) for searched in found.searches)
        print(found.line() + (f"   {doubts} with doubts" if doubts else ""))


def main() -> None:
    """Print the tables; 1 where found or runs are not as promised."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--curves", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    wanted = parser.parse_args()
    tallies = [show_recorded(), *show_simulated(wanted.curves, wanted.seed)]
    show_adversarial(wanted.curves, wanted.seed)
    broken = [made.name for made in tallies if made.found < FOUND or made.share > SHARE]
    if broken:
        raise SystemExit(f"not as promised: {', '.join(broken)}")


if __name__ == "__main__":
    main()
