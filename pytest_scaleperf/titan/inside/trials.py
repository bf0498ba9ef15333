"""Trying the alarm: make a run slow, fat or fail on purpose, by environment variables, loudly.

``SCALEPERF_SLOWDOWN=3`` makes every step take three times as long. ``SCALEPERF_BALLAST_GIB=1.4`` holds that much
device memory from the first step to the last. ``SCALEPERF_FAULT=KIND@STEP[:RANK]`` makes
one rank (0 unless it is said) fail as that step begins: ``oom`` raises torch.OutOfMemoryError, ``nan`` turns the
loss into NaN, ``hang`` sleeps for ever, ``stop`` sends itself SIGSTOP (SIGTERM then ends it no more), ``crash`` raises
RuntimeError, ``kill`` sends itself SIGKILL.
"""

from __future__ import annotations

import os
import re
import signal
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed

from pytest_scaleperf.titan.inside.say import refuse, say

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SLOWDOWN = "SCALEPERF_SLOWDOWN"
BALLAST = "SCALEPERF_BALLAST_GIB"
FAULT = "SCALEPERF_FAULT"


_GIB = 1 << 30


class Kind(StrEnum):
    """Ways to fail."""

    OOM = "oom"
    NAN = "nan"
    HANG = "hang"
    STOP = "stop"
    CRASH = "crash"
    KILL = "kill"


@dataclass(frozen=True, slots=True)
class Fault:
    """One failure: what, as which step begins, on which rank."""

    kind: Kind
    step: int
    rank: int


def read_slowdown(env: Mapping[str, str]) -> float:
    """The factor that the environment asks for, 1.0 where it asks for none. Ends the rank where it cannot be."""
    text = env.get(SLOWDOWN, "1")
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 1.0 <= factor < float("inf"):
        refuse(f"{SLOWDOWN}: expected a number from 1 upwards, found {text!r}")
    return factor


def read_ballast(env: Mapping[str, str]) -> int:
    """Bytes that the environment asks for, 0 where it asks for none. Ends the rank where it cannot be."""
    text = env.get(BALLAST, "0")
    try:
        gib = float(text)
    except ValueError:
        gib = -1.0
    if not 0.0 <= gib < float("inf"):
        refuse(f"{BALLAST}: expected a number of GiB from 0 upwards, found {text!r}")
    return int(gib * _GIB)


def read_fault(env: Mapping[str, str]) -> Fault | None:
    """The failure that the environment asks for. Ends the rank where it cannot be."""
    text = env.get(FAULT)
    if not text:
        return None
    match = re.fullmatch(rf"({'|'.join(Kind)})@([1-9][0-9]*)(?::([0-9]+))?", text)
    if match is None:
        refuse(f"{FAULT}: expected KIND@STEP or KIND@STEP:RANK, KIND one of {', '.join(Kind)}, found {text!r}")
    return Fault(Kind(match[1]), int(match[2]), int(match[3] or 0))


def install_slowdown(trainer: type[Any], factor: float) -> None:
    """Make every step of this trainer class take ``factor`` times as long."""
    if factor == 1.0:
        return
    say(f"{SLOWDOWN}={factor:g}: every step is made {factor:g} times as long on purpose; do not use these numbers")
    original: Callable[..., Any] = trainer.train_step
    seconds = 0.0

    def train_step(self: Any, data_iterator: Any) -> Any:  # noqa: ANN401 - torchtitan classes
        nonlocal seconds
        # Before the step, so that the pause is inside what torchtitan times: from one logged line to the next.
        time.sleep((factor - 1.0) * seconds)
        start = time.perf_counter()
        result = original(self, data_iterator)
        if self.device.type == "cuda":  # what the step has only queued so far is a part of it
            torch.cuda.synchronize(self.device)
        seconds = _least(time.perf_counter() - start, self.device)
        return result

    trainer.train_step = train_step


def install_ballast(trainer: type[Any], size: int) -> None:
    """Have every trainer of this class hold ``size`` bytes more of its device's memory while it trains."""
    if size == 0:
        return
    say(f"{BALLAST}={size / _GIB:g}: this rank holds that much memory on purpose; do not use these numbers")
    original: Callable[..., Any] = trainer.train

    def train(self: Any) -> Any:  # noqa: ANN401 - a torchtitan class
        ballast = torch.zeros(size, dtype=torch.uint8, device=self.device)  # written, so that a CPU holds it as well
        result = original(self)
        del ballast
        return result

    trainer.train = train


def install_fault(trainer: type[Any], fault: Fault | None) -> None:
    """Make this rank fail where the fault names it."""
    if fault is None or fault.rank != int(os.environ.get("RANK", "0")):
        return
    say(f"{FAULT}: this rank will {fault.kind} at step {fault.step} on purpose")
    if fault.kind is Kind.NAN:
        _install_nan(trainer, fault.step)
        return
    original: Callable[..., Any] = trainer.train_step

    def train_step(self: Any, data_iterator: Any) -> Any:  # noqa: ANN401 - torchtitan classes
        if self.step == fault.step:
            _fail(fault.kind)
        return original(self, data_iterator)

    trainer.train_step = train_step


def _install_nan(trainer: type[Any], step: int) -> None:
    original: Callable[..., Any] = trainer.forward_backward_step

    def forward_backward_step(self: Any, **words: Any) -> Any:  # noqa: ANN401 - torchtitan classes
        loss = original(self, **words)
        return loss * float("nan") if self.step == step else loss

    trainer.forward_backward_step = forward_backward_step


def _fail(kind: Kind) -> None:
    if kind is Kind.OOM:
        raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate 2.00 GiB. ({FAULT} asked for it)")
    if kind is Kind.CRASH:
        raise RuntimeError(f"{FAULT} asked for a crash")
    if kind is Kind.KILL:
        os.kill(os.getpid(), signal.SIGKILL)
    if kind is Kind.STOP:
        os.kill(os.getpid(), signal.SIGSTOP)
    while True:  # a hang; SIGTERM ends it, unlike a rank that is stuck inside a kernel
        time.sleep(3600)


def _least(seconds: float, device: Any) -> float:  # noqa: ANN401 - a torch device
    """The shortest time of all ranks: the others waited, and pauses built on waiting would grow without end."""
    shortest = torch.tensor(seconds, dtype=torch.float64, device=device)
    torch.distributed.all_reduce(shortest, op=torch.distributed.ReduceOp.MIN)
    return float(shortest)
