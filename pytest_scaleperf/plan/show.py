"""A plan, and what a session spent, as lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_scaleperf.model import Case
from pytest_scaleperf.plan.assemble import RungPlan, SuitePlan
from pytest_scaleperf.plan.budget import Budget
from pytest_scaleperf.plan.expected import Basis
from pytest_scaleperf.plan.forecast import Forecast, State
from pytest_scaleperf.plan.outlook import Outlook
from pytest_scaleperf.plan.simulate import Simulated
from pytest_scaleperf.plan.spent import Saved, Spent
from pytest_scaleperf.printable import printable
from pytest_scaleperf.report.numbers import change, counted, figure, hours

_SHORT = {Basis.CASE: "case", Basis.RUNG: "rung", Basis.GUESS: "guess"}
_REASONS = 6
_PROJECTED = 12
_TEXTS = ("from", "speed of")
_MINUTE, _HOUR = 60.0, 3600.0


def plan_lines(plan: SuitePlan, tokens: float | None) -> Iterator[str]:
    """Everything of one suite."""
    system = plan.system
    yield f"{plan.suite.name} on {counted(plan.gpus, 'GPU')} of {system.name} ({system.gpus_per_node} a node)"
    yield ""
    yield from (f"  {line}" for line in _table(_rows(plan)))
    yield ""
    yield from (f"  {line}" for line in _remarks(plan))
    if plan.outlooks or plan.why_no_outlook:
        yield ""
        yield from (f"  {line}" for line in _outlook_lines(plan))
    if tokens is not None:
        yield ""
        yield from (f"  {line}" for line in _budget_lines(plan, tokens))


def total_lines(plans: Sequence[SuitePlan], wall: Simulated) -> Iterator[str]:
    """Several suites of one system together."""
    names = ", ".join(plan.suite.name for plan in plans)
    spent = sum(plan.expected for plan in plans)
    name = plans[0].system.name
    yield f"together on {name} ({names}): {hours(spent)} GPU-hours, {duration(wall.seconds)} of wall time, packed"


def spent_lines(spent: Spent) -> Iterator[str]:
    """What a session spent and saved."""
    yield f"session {spent.session}"
    yield ""
    rows = [("rung", "cases", "launches", "GPU-hours")]
    rows += [(str(r.gpus), str(r.cases), str(r.launches), hours(r.gpu_seconds)) for r in spent.rungs]
    launches = sum(rung.launches for rung in spent.rungs)
    rows.append(("all", str(sum(rung.cases for rung in spent.rungs)), str(launches), hours(spent.gpu_seconds)))
    yield from (f"  {line}" for line in (_table(rows) if spent.rungs else ["no case was launched"]))
    yield ""
    yield f"  gates saved: {_saved(spent.gates)}"
    yield f"  rehearsals saved: {_saved(spent.rehearsals)}, and took {hours(spent.rehearsed)} device-hours"
    if spent.searches.cases:
        yield f"  searches saved: {_saved(spent.searches)}"
    if spent.used is None:
        yield "  how busy the GPUs were: not recorded"
    else:
        used = spent.used
        whole = used.busy + used.idle + used.lost
        share = f" ({used.busy / whole:.0%} busy)" if whole else ""
        told = f"{hours(used.busy)} busy, {hours(used.idle)} idle, {hours(used.lost)} lost"
        yield f"  GPU-hours of {counted(used.gpus, 'GPU')}: {told}{share}"
    for path in spent.unreadable:
        yield f"  cannot be read, and is not counted: {printable(str(path))}"


def duration(seconds: float) -> str:
    """``45 s``, ``15 min``, ``14.8 h``, ``16.9 days``."""
    if seconds < 2 * _MINUTE:
        return f"{seconds:.0f} s"
    if seconds < 2 * _HOUR:
        return f"{seconds / _MINUTE:.0f} min"
    return f"{seconds / _HOUR:.1f} h" if seconds < 48 * _HOUR else f"{seconds / 24 / _HOUR:.1f} days"


def _rows(plan: SuitePlan) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        ("rung", "cases", "run", "spared", "closed", "beyond", "time each", "from", "GPU-hours", "at least", "at most")
    ]
    rows += [_row(str(rung.gpus), [rung]) for rung in plan.rungs]
    return [*rows, _row("all", plan.rungs)]


def _row(name: str, rungs: Sequence[RungPlan]) -> tuple[str, ...]:
    counts = [sum(getattr(rung, what) for rung in rungs) for what in ("cases", "runs", "spared", "closed", "beyond")]
    each = duration(rungs[0].each) if len(rungs) == 1 and name != "all" else ""
    bases = "" if not each else "+".join(_SHORT[basis] for basis in rungs[0].bases)
    sums = [sum(getattr(rung, what) for rung in rungs) for what in ("expected", "least", "most")]
    return (name, *(str(number) for number in counts), each, bases, *(hours(seconds) for seconds in sums))


def _remarks(plan: SuitePlan) -> Iterator[str]:
    wall = plan.wall
    if wall.seconds:
        share = f"{wall.busy / wall.available:.0%} of the GPUs busy"
        yield f"wall time: {duration(wall.seconds)} packed ({share}), {duration(plan.serial)} one by one"
    if plan.grid is not None and plan.grid.gpu_seconds:
        grid = plan.grid
        yield (
            f"exhaustive grid at {grid.gpus} GPUs: {counted(grid.cases, 'case')}, {hours(grid.gpu_seconds)} GPU-hours; "
            f"this plan: {plan.expected / grid.gpu_seconds:.1%} of it"
        )
        if grid.own_gpu_seconds and grid.own_cases < grid.cases:
            yield (
                f"  with the lowest rungs' own FSDP degrees only: {counted(grid.own_cases, 'case')}, "
                f"{hours(grid.own_gpu_seconds)} GPU-hours; this plan: {plan.expected / grid.own_gpu_seconds:.1%}"
            )
    bases = {basis for rung in plan.rungs for basis in rung.bases}
    yield f"time of a case: {'; else '.join(basis for basis in Basis if basis in bases)}"
    yield from _gate_lines(plan.forecasts)


def _gate_lines(forecasts: Sequence[Forecast]) -> Iterator[str]:
    assumed = sum(one.assumed and one.state is State.RUNS for one in forecasts)
    if assumed:
        yield f"gates: {counted(assumed, 'case')} would run if a parent passes, of which nothing is recorded yet"
    by_record = sum(one.gated and one.state is State.RUNS and not one.assumed for one in forecasts)
    if by_record:
        yield f"gates: {counted(by_record, 'case')} would run, as a parent passed before (fingerprints not compared)"
    closed = [one for one in forecasts if one.state is State.CLOSED]
    for one in closed[:_REASONS]:
        yield f"closed: {_short(one.case)}: {printable(one.reason)}"
    if len(closed) > _REASONS:
        yield f"closed: {len(closed) - _REASONS} more (--json has them all)"


def _outlook_lines(plan: SuitePlan) -> Iterator[str]:
    if plan.why_no_outlook:
        yield f"no projection to larger rungs: missing are {plan.why_no_outlook}"
        return
    rows: list[tuple[str, ...]] = [
        ("projected tokens/s/GPU", "expected", "between", "measured", "projection is off by", "from")
    ]
    rows += [_projected(one) for one in plan.outlooks[:_PROJECTED]]
    yield from _table(rows)
    if len(plan.outlooks) > _PROJECTED:
        yield f"{len(plan.outlooks) - _PROJECTED} more (--json has them all)"
    yield "what is added to the rung below is communication, paid in full; between none of it and twice (docs/plan.md)"


def _projected(one: Outlook) -> tuple[str, ...]:
    found = one.projection
    between = f"{figure(found.low)} - {figure(found.high)}"
    real, off = ("", "") if one.real is None or one.error is None else (figure(one.real.tps), change(one.error))
    source = f"{_short(one.below)} at {figure(one.measured.tps)} ({one.measured.source})"
    return _short(one.case), figure(found.tps), between, real, off, source


def _short(case: Case) -> str:
    """The id without the suite's name, which stands above."""
    return case.id.removeprefix(f"{case.suite.name}-")


