"""The files of a finished run to an Observation: event files of all ranks first, the console for the rest."""

from __future__ import annotations

import json
import math
import os
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_scaleperf.model import Observation, Source, StopReason
from pytest_scaleperf.titan.console import Console, parse
from pytest_scaleperf.titan.events import EventFile, Events, is_event_file, last_attempt, read_events
from pytest_scaleperf.titan.lines import LogText, load
from pytest_scaleperf.titan.merge import Merged, merge
from pytest_scaleperf.titan.settings import with_facts
from pytest_scaleperf.titan.signatures import End, Ending, classify

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_scaleperf.model import StepSample

_LOG_SUFFIXES = frozenset({".log", ".out", ".err"})
_LOG_NAMES = frozenset({"log.txt", "stdout", "stderr", "stdout.txt", "stderr.txt"})
# What training writes beside its logs: large, and no output of a rank.
_NOT_LOGS = frozenset({"checkpoint", "checkpoints", "profile_traces", "comm_traces", "memory_snapshot", ".git"})


@dataclass(frozen=True, slots=True)
class Files:
    """The files of one run: logs of ranks or nodes, event files, our ranks' own files."""

    logs: tuple[Path, ...] = ()
    events: tuple[Path, ...] = ()
    ranks: tuple[Path, ...] = ()

    def __bool__(self) -> bool:
        """Whether there is anything to read."""
        return bool(self.logs or self.events or self.ranks)


@dataclass(frozen=True, slots=True)
class Run:
    """One run as it was read: the observation, and what it was made of."""

    observation: Observation
    console: Console
    events: Events
    merged: Merged
    ending: Ending


def find_files(run_dir: Path) -> Files:
    """What a run left in its directory.

    Ours: ``stdout.log`` (all ranks), ``titan/`` (event files), ``ranks/rank<r>.json``. Anybody's: every ``*.log``,
    ``*.out``, ``*.err``, ``log.txt`` and event file below it.
    """
    ours = run_dir / "stdout.log"
    is_ours = ours.is_file()
    logs: list[Path] = [ours] if is_ours else []
    events: list[Path] = []
    ranks: list[Path] = []
    for folder, names, files in os.walk(run_dir):
        names[:] = sorted(name for name in names if name not in _NOT_LOGS)
        for name in sorted(files):
            if is_event_file(name):
                events.append(Path(folder, name))
            elif not is_ours and (Path(name).suffix in _LOG_SUFFIXES or name in _LOG_NAMES):
                logs.append(Path(folder, name))
        if folder == str(run_dir) and "ranks" in names:
            ranks = sorted((run_dir / "ranks").glob("rank*.json"))
    return Files(tuple(logs), tuple(events), tuple(ranks))


def observe(  # noqa: PLR0913 - each is one thing that somebody else may know of the run
    run_dir: Path | None = None,
    *,
    logs: Sequence[Path] = (),
    events: Sequence[Path] = (),
    exit_code: int | None = None,
    stopped: StopReason | None = None,
    slurm_state: str | None = None,
    world_size: int | None = None,
    requested_steps: int | None = None,
    losses: bool = True,
) -> Observation:
    """Read a finished run.

    ``run_dir`` is searched (``find_files``); ``logs`` and ``events`` are added: several files are one run's.
    ``exit_code`` is negative for a signal. ``slurm_state`` is Slurm's word in any spelling. None: not known, and
    what is not known is not guessed: without an exit code a run is completed only if its log shows the last step and
    nothing that failed. ``losses`` False: they mean nothing (a rehearsal), so one that is not finite is no failure.
    Never raises for what a file holds.
    """
    found = find_files(run_dir) if run_dir is not None else Files()
    files = Files((*found.logs, *logs), (*found.events, *events), found.ranks)
    end = End(exit_code=exit_code, slurm_state=slurm_state, stopped=stopped, requested_steps=requested_steps)
    return read_run(files, end, world_size=world_size, losses=losses).observation


