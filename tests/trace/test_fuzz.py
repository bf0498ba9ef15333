"""3,000 random traces, whole pipeline from JSON, against a count tick by tick; and a fault put in is found."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from pytest_scaleperf.model import TraceError
from pytest_scaleperf.trace import partition
from pytest_scaleperf.trace.rank import analyse_rank
from pytest_scaleperf.trace.result import RankReport
from pytest_scaleperf.trace.rules import Rules
from tests.trace.brute import Ran, split, windows
from tests.trace.script import ENGINE, MAIN, Script

NAMES = {"compute": "gemm", "communication": "ncclDevKernel_AllReduce", "copy": "Memcpy DtoD"}
STEP = 1000  # CPU nanoseconds of a step; the GPU's times are random and have nothing to do with them


def random_case(seed: int) -> tuple[Script, list[Ran], int]:
    """Up to three steps of one to three microbatches; the same launches in the script and in the list."""
    dice = random.Random(seed)  # noqa: S311 - reproducible, nothing secret
    script, ran = Script(), []
    steps, annotated = dice.randint(1, 3), dice.random() < 0.4
    for step in range(steps):
        base, at = step * STEP, step * STEP
        script.step(step, base, base + STEP - 1)
        launches: list[tuple[int, str, int]] = []
        batches = dice.randint(1, 3)
        for batch in range(batches):
            launches.append((at + 5, "forward", MAIN))
            if annotated:
                script.annotate("scaleperf.forward", at + 1, at + 50)
            backward = "last_backward" if batch == batches - 1 else "backward"
            begin, stop = at + 100, at + 200
            if annotated:
                script.annotate("scaleperf.backward", begin, stop)
            else:
                script.evaluate(begin, begin + 40)
                script.evaluate(begin + 60, stop)
            launches += [(dice.randint(begin, stop - 1), backward, ENGINE) for _ in range(dice.randint(0, 3))]
            at += 220
        launches += [(at + 1 + dice.randint(0, 100), "optimizer", MAIN) for _ in range(dice.randint(0, 2))]
        ran += [random_event(dice, script, step, launch) for launch in launches]
    ran += [random_event(dice, script, None, (None, "other", MAIN)) for _ in range(dice.randint(0, 2))]
    return script, ran, steps


def random_event(dice: random.Random, script: Script, step: int | None, launch: tuple[int | None, str, int]) -> Ran:
    when, phase, thread = launch
    kind = dice.choice(("compute", "compute", "communication", "copy"))
    start = 40 * (step or 0) + dice.randint(0, 45)
    end = start + dice.choice((0, 1, 1, 2, 5, 10, 30))
    cat = "gpu_memcpy" if kind == "copy" else "kernel"
    script.kernel(NAMES[kind], start, end, when, tid=thread, stream=dice.randint(1, 3), cat=cat)
    return Ran(start, end, kind, phase, step)


def expected(ran: list[Ran], steps: int) -> list[Counter[tuple[str, str]]] | None:
    """Every step's split; None where the GPU's steps would not be in order, which is an error of its own."""
    edges = windows(ran, steps)
    if any(low >= high for low, high in edges):
        return None
    return [split(ran, low, high) for low, high in edges]


def found(report: RankReport) -> list[Counter[tuple[str, str]]]:
    return [
        Counter(
            {
                (phase.phase.value, kind): value
                for phase in step.phases
                for kind, value in (
                    ("compute", phase.split.compute),
                    ("communication", phase.split.exposed_communication),
                    ("copy", phase.split.exposed_copy),
                    ("idle", phase.split.idle),
                )
                if value
            }
        )
        for step in report.steps
    ]


def disagreements(folder: Path, seeds: range) -> tuple[int, int]:
    """Cases compared, and the first seed that differs (-1: none)."""
    compared = 0
    for seed in seeds:
        script, ran, steps = random_case(seed)
        truth = expected(ran, steps)
        if truth is None:
            continue
        compared += 1
        path = script.write(folder / f"{seed}.json")  # a new name: overwriting a file costs four times as much
        if found(analyse_rank(path, Rules())) != truth:
            return compared, seed
        path.unlink()
    return compared, -1


def test_3000_random_traces_split_as_counted_tick_by_tick(tmp_path: Path) -> None:
    compared, wrong = disagreements(tmp_path, range(3050))
    assert wrong == -1, f"seed {wrong} differs"
    assert compared >= 3000


def test_a_seeded_fault_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle time given to the event before it: the parts still add up, so only the count by ticks can tell."""
    monkeypatch.setattr(
        partition, "_next", lambda start, _end, times: np.searchsorted(start, times, side="left").clip(1) - 1
    )
    compared, wrong = disagreements(tmp_path, range(100))
    assert wrong >= 0
    assert compared < 20


def test_parts_that_do_not_add_up_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exposed communication taken as owned communication, compute or not."""
    honest = partition._own

    def faulty(begin: np.ndarray, stop: np.ndarray, chosen: np.ndarray, above: object) -> np.ndarray:
        del above
        return honest(begin, stop, chosen, None)

    monkeypatch.setattr(partition, "_own", faulty)
    with pytest.raises(TraceError, match="is not the window's"):
        disagreements(tmp_path, range(100))
