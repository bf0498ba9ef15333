"""Traces of one run's ranks, read on all cores, and what they say together."""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from pytest_scaleperf.model import TraceError
from pytest_scaleperf.trace.collectives import across_ranks, repeated_reduce
from pytest_scaleperf.trace.rank import analyse_rank
from pytest_scaleperf.trace.result import RankReport, TraceReport
from pytest_scaleperf.trace.rules import Rules

_ALONE = 8 << 20  # bytes of all files: below it starting processes takes longer than reading
_SUFFIXES = (".json", ".json.gz")
_NAMED = 6  # missing ranks that are named


def trace_files(places: Sequence[Path]) -> list[Path]:
    """The files given, and of each folder given its ``*.json`` and ``*.json.gz``.

    Raises TraceError for a place that is neither a file nor a folder with such files.
    """
    found: list[Path] = []
    for place in places:
        if place.is_dir():
            inside = sorted(path for path in place.iterdir() if path.name.endswith(_SUFFIXES))
            if not inside:
                raise TraceError(f"{place}: expected a trace or a folder of traces, found no *.json or *.json.gz in it")
            found += inside
        elif place.is_file():
            found.append(place)
        else:
            raise TraceError(f"{place}: expected a trace or a folder of traces, found nothing there")
    return found


def analyse(
    paths: Sequence[Path],
    rules: Rules | None = None,
    *,
    expected_ranks: int | None = None,
    processes: int | None = None,
) -> TraceReport:
    """Analyse the traces of one run, one file per rank.

    ``expected_ranks``: how many there must be; otherwise missing ones are only noted. ``processes``: at most so
    many (default: the cores that this process may use).

    Raises TraceError where a file is damaged or no trace, a rank is there twice or missing, or the files do not
    show the same steps.
    """
    if not paths:
        raise TraceError("expected at least one trace, found none")
    reports = _numbered(_read(paths, rules or Rules(), processes))
    _check_same_run(reports)
    notes = _missing(reports, expected_ranks)
    return TraceReport(tuple(reports), across_ranks(reports), repeated_reduce(reports), notes)


def _read(paths: Sequence[Path], rules: Rules, processes: int | None) -> list[RankReport]:
    try:
        total = sum(path.stat().st_size for path in paths)
    except OSError as error:
        raise TraceError(f"{error.filename}: cannot be read: {error.strerror}") from error
    workers = min(len(paths), processes or _cores())
    work = partial(analyse_rank, rules=rules)
    if workers == 1 or total < _ALONE:
        return [work(path) for path in paths]
    # spawn: the caller may have threads (pytest, tensorboard), and a forked copy of those can hang.
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        return list(pool.map(work, paths))


def _cores() -> int:
    """Cores that this process may use; macOS does not say, and counts all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _numbered(reports: list[RankReport]) -> list[RankReport]:
    """In order of rank; where no file says its rank, in the order given."""
    if all(report.rank < 0 for report in reports):
        note = "the rank is not recorded" + (": numbered in the order given" if len(reports) > 1 else ": taken as 0")
        return [replace(report, rank=at, notes=(*report.notes, note)) for at, report in enumerate(reports)]
    by_rank: dict[int, list[RankReport]] = defaultdict(list)
    for report in reports:
        by_rank[report.rank].append(report)
    for rank, same in by_rank.items():
        if rank < 0:
            known = next(report for report in reports if report.rank >= 0)
            raise TraceError(
                f"{same[0].path}: does not say its rank, {known.path} does: give files of one run, or rename it "
                "to rank<N>_….json.gz"
            )
        if len(same) > 1:
            raise TraceError(f"rank {rank} is there twice: {same[0].path} and {same[1].path}; give one file per rank")
    return [by_rank[rank][0] for rank in sorted(by_rank)]


def _check_same_run(reports: list[RankReport]) -> None:
    first = reports[0]
    for other in reports[1:]:
        for what, mine, theirs in (
            ("steps", _steps(first), _steps(other)),
            ("world size", first.world_size, other.world_size),
            ("a GPU", first.on_gpu, other.on_gpu),
        ):
            if mine != theirs:
                raise TraceError(
                    f"the traces are not of one run: {first.path} has {what} {mine}, {other.path} has {theirs}; "
                    "give one file per rank, all of the same iteration"
                )


def _steps(report: RankReport) -> str:
    return ", ".join("?" if step.number is None else str(step.number) for step in report.steps)


def _missing(reports: list[RankReport], expected: int | None) -> tuple[str, ...]:
    world = expected or reports[0].world_size
    if not world:
        return ()
    read = {report.rank for report in reports if report.rank < world}
    if len(read) == world:
        return ()
    missing = itertools.islice((rank for rank in range(world) if rank not in read), _NAMED)
    named = ", ".join(map(str, missing)) + (", …" if world - len(read) > _NAMED else "")
    text = f"{len(reports)} of {world} ranks read (missing: {named})"
    if expected:
        where = reports[0].path.parent
        raise TraceError(
            f"{where}: expected the traces of {expected} ranks, found {text}; a rank may have died while writing"
        )
    return (f"{text}: skew and waiting between ranks are not fully seen",)