def read_run(  # noqa: PLR0913 - as observe
    files: Files,
    end: End,
    *,
    world_size: int | None = None,
    dumps: Sequence[EventFile] = (),
    facts: Mapping[str, int | str] | None = None,
    losses: bool = True,
) -> Run:
    """Read the files of one run.

    ``dumps`` are scalars that were read elsewhere (``events.read_dump``). ``facts`` are settings that the caller
    knows and the log does not print (``pp``, ``schedule``, …).
    """
    warnings: list[str] = []
    console = parse(_load(files.logs, warnings))
    events = last_attempt(dumps) if dumps else read_events(files.events) if files.events else Events()
    size = world_size or console.settings.world_size
    console = replace(console, settings=with_facts(console.settings, facts or {}))
    merged = merge(console, events, size)
    series = merged.series
    strange = [s.step for s in series if losses and s.loss is not None and not math.isfinite(s.loss)]
    end = replace(
        end,
        requested_steps=end.requested_steps or console.settings.total_steps,
        last_step=series[-1].step if series else None,
        log_freq=end.log_freq or _log_freq(series),
        nan_step=strange[0] if strange else None,
    )
    ending = classify(console, end)
    peaks, software = _rank_files(files.ranks, warnings)
    sources = dict(merged.sources)
    if peaks:
        sources["rank_peak_flops"] = Source.RANK_FILES
    warnings += [*merged.warnings, *ending.warnings, *_notes(console, series if losses else (), end)]
    observation = Observation(
        outcome=ending.outcome,
        series=series,
        failure=ending.failure,
        requested_steps=end.requested_steps,
        last_step=ending.last_step,
        first_step=_first_step(console, series, warnings),
        attempts=max(len(console.attempts), events.attempts, 1),
        world_size=size,
        rank_peak_flops=peaks,
        sources=sources,
        software=_software(console, software),
        warnings=tuple(dict.fromkeys(warnings)),
        malformed_lines=console.malformed,
    )
    return Run(observation, console, events, merged, ending)


def _load(paths: Sequence[Path], warnings: list[str]) -> list[LogText]:
    texts = []
    for path in dict.fromkeys(paths):
        try:
            texts.append(load(path))
        except OSError as error:
            warnings.append(f"{path}: cannot be read: {error.strerror or error}")
    return texts


def _log_freq(series: Sequence[StepSample]) -> int | None:
    """The distance of logged steps: torchtitan logs step 1 and multiples of log_freq, so what divides all others."""
    later = [sample.step for sample in series if sample.step > 1]
    return math.gcd(*later) if later else None


def _first_step(console: Console, series: Sequence[StepSample], warnings: list[str]) -> int:
    """Where the last attempt began. Unknown and not from 1: the latest it can be, so that more is dropped, not less."""
    said = console.last_attempt.first_step if console.last_attempt else None
    if said is not None:
        return said
    if not series or series[0].step == 1:
        return 1
    warnings.append(
        f"no line says at which step the run began and the first logged step is {series[0].step}: taken as its begin"
    )
    return series[0].step


def _notes(console: Console, series: Sequence[StepSample], end: End) -> list[str]:
    """What a reader should know beside the numbers."""
    notes = []
    if console.malformed:
        notes.append(f"{console.malformed} step lines were not whole and were left out")
    said = console.settings.total_steps
    if said is not None and end.requested_steps not in (None, said):
        notes.append(f"{end.requested_steps} steps were requested, but the log says {said}")
    if console.settings.peak_flops_guessed:
        notes.append("torchtitan did not know this GPU: the MFU that it prints is against another GPU's peak")
    strange = [s.step for s in series if s.grad_norm is not None and not math.isfinite(s.grad_norm)]
    if strange:
        notes.append(f"the gradient norm at step {strange[0]} is not finite")
    return notes


def _rank_files(paths: Sequence[Path], warnings: list[str]) -> tuple[tuple[float, ...], dict[str, str]]:
    """Each rank's matmul rate (mean of before and after, FLOP/s) in rank order, and rank 0's software."""
    read: dict[int, dict[str, Any]] = {}
    for path in paths:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            read[int(content["rank"])] = content
        except (OSError, ValueError, KeyError, TypeError) as error:
            warnings.append(f"{path}: unreadable rank file: {type(error).__name__}: {error}")
    peaks = []
    for _, content in sorted(read.items()):
        rates = [content.get(name) for name in ("matmul_flops", "matmul_flops_after")]
        known = [float(r) for r in rates if isinstance(r, int | float) and math.isfinite(r) and r > 0]
        if known:
            peaks.append(statistics.fmean(known))
    software = read[min(read)].get("software") if read else None
    return tuple(peaks), {str(k): str(v) for k, v in software.items()} if isinstance(software, dict) else {}


def _software(console: Console, said: Mapping[str, str]) -> dict[str, str]:
    printed = {"torchtitan": console.settings.version, "device": console.settings.device}
    return {**{name: value for name, value in printed.items() if value}, **said}
