"""Traces as Markdown for a merge request: a line a case, and the table of what differs for a regression."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pytest_scaleperf.report import trace_view
from pytest_scaleperf.report.contents import CaseHistory, Report
from pytest_scaleperf.report.escape import code, markdown
from pytest_scaleperf.report.numbers import change, counted, milliseconds
from pytest_scaleperf.report.traces import Explained, Trace

_REASON = 300
_NAME = 70
_PARTS = 6
_NS_PER_MS = 1e6


def lines(report: Report) -> list[str]:
    """One item of a list for each traced case of this report's time, those outside their band first."""
    return [f"- {code(case.id)}: {_told(case, trace)}" for case, trace in trace_view.traced(report)]


def _told(case: CaseHistory, trace: Trace) -> str:
    verdict = f"**{trace.decision}**" if trace_view.is_news(case.now) else str(trace.decision)
    summary = "; ".join(trace.summary[1:]) if trace.decision.is_pass or not trace.reason else trace.reason
    parts = [] if trace.step is None else [_split(trace)]
    parts += [markdown(summary, _REASON)] if summary else []
    return f"{verdict}: {'; '.join(parts) or 'nothing is recorded'}"


def _split(trace: Trace) -> str:
    """The step and the shares of it that are not compute."""
    step = trace.step
    if step is None or not step.total:
        return "no step"
    shares = (
        f"{words} {100 * getattr(step, field) / step.total:.1f} %"
        for field, words, _ in trace_view.PARTS
        if field != "compute"
    )
    return f"{milliseconds(step.total)}: {', '.join(shares)}"


def differences(report: Report, table: Callable[[Sequence[str], str, Sequence[Sequence[str]]], str]) -> list[str]:
    """A heading and a table for each regression that an earlier trace explains; ``table`` takes titles, sides, rows."""
    found = []
    for case, trace in trace_view.traced(report):
        if trace.explained is not None:
            found.append(f"{_heading(case, trace.explained)}\n\n{table(_TITLES, _SIDES, _rows(trace.explained))}")
        elif trace.difference:
            found.append(f"{code(case.id)}: {markdown(trace.difference[0], _REASON)}")
    return found


_TITLES = ("what", "phase", "count", "busy ms", "adds ms")
_SIDES = "llrrr"


def _heading(case: CaseHistory, found: Explained) -> str:
    first, second = found.step
    ratio = f" ({change(found.change / first)})" if first else ""
    return (
        f"What makes the step of {code(case.id)} differ from that of an earlier trace: "
        f"{milliseconds(first)} \N{RIGHTWARDS ARROW} {milliseconds(second)}, {found.change / _NS_PER_MS:+.3f} ms{ratio}"
    )


def _rows(found: Explained) -> list[tuple[str, ...]]:
    """The largest parts, the others together, and the sum."""
    shown, hidden = found.parts[:_PARTS], found.parts[_PARTS:]
    rows = [
        (
            code(part.title, _NAME),
            markdown(part.phase),
            trace_view.pair(part.count, 1, ",.0f"),
            trace_view.pair(part.busy, _NS_PER_MS, ",.2f"),
            f"{part.change / _NS_PER_MS:+.3f}",
        )
        for part in shown
    ]
    others = found.others.count + len(hidden)
    if others:
        rest = found.others.change + sum(part.change for part in hidden)
        rows.append((counted(others, "other"), "", "", "", f"{rest / _NS_PER_MS:+.3f}"))
    return [*rows, ("**sum**", "", "", "", f"**{found.change / _NS_PER_MS:+.3f}**")]
