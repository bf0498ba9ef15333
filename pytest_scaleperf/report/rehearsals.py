"""Rehearsals beside the real cases: what communication costs, and what a regression is to be put down to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from pytest_scaleperf.model import Decision, GateState, Metric
from pytest_scaleperf.rehearsed import Rehearsal, Speeds, attribute, communication_tax
from pytest_scaleperf.report.contents import CaseHistory, RehearsedCase
from pytest_scaleperf.report.numbers import change, figure, percent

TITLES = (
    "case", "ranks", "rehearsal", "peak GiB", "of memory", "margin GiB", "ceiling TPS", "real TPS", "communication",
    "why",
)  # fmt: skip
SIDES = "lrlrrrrrrl"
_UNKNOWN = "compute or communication: not known, there is no rehearsal of before to compare the ceiling with"


def rehearsed_cases(
    found: Sequence[Rehearsal], cases: Sequence[CaseHistory], begin: float
) -> tuple[RehearsedCase, ...]:
    """The newest rehearsal of each case since ``begin``, or of the very build that was measured in this report's time.

    What does not fit comes first, then regressions, then the rest as they were found.
    """
    real = {(case.system, case.id): case for case in cases}
    groups: dict[tuple[str, str], list[Rehearsal]] = defaultdict(list)
    for each in sorted(found, key=lambda rehearsal: rehearsal.finished):
        groups[each.system, each.case_id].append(each)
    shown = []
    for key, group in groups.items():
        case = real.get(key)
        chosen = _of_this_build(group, case) or group[-1]
        if chosen.finished >= begin or (case is not None and _is_same(chosen, case)):
            shown.append(_beside(chosen, group, case))
    return tuple(sorted(shown, key=lambda each: (each.rehearsal.is_well, not each.cause)))


def _of_this_build(group: Sequence[Rehearsal], case: CaseHistory | None) -> Rehearsal | None:
    return next((each for each in reversed(group) if case is not None and _is_same(each, case)), None)


def _is_same(rehearsal: Rehearsal, case: CaseHistory) -> bool:
    own = case.now.fingerprint
    return own is not None and rehearsal.fingerprint == own and rehearsal.fit.is_known


def _beside(rehearsal: Rehearsal, group: Sequence[Rehearsal], case: CaseHistory | None) -> RehearsedCase:
    gate = None if case is None else case.now.gate
    sought = gate is not None and gate.state is GateState.NOT_NEEDED
    if case is None or not _is_same(rehearsal, case):
        return RehearsedCase(rehearsal, sought=sought)
    real = case.now.value(Metric.TPS)
    tax = communication_tax(real, rehearsal.ceiling)
    return RehearsedCase(rehearsal, real, tax, _cause(rehearsal, group, case), sought)


def _cause(rehearsal: Rehearsal, group: Sequence[Rehearsal], case: CaseHistory) -> str:
    """What a regression of the speed is put down to; empty where there is none."""
    tps = case.now.metric(Metric.TPS)
    slower = tps is not None and tps.decision is Decision.REGRESSION
    if tps is None or not slower or tps.value is None or rehearsal.ceiling is None:
        return ""
    good = next((e for e in reversed(case.earlier) if e.decision.is_pass and e.value(Metric.TPS) is not None), None)
    before = tps.baseline if good is None else good.value(Metric.TPS)
    older = [each for each in group if each.finished < rehearsal.finished and each.ceiling is not None]
    of_good = [each for each in older if good is not None and each.fingerprint == good.fingerprint]
    ceiling = (of_good or older)[-1].ceiling if older else None
    if before is None or ceiling is None:
        return _UNKNOWN
    found = attribute(Speeds(before, ceiling), Speeds(tps.value, rehearsal.ceiling))
    return "" if found is None else found.sentence


def cells(each: RehearsedCase) -> tuple[str, ...]:
    """One line of the table, as ``TITLES`` names it; texts as they are, to be escaped by whoever writes them."""
    found, fullest = each.rehearsal, each.rehearsal.fullest
    why = each.cause or ("" if found.is_well and found.fit == "fits" else found.reason)
    return (
        found.case_id,
        f"{found.gpus:,}",
        found.fit,
        "-" if fullest is None or fullest.peak_gib is None else figure(fullest.peak_gib),
        "-" if fullest is None or fullest.memory_pct is None else percent(fullest.memory_pct),
        "-" if fullest is None or fullest.margin_gib is None else f"{fullest.margin_gib:.2f}",
        "-" if found.ceiling is None else figure(found.ceiling),
        "-" if each.real_tps is None else figure(each.real_tps),
        "-" if each.tax is None else change(each.tax).removeprefix("+"),
        "; ".join([why, *found.notes] if why else found.notes),
    )
