"""Put a suite file together: check every part, expand every rung, and report all faults of the file at once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pytest_scaleperf.model import (
    Case,
    Limits,
    Measure,
    Outcome,
    Rehearse,
    Requirement,
    Rung,
    Suite,
    SuiteError,
    Tracing,
    Trainer,
)
from pytest_scaleperf.suite.batches import Below, batches_below, check_found
from pytest_scaleperf.suite.expand import Configuration, expand
from pytest_scaleperf.suite.families import searches
from pytest_scaleperf.suite.identity import base_id, distinct_ids
from pytest_scaleperf.suite.ladder import Ladder
from pytest_scaleperf.suite.layouts import LAYOUT_AXES
from pytest_scaleperf.suite.schema import (
    FoundBatches,
    LimitsPart,
    MeasurePart,
    RehearsePart,
    RungPart,
    ScalingPart,
    SuiteFile,
    TracePart,
    TrainerPart,
)
from pytest_scaleperf.yamlfile import Faults, Loc, parse
from pytest_scaleperf.yamlfile.schema import FileModel, check_part

SUFFIXES = (".yaml", ".yml")
MIN_INTERVALS = 3
"""Fewer values than this after warm-up give no spread, and so no verdict."""

MAX_SAMPLES = 4
"""Launches of an undecided case at most, where a suite does not say: docs/statistics.md has what they can tell."""

_Part = TypeVar("_Part", bound=FileModel)
_UNKNOWN_TRAINER = Trainer("", "", "")
_UNKNOWN_MEASURE = Measure(steps=1, warmup=1, log_freq=1)
_UNKNOWN_LIMITS = Limits(startup=1, no_progress=1, total=1)


@dataclass(slots=True)
class _Level:
    """What the ladder's entries of one GPU count add up to."""

    gpus: int
    loc: Loc
    requires: Requirement | None
    configurations: list[Configuration]
    faulty: bool = False
    scaling: float | None = None


def load_suites(folder: Path) -> tuple[Suite, ...]:
    """The suites of all .yaml and .yml files that lie directly in ``folder``, in the order of their names.

    Raises SuiteError with every fault of every file.
    """
    suites, faults = [], []
    for path in sorted(p for p in folder.glob("*") if p.suffix in SUFFIXES and not p.name.startswith(".")):
        try:
            suites.append(load_suite(path))
        except SuiteError as error:
            faults.append(str(error))
    if faults:
        raise SuiteError("\n".join(faults))
    return tuple(suites)


def load_suite(path: Path) -> Suite:
    """The suite of one file, with every case of every rung.

    Raises SuiteError with every fault of the file, one line each: ``file:line: key: expected ..., found ...``.
    """
    faults = Faults(parse(path, SuiteError))
    head = check_part(faults, SuiteFile, ())
    trainer, measure = _part(faults, TrainerPart, "trainer"), _part(faults, MeasurePart, "measure")
    limits = _part(faults, LimitsPart, "limits")
    _check_measure(faults, measure)
    _check_limits(faults, limits)
    suite = Suite(
        name="suite" if head is None else head.name,
        path=path,
        system="" if head is None else head.system,
        trainer=_UNKNOWN_TRAINER if trainer is None else _trainer(faults, trainer, path),
        measure=_UNKNOWN_MEASURE if measure is None else _measure(measure),
        limits=_UNKNOWN_LIMITS if limits is None else Limits(limits.startup, limits.no_progress, limits.total),
        tolerance={} if head is None else dict(head.tolerance),
        compare_across=() if head is None else tuple(head.compare_across),
        trace=Tracing() if head is None or head.trace is None else _tracing(head.trace),
        rehearse=Rehearse() if head is None or head.rehearse is None else _rehearse(head.rehearse),
    )
    # A suite with a part that is not known goes no further than this function: it carries the search for faults.
    levels = _levels(faults, 1 if head is None else head.sequence)
    _add_scaling(faults, levels, None if head is None else head.scaling)
    rungs = tuple(_rung(faults, suite, level) for level in sorted(levels, key=lambda level: level.gpus))
    _check_ranks(faults, head, rungs)
    object.__setattr__(suite, "rungs", rungs)  # cases and suite refer to each other: one of them has to come first
    _check_gates(faults, suite, levels)
    faults.check(SuiteError)
    return suite


def _part(faults: Faults, model: type[_Part], key: str) -> _Part | None:
    if not isinstance(faults.document.data.get(key), dict):
        return None  # the top of the file has that fault already
    return check_part(faults, model, (key,))


def _trainer(faults: Faults, part: TrainerPart, path: Path) -> Trainer:
    text = faults.document.text
    dialect = path.parent / part.dialect
    if part.dialect.endswith(SUFFIXES) and not dialect.is_file():
        faults.add(("trainer", "dialect"), "the path of a dialect file, relative to this file", f"no file {dialect}")
    return Trainer(
        dialect=part.dialect,
        module=part.module,
        config=part.config,
        entry=part.entry,
        python=_place(part.python, path),
        executable=_place(part.executable, path),
        args=tuple(part.args),
        # Numbers as they are written: 1e3 is not 1000.0 to whoever reads the variable.
        env=tuple((name, text(("trainer", "env", name)) or "") for name in part.env),
        force_load_balance=part.force_load_balance,
    )


