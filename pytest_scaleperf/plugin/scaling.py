"""The scaling test: the fixture ``scaleperf_scaling`` gives each pair of rungs its efficiency and verdict."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import pytest

from pytest_scaleperf.model import Decision, Metric, ScalePerfError, Suite, System, as_plain
from pytest_scaleperf.plugin.case import CALL, Regression
from pytest_scaleperf.plugin.state import STATE
from pytest_scaleperf.report.numbers import figure

if TYPE_CHECKING:
    from pytest_scaleperf.campaign.efficiency import Scaling, Speed
    from pytest_scaleperf.suite import Pair

FIXTURE = "scaleperf_scaling"
_ROWS = pytest.StashKey[list["Scaling"]]()
_NEXT = {
    Decision.NO_BASELINE: "store one: run the session again with --record-baselines",
    Decision.FINGERPRINT_MISMATCH: (
        "store a new one with --record-baselines, or name what may differ in the suite's compare_across"
    ),
    Decision.REGRESSION: (
        "compare what both cases' traces expose of communication (scaleperf trace); if it is meant to be so: "
        "scaleperf baselines update --accept-regression WHY"
    ),
    Decision.INCONCLUSIVE: "measure both cases more often: --repeats N",
}


class ScalePerfScaling:
    """What a test gets: one pair of rungs, compared and judged."""

    def __init__(self, found: Scaling) -> None:
        self.found = found
        self.checked = False

    def check(self) -> None:
        """Fail unless the efficiency holds against its baseline.

        Raises Regression with both speeds, the baseline and the next command.
        """
        self.checked = True
        if self.found.decision is Decision.RECORDED:
            pytest.skip(self.found.reason)
        if not self.found.decision.is_pass:
            raise Regression("\n".join(_failure(self.found)), pytrace=False)


@pytest.fixture
def scaleperf_scaling(request: pytest.FixtureRequest) -> Iterator[ScalePerfScaling]:
    """One pair of rungs; ``check()`` turns its verdict into pass or fail. Nothing is launched for it."""
    from pytest_scaleperf.campaign.scaling import ScalingJudge  # noqa: PLC0415 - only a running session needs it

    pair, state = request.param, request.config.stash[STATE]
    if state.settings.rehearse:
        pytest.skip("a rehearsal compares no speeds")
    if isinstance(pair, Suite):
        pytest.skip(_no_pairs(pair, state.system))
    try:
        found = ScalingJudge(state.campaign()).judge(pair)
    except ScalePerfError as error:
        pytest.fail(str(error), pytrace=False)
    request.config.stash.setdefault(_ROWS, []).append(found)
    request.node.user_properties.extend(_properties(found, state.campaign().session.id))
    if found.decision is Decision.SKIPPED:
        pytest.skip(found.reason)
    given = ScalePerfScaling(found)
    yield given
    report = request.node.stash.get(CALL, None)
    if report is not None and report.outcome == "passed" and not given.checked:
        pytest.fail(f"{pair.id}: the test never called {FIXTURE}.check(): its verdict was not asked for", pytrace=False)


def params(suites: Sequence[Suite], system: System | None) -> list[Pair | Suite]:
    """The pairs of this system's suites, lowest rung first; a suite without any stands for itself, as one skip."""
    from pytest_scaleperf.suite import pairs  # noqa: PLC0415 - pydantic and yaml, only with suites

    mine = [suite for suite in suites if system is not None and suite.system == system.name]
    judged = system is not None and Metric.TPS in system.judge
    found = {suite.name: pairs(suite) if judged else () for suite in mine}
    ordered = sorted((pair for each in found.values() for pair in each), key=lambda pair: pair.gpus)
    return [*ordered, *(suite for suite in mine if not found[suite.name])]


def ids(given: Sequence[Pair | Suite]) -> list[str]:
    """How the items are called."""
    return [each.name if isinstance(each, Suite) else each.id for each in given]


