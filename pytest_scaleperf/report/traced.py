"""What a case's trace showed, from its record: JUnit properties, lines of a failure, and the line at the end."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from pytest_scaleperf.model import Decision
from pytest_scaleperf.printable import printable

_PREFIX = "scaleperf.trace"


def properties(trace: Mapping[str, Any], gpus: int) -> Iterable[tuple[str, str]]:
    """A trace as JUnit properties: shares in per cent of the step with baseline and change in points, and counts.

    Times of single collectives and kernel classes are in the record only; a JUnit file has to stay small.
    """
    yield f"{_PREFIX}.verdict", str(trace["decision"])
    if trace["reason"]:
        yield f"{_PREFIX}.reason", printable(str(trace["reason"]))
    shares = {share["name"]: share for share in trace.get("shares", ())}
    for name, value in trace.get("metrics", {}).items():
        if " " in name:
            continue
        yield f"{_PREFIX}.{name}", f"{value:.6g}"
        share = shares.get(name, {})
        if share.get("baseline") is not None:
            yield f"{_PREFIX}.{name}.baseline", f"{share['baseline']:.6g}"
            yield f"{_PREFIX}.{name}.change_points", f"{share['change']:+.3f}"
            yield f"{_PREFIX}.{name}.verdict", str(share["decision"])
    for name, value in trace.get("counts", {}).items():
        yield f"{_PREFIX}.{printable(name)}", str(value)
    if "run" in trace:
        yield f"{_PREFIX}.gpu_seconds", f"{gpus * trace['run']['seconds']:.6g}"
        yield f"{_PREFIX}.folder", str(trace["run"]["folder"])
        yield f"{_PREFIX}.picture", str(trace["picture"])


def failure_lines(trace: Mapping[str, Any] | None) -> list[str]:
    """What belongs to a case's failure: what each phase is bound by, where its trace is, what differs from before."""
    if trace is None or "files" not in trace:
        return []
    lines = ["  what its trace says:", *(f"    {line}" for line in phase_lines(trace.get("words", ())))]
    lines += [f"  trace: {trace['run']['folder']}", f"  picture: {trace['picture']}"]
    if trace.get("baseline"):
        lines.append(f"  trace baseline: {trace['baseline']}")
        if trace["decision"] == Decision.REGRESSION:
            lines.append("  to accept it: remove that `trace`, run with --with-trace --record-baselines, and say why")
    if trace.get("difference"):
        lines += ["  what differs:", *(f"    {line}".rstrip() for line in trace["difference"])]
    return [printable(line) for line in lines]


def summary_lines(case_id: str, trace: Mapping[str, Any]) -> list[str]:
    """A traced case at the end of the session: where its step's time went, and the picture."""
    phases = phase_lines(trace.get("words", ()))
    if not phases:
        return []
    return [printable(f"trace of {case_id}: {phases[0].removeprefix('step: ')}"), f"  {trace['picture']}"]


def phase_lines(words: Iterable[str]) -> list[str]:
    """Of a trace's words the step, its phases and what could be done: up to the first empty line behind them."""
    begun = itertools.dropwhile(lambda line: not line.startswith("step: "), words)
    return list(itertools.takewhile(bool, begun))
