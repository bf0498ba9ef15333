"""The plan in a few lines for ``pytest --collect-only``: counts only, cheap at 10,000 cases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pytest_scaleperf.model import Case

_SECONDS_PER_HOUR = 3600.0


def brief(cases: Sequence[Case], gpus: int | None) -> list[str]:
    """Lines without a prefix: cases of each rung, what lies beyond ``gpus``, and GPU-hours at the most.

    The most is ``limits.total`` of every launch that a case needs at least, with all gates open.
    """
    rungs = Counter(case.gpus for case in cases)
    if not rungs:
        return []
    within = [case for case in cases if gpus is None or case.gpus <= gpus]
    listed = ", ".join(f"{rungs[size]} at {size} GPUs" for size in sorted(rungs))
    most = sum(case.gpus * case.suite.limits.total * case.suite.measure.repeats for case in within) / _SECONDS_PER_HOUR
    beyond = len(cases) - len(within)
    lines = [f"plan: {listed}" + (f"; {beyond} of them need more than --gpus {gpus}" if beyond else "")]
    gated = sum(1 for case in within if (rung := case.suite.rung(case.gpus)) is not None and rung.requires is not None)
    if within:
        told = f", {gated} of them only where their gates open" if gated else ""
        count = f"{len(within)} case{'s' * (len(within) != 1)}"
        lines.append(f"plan: {count}{told}; at most {most:,.1f} GPU-hours (limits.total); more: scaleperf plan")
    return lines
