"""An analysis in sentences: what is bound by computation, what is exposed, and what one could do about it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from pytest_scaleperf.printable import one_line
from pytest_scaleperf.trace.cpu import CPU_NOTE
from pytest_scaleperf.trace.export import phase_means
from pytest_scaleperf.trace.phases import ANNOTATIONS, LAUNCHES
from pytest_scaleperf.trace.result import CollectiveReport, PhaseSplit, RankReport, StepReport, TraceReport
from pytest_scaleperf.trace.rules import Phase

_SOURCES = {ANNOTATIONS: "phases from annotations", LAUNCHES: "phases from what autograd ran"}
_CLASSES = 12  # lines of the table of kernel classes
_NOTABLE = 0.01  # of the step: hiding under FSDP's copies is worth a sentence from here on
_NAMED = 3  # collectives
_RANKS = 8


@dataclass(frozen=True, slots=True)
class Tolerances:
    """Shares of a phase's time that may be exposed, or idle, in what is called compute-bound."""

    exposed: float = 0.03
    idle: float = 0.05


DEFAULT = Tolerances()


def describe(report: TraceReport, tolerances: Tolerances = DEFAULT) -> list[str]:
    """The report as lines of plain text."""
    slowest = report.slowest
    lines = [
        *_heading(report),
        "",
        *_step(report, slowest),
        *(
            f"{phase.words}: {_verdict(report, phase, tolerances)}"
            for phase in report.phases
            if phase is not Phase.OTHER
        ),
        *_advice(report),
        "",
        *_table(slowest),
        *_collectives(report),
        "",
        *_classes(slowest),
        *_notes(report),
    ]
    return [one_line(line) for line in lines]


def _heading(report: TraceReport) -> list[str]:
    first = report.ranks[0]
    whole = [str(step.number) for step in first.steps if step.whole]
    ranks = ", ".join(str(rank.rank) for rank in report.ranks[:_RANKS]) + ", …" * (len(report.ranks) > _RANKS)
    lines = [f"rank{'s' if len(report.ranks) > 1 else ''} {ranks} of {first.world_size or '?'}, {first.device}"]
    if whole:
        lines[0] += f"; step{'s' if len(whole) > 1 else ''} {', '.join(whole)}"
        partial = [str(step.number) for step in first.steps if not step.whole]
        if partial:
            lines[0] += f" (not counted, for it is not whole: {', '.join(partial)})"
    else:
        number = first.steps[0].number
        what = "the whole trace" if number is None else f"step {number}"
        lines.append(
            f"NOT A MEASURE OF A STEP: {what} has no known end, so what lies between steps is missing; "
            "record three steps or more"
        )
    if not report.on_gpu:
        lines.append(CPU_NOTE)
    if first.phases_from:
        lines.append(_SOURCES[first.phases_from])
    return lines


def _step(report: TraceReport, slowest: RankReport) -> list[str]:
    def share(value: Callable[[StepReport], int]) -> str:
        return _pct(sum(map(value, slowest.measured)) / sum(step.split.total for step in slowest.measured))

    where = f" at rank {slowest.rank}, the slowest" if len(report.ranks) > 1 else ""
    total = sum(step.split.total for step in slowest.measured) / len(slowest.measured)
    line = (
        f"step: {_ms(total)}{where}: "
        f"compute {share(lambda step: step.split.compute)}, "
        f"exposed communication {share(lambda step: step.split.exposed_communication)}, "
        f"exposed copies {share(lambda step: step.split.exposed_copy)}, "
        f"idle {share(lambda step: step.split.idle)}"
    )
    communication = sum(step.communication for step in slowest.measured)
    compute = sum(step.split.compute for step in slowest.measured)
    if communication and compute:
        hidden = sum(step.hidden for step in slowest.measured)
        line += f"; {_pct(hidden / communication)} of the communication is hidden"
        line += f", communication / compute = {communication / compute:.2f}"
    return [line]


def _verdict(report: TraceReport, phase: Phase, tolerances: Tolerances) -> str:
    """What a phase is bound by, at the rank where it is worst."""

    def worst(value: Callable[[PhaseSplit], float]) -> float:
        return report.worst(lambda step: value(part) if (part := step.phase(phase)) and part.split.total else 0.0)

    exposed = worst(lambda part: part.split.exposed_communication / part.split.total)
    copies = worst(lambda part: part.split.exposed_copy / part.split.total)
    idle = worst(lambda part: part.split.idle / part.split.total)
    reasons = []
    if exposed > tolerances.exposed:
        milliseconds = worst(lambda part: float(part.split.exposed_communication))
        reasons.append(f"{_ms(milliseconds)} of {_culprits(report, phase)} exposed = {_pct(exposed)}")
    if copies > tolerances.exposed:
        reasons.append(f"{_ms(worst(lambda part: float(part.split.exposed_copy)))} of copies exposed = {_pct(copies)}")
    if idle > tolerances.idle:
        reasons.append(f"{_ms(worst(lambda part: float(part.split.idle)))} idle = {_pct(idle)}")
    if reasons:
        return ", ".join(reasons)
    return f"compute-bound ({_pct(exposed)} exposed, {_pct(idle)} idle)"