def gpus_of(item: pytest.Item) -> int:
    """GPU count of the larger rung of an item's pair; 0 where it has none."""
    callspec = getattr(item, "callspec", None)
    pair = None if callspec is None else callspec.params.get(FIXTURE)
    return 0 if pair is None or isinstance(pair, Suite) else int(pair.gpus)


def summary(config: pytest.Config) -> list[str]:
    """The table of efficiencies; empty where nothing was compared."""
    rows = config.stash.get(_ROWS, [])
    if not rows:
        return []
    grid = [("scaling", "verdict", "efficiency"), *((r.pair.id, str(r.decision), _cell(r)) for r in rows)]
    widths = [max(len(line[i]) for line in grid) for i in range(len(grid[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in grid]


def compared(config: pytest.Config) -> int:
    """How many pairs had two speeds to compare."""
    return sum(1 for row in config.stash.get(_ROWS, []) if row.efficiency is not None)


def _no_pairs(suite: Suite, system: System | None) -> str:
    if not any(rung.scaling is not None for rung in suite.rungs):
        return f"suite {suite.name} asks for no scaling test; to have it, say scaling: {{tolerance: 2 %}} there"
    if system is not None and Metric.TPS not in system.judge:
        return (
            f"system {system.name} does not judge {Metric.TPS} (it judges {', '.join(system.judge)}): a speed says "
            "nothing there, and so an efficiency does not either"
        )
    return f"suite {suite.name} has no two rungs with cases that are expected to complete"


def _cell(found: Scaling) -> str:
    if found.efficiency is None or found.upper is None or found.lower is None:
        return f"- ({found.reason})"
    change = "" if found.change is None else f" ({found.change:+.1%})"
    speeds = ", ".join(f"{speed.case.gpus} GPUs: {figure(speed.tps or 0.0)}" for speed in (found.lower, found.upper))
    return f"{found.efficiency:.4f}{change}  {speeds} {Metric.TPS.unit}"


def _failure(found: Scaling) -> Iterator[str]:
    yield f"{found.pair.id}: {found.decision}: {found.reason}"
    for speed in (found.lower, found.upper):
        if speed is not None:
            yield f"  {speed.case.id}: {_speed(speed)}"
    for note in found.notes:
        yield f"  note: {note}"
    yield f"  baseline: {found.baseline_where}"
    if found.decision in _NEXT:
        yield f"  next: {_NEXT[found.decision]}"


def _speed(speed: Speed) -> str:
    value = "no speed" if speed.tps is None else f"{figure(speed.tps)} {Metric.TPS.unit}"
    return f"{value}, {speed.decision} {f'in {speed.where}' if speed.where else 'in this session'}"


def _properties(found: Scaling, session: str) -> Iterable[tuple[str, str]]:
    """The pair's numbers as JUnit properties."""
    yield "scaleperf.scaling", found.pair.id
    yield "scaleperf.suite", found.pair.suite.name
    yield "scaleperf.system", found.pair.suite.system
    yield "scaleperf.gpus", str(found.pair.gpus)
    yield "scaleperf.verdict", found.decision
    yield "scaleperf.reason", found.reason
    for name, speed in (("upper", found.upper), ("lower", found.lower)):
        if speed is not None:
            yield f"scaleperf.{name}", speed.case.id
            yield f"scaleperf.{name}.tps", f"{speed.tps:.6g}"
    for name, number in (("efficiency", found.efficiency), ("efficiency.baseline", found.baseline)):
        if number is not None:
            yield f"scaleperf.{name}", f"{number:.6g}"
    if found.change is not None:
        yield "scaleperf.efficiency.change_pct", f"{100 * found.change:+.2f}"
    if found.tolerance is not None:
        yield "scaleperf.efficiency.tolerance_pct", f"{100 * found.tolerance:.2f}"
    for note in found.notes:
        yield "scaleperf.note", note
    yield "scaleperf.session", session
    if found.fingerprint is not None:
        yield "scaleperf.fingerprint", json.dumps(as_plain(found.fingerprint), sort_keys=True)
