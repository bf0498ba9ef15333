"""How small a drop the verdict finds, how often it is red without one, and how many launches that takes.

``python benchmarks/detection.py [--trials 40000] [--seed 1] [--picture FILE.png]`` resamples real runs of 2 x H200
(tests/data/h200): their steps with the correlation between neighbours, their compilation at the start, and the 0.5 %
by which the medians of seven runs of one configuration differ. Every simulated run goes through ``steady.measure``,
every trial through ``noise_of`` and ``judge``, launch by launch, as a session does. Prints the curve and the tables of
docs/statistics.md, and exits with 1 where a promise is not kept.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pytest_scaleperf import steady
from pytest_scaleperf.estimate import effective_size
from pytest_scaleperf.model import (
    Baseline,
    BaselineSample,
    Decision,
    Fingerprint,
    Measurement,
    Metric,
    Observation,
    Outcome,
    StepSample,
)
from pytest_scaleperf.noise import Noise, noise_of
from pytest_scaleperf.titan.observe import find_files, read_run
from pytest_scaleperf.titan.signatures import End
from pytest_scaleperf.verdict import Rule, judge

RUNS = Path(__file__).parent.parent / "tests" / "data" / "h200" / "runs"
SAME = ("sel4", "sel4b", "lf10a", "lf1a")
"""Four of the seven runs of one configuration; of the other three only the range and the cv of all are known."""

CV = 0.005
"""Between the medians of the seven runs, as measured."""
FLOOR = 0.01
MAX_SAMPLES = 4
CASES = 10
SESSIONS, REPEATS = 16, 3
STEPS, WARMUP, LOG_FREQ, BLOCK = 40, 5, 5, 5
BANK, SUITES = 1500, 200
DROPS = (0.0, 0.0025, 0.005, 0.0075, 0.01, 0.0125, 0.015, 0.0175, 0.02, 0.025, 0.03)
FOUND, HEALTHY_RED, MOST_RUNS = 0.95, 1e-3, 2.0
HERE = Fingerprint("NVIDIA H200", None, "2.11.0", None, "0.2.2", None, "config", 989e12)


@dataclass(frozen=True, slots=True)
class World:
    """What is simulated: the spread of runs, the part of its variance that a session shares, and its tails."""

    cv: float = CV
    shared: float = 0.0
    tails: str = "normal"
    sessions: int = SESSIONS
    repeats: int = REPEATS
    cases: int = CASES
    floor: float = FLOOR
    max_samples: int = MAX_SAMPLES

    @property
    def recorded(self) -> int:
        """Recorded samples of each case."""
        return self.sessions * self.repeats


@dataclass(frozen=True, slots=True)
class Result:
    """Shares of the trials, and mean launches of each."""

    regression: float
    red: float
    first: float
    launches: float
    trials: int
    band: float


def observed(name: str) -> Observation:
    """One recorded run, read as any run is."""
    return read_run(find_files(RUNS / name), End(exit_code=0)).observation


def residuals() -> np.ndarray:
    """Relative time of each steady step of the run that logged every step, in order."""
    times = np.array([1 / s.tps for s in observed("lf1a").series if s.step > WARMUP and s.tps])
    typical: float = np.median(times).item()
    return times / typical


def bank(rng: np.random.Generator) -> list[tuple[float, float]]:
    """Simulated runs through ``steady.measure``: value and standard error, each for a true speed of 1."""
    pool = residuals()
    first = observed("lf1a").series[:2]
    typical = np.median([s.tps for s in observed("lf1a").series if s.tps])
    found = []
    for _ in range(BANK):
        starts = rng.integers(0, len(pool) - BLOCK, size=-(-STEPS // BLOCK))
        times = np.concatenate([pool[i : i + BLOCK] for i in starts])[:STEPS]
        times[:2] = [typical / (s.tps or math.nan) for s in first]  # compilation, and the step after it
        logged = [StepSample(1, tps=1 / times[0])]
        for end in range(LOG_FREQ, STEPS + 1, LOG_FREQ):
            since = 1 if end == LOG_FREQ else end - LOG_FREQ
            logged.append(StepSample(end, tps=(end - since) / times[since:end].sum()))
        run = Observation(Outcome.COMPLETED, tuple(logged), requested_steps=STEPS, last_step=STEPS)
        measured = steady.measure(run, warmup=WARMUP, peak_flops=None)
        if measured.unsteady:
            raise SystemExit(f"a simulated run has no steady window: {measured.unsteady}")
        found.append((measured.values[Metric.TPS], measured.spread[Metric.TPS]))
    return found


class Simulation:
    """Sessions of one world: its suites with their recorded samples, and new launches of their cases."""

    def __init__(self, world: World, runs: Sequence[tuple[float, float]], rng: np.random.Generator) -> None:
        self.world, self._rng = world, rng
        self._values, self._errors = np.array(runs).T
        # What is known is the cv of medians, which holds what the steps of each run add.
        self._cv = math.sqrt(world.cv**2 - float(np.var(self._values)))
        real = np.array([s.value for s in same()])
        self._real = (real - real.mean()) / real.std()
        self._suites = [self._suite() for _ in range(SUITES if world.cases > 1 else SUITES * CASES)]

    def trials(self, drop: float, count: int) -> Result:
        """Judge a case that really is slower by ``drop`` in so many sessions."""
        regressions = reds = first = launches = 0
        band = 0.0
        most = self.world.max_samples
        for _ in range(count):
            cases, noise = self._suites[self._rng.integers(len(self._suites))]
            baseline = cases[self._rng.integers(len(cases))]
            rule = Rule((Metric.TPS,), {Metric.TPS: self.world.floor}, (), most, noise)
            measured: list[Measurement] = []
            which = self._rng.integers(len(self._values), size=most)
            speeds = (self._session(1, most)[0] * self._values[which] * (1 - drop)).tolist()
            for speed, error in zip(speeds, self._errors[which].tolist(), strict=True):
                measured.append(Measurement({Metric.TPS: speed}, {Metric.TPS: error}, ()))
                verdict = judge(measured, baseline, HERE, rule)
                if not verdict.undecided:
                    break
            launches += len(measured)
            band += verdict.metrics[0].tolerance or math.nan
            regressions += verdict.decision is Decision.REGRESSION
            first += verdict.decision is Decision.REGRESSION and len(measured) == 1
            reds += not verdict.decision.is_pass
        return Result(regressions / count, reds / count, first / count, launches / count, count, band / count)

    def _session(self, sessions: int, launches: int) -> np.ndarray:
        """True speeds around 1, [sessions, launches]."""
        together, alone = self._draw(sessions, 1), self._draw(sessions, launches)
        return 1 + self._cv * (math.sqrt(self.world.shared) * together + math.sqrt(1 - self.world.shared) * alone)

    def _draw(self, rows: int, columns: int) -> np.ndarray:
        """Values of mean 0 and variance 1."""
        if self.world.tails == "t5":
            return self._rng.standard_t(5, size=(rows, columns)) / math.sqrt(5 / 3)
        if self.world.tails == "real":
            return self._rng.choice(self._real, size=(rows, columns))
        return self._rng.standard_normal((rows, columns))

    def _suite(self) -> tuple[list[Baseline], Mapping[Metric, Noise]]:
        world, cases = self.world, []
        for number in range(world.cases):
            speeds = self._session(world.sessions, world.repeats)
            values = (speeds * self._rng.choice(self._values, size=speeds.shape)).tolist()
            samples = tuple(
                BaselineSample("2026-01-01", f"s{session}", {Metric.TPS: value}, launch)
                for session, row in enumerate(values)
                for launch, value in enumerate(row, 1)
            )
            cases.append(Baseline(f"case{number}", HERE, samples, "simulated"))
        return cases, noise_of(cases)


@dataclass(frozen=True, slots=True)
class Real:
    """What one recorded run measured."""

    name: str
    value: float
    error: float
    worth: float
    steps: int


def same() -> list[Real]:
    """The runs of one configuration that are kept whole, measured."""
    found = []
    for name in SAME:
        measured = steady.measure(observed(name), warmup=WARMUP, peak_flops=None, find_start=False)
        tps = [s.tps for s in observed(name).series if s.step in measured.steps and s.tps]
        worth = effective_size(tps)
        found.append(Real(name, measured.values[Metric.TPS], measured.spread[Metric.TPS], worth, len(tps)))
    return found


def show_data(runs: Sequence[tuple[float, float]]) -> None:
    """The real numbers that everything rests upon."""
    print("real runs of one configuration (Qwen3-30B-A3B cut to 8 layers, selective, batch 4, 2 x H200):")
    for run in same():
        print(
            f"  {run.name:6} {run.steps:2} logged steps worth {run.worth:4.1f}: {run.value:8.1f} tokens/s/GPU, "
            f"standard error {run.error:.2%}"
        )
    values = [value for value, _ in runs]
    print(f"  seven runs on three machines: 41,062 to 41,653, cv {CV:.1%} (the other three are not kept)")
    print(f"simulated runs: {STEPS} steps, logged every {LOG_FREQ}; their medians vary by {np.std(values):.2%} of it")


def show_curve(simulation: Simulation, trials: int) -> list[Result]:
    """Drop against probability and launches."""
    world = simulation.world
    print(
        f"\n{world.recorded} recorded samples a case ({world.sessions} sessions x {world.repeats}), {world.cases} "
        f"cases, tolerance {world.floor:.2%}, at most {world.max_samples} launches; cv between runs {world.cv:.1%}"
    )
    print("  drop    regression  at the first  mean launches  trials")
    results = []
    for drop in DROPS:
        count = trials if not drop else trials // 8 if math.isclose(drop, 0.015) else trials // 25
        found = simulation.trials(drop, count)
        results.append(found)
        print(
            f"  {drop:6.2%}  {found.regression:10.4%}  {found.first:12.2%}  {found.launches:13.2f}  {found.trials:6}"
            + (f"  red at all: {found.red:.4%} (95 %: below {upper(found):.4%})" if not drop else "")
        )
    print(f"  mean band {results[0].band:.2%}")
    return results


def upper(found: Result) -> float:
    """Upper end of the 95 % interval of the share of reds (Wilson 1927)."""
    n, p, z = found.trials, found.red, 1.96
    return (p + z * z / 2 / n + z * math.sqrt(p * (1 - p) / n + z * z / 4 / n / n)) / (1 + z * z / n)


def show_worlds(runs: Sequence[tuple[float, float]], rng: np.random.Generator, trials: int) -> None:
    """The same where something else is true: fewer samples, other noise, no other cases, no good tolerance."""
    usual = World()
    some = dataclasses.replace
    rows = [
        (f"{sessions * repeats} recorded ({sessions} x {repeats})", some(usual, sessions=sessions, repeats=repeats))
        for sessions, repeats in ((1, 1), (3, 1), (7, 1), (4, 3), (8, 3), (12, 3), (24, 3))
    ]
    rows += [
        ("one case alone", some(usual, cases=1)),
        ("one case alone, tolerance 0.1 %", some(usual, cases=1, floor=0.001)),
        ("tolerance 0.1 %", some(usual, floor=0.001)),
        ("tolerance 3 %", some(usual, floor=0.03)),
        ("at most 1 launch", some(usual, max_samples=1)),
        ("at most 3 launches", some(usual, max_samples=3)),
        ("runs as the four real ones", some(usual, tails="real")),
        ("heavy tails (Student's t, 5)", some(usual, tails="t5")),
        ("half of the variance by session", some(usual, shared=0.5)),
        ("the same, recorded 48 x 1", some(usual, shared=0.5, sessions=48, repeats=1)),
        ("all of the variance by session", some(usual, shared=1.0)),
    ]
    print("\n                                    mean   healthy         1.5 % drop      2 %     3 %     4 %")
    print("                                    band   red/1000 runs   found   runs    found   found   found")
    for name, world in rows:
        simulation = Simulation(world, runs, rng)
        healthy, drop = simulation.trials(0.0, trials // 14), simulation.trials(0.015, trials // 80)
        more = [simulation.trials(d, trials // 100).regression for d in (0.02, 0.03, 0.04)]
        print(
            f"  {name:32}  {healthy.band:5.2%}  {1000 * healthy.red:7.2f}  {healthy.launches:4.2f}"
            f"  {drop.regression:6.1%}  {drop.launches:4.2f}  " + "  ".join(f"{found:6.1%}" for found in more)
        )


def draw_picture(path: Path, world: World, results: Sequence[Result]) -> None:
    """The curve, for docs."""
    import matplotlib as mpl  # noqa: PLC0415 - only where a picture is asked for

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - after the choice of the backend

    drops = [100 * drop for drop in DROPS]
    figure, (found, runs) = plt.subplots(2, 1, sharex=True, figsize=(7.5, 6.0), height_ratios=[3, 2])
    found.plot(drops, [100 * r.regression for r in results], "o-", color="#1f5fa8", label="called a regression")
    found.plot(drops, [100 * r.first for r in results], "s--", color="#8a8a8a", label="at the first launch")
    found.axvspan(0, 100 * results[0].band, color="#1f5fa8", alpha=0.07, lw=0)
    found.text(0.03, 92, f"band {results[0].band:.2%}", color="#1f5fa8", va="top")
    found.axhline(100 * FOUND, color="#b03030", lw=0.8, ls=":")
    found.text(3.0, 100 * FOUND - 1.5, "95 %", color="#b03030", ha="right", va="top")
    found.set_ylabel("sessions, %")
    found.set_ylim(-3, 103)
    found.legend(loc="center right", frameon=False)
    found.set_title(
        f"A true drop, and what one session says of it\n{world.recorded} recorded samples, at most {world.max_samples} "
        f"launches, {world.cv:.1%} between runs; healthy: {1000 * results[0].red:.2f} red of 1,000",
        fontsize=10,
    )
    runs.plot(drops, [r.launches for r in results], "o-", color="#1f5fa8")
    runs.axhline(MOST_RUNS, color="#b03030", lw=0.8, ls=":")
    runs.set_ylabel("launches, mean")
    runs.set_ylim(1, 2.9)
    runs.set_xlabel("true drop in tokens/s, %")
    for axis in (found, runs):
        axis.grid(color="#e4e4e4", lw=0.6)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    print(f"\n{path}")


def broken(results: Sequence[Result]) -> list[str]:
    """The promises that the numbers do not keep."""
    by_drop = dict(zip(DROPS, results, strict=True))
    faults = []
    if by_drop[0.0].red > HEALTHY_RED:
        faults.append(f"a healthy case is red in {by_drop[0.0].red:.4%}, more than 1 of 1,000")
    if by_drop[0.015].regression < FOUND:
        faults.append(f"a drop of 1.5 % is found in {by_drop[0.015].regression:.1%}, less than 95 %")
    if by_drop[0.015].launches >= MOST_RUNS:
        faults.append(f"a drop of 1.5 % takes {by_drop[0.015].launches:.2f} launches, not under two")
    if by_drop[0.03].regression < 1:
        faults.append(f"a drop of 3 % is found in {by_drop[0.03].regression:.2%}, not always")
    return faults


def main() -> int:
    """Print everything; 1 where a promise is not kept."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trials", type=int, default=40_000, help="sessions of a healthy case")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--curve-only", action="store_true", help="without the table of other worlds")
    arguments = parser.parse_args()
    began = time.perf_counter()
    rng = np.random.default_rng(arguments.seed)
    runs = bank(rng)
    show_data(runs)
    results = show_curve(Simulation(World(), runs, rng), arguments.trials)
    if arguments.picture:
        draw_picture(arguments.picture, World(), results)
    if not arguments.curve_only:
        show_worlds(runs, rng, arguments.trials)
    faults = broken(results)
    print(f"\n{time.perf_counter() - began:.0f} s; " + ("; ".join(faults) or "every promise is kept"))
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