def _culprits(report: TraceReport, phase: Phase) -> str:
    """The collectives that make up nine tenths of what a phase has exposed."""
    totals: dict[str, int] = defaultdict(int)
    for rank in report.ranks:
        for step in rank.measured:
            for op, value in part.exposed_by if (part := step.phase(phase)) else ():
                totals[op] += value
    named: list[str] = []
    covered, everything = 0, sum(totals.values())
    for op, value in sorted(totals.items(), key=lambda item: -item[1])[:_NAMED]:
        if covered < 0.9 * everything:
            named.append(op)
            covered += value
    return ", ".join([*named[:-2], " and ".join(named[-2:])])


def _advice(report: TraceReport) -> list[str]:
    lines = []
    if repeated := report.repeated:
        lines.append(
            f"all_reduce runs in every accumulation step ({repeated.backwards} backward passes), the last would do: "
            f"about {_ms(repeated.saving)} a step ({_bytes(repeated.bytes)} reduced too often)"
        )
    share = report.worst(lambda step: step.hidden_by_copies / step.split.total)
    if share > _NOTABLE:
        lines.append(
            f"{_pct(share)} of the step is communication that hides only under FSDP's own copies: "
            "these are no work on the model, and would shrink with it"
        )
    return lines


def _table(rank: RankReport) -> list[str]:
    """One rank's split by phase, means over the measured steps."""
    means = phase_means(rank)
    if not means:
        return []
    lines = [
        f"{f'rank {rank.rank}, ms a step':22} {'compute':>10} {'exposed':>10} {'copies':>10} {'idle':>10} {'sum':>10}"
    ]
    for phase, parts in means:
        values = [value / 1e6 for value in (*parts.values(), sum(parts.values()))]
        lines.append(f"{phase.words:22} " + " ".join(f"{value:10.2f}" for value in values))
    return lines


def _collectives(report: TraceReport) -> list[str]:
    if not report.collectives:
        return ["", "no communication"]
    return ["", "collectives, per step and rank:", *("  " + _collective(each) for each in report.collectives)]


def _collective(each: CollectiveReport) -> str:
    parts = [f"{each.title}: {_several(each.counts, str)} call{'s' if each.counts != (1,) else ''}"]
    parts.append(_several(each.bytes, _bytes) if each.bytes else "size not recorded")
    parts.append(_ms(each.time))
    if each.bandwidth is not None and each.is_large:
        parts.append(f"{each.bandwidth:.3g} GB/s{' (!)' if each.marks else ''}")
    if each.skew is not None:
        parts.append(f"skew {_ms(each.skew[0])} (largest {_ms(each.skew[1])})")
    parts.append(f"{_ms(each.exposed)} exposed")
    return ", ".join(parts) + (f"  [! {'; '.join(each.marks)}]" if each.marks else "")


def _classes(rank: RankReport) -> list[str]:
    """Kernel classes by their own time, means over the measured steps."""
    own: dict[tuple[str, str], int] = defaultdict(int)
    busy: dict[tuple[str, str], int] = defaultdict(int)
    count: dict[tuple[str, str], int] = defaultdict(int)
    for row in (row for step in rank.measured for row in step.rows if row.kind != "idle"):
        key = row.kind, row.label
        own[key], busy[key], count[key] = own[key] + row.own, busy[key] + row.busy, count[key] + row.count
    steps = len(rank.measured)
    ordered = sorted(own, key=lambda key: -own[key])
    lines = [f"{f'rank {rank.rank}, class':32} {'events':>8} {'ms':>10} {'own ms':>10}   (own: not under other work)"]
    for key in ordered[:_CLASSES]:
        name = f"{key[1]}" if key[0] == "compute" else f"{key[1]} ({key[0]})"
        lines.append(
            f"{name[:32]:32} {count[key] / steps:8.0f} {busy[key] / steps / 1e6:10.2f} {own[key] / steps / 1e6:10.2f}"
        )
    rest = ordered[_CLASSES:]
    if rest:
        total = [sum(table[key] for key in rest) / steps for table in (count, busy, own)]
        lines.append(f"{f'{len(rest)} others':32} {total[0]:8.0f} {total[1] / 1e6:10.2f} {total[2] / 1e6:10.2f}")
    return lines


def _notes(report: TraceReport) -> list[str]:
    notes: dict[str, list[int]] = {}
    for rank in report.ranks:
        clips = (f"{clip.count} events with {clip.reason} (the first: {clip.first[:60]!r})" for clip in rank.clips)
        for note in (*rank.notes, *clips):
            notes.setdefault(note, []).append(rank.rank)
    lines = [f"note: {note}" for note in report.notes]
    for note, ranks in notes.items():
        where = "" if len(ranks) == len(report.ranks) else f" (rank {', '.join(map(str, ranks))})"
        lines.append(f"note: {note}{where}")
    return ["", *lines] if lines else []


def _several(values: tuple[int, ...], write: Callable[[int], str]) -> str:
    """One value, or from the smallest to the largest where they vary."""
    return write(values[0]) if len(values) == 1 else f"{write(values[0])} to {write(values[-1])}"


def _pct(share: float) -> str:
    return f"{100 * share:.1f} %"


def _ms(nanoseconds: float) -> str:
    milliseconds = nanoseconds / 1e6
    return f"{milliseconds:.1f} ms" if milliseconds >= 1 else f"{milliseconds:.2g} ms"


def _bytes(count: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"
