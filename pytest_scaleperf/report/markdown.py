"""The report as Markdown for a merge request: small enough for a comment whatever the number of cases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePath

from pytest_scaleperf.model import Decision, Metric, MetricVerdict
from pytest_scaleperf.report import beside, preflight, rehearsals, trace_markdown, views
from pytest_scaleperf.report.contents import TITLE, CaseHistory, Entry, Report, Session
from pytest_scaleperf.report.escape import code, markdown
from pytest_scaleperf.report.numbers import change, counted, figure, hours, moment, percent

MOST_BYTES = 60_000
"""A comment of GitHub holds 65,536 characters; GitLab's holds more."""

_HEAD, _CHANGED, _LADDER, _SCALINGS, _NOT_RUN, _LOGS, _ALL = 4_000, 13_000, 6_000, 5_000, 5_000, 6_000, 6_000
_NOTES, _SESSIONS, _TRACES, _DIFFERENCES = 2_500, 1_500, 2_500, 5_000
_REHEARSALS = 4_000
_PUBLISHED = 4_000
_REASON = 160
_LONG_REASON = 400
_NAMES = 6
_MOST_PREFLIGHTS = 2


def render(report: Report, title: str = TITLE) -> str:
    """The whole report under a title; fewer than ``MOST_BYTES`` bytes."""
    parts = [
        _headline(report, title),
        _changed(report),
        _levels(report),
        _ladder(report),
        _published(report),
        _scalings(report),
        _traces(report),
        _rehearsals(report),
        _preflights(report),
        _not_run(report),
        _notes(report),
        _logs(report),
        _all_cases(report),
        _sessions(report),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _headline(report: Report, title: str) -> str:
    verdicts = ", ".join(f"{number} {word}" for word, number in views.summary(report))
    unit = "rank-hours on a CPU" if report.measures_cpu else "GPU-hours"
    spent = hours(report.gpu_seconds)
    text = [
        f"## {markdown(title, _REASON)}: {views.headline(report)}",
        f"{f'{verdicts}. ' if verdicts else ''}{spent} {unit} spent. Newest record: {moment(report.newest)}.",
    ]
    if report.measures_cpu:
        text.append("**This measures a CPU, not a GPU**: speeds that hold on no other machine.")
    problems = [f"could not be read: {code(f.where)}: {markdown(f.why, _REASON)}" for f in report.faults]
    problems += [
        f"test {code(t.name)} {t.state}: {markdown(t.message, _REASON)} ({code(t.where)})" for t in report.others
    ]
    if problems:
        text.append("\n".join(_fitting(("- **" + p.replace(": ", ":** ", 1) for p in problems), _HEAD - 1_000)))
    return "\n\n".join(text)


def _changed(report: Report) -> str:
    cases = views.changed(report)
    first = len(views.first_measured(report))
    unjudged = f"\n\n{counted(first, 'case')} measured and not judged: there was no baseline to hold." if first else ""
    if not cases:
        return f"### What changed\n\n{views.nothing_changed(report)}{unjudged}"
    titles = ("case", "verdict", *(f"{m} {m.unit}" for m in views.COLUMNS), "before", "why")
    rows = [
        (
            code(case.id),
            case.now.verdict,
            *(_cell(m) for _, m in views.metrics(case.now)),
            markdown(views.before(case)),
            code(_why(case.now), _REASON),
        )
        for case in cases
    ]
    return "### What changed\n\n" + _table(titles, "llrrrll", rows, _CHANGED) + unjudged


def _levels(report: Report) -> str:
    lines = [f"- {code(case.id)}: {markdown(note, _REASON * 2)}" for case, note in views.levels(report)]
    return "### Levels that changed\n\n" + "\n".join(_fitting(lines, _NOTES)) if lines else ""


def _ladder(report: Report) -> str:
    titles = (
        "suite",
        "CPU ranks" if report.measures_cpu else "GPUs",
        "best configuration",
        f"TPS {Metric.TPS.unit}",
        "MFU %",
        "peak memory",
        "TPS to rung below",
        "to first rung",
        "verdict",
        "launched",
        "rank-hours" if report.measures_cpu else "GPU-hours",
    )
    rows = [_step(step) for step in views.ladder(report)]
    return "### The ladder: the optimum of each rung\n\n" + _table(titles, "lrlrrrrrlrr", rows, _LADDER)


def _step(step: views.Step) -> tuple[str, ...]:
    best = None if step.best is None else step.best.now
    return (
        code(step.suite),
        f"{step.gpus:,}",
        ("nothing completed" if step.launched else "not run") if best is None else markdown(views.configuration(best)),
        "-" if best is None else _value(best.value(Metric.TPS)),
        "-" if best is None else _value(best.value(Metric.MFU)),
        "-" if best is None else memory(best),
        "-" if step.below is None else change(step.below),
        "-" if step.first is None else change(step.first),
        "-" if best is None else best.verdict,
        f"{step.launched} of {len(step.cases)}",
        hours(step.gpu_seconds),
    )


def _published(report: Report) -> str:
    parts = []
    for table in beside.tables(report):
        titles = (
            "GPUs", "published", "TPS", "MFU %", "memory %", "to first", "optimum here", "TPS (to published)", "MFU %",
            "memory %", "to first",
        )  # fmt: skip
        rows = [_beside(row) for row in table.rows]
        source = markdown(f"{table.said.suite}: {table.said.source}", _LONG_REASON)
        parts.append(f"{source}\n\n" + _table(titles, "rlrrrrlrrrr", rows, _PUBLISHED // len(report.published)))
    return "### The ladder beside what was published\n\n" + "\n\n".join(parts) if parts else ""


def _beside(row: beside.Row) -> tuple[str, ...]:
    said, best = row.said, None if row.best is None else row.best.now
    there = (
        f"{said.gpus:,}",
        code(said.case_id),
        *map(_value, (said.tps, said.mfu, said.memory_pct)),
        "-" if row.first is None else change(row.first),
    )
    if best is None:
        return (*there, "not measured", "-", "-", "-", "-")
    to_published = "" if row.change is None else f" ({change(row.change)})"
    return (
        *there,
        ("the same: " if row.same else "") + markdown(views.configuration(best)),
        _value(best.value(Metric.TPS)) + to_published,
        _value(best.value(Metric.MFU)),
        "-" if best.memory_pct is None else percent(best.memory_pct),
        "-" if row.best_first is None else change(row.best_first),
    )


def _scalings(report: Report) -> str:
    if not report.scalings:
        return ""
    titles = ("scaling test", "verdict", "efficiency", "baseline", "band", "TPS of the smaller", "of the larger", "why")
    rows = [
        (
            code(s.pair),
            s.decision,
            views.efficiency(s),
            _value(s.baseline),
            "-" if s.tolerance is None else f"-{s.tolerance:.1%}",
            _value(None if s.lower is None else s.lower.tps),
            _value(None if s.upper is None else s.upper.tps),
            code(s.reason, _REASON),
        )
        for s in sorted(report.scalings, key=lambda s: not s.is_red)
    ]
    return "### Scaling tests\n\n" + _table(titles, "llrrrrrl", rows, _SCALINGS)


def _preflights(report: Report) -> str:
    shown = []
    for part in preflight.parts(report)[:_MOST_PREFLIGHTS]:
        lines = [f"- **{severity}** {markdown(text, _REASON * 2)}" for severity, text in part.findings]
        told = [f"Pre-flight of {moment(part.when)}: {part.told}."]
        told += ["\n".join(_fitting(lines, _NOTES))] if lines else []
        for titles, rows in ((preflight.GPU_TITLES, part.gpus), (part.link_titles, part.links)):
            cells = [tuple(markdown(cell, _REASON) for cell in row) for row in rows]
            told += [_table(titles, "l" + "r" * (len(titles) - 1), cells, _NOTES)] if rows else []
        shown.append("\n\n".join(told))
    return "### Pre-flight\n\n" + "\n\n".join(shown) if shown else ""


def _rehearsals(report: Report) -> str:
    if not report.rehearsals:
        return ""
    rows = [
        (code(first), ranks, word, *numbers, code(why, _REASON * 2) if why else "")
        for first, ranks, word, *numbers, why in map(rehearsals.cells, report.rehearsals)
    ]
    text = "One process on one device stood for one rank. Communication is 1 - real / ceiling.\n\n"
    return "### Rehearsals\n\n" + text + _table(rehearsals.TITLES, rehearsals.SIDES, rows, _REHEARSALS)


def _traces(report: Report) -> str:
    lines = _fitting(trace_markdown.lines(report), _TRACES)
    if not lines:
        return ""

    def table(titles: Sequence[str], sides: str, rows: Sequence[Sequence[str]]) -> str:
        return _table(titles, sides, rows, _DIFFERENCES)

    parts = _fitting(trace_markdown.differences(report, table), _DIFFERENCES, "… and {} more: see the HTML report.")
    return "\n\n".join(["### Traces", "\n".join(lines), *parts])


def memory(entry: Entry) -> str:
    """Peak memory in GiB and as a share of the device, and allocation retries: ``129.7 GiB, 92.7%``."""
    parts = []
    gib = entry.value(Metric.PEAK_MEMORY)
    if gib is not None:
        parts.append(f"{figure(gib)} GiB")
    if entry.memory_pct is not None:
        parts.append(percent(entry.memory_pct))
    if entry.alloc_retries:
        parts.append(counted(entry.alloc_retries, "retry", "retries"))
    return ", ".join(parts) or "-"


def _not_run(report: Report) -> str:
    groups = views.not_run(report)
    if not groups:
        return ""
    rows = [
        (
            f"{len(group.cases):,}",
            ("**error**: " if group.is_error else "") + markdown(group.reason, _REASON * 2),
            _named(group.cases),
        )
        for group in groups
    ]
    total = sum(len(group.cases) for group in groups)
    return _folded(f"Not run: {counted(total, 'case')}", _table(("cases", "why", "which"), "rll", rows, _NOT_RUN))


def _notes(report: Report) -> str:
    found = views.notes(report)
    if not found:
        return ""
    rows = [(f"{len(cases):,}", markdown(note, _REASON * 2), _named(cases)) for note, cases in found]
    return _folded(f"Notes ({len(found):,})", _table(("cases", "note", "which"), "rll", rows, _NOTES))


def _named(cases: Sequence[CaseHistory]) -> str:
    more = f" and {len(cases) - _NAMES:,} more" if len(cases) > _NAMES else ""
    return ", ".join(code(case.id) for case in cases[:_NAMES]) + more


def _logs(report: Report) -> str:
    lines = []
    for case in views.changed(report):
        entry = case.now
        if not entry.is_red:
            continue
        text = f"- {code(case.id)}: {code(_why(entry), _LONG_REASON)}"
        if entry.launches:
            folder = PurePath(entry.launches[-1].folder)
            text += f"; log {code(str(folder / 'stdout.log'))}; repeat {code(str(folder / 'command.sh'))}"
        lines.append(text)
    return _folded("Reasons, logs and scripts of the red cases", "\n".join(_fitting(lines, _LOGS))) if lines else ""


def _all_cases(report: Report) -> str:
    titles = ("case", "verdict", *(f"{m} {m.unit}" for m in views.COLUMNS), "memory %", "retries")
    rows = [
        (
            code(case.id),
            case.now.verdict,
            *(_cell(m) for _, m in views.metrics(case.now)),
            "-" if case.now.memory_pct is None else percent(case.now.memory_pct),
            "-" if case.now.alloc_retries is None else str(case.now.alloc_retries),
        )
        for case in report.cases
        if case.now.times
    ]
    if not rows:
        return ""
    return _folded(f"Every launched case ({len(rows):,})", _table(titles, "llrrrrr", rows, _ALL))


def _did(session: Session) -> str:
    """What a session launched and what that cost, or what it rehearsed."""
    rehearsed = f"{counted(session.rehearsed, 'case')} rehearsed" if session.rehearsed else ""
    if rehearsed and not session.cases:
        return rehearsed
    launched = f"{counted(session.cases, 'case')} launched, {hours(session.gpu_seconds)} GPU-hours"
    return f"{launched}, {rehearsed}" if rehearsed else launched


def _sessions(report: Report) -> str:
    current = [session for session in reversed(report.sessions) if session.is_current]
    lines = [f"- {code(s.name)}{'' if s.started is None else ' from ' + moment(s.started)}: {_did(s)}" for s in current]
    if len(report.sessions) > len(current):
        older = counted(len(report.sessions) - len(current), "older session")
        lines.append(f"- {older} as history, {hours(report.all_gpu_seconds - report.gpu_seconds)} GPU-hours")
    if report.older:
        lines.append(f"- {counted(len(report.older), 'case')} with older records only; not in this report")
    if not lines:
        return ""
    return _folded(f"{counted(len(current), 'session')}", "\n".join(_fitting(lines, _SESSIONS)))


def _why(entry: Entry) -> str:
    """The reason; where only the JUnit file is red, what it says."""
    if entry.is_contradicted and entry.attempt is not None:
        return entry.attempt.message or "the JUnit file does not say why"
    return entry.reason


def _cell(verdict: MetricVerdict | None) -> str:
    if verdict is None or verdict.value is None:
        return "-"
    text = figure(verdict.value) + ("" if verdict.change is None else f" ({change(verdict.change)})")
    return f"**{text}**" if verdict.decision in (Decision.REGRESSION, Decision.INCONCLUSIVE) else text


def _value(value: float | None) -> str:
    return "-" if value is None else figure(value)


def _table(titles: Sequence[str], sides: str, rows: Sequence[Sequence[str]], budget: int) -> str:
    """A table as far as it fits into ``budget`` bytes; what is left out is counted. ``sides``: l or r a column."""
    rule = "|".join("---:" if side == "r" else "---" for side in sides)
    kept = _fitting([f"| {' | '.join(row)} |" for row in rows], budget, "\n… and {} more: see the HTML report.")
    return "\n".join([f"| {' | '.join(titles)} |", f"|{rule}|", *kept])


def _fitting(lines: Iterable[str], budget: int, rest: str = "- … and {} more: see the HTML report") -> list[str]:
    """The lines as far as they fit into ``budget`` bytes, and how many did not."""
    kept: list[str] = []
    left, out = budget, 0
    for line in lines:
        left -= len(line.encode()) + 1
        if left < 0:
            out += 1
        else:
            kept.append(line)
    return [*kept, rest.format(f"{out:,}")] if out else kept


def _folded(title: str, text: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{text}\n\n</details>"
