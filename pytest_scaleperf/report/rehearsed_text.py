"""Rehearsals as terminal lines, failure texts and JUnit properties."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from pytest_scaleperf.model import Case, System, as_plain
from pytest_scaleperf.printable import printable
from pytest_scaleperf.rehearsed import Fit, Rehearsal, communication_tax
from pytest_scaleperf.report.escape import plain
from pytest_scaleperf.report.numbers import change, figure
from pytest_scaleperf.report.text import ALL_ROWS_UP_TO

_PREFIX = "scaleperf.rehearsal"
TITLES = ("case", "ranks", "rehearsal", "GiB", "of memory", "margin GiB", "ceiling TPS", "MFU %", "to baseline", "s")
"""Columns of the table."""
REASON = 300
"""Characters of a reason below the table; the failure's text and the record have all of it."""
WORDS = frozenset({0, 2})
"""Those of them that are words; the others are numbers."""

_NEXT = {
    Fit.DOES_NOT_FIT: (
        "try a smaller local_batch, a larger dp_shard or more activation checkpointing; if it is meant to be so, say "
        "expect: oom in the suite"
    ),
    Fit.INVALID: "correct the rung's layout or batch in the suite, then: pytest --rehearse -k {id}",
    Fit.FAILED: "look at the log; then: pytest --rehearse -k {id}",
}


def header(system: System, cases: Sequence[Case]) -> list[str]:
    """What will be rehearsed, and on what."""
    largest = max(case.gpus for case in cases)
    how = "one process on one device stands for one rank of each; no speed is judged, no gate opens"
    lines = [f"scaleperf: REHEARSAL of {len(cases)} cases of up to {largest} GPUs, system {system.name}: {how}"]
    if system.device == "cpu":
        lines.append("scaleperf: on a CPU a case fits if it runs: its memory is the host's, not a GPU's")
    return lines


def row(found: Rehearsal) -> tuple[str, ...]:
    """A case's line of the table."""
    fullest, compared = found.fullest, found.with_baseline
    return (
        found.case_id,
        f"{found.gpus:,}",
        found.fit,
        "-" if fullest is None else _number(fullest.peak_gib),
        "-" if fullest is None or fullest.memory_pct is None else f"{fullest.memory_pct:.1f}%",
        "-" if fullest is None or fullest.margin_gib is None else f"{fullest.margin_gib:.2f}",
        _number(found.ceiling),
        _number(found.mfu),
        "-" if compared is None else change(compared.change) + ("" if compared.is_equal else " !"),
        f"{found.seconds:.0f}",
    )