def _place(program: str | None, path: Path) -> str | None:
    """A program with a slash lies relative to the suite file. Links are kept: a venv's python is one."""
    if program is None or "/" not in program:
        return program
    return os.path.normpath(path.parent.resolve() / program)


def _measure(part: MeasurePart) -> Measure:
    most = max(MAX_SAMPLES, part.repeats) if part.max_samples is None else part.max_samples
    return Measure(part.steps, part.warmup, part.log_freq, part.repeats, most, part.exclusive)


def _tracing(part: TracePart) -> Tracing:
    rules = tuple((kind, tuple(patterns)) for kind, patterns in sorted(part.rules.items()))
    return Tracing(part.always, part.steps, part.tolerance, rules)


def _rehearse(part: RehearsePart) -> Rehearse:
    return Rehearse(part.steps, tuple(part.ranks), part.reserve_gib, part.closes_gate, part.executable)


def _check_ranks(faults: Faults, head: SuiteFile | None, rungs: Sequence[Rung]) -> None:
    """A rank that is rehearsed has to exist on every rung."""
    smallest = min((rung.gpus for rung in rungs), default=None)
    if head is None or head.rehearse is None or smallest is None:
        return
    for place, rank in enumerate(head.rehearse.ranks):
        if not -smallest <= rank < smallest:
            wanted = f"a rank that every rung has, from {-smallest} (the first) to {smallest - 1} (the last)"
            faults.add(("rehearse", "ranks", place), wanted, str(rank))


def _check_measure(faults: Faults, part: MeasurePart | None) -> None:
    if part is None:
        return
    if part.warmup >= part.steps:
        faults.add(("measure", "warmup"), f"fewer than the {part.steps} steps")
    elif part.steps % part.log_freq:
        faults.add(("measure", "steps"), f"a multiple of log_freq {part.log_freq}, so that the last step is logged")
    else:
        values = part.steps // part.log_freq - -(-part.warmup // part.log_freq)
        if values < MIN_INTERVALS:
            found = f"{values} (steps {part.steps}, warmup {part.warmup}, log_freq {part.log_freq})"
            faults.add(("measure", "steps"), f"at least {MIN_INTERVALS} logged intervals after warm-up", found)
    if part.max_samples is not None and part.max_samples < part.repeats:
        faults.add(("measure", "max_samples"), f"at least repeats, {part.repeats}")


def _check_limits(faults: Faults, part: LimitsPart | None) -> None:
    if part is None:
        return
    for name in ("startup", "no_progress"):
        if getattr(part, name) > part.total:
            faults.add(("limits", name), f"at most total, {part.total:g} s: it could never be reached")


def _levels(faults: Faults, sequence: int) -> list[_Level]:
    """Entries of the ladder by GPU count; an entry with a fault marks its level, so that others do not rely on it."""
    levels: dict[int, _Level] = {}
    entries = faults.document.data.get("ladder")
    for place, raw in _rising(entries if isinstance(entries, list) else ()):
        loc: Loc = ("ladder", place)
        part = check_part(faults, RungPart, loc)
        if part is not None:
            check_found(faults, part, loc)
        if part is None or not faults.clean(loc):
            _check_rest(faults, raw, loc, sequence)
            if isinstance(gpus := raw.get("gpus"), int):
                levels.setdefault(gpus, _Level(gpus, loc, None, [])).faulty = True
            continue
        requires = None if part.requires is None else Requirement(part.requires.gpus, tuple(part.requires.same))
        level = levels.setdefault(part.gpus, _Level(part.gpus, loc, requires, []))
        if requires != level.requires and not level.faulty:
            line = faults.document.line(level.loc)
            faults.add((*loc, "requires"), f"the same as in the entry of {part.gpus} GPUs in line {line}")
        if part.scaling is not None:
            _set_scaling(faults, level, part.scaling, loc)
        if _is_around(part) and (requires is None or not _is_sound(levels.get(requires.gpus))):
            level.faulty = True  # what is wrong below is a fault already, or is one of the gates
            continue
        level.configurations += expand(faults, part, loc, sequence, _below(levels, requires))
        level.faulty = level.faulty or not faults.clean(loc)
    return list(levels.values())


def _rising(entries: Sequence[object]) -> list[tuple[int, dict[str, Any]]]:
    """Entries with their places, smaller rungs first: candidates around a peak depend on those below."""
    parts = [(place, raw) for place, raw in enumerate(entries) if isinstance(raw, dict)]
    return sorted(parts, key=lambda part: gpus if isinstance(gpus := part[1].get("gpus"), int) else 0)


def _is_around(part: RungPart) -> bool:
    return isinstance(part.local_batch, FoundBatches) and part.local_batch.around is not None


def _is_sound(level: _Level | None) -> bool:
    return level is not None and not level.faulty and bool(level.configurations)