def _budget_lines(plan: SuitePlan, tokens: float) -> Iterator[str]:
    if not plan.costs:
        yield "no speed is known: records, baselines or --tps PATTERN=VALUE would say what the tokens cost"
        return
    rows = [(f"{tokens / 1e12:,g}T tokens", "tokens/s/GPU", "time", "GPU-hours", "speed of")]
    for cost in plan.costs:
        budget = Budget(tokens, cost.gpus, cost.tps)
        told = (
            duration(budget.seconds),
            f"{budget.gpu_hours:,.0f}",
            printable(cost.source.removeprefix(f"{plan.suite.name}-")),
        )
        rows.append((f"{cost.gpus} GPUs", figure(cost.tps), *told))
    yield from _table(rows)


def _saved(saved: Saved) -> str:
    if not saved.cases:
        return "nothing"
    more = f" (without {saved.unknown} that no suite has any more)" if saved.unknown else ""
    return f"{counted(saved.cases, 'case')}, about {hours(saved.gpu_seconds)} GPU-hours{more}"


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns side by side, numbers to the right; a column that is empty below its title is left out."""
    left = {0, *(i for i, title in enumerate(rows[0]) if title in _TEXTS)}
    kept = [i for i in range(len(rows[0])) if any(row[i] not in ("", "0") for row in rows[1:]) or i == 0]
    widths = {i: max(len(row[i]) for row in rows) for i in kept}
    for row in rows:
        cells = [row[i].ljust(widths[i]) if i in left else row[i].rjust(widths[i]) for i in kept]
        yield "  ".join(cells).rstrip()
