"""Verdicts as terminal lines, failure texts and JUnit properties."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_scaleperf.model import (
    Case,
    Decision,
    Fingerprint,
    Gate,
    Metric,
    MetricVerdict,
    Progress,
    System,
    Verdict,
    as_plain,
)
from pytest_scaleperf.printable import printable
from pytest_scaleperf.report.numbers import figure

ALL_ROWS_UP_TO = 60
"""A longer session lists only the cases that did not pass; the records hold them all."""

REASONS_UP_TO = 8
"""So many different reasons for cases that were not judged are said below the table."""

_COLUMNS = (Metric.TPS, Metric.MFU, Metric.PEAK_MEMORY)
_NEXT = {
    Decision.NO_BASELINE: "store one: run this case again with --record-baselines",
    Decision.FINGERPRINT_MISMATCH: (
        "store a new one with --record-baselines, or name what may differ in the suite's compare_across"
    ),
    Decision.REGRESSION: (
        "repeat the run by hand with the script below, or look at its log; if it is meant to be so: "
        "scaleperf baselines update --accept-regression WHY"
    ),
    Decision.INCONCLUSIVE: "take more samples: raise measure.max_samples or measure.steps in the suite",
    Decision.MISSING_METRIC: "look at the log: the run ended well but did not say this number",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table at the end."""

    case_id: str
    decision: Decision
    cells: tuple[str, ...]
    reason: str


def header(system: System, gpus: int | None, cases: int) -> list[str]:
    """What will be measured, and on what."""
    on = "" if gpus is None else f" on {gpus} GPUs" if system.device != "cpu" else f" on {gpus} CPU ranks"
    lines = [f"scaleperf: {cases} cases, system {system.name}{on}; judged: {', '.join(system.judge)}"]
    if system.device == "cpu":
        lines.append("scaleperf: THIS MEASURES A CPU, not a GPU: real training, speeds that hold on no other machine")
    return lines


def row(case: Case, verdict: Verdict) -> Row:
    """A case's line: its verdict and, per metric, value and change."""
    by_metric = {m.metric: m for m in verdict.metrics}
    return Row(
        case.id, verdict.decision, tuple(_cell(by_metric.get(metric)) for metric in _COLUMNS), printable(verdict.reason)
    )


def table(rows: Sequence[Row], *, verbose: bool) -> list[str]:
    """The table at the end: a line a case; in a long session only those that did not pass."""
    shown = [r for r in rows if verbose or len(rows) <= ALL_ROWS_UP_TO or not r.decision.is_pass]
    titles = ("case", "verdict", *(f"{m} {m.unit}" for m in _COLUMNS))
    grid = [titles, *((r.case_id, r.decision, *r.cells) for r in shown)]
    widths = [max(len(line[i]) for line in grid) for i in range(len(titles))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in grid]
    if len(shown) < len(rows):
        lines.append(f"{len(rows) - len(shown)} more passed (-v lists them)")
    why = dict.fromkeys(r.reason for r in rows if r.decision in (Decision.SKIPPED, Decision.RECORDED))
    lines += [f"not judged: {reason}" for reason in [*why][:REASONS_UP_TO]]
    if len(why) > REASONS_UP_TO:
        lines.append(f"and {len(why) - REASONS_UP_TO} more reasons, in the records and in JUnit")
    stale = [r for r in rows if r.decision is Decision.IMPROVEMENT]
    lines += [f"{r.case_id}: {r.reason}" for r in stale]
    if any(r.cells.count("-") < len(r.cells) for r in stale):
        lines.append("scaleperf baselines update puts what was measured into the place of a stale baseline")
    if any(r.cells.count("-") == len(r.cells) for r in stale):
        lines.append("what fits after all needs another `expect` in the suite")
    return lines


def failure_text(case: Case, verdict: Verdict, baseline_where: str, folder: Path) -> str:
    """Why a case failed: expected, found, where, and what to do next."""
    lines = [f"{case.id}: {verdict.decision}: {verdict.reason}"]
    lines += [f"  {_line(m)}" for m in verdict.metrics]
    lines += [f"  note: {note}" for note in verdict.notes]
    lines.append(f"  baseline: {baseline_where}")
    if verdict.decision in _NEXT:
        lines.append(f"  next: {_NEXT[verdict.decision]}")
    lines += [f"  repeat: {folder / 'command.sh'}", f"  log: {folder / 'stdout.log'}"]
    return printable("\n".join(lines))


