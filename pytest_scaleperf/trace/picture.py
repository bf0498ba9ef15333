"""One step as a picture: its phases, what each stream ran, and where communication, copies or nothing was exposed."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from pytest_scaleperf.model import TraceError
from pytest_scaleperf.printable import one_line
from pytest_scaleperf.trace.columns import Ints
from pytest_scaleperf.trace.gather import read_trace
from pytest_scaleperf.trace.intervals import union
from pytest_scaleperf.trace.partition import Kind
from pytest_scaleperf.trace.prepared import Cut, Prepared, cut, prepare
from pytest_scaleperf.trace.result import RankReport, TraceReport
from pytest_scaleperf.trace.rules import PHASES, Phase, Rules
from pytest_scaleperf.trace.steps import Window

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, which stay apart for every kind of colour vision.
_COLOURS = {
    "compute": "#0072B2",
    "fsdp copy": "#56B4E9",
    "communication": "#E69F00",
    "copy": "#009E73",
    "exposed communication": "#D55E00",
    "exposed copy": "#CC79A7",
    "idle": "#000000",
}
_PHASE_COLOURS = {
    Phase.FORWARD: "#DDEBF7",
    Phase.BACKWARD: "#FCE4D6",
    Phase.LAST_BACKWARD: "#F8CBAD",
    Phase.OPTIMIZER: "#E2EFDA",
    Phase.OTHER: "#EDEDED",
}
_SUFFIXES = (".svg", ".png", ".pdf")
_BINS = 1200  # across the picture, about one a pixel
_FAINT = 0.12  # of a stream's height: a collective of a few microseconds is still seen
_LANES = 12
_MS = 1e6  # nanoseconds
_NUMBER = r"-?[0-9]+(?:\.[0-9]+)?"
_PATH = re.compile(rf' d="((?:[ML] {_NUMBER} {_NUMBER} *\n|z *\n?){{20,}})"')
_COMMAND = re.compile(rf"([MLz])(?: ({_NUMBER}) ({_NUMBER}))?")


@dataclass(frozen=True, slots=True)
class _Row:
    """One line of the picture: what it is called, and for each colour the intervals to fill.

    A bin of time is filled as high as the part of it that they take, so that a thousand gaps of a microsecond do
    not look like one of a millisecond.
    """

    title: str
    fills: tuple[tuple[str, Ints, Ints], ...]
    faint: float = 0.0  # height to which a bin with little in it is raised, to be seen at all


def draw(
    report: TraceReport, target: Path, rules: Rules | None = None, *, rank: int | None = None, step: int | None = None
) -> None:
    """Draw one step of one rank (the slowest, its first whole step) into ``target``, by its suffix .svg, .png or .pdf.

    The rank's trace is read again, with the ``rules`` of the report.

    Raises TraceError for another suffix, a rank or step that is not there, or a target that cannot be written.
    """
    if target.suffix not in _SUFFIXES:
        raise TraceError(f"{target}: expected a picture's name ending in {', '.join(_SUFFIXES)}")
    chosen = _rank(report, rank)
    prepared = prepare(read_trace(chosen.path), rules or Rules())
    window = _window(prepared, chosen, step)
    figure = _figure(prepared, chosen, window)
    FigureCanvasAgg(figure)
    try:
        if target.suffix == ".svg":
            text = io.StringIO()
            figure.savefig(text, format="svg", metadata={"Date": None})
            target.write_text(_PATH.sub(_shorter, text.getvalue()), encoding="utf-8")
        else:
            figure.savefig(target, dpi=150)
    except OSError as error:
        raise TraceError(f"{target}: cannot be written: {error.strerror or error}") from error


def _shorter(path: re.Match[str]) -> str:
    """A long path (stairs, drawn as full coordinates of fifteen digits) in a quarter of the text, exact to 0.01 pt."""
    parts: list[str] = []
    at = ("", "")
    for command, x, y in _COMMAND.findall(path[1]):
        if command in "zZ":
            parts.append("z")
            continue
        to = (f"{float(x):.2f}", f"{float(y):.2f}")
        if command == "M":
            parts.append(f"M{to[0]} {to[1]}")
        elif to[0] != at[0] and to[1] != at[1]:
            parts.append(f"L{to[0]} {to[1]}")
        elif to != at:
            parts.append(f"H{to[0]}" if to[0] != at[0] else f"V{to[1]}")
        at = to
    return f' d="{"".join(parts)}"'


def _rank(report: TraceReport, rank: int | None) -> RankReport:
    if rank is None:
        return report.slowest
    for each in report.ranks:
        if each.rank == rank:
            return each
    raise TraceError(f"expected one of the ranks {[each.rank for each in report.ranks]}, found rank {rank}")


def _window(prepared: Prepared, report: RankReport, step: int | None) -> Window:
    wanted = report.measured[0].number if step is None else step
    for window in prepared.windows:
        if window.number == wanted:
            return window
    raise TraceError(
        f"{report.path}: expected one of the steps {[each.number for each in prepared.windows]}, found {step}"
    )


def _figure(prepared: Prepared, report: RankReport, window: Window) -> Figure:
    each = cut(prepared, window)
    rows = [*_lanes(prepared, each), _exposed(prepared, each, window)]
    figure = Figure(figsize=(14, 1.6 + 0.42 * len(rows)), layout="constrained")
    axes: Axes = figure.add_subplot()
    for place, row in enumerate(rows):
        _fill(axes, place, row, window)
    _shade(axes, prepared, each, window)
    axes.set_yticks(range(len(rows)), [row.title for row in rows])
    axes.set_ylim(len(rows) - 0.5, -1.1 if prepared.phases else -0.5)  # room for the phases' names
    axes.set_xlim(0, (window.high - window.low) / _MS)
    axes.set_xlabel("ms since the step's first kernel" if report.on_gpu else "ms since the step's start")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    split = next(found for found in report.steps if found.number == window.number).split
    shares = ", ".join(
        f"{name} {100 * value / split.total:.1f} %"
        for name, value in (
            ("compute", split.compute),
            ("exposed communication", split.exposed_communication),
            ("exposed copies", split.exposed_copy),
            ("idle", split.idle),
        )
    )
    number = "whole trace" if window.number is None else f"step {window.number}"
    title = f"rank {report.rank}, {number}, {one_line(report.device)}: {split.total / _MS:.1f} ms: {shares}"
    axes.set_title(title.replace("$", r"\$"), loc="left", fontsize=11)
    used = [name for name in _COLOURS if any(colour == name for row in rows for colour, _, _ in row.fills)]
    figure.legend(
        handles=[Patch(color=_COLOURS[name], label=name) for name in used],
        loc="outside lower center",
        ncols=len(used),
        frameon=False,
    )
    return figure


def _lanes(prepared: Prepared, each: Cut) -> Iterator[_Row]:
    """A row per stream (per thread on a CPU), the busiest first; streams beyond the twelfth share one."""
    work, events = prepared.work, each.events
    busy: dict[int, int] = {
        int(lane): int((work.end - work.start)[events][work.lane[events] == lane].sum())
        for lane in np.unique(work.lane[events])
    }
    ordered = sorted((lane for lane in busy if busy[lane]), key=lambda lane: -busy[lane])
    for lane in ordered[:_LANES]:
        yield _Row(_lane_title(prepared, lane), tuple(_kinds(prepared, events[work.lane[events] == lane])), _FAINT)
    if rest := ordered[_LANES:]:
        chosen = events[np.isin(work.lane[events], rest)]
        yield _Row(f"{len(rest)} other streams", tuple(_kinds(prepared, chosen)), _FAINT)


def _lane_title(prepared: Prepared, lane: int) -> str:
    if len(prepared.trace.gpu.start):
        return f"stream {one_line(prepared.trace.lanes[lane])}"
    return "main thread" if lane == prepared.steps.thread else f"thread {lane}"


def _kinds(prepared: Prepared, events: Ints) -> Iterator[tuple[str, Ints, Ints]]:
    work = prepared.work
    kind, copies = work.kind[events], work.fsdp_copy[events]
    for name, chosen in (
        ("compute", (kind == Kind.COMPUTE) & ~copies),
        ("fsdp copy", copies),
        ("communication", kind == Kind.COMMUNICATION),
        ("copy", kind == Kind.COPY),
    ):
        if chosen.any():
            yield name, work.start[events][chosen], work.end[events][chosen]


def _exposed(prepared: Prepared, each: Cut, window: Window) -> _Row:
    """What was not hidden: communication and copies without compute, and idle time."""
    work, events = prepared.work, each.events
    compute, communication = each.parts.compute, each.parts.communication

    def outside(low: Ints, high: Ints, covers: Sequence[tuple[Ints, Ints]]) -> tuple[Ints, Ints]:
        """The parts of disjoint [low, high) that no cover reaches."""
        starts = np.concatenate([cover[0] for cover in covers])
        ends = np.concatenate([cover[1] for cover in covers])
        gap_low, gap_high = union(starts, ends).gaps(window.low, window.high)
        first = np.searchsorted(gap_high, low, side="right")
        last = np.searchsorted(gap_low, high, side="left")
        pairs = np.repeat(np.arange(len(low)), last - first)
        at = np.arange(len(pairs)) - np.repeat(np.cumsum(last - first) - (last - first), last - first) + first[pairs]
        return np.maximum(low[pairs], gap_low[at]), np.minimum(high[pairs], gap_high[at])

    copying = work.kind[events] == Kind.COPY
    begin, stop = (np.clip(column[events], window.low, window.high) for column in (work.start, work.end))
    copies = union(begin[copying], stop[copying])
    everything = union(begin, stop)
    computed, communicated = (compute.start, compute.end), (communication.start, communication.end)
    fills = (
        ("exposed communication", *outside(*communicated, [computed])),
        ("exposed copy", *outside(copies.start, copies.end, [computed, communicated])),
        ("idle", *everything.gaps(window.low, window.high)),
    )
    return _Row("not hidden", tuple(fill for fill in fills if len(fill[1])))


def _fill(axes: Axes, place: int, row: _Row, window: Window) -> None:
    """Stack the row's fills from its base."""
    edges = np.linspace(window.low, window.high, _BINS + 1).astype(np.int64)
    shares = {
        colour: union(np.clip(low, window.low, window.high), np.clip(high, window.low, window.high)).within(
            edges[:-1], edges[1:]
        )
        / np.maximum(np.diff(edges), 1)
        for colour, low, high in row.fills
    }
    total = np.sum(list(shares.values()), axis=0) if shares else np.zeros(_BINS)
    scale = np.where(total > 0, np.clip(total, row.faint, 1) / np.where(total > 0, total, 1), 0)
    base = np.full(_BINS, place + 0.4)
    for colour, share in shares.items():
        top = base - 0.8 * share * scale
        new = np.concatenate(([True], (np.diff(top) != 0) | (np.diff(base) != 0)))  # alike bins are one stair
        times = (np.append(edges[:-1][new], edges[-1]) - window.low) / _MS
        axes.stairs(top[new], times, baseline=base[new], fill=True, color=_COLOURS[colour], linewidth=0)
        base = top


def _shade(axes: Axes, prepared: Prepared, each: Cut, window: Window) -> None:
    """Colour the background by the phase that accounts for each stretch of time, and name the long ones."""
    if prepared.phases is None:
        return
    own = each.parts.own > 0
    start, phase = prepared.work.start[each.events][own], prepared.event_phase[each.events][own]
    changes = np.flatnonzero(np.concatenate(([True], phase[1:] != phase[:-1])))
    edges = np.append(np.clip(start[changes], window.low, window.high), window.high) - window.low
    length = window.high - window.low
    for place, index in enumerate(changes):
        low, high = (int(edge) for edge in edges[place : place + 2])
        found = PHASES[phase[index]]
        axes.axvspan(low / _MS, high / _MS, color=_PHASE_COLOURS[found], zorder=0, linewidth=0)
        if high - low > length / 30:
            axes.text((low + high) / 2 / _MS, -0.8, found.words, ha="center", va="center", fontsize=9)
