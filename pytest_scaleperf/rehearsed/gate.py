"""Which real case a rehearsal closes: a launch that is known to run out of memory spares its GPUs."""

from __future__ import annotations

from pytest_scaleperf.model import Case, Gate, GateState, Outcome
from pytest_scaleperf.rehearsed.judge import is_smaller
from pytest_scaleperf.rehearsed.words import Fit, Rehearsal


def rehearsal_gate(case: Case, found: Rehearsal | None) -> Gate | None:
    """A closed gate where a rehearsal of this very case (equal fingerprint, fresh) ran out of memory, else None.

    It closes nothing where the suite says ``closes_gate: false``, where the case is expected to end in anything but a
    completed run, or where the device had less memory than the system's. A rehearsal never opens a gate.
    """
    if found is None or not case.suite.rehearse.closes_gate or case.expect is not Outcome.COMPLETED:
        return None
    if found.fit is not Fit.DOES_NOT_FIT:
        return None
    failed = next((rank for rank in found.ranks if rank.fit is Fit.DOES_NOT_FIT), None)
    if failed is None or is_smaller(failed, failed.total_gib):
        return None
    size = "" if failed.requested_gib is None else f"{failed.requested_gib:.2f} GiB more were asked for, "
    where = f" ({found.where})" if found.where else ""
    return Gate(GateState.CLOSED, f"OOM in rehearsal: {size}rank {failed.rank} of {found.gpus}: {found.reason}{where}")
