"""Whether a case of a larger rung may be launched: by this session's verdicts, else by fresh records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pytest_scaleperf.model import Case, Decision, Evidence, Gate, GateState

EvidenceOf = Callable[[Case], Evidence | None]


def decide(
    case: Case, parents: Sequence[Case], verdicts: Mapping[str, Decision], stored: EvidenceOf, command: str
) -> Gate:
    """The gate of ``case``: open where one of its parents passed, closed where all of them failed.

    A parent that has no verdict here and no usable record leaves the gate undecided: NO_EVIDENCE, never a skip.
    ``stored`` gives a fresh record of the same fingerprint, or what kept the parent from running (a skip whose
    ``where`` says it); ``command`` is the one that would give the evidence.
    """
    if not parents:
        return Gate(GateState.OPEN, "lowest rung")
    failed: list[tuple[str, str]] = []
    unknown: list[str] = []
    for parent in parents:
        here = verdicts.get(parent.id)
        found = None if here is not None else stored(parent)
        decision = here if here is not None else (found.decision if found is not None else None)
        if decision is None:
            unknown.append(parent.id)
        elif decision.opens_gate:
            origin = "in this session" if found is None else f"by {found.where}"
            return Gate(GateState.OPEN, f"{parent.id} passed {origin}", (parent.id,))
        else:
            why = "" if found is None or decision is not Decision.SKIPPED else f": {found.where}"
            failed.append((parent.id, f"{decision}{why}"))
    names = tuple(parent.id for parent in parents)
    if unknown:
        return Gate(GateState.NO_EVIDENCE, _no_evidence(case, unknown, failed, command), names)
    listed = ", ".join(f"{name} ({decision})" for name, decision in failed)
    return Gate(GateState.CLOSED, f"closed by its parent: {listed}", names)


def _no_evidence(case: Case, unknown: Sequence[str], failed: Sequence[tuple[str, str]], command: str) -> str:
    shown = ", ".join(unknown[:3]) + (f" and {len(unknown) - 3} more" if len(unknown) > len(unknown[:3]) else "")
    text = (
        f"{case.id} may run only where a case it requires passed; expected a verdict of {shown} in this session "
        f"or a fresh record of the same fingerprint, found neither"
    )
    if failed:
        text += f" (failed: {', '.join(name for name, _ in failed)})"
    return f"{text}. Run it first: {command}"
