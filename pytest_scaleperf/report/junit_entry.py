"""A test of a JUnit file as an entry, where no record tells of it: from its properties, which say the numbers too."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pytest_scaleperf.model import (
    ActivationCheckpoint,
    Batch,
    Decision,
    Fingerprint,
    Gate,
    GateState,
    Layout,
    Metric,
    MetricVerdict,
    Outcome,
)
from pytest_scaleperf.report.contents import Attempt, Entry, Fault, JUnitState, Scaling, Side

_WITHOUT_VERDICT = {
    JUnitState.PASSED: Decision.NOT_JUDGED,
    JUnitState.SKIPPED: Decision.SKIPPED,
    JUnitState.FAILED: Decision.RUN_FAILED,
    JUnitState.ERROR: Decision.MACHINE_FAILED,
}


def entry_of(attempt: Attempt, case_id: str, time: float) -> Entry | Fault:
    """The entry of a test that no record tells of; ``time`` stands for when it finished.

    A property that cannot be read makes a fault: half of a case's numbers would look like all of them.
    """
    try:
        return _entry(attempt, case_id, time)
    except (ValueError, msgspec.DecodeError) as error:  # msgspec's ValidationError is a DecodeError
        return Fault(attempt.where, f"test {attempt.name}: a property cannot be read: {error}")


def scaling_of(attempt: Attempt, time: float) -> Scaling | Fault:
    """The scaling test that a JUnit file tells of; ``time`` stands for when it finished."""
    try:
        return _scaling(attempt, time)
    except ValueError as error:
        return Fault(attempt.where, f"test {attempt.name}: a property cannot be read: {error}")


def _scaling(attempt: Attempt, time: float) -> Scaling:
    said = attempt.said
    sides = {
        name: Side(case, _number(attempt, f"{name}.tps")) if (case := said(name)) else None
        for name in ("upper", "lower")
    }
    return Scaling(
        system=said("system") or "",
        suite=said("suite") or "",
        pair=said("scaling") or attempt.name,
        gpus=int(said("gpus") or 0),
        session=said("session") or "",
        finished=time,
        decision=Decision(said("verdict") or _WITHOUT_VERDICT[attempt.state]),
        reason=said("reason") or attempt.message,
        where=attempt.where,
        upper=sides["upper"],
        lower=sides["lower"],
        efficiency=_number(attempt, "efficiency"),
        baseline=_number(attempt, "efficiency.baseline"),
        tolerance=_tolerance(attempt, "efficiency"),
        change=_change(attempt, "efficiency"),
        notes=tuple(value for name, value in attempt.properties if name == "scaleperf.note"),
    )


def _entry(attempt: Attempt, case_id: str, time: float) -> Entry:
    said = attempt.said
    decision = said("verdict")
    retries, layout, batch, fingerprint = (said(n) for n in ("alloc_retries", "layout", "batch", "fingerprint"))
    mode, outcome = said("activation_checkpoint"), said("outcome")
    return Entry(
        system=said("system") or "",
        suite=said("suite") or "",
        case_id=case_id,
        session="",
        finished=time,
        gpus=int(said("gpus") or 0),
        decision=Decision(decision) if decision else _WITHOUT_VERDICT[attempt.state],
        reason=said("reason") or attempt.message,
        where=attempt.where,
        times=int(said("samples") or 0),
        gpu_seconds=float(said("gpu_seconds") or 0.0),
        layout=msgspec.json.decode(layout, type=Layout) if layout else None,
        activation_checkpoint=ActivationCheckpoint(mode) if mode else None,
        batch=msgspec.json.decode(batch, type=Batch) if batch else None,
        metrics=tuple(_metrics(attempt)),
        memory_pct=_number(attempt, "memory_pct"),
        alloc_retries=int(retries) if retries else None,
        outcome=Outcome(outcome) if outcome else None,
        gate=_gate(attempt),
        notes=tuple(value for name, value in attempt.properties if name == "scaleperf.note"),
        fingerprint=msgspec.json.decode(fingerprint, type=Fingerprint) if fingerprint else None,
        attempt=attempt,
    )


def _metrics(attempt: Attempt) -> Sequence[MetricVerdict]:
    found = []
    for metric in Metric:
        decision = attempt.said(f"{metric}.verdict")
        if decision is None:
            continue
        found.append(
            MetricVerdict(
                metric=metric,
                decision=Decision(decision),
                value=_number(attempt, metric),
                baseline=_number(attempt, f"{metric}.baseline"),
                tolerance=_tolerance(attempt, metric),
                change=_change(attempt, metric),
            )
        )
    return found


def _change(attempt: Attempt, name: str) -> float | None:
    """The change as a fraction, from value and baseline: the file's own is rounded to a hundredth of a per cent."""
    value, base = _number(attempt, name), _number(attempt, f"{name}.baseline")
    return None if value is None or not base else (value - base) / base


def _tolerance(attempt: Attempt, name: str) -> float | None:
    told = _number(attempt, f"{name}.tolerance_pct")
    return None if told is None else told / 100


def _gate(attempt: Attempt) -> Gate | None:
    state = attempt.said("gate")
    if state is None:
        return None
    parents = tuple(value for name, value in attempt.properties if name == "scaleperf.parent")
    return Gate(GateState(state), attempt.message, parents)


def _number(attempt: Attempt, name: str) -> float | None:
    text = attempt.said(name)
    return None if text is None else float(text)