def properties(
    case: Case, verdict: Verdict, fingerprint: Fingerprint, samples: Sequence[Mapping[str, Any]]
) -> Iterable[tuple[str, str]]:
    """A case's numbers as JUnit properties: value, baseline, change and decision of each metric."""
    import statistics  # noqa: PLC0415 - only a running session needs it; collecting 10,000 cases must not pay for it

    yield from _case_properties(case)
    yield "scaleperf.verdict", verdict.decision
    yield "scaleperf.reason", printable(verdict.reason)
    for metric in verdict.metrics:
        yield from _metric_properties(metric)
    for note in verdict.notes:
        yield "scaleperf.note", printable(note)
    yield "scaleperf.samples", str(len(samples))
    if samples:
        yield "scaleperf.outcome", str(samples[-1]["outcome"])
        measured = [sample["measurement"] for sample in samples]
        shares = [m["memory_pct"] for m in measured if m["memory_pct"] is not None]
        if shares:
            yield "scaleperf.memory_pct", f"{statistics.median(shares):.6g}"
        retries = [m["alloc_retries"] for m in measured if m["alloc_retries"] is not None]
        if retries:
            yield "scaleperf.alloc_retries", str(max(retries))
        yield "scaleperf.gpu_seconds", f"{case.gpus * sum(sample['seconds'] for sample in samples):.6g}"
        yield "scaleperf.folder", str(samples[-1]["folder"])
    yield "scaleperf.fingerprint", json.dumps(as_plain(fingerprint), sort_keys=True)


def gate_properties(case: Case, gate: Gate) -> Iterable[tuple[str, str]]:
    """Why a case was not launched."""
    yield from _case_properties(case)
    yield "scaleperf.verdict", Decision.SKIPPED
    yield "scaleperf.gate", gate.state
    for parent in gate.parents:
        yield "scaleperf.parent", parent


def progress_line(position: str, now: Progress) -> str:
    """Where a running case is, in one line; ``position`` is "case i of n"."""
    began = "queued" if now.seconds is None else "starting"
    at = began if now.step is None else f"step {now.step}/{now.steps}"
    speed = "" if now.tps is None else f", {now.tps:,.0f} tokens/s/GPU"
    remaining = "" if now.seconds_left is None else f", about {now.seconds_left:.0f} s left"
    beside = f", {now.beside} more run" if now.beside else ""
    # The id last: a narrow screen cuts it.
    return f"scaleperf: case {position}: {at}{speed}{remaining}{beside}: {now.case_id}"


def _case_properties(case: Case) -> Iterable[tuple[str, str]]:
    """Which case it is, so that a JUnit file alone can be laid out as a ladder."""
    yield "scaleperf.case", case.id
    yield "scaleperf.suite", case.suite.name
    yield "scaleperf.system", case.suite.system
    yield "scaleperf.gpus", str(case.gpus)
    yield "scaleperf.layout", json.dumps(as_plain(case.layout))
    yield "scaleperf.activation_checkpoint", case.activation_checkpoint
    yield "scaleperf.batch", json.dumps(as_plain(case.batch))


def _metric_properties(verdict: MetricVerdict) -> Iterable[tuple[str, str]]:
    name = f"scaleperf.{verdict.metric}"
    if verdict.value is not None:
        yield name, f"{verdict.value:.6g}"
    if verdict.baseline is not None:
        yield f"{name}.baseline", f"{verdict.baseline:.6g}"
    if verdict.change is not None:
        yield f"{name}.change_pct", f"{100 * verdict.change:+.2f}"
    if verdict.tolerance is not None:
        yield f"{name}.tolerance_pct", f"{100 * verdict.tolerance:.2f}"
    yield f"{name}.verdict", verdict.decision


def _cell(verdict: MetricVerdict | None) -> str:
    if verdict is None or verdict.value is None:
        return "-"
    change = "" if verdict.change is None else f" ({verdict.change:+.1%})"
    return f"{figure(verdict.value)}{change}"


def _line(verdict: MetricVerdict) -> str:
    value = "not measured" if verdict.value is None else f"{figure(verdict.value)} {verdict.metric.unit}"
    base = "no baseline" if verdict.baseline is None else f"baseline {figure(verdict.baseline)}"
    change = "" if verdict.change is None else f", {verdict.change:+.1%}"
    band = "" if verdict.tolerance is None else f", band {verdict.tolerance:.1%}"
    return f"{verdict.metric}: {value}, {base}{change}{band}: {verdict.decision}"
