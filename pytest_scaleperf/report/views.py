"""What the pages show, arranged: what changed, what was not run, each rung's optimum. Pure; counts and ratios only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pytest_scaleperf.model import Decision, Direction, GateState, Metric, MetricVerdict
from pytest_scaleperf.report.contents import CaseHistory, Entry, Report, Scaling
from pytest_scaleperf.report.numbers import change, counted, day, figure

COLUMNS = (Metric.TPS, Metric.MFU, Metric.PEAK_MEMORY)
"""The metrics that every table shows, in this order."""

_WORST_FIRST = (
    Decision.RUN_FAILED,
    Decision.REGRESSION,
    Decision.MISSING_METRIC,
    Decision.FINGERPRINT_MISMATCH,
    Decision.NO_BASELINE,
    Decision.INCONCLUSIVE,
    Decision.MACHINE_FAILED,
    Decision.SKIPPED,
    Decision.IMPROVEMENT,
    Decision.RECORDED,
    Decision.NOT_JUDGED,
    Decision.PASS,
)


@dataclass(frozen=True, slots=True)
class NotRun:
    """Cases that were not launched for one and the same reason. ``is_error``: pytest was red because of it."""

    reason: str
    cases: tuple[CaseHistory, ...]
    is_error: bool


@dataclass(frozen=True, slots=True)
class Step:
    """One rung of one suite's ladder, and its optimum: the most tokens/s per GPU of all that completed.

    ``below`` and ``first`` are the optimum's TPS against that of the next smaller and of the smallest measured rung,
    as fractions (-0.014: 1.4 % lost). ``gpu_seconds`` counts this report's entries of the rung.
    """

    system: str
    suite: str
    gpus: int
    cases: tuple[CaseHistory, ...]
    launched: int
    gpu_seconds: float
    best: CaseHistory | None
    below: float | None
    first: float | None


def changed(report: Report) -> list[CaseHistory]:
    """Cases to look at, worst first: red ones, improvements, and those that were red before and are not now."""
    kept = [case for case in report.cases if _is_news(case)]
    return sorted(kept, key=lambda case: (_rank(case), -_severity(case.now), -case.now.gpus, case.id))


def first_measured(report: Report) -> list[CaseHistory]:
    """Cases that were launched and not judged: their numbers became a baseline, or nobody asked for a verdict."""
    kinds = (Decision.RECORDED, Decision.NOT_JUDGED)
    return [case for case in report.cases if case.now.decision in kinds and not case.now.is_red]


def nothing_changed(report: Report) -> str:
    """What to say where no case is news."""
    judged = any(case.now.decision is Decision.PASS for case in report.cases)
    return "Nothing: every judged case is inside its band." if judged else "No case was judged."


def before(case: CaseHistory) -> str:
    """What an earlier record said of the case: ``pass``, ``first record``, or since when it has been like this."""
    told = [entry for entry in case.earlier if entry.decision is not Decision.SKIPPED]
    if not told:
        return "first record"
    last = told[-1].verdict
    if last != case.now.verdict:
        return last
    same = 0
    for entry in reversed(told):
        if entry.verdict != last:
            break
        same += 1
    return f"the same, {same + 1} times since {day(told[-same].finished)}"


def not_run(report: Report) -> list[NotRun]:
    """Cases that were not launched, grouped by reason: errors first, then the largest group."""
    groups: dict[tuple[bool, str], list[CaseHistory]] = defaultdict(list)
    for case in report.cases:
        entry = case.now
        if entry.decision is Decision.SKIPPED:
            groups[entry.lacks_evidence, _why_not(entry)].append(case)
    found = [NotRun(reason, tuple(cases), is_error) for (is_error, reason), cases in groups.items()]
    return sorted(found, key=lambda group: (not group.is_error, -len(group.cases), group.reason))


def levels(report: Report) -> list[tuple[CaseHistory, str]]:
    """What the history of each case says of its level (``history: tps is worse by 1.2% since …``), worse ones first."""
    found = [(case, note) for case in report.cases for note in case.now.notes if _is_level(note)]
    return sorted(found, key=lambda pair: " is worse by " not in pair[1])


def notes(report: Report) -> list[tuple[str, list[CaseHistory]]]:
    """What else is to be known beside the verdicts (a version that differs from the baseline's run), with its cases.

    The note of the most cases comes first.
    """
    groups: dict[str, list[CaseHistory]] = defaultdict(list)
    for case in report.cases:
        for note in dict.fromkeys(case.now.notes):
            if not _is_level(note):
                groups[note].append(case)
    return sorted(groups.items(), key=lambda pair: (-len(pair[1]), pair[0]))


def _is_level(note: str) -> bool:
    """True for a note about a change of level, as the room of histories words it."""
    return note.startswith("history: ") and (" is worse by " in note or " is better by " in note)


def ladder(report: Report) -> list[Step]:
    """Every rung of every suite, lowest first."""
    groups: dict[tuple[str, str, int], list[CaseHistory]] = defaultdict(list)
    for case in report.cases:
        groups[case.system, case.now.suite, case.now.gpus].append(case)
    steps: list[Step] = []
    for (system, suite, gpus), cases in sorted(groups.items()):
        lower = [step for step in steps if (step.system, step.suite) == (system, suite) and step.best is not None]
        best = optimum(cases)
        steps.append(
            Step(
                system=system,
                suite=suite,
                gpus=gpus,
                cases=tuple(cases),
                launched=sum(1 for case in cases if case.now.times),
                gpu_seconds=sum(entry.gpu_seconds for case in cases for entry in case.recent),
                best=best,
                below=_ratio(best, lower[-1].best if lower else None),
                first=_ratio(best, lower[0].best if lower else None),
            )
        )
    return steps


def optimum(cases: Iterable[CaseHistory]) -> CaseHistory | None:
    """The case with the most TPS; of equal ones the one with less memory."""
    measured = [case for case in cases if case.now.value(Metric.TPS) is not None]
    return max(
        measured,
        key=lambda c: (c.now.value(Metric.TPS) or 0.0, -(c.now.value(Metric.PEAK_MEMORY) or 0.0)),
        default=None,
    )


def configuration(entry: Entry) -> str:
    """What was run, in words: ``fsdp16-dp1, selective, local batch 18, global batch 1,152``."""
    parts = []
    if entry.layout is not None:
        parts.append(entry.layout.label)
    if entry.activation_checkpoint is not None:
        parts.append(str(entry.activation_checkpoint))
    if entry.batch is not None:
        parts.append(f"local batch {entry.batch.local}")
        if entry.batch.accumulation > 1:
            parts.append(f"global batch {entry.batch.global_:,}")
    return ", ".join(parts)


def metrics(entry: Entry) -> list[tuple[Metric, MetricVerdict | None]]:
    """The metrics that every table shows, each with its judgement or None."""
    return [(metric, entry.metric(metric)) for metric in COLUMNS]


def summary(report: Report) -> list[tuple[str, int]]:
    """How many cases have each verdict, worst first."""
    order = {word: number for number, word in enumerate(_WORST_FIRST)}
    return sorted(report.counts.items(), key=lambda pair: (order.get(Decision(_first(pair[0])), 0), pair[0]))


def headline(report: Report) -> str:
    """What is red, in a few words: ``3 of 28 cases red``, and scaling tests and other tests where there are any."""
    red = sum(1 for case in report.cases if case.now.is_red)
    text = f"{red} of {counted(len(report.cases), 'case')} red"
    lost = sum(1 for scaling in report.scalings if scaling.is_red)
    if lost:
        text += f", {lost} of {counted(len(report.scalings), 'scaling test')} red"
    bad = sum(1 for each in report.rehearsals if each.is_bad)
    if bad:
        text += f", {bad} of {counted(len(report.rehearsals), 'rehearsal')} not well"
    if report.others:
        text += f", {counted(len(report.others), 'other test')} failed"
    return text + (", incomplete" if report.faults else "")


def efficiency(scaling: Scaling) -> str:
    """TPS per GPU of the larger rung by that of the smaller, and its change from the baseline."""
    if scaling.efficiency is None:
        return "-"
    return figure(scaling.efficiency) + ("" if scaling.change is None else f" ({change(scaling.change)})")


def _first(verdict: str) -> str:
    """The decision behind a verdict's words."""
    word = verdict.partition(",")[0]
    return Decision.SKIPPED if word == "no_evidence" else word


def _is_news(case: CaseHistory) -> bool:
    if case.now.decision is Decision.SKIPPED:  # shown with its reason among those that were not run
        return case.now.is_contradicted
    return case.now.is_red or case.now.decision is Decision.IMPROVEMENT or case.was_mended


def _rank(case: CaseHistory) -> int:
    """Place among the worst; a record that a test contradicts counts as a failed run."""
    return 0 if case.now.is_contradicted else _WORST_FIRST.index(case.now.decision)


def _severity(entry: Entry) -> float:
    """How far the worst metric is outside its band, in bands."""
    return max((_bands(m) for m in entry.metrics if m.tolerance is not None), default=0.0)


def _bands(verdict: MetricVerdict) -> float:
    if verdict.change is None or not verdict.tolerance:
        return 0.0
    worse = -verdict.change if verdict.metric.direction is Direction.HIGHER_IS_BETTER else verdict.change
    return abs(worse) / verdict.tolerance if verdict.decision is Decision.IMPROVEMENT else worse / verdict.tolerance


def _why_not(entry: Entry) -> str:
    """A reason that cases share: their own names are left out where only those differ."""
    gate = entry.gate
    if gate is None or gate.state is not GateState.NO_EVIDENCE:
        return entry.reason or "no reason is recorded"
    parents = ", ".join(gate.parents[:3]) + (", …" if len(gate.parents) > len(gate.parents[:3]) else "")
    return f"neither this session nor a fresh record has a verdict of what it requires: {parents}"


def _ratio(case: CaseHistory | None, other: CaseHistory | None) -> float | None:
    if case is None or other is None:
        return None
    value, base = case.now.value(Metric.TPS), other.now.value(Metric.TPS)
    return None if value is None or not base else value / base - 1


def rungs_of(steps: Sequence[Step]) -> dict[tuple[str, str], list[Step]]:
    """The rungs of each suite, lowest first, by system and suite."""
    found: dict[tuple[str, str], list[Step]] = defaultdict(list)
    for step in steps:
        found[step.system, step.suite].append(step)
    return dict(found)