def _below(levels: Mapping[int, _Level], requires: Requirement | None) -> Below:
    """What batches the cases of the required rung have that can pass."""
    if requires is None or requires.gpus not in levels:
        return lambda _: ()
    able = (c for c in levels[requires.gpus].configurations if c.expect is Outcome.COMPLETED)
    return batches_below(
        (((c.layout, c.activation_checkpoint, c.batch.sequence), c.batch.local) for c in able), requires
    )


def _set_scaling(faults: Faults, level: _Level, part: ScalingPart, loc: Loc) -> None:
    if level.requires is None:
        faults.add((*loc, "scaling"), "a rung with requires: there is nothing below that it could be compared with")
    elif level.scaling not in (None, part.tolerance):
        faults.add((*loc, "scaling"), f"the same as in the other entry of {level.gpus} GPUs, {level.scaling:g}")
    level.scaling = part.tolerance


def _add_scaling(faults: Faults, levels: Sequence[_Level], part: ScalingPart | None) -> None:
    """Give the suite's tolerance to every rung that has something below it and none of its own."""
    if part is None:
        return
    above = [level for level in levels if level.requires is not None]
    if not above and not any(level.faulty for level in levels):
        faults.add(("scaling",), "a ladder in which at least one rung has requires")
    for level in above:
        level.scaling = part.tolerance if level.scaling is None else level.scaling


def _check_rest(faults: Faults, raw: dict[str, Any], loc: Loc, sequence: int) -> None:
    """Find the faults of layouts and batches too in an entry whose schema has others, by what is sound of it."""
    unsound = {key for key in RungPart.model_fields if not faults.clean((*loc, key))}
    if unsound & {"gpus", "include", *LAYOUT_AXES}:
        return
    rest: dict[str, Any] = {key: raw[key] for key in RungPart.model_fields if key in raw and key not in unsound}
    if isinstance(rest.get("local_batch"), dict):
        unsound |= {"local_batch"}  # what it would find depends on other rungs
    stand_ins = {"activation_checkpoint": "none", "local_batch": 1}
    for key in unsound & stand_ins.keys():
        rest[key] = stand_ins[key]
        rest.pop("exclude", None)
    if "local_batch" in unsound:
        rest.pop("global_batch", None)
    expand(faults, RungPart.model_validate(rest), loc, sequence, lambda _: ())


def _rung(faults: Faults, suite: Suite, level: _Level) -> Rung:
    prefix = f"{suite.name}-{level.gpus}gpu"
    found = level.configurations
    plain = [base_id(prefix, c.layout, c.activation_checkpoint, c.batch) for c in found]
    ids = distinct_ids(plain, [c.batch for c in found])
    if len(set(ids)) < len(ids):
        _add_duplicates(faults, found, ids)
    cases = (
        Case(name, suite, level.gpus, c.layout, c.activation_checkpoint, c.batch, c.expect, search)
        for name, c, search in zip(ids, found, searches(faults, prefix, found), strict=True)
    )
    return Rung(level.gpus, level.requires, tuple(cases), level.scaling)


def _add_duplicates(faults: Faults, configurations: Sequence[Configuration], ids: Sequence[str]) -> None:
    first: dict[str, Configuration] = {}
    for name, configuration in zip(ids, configurations, strict=True):
        before = first.setdefault(name, configuration)
        if before is configuration:
            continue
        found = f"{name} again; it is in line {faults.document.line(before.loc)} already"
        if before.loc == configuration.loc:
            found = f"{name} for global_batch {before.batch.target} and for {configuration.batch.target}"
        faults.add(configuration.loc, "each configuration once", found)


def _check_gates(faults: Faults, suite: Suite, levels: Sequence[_Level]) -> None:
    by_gpus = {level.gpus: level for level in levels}
    ladder = Ladder(suite)
    for level in levels:
        if level.requires is None:
            continue
        loc = (*level.loc, "requires")
        required = by_gpus.get(level.requires.gpus)
        smaller = sorted(gpus for gpus in by_gpus if gpus < level.gpus)
        if level.requires.gpus not in smaller or required is None:
            known = ", ".join(map(str, smaller)) or "there is none"
            faults.add((*loc, "gpus"), f"the GPU count of a smaller rung ({known})")
        elif not required.faulty and not level.faulty:
            _check_parents(faults, ladder, suite, level, loc)


def _check_parents(faults: Faults, ladder: Ladder, suite: Suite, level: _Level, loc: Loc) -> None:
    rung = suite.rung(level.gpus)
    if rung is None or rung.requires is None:
        return
    for key, cases in ladder.orphans(rung).items():
        values = ", ".join(f"{name} {value}" for name, value in zip(rung.requires.same, key, strict=True))
        more = f" and {len(cases) - 1} more" if len(cases) > 1 else ""
        found = f"none: {cases[0].id}{more} could never run"
        wanted = f"a case of {rung.requires.gpus} GPUs{' with ' if values else ''}{values} that can pass before it"
        faults.add(loc, wanted, found)