def table(found: Sequence[Rehearsal], *, verbose: bool) -> list[str]:
    """A line for each case; in a long session only those that do not fit. Below it, why."""
    shown = [each for each in found if verbose or len(found) <= ALL_ROWS_UP_TO or not each.is_well]
    grid = [TITLES, *(row(each) for each in shown)]
    widths = [max(len(line[column]) for line in grid) for column in range(len(TITLES))]
    lines = [
        "  ".join(
            cell.ljust(width) if column in WORDS else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in grid
    ]
    if len(shown) < len(found):
        lines.append(f"{len(found) - len(shown)} more fit (-v lists them)")
    return [*lines, *reasons(found)]


def reasons(found: Sequence[Rehearsal]) -> list[str]:
    """What is said below the table: why something does not simply fit, and what the marks mean."""
    told = [(each.case_id, each.fit, plain(each.reason, REASON)) for each in found if each.fit is not Fit.FITS]
    lines = [f"{name}: {fit}: {reason}" for name, fit, reason in told]
    if any(each.with_baseline is not None and not each.with_baseline.is_equal for each in found):
        lines.append("!: the memory is not within the band of the real case's baseline")
    return lines


def failure_text(case: Case, found: Rehearsal) -> str:
    """Why a case failed its rehearsal: expected, found, where, and what to do next."""
    lines = [f"{case.id}: expected a configuration that runs and fits, found {found.fit}: {found.reason}"]
    for rank in found.ranks:
        size = "" if rank.peak_gib is None else f", peak {figure(rank.peak_gib)} GiB reserved"
        asked = "" if rank.requested_gib is None else f", {rank.requested_gib:.2f} GiB more could not be allocated"
        memory = (
            "" if rank.total_gib is None else f", of {figure(rank.total_gib)} GiB {found.reserve_gib:g} are kept free"
        )
        lines.append(f"  rank {rank.rank} of {case.gpus}: {rank.outcome}{size}{asked}{memory}")
    lines += [f"  note: {note}" for note in found.notes]
    if found.fit in _NEXT:
        lines.append(f"  next: {_NEXT[found.fit].format(id=case.id)}")
    if found.ranks:
        lines += [f"  repeat: {found.ranks[-1].folder}/command.sh", f"  log: {found.ranks[-1].folder}/stdout.log"]
    return printable("\n".join(lines))


def properties(found: Rehearsal) -> Iterable[tuple[str, str]]:
    """A rehearsal as JUnit properties. None of them is a verdict of the real case."""
    yield _PREFIX, found.fit
    yield f"{_PREFIX}.case", found.case_id
    yield f"{_PREFIX}.suite", found.suite
    yield f"{_PREFIX}.system", found.system
    yield f"{_PREFIX}.gpus", str(found.gpus)
    yield f"{_PREFIX}.ranks", ",".join(str(rank.rank) for rank in found.ranks)
    yield f"{_PREFIX}.reason", printable(found.reason)
    for name, value in _numbers(found):
        if value is not None:
            yield f"{_PREFIX}.{name}", f"{value:.6g}"
    for note in found.notes:
        yield f"{_PREFIX}.note", printable(note)
    if found.ranks:
        yield f"{_PREFIX}.folder", found.ranks[-1].folder
    if found.fingerprint is not None:
        yield f"{_PREFIX}.fingerprint", json.dumps(as_plain(found.fingerprint), sort_keys=True)


def beside(found: Rehearsal, real_tps: float | None) -> Iterable[tuple[str, str]]:
    """What a rehearsal says beside the real run of the same build: the ceiling, and what communication costs of it."""
    tax = communication_tax(real_tps, found.ceiling)
    if found.ceiling is not None:
        yield f"{_PREFIX}.ceiling_tps", f"{found.ceiling:.6g}"
    if tax is not None:
        yield f"{_PREFIX}.communication_pct", f"{100 * tax:.2f}"


def as_json(found: Rehearsal) -> dict[str, Any]:
    """One line of ``scaleperf rehearse --json``: what the table shows, unrounded, None for what is not known."""
    return {
        "case": found.case_id,
        "gpus": found.gpus,
        "ranks": [rank.rank for rank in found.ranks],
        "fit": found.fit,
        "fits": found.fit.fits if found.fit.is_known else None,
        "reason": found.reason,
        **dict(_numbers(found)),
        "notes": list(found.notes),
        "record": found.where,
    }


def _numbers(found: Rehearsal) -> Iterable[tuple[str, float | None]]:
    fullest, compared = found.fullest, found.with_baseline
    yield "peak_memory", None if fullest is None else fullest.peak_gib
    yield "memory_pct", None if fullest is None else fullest.memory_pct
    yield "margin", None if fullest is None else fullest.margin_gib
    yield "reserve", found.reserve_gib
    yield "alloc_retries", None if fullest is None else fullest.alloc_retries
    yield "ceiling_tps", found.ceiling
    yield "ceiling_mfu", found.mfu
    yield "baseline_memory", None if compared is None else compared.baseline_gib
    yield "baseline_change_pct", None if compared is None else 100 * compared.change
    yield "seconds", found.seconds


def _number(value: float | None) -> str:
    return "-" if value is None else figure(value)
