"""SIMULATED: how fast and how large a 30B-A3B training run on B200 would be, as a small model with two scenarios.

It imitates, it predicts nothing. Nothing of ours reads it but the simulated trainer and the tests that compare what the
search found with the best of all points. The scenario ``published`` is fitted to the published campaign:

- *Memory*, GiB of a device of 178.35: what every rank holds (16.0) + 16 bytes for each of 30.53e9 parameters, sharded +
  GiB per sequence + 1.8 where there are replicas. Two published points (16 GPUs, 18 sequences: 92 %; 128 GPUs, 22
  sequences: 93 %) give the 16.0 and the 6.65 per sequence of selective checkpointing; 512 GPUs (94 %) the 1.8. Under
  full checkpointing memory oscillates from batch to batch by 3 GiB around 3.25 per sequence, so that 42 sequences
  at 128 GPUs take the published 89 %. Without checkpointing 10 sequences never fit ("OOM too early").
- *Saturation*: from 95.5 % on the allocator retries and a quarter of the speed is lost; above 178.35 - 2 GiB it is
  out of memory.
- *Speed*, tokens/s per GPU: top x batch / (batch + half) x the rung's share. Selective: 30,767 and 1.5 give 28.4k at
  18 on 16 GPUs; 0.972 at 128 GPUs gives 28.0k at 22, 0.927 at 512 gives 26.7k. Full: 29,640 and 4 give 26.3k at 42 on
  128. None: 33,000 and 1.5, so 26.4k at its 6 sequences. 8 GPUs are as fast as 16 (published: no drop).
- *MFU*: 29.7 GFLOP per token, as all published rows have it.

The scenario ``other`` has its peaks elsewhere: less memory per sequence, so that far more fits, and a speed that falls
once half of the memory is taken: at 16 GPUs it peaks at 14 of 30 sequences that fit, at 128 at 18.

Runs vary by 0.5 % (standard deviation), drawn from a seed, the night, the case and the attempt, whatever the order.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

DEVICE_GIB = 178.35
FLOPS_PER_TOKEN = 29.7e9
LABEL = "SIMULATED"
NOISE = 0.005
SEED = 20261201
_PARAMETERS, _BYTES, _GIB = 30.53e9, 16, 2.0**30
_REPLICAS, _RESERVE = 1.8, 2.0
_RETRIES_FROM, _SATURATED = 0.955, 0.75
_HIDDEN = 0.95
"""A real run has this share of a rehearsal's speed, which does not communicate (recorded on H200: 93 to 95 %)."""


@dataclass(frozen=True, slots=True)
class Mode:
    """One mode of activation checkpointing: speed ``top`` (tokens/s per GPU), ``half`` in sequences, GiB a sequence."""

    top: float
    half: float
    each: float
    swing: float = 0.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """A machine. ``falls_from``: share of the memory above which speed falls, by ``falls`` for each further share."""

    name: str
    fixed: float
    modes: Mapping[str, Mode]
    rungs: Mapping[int, float]
    falls_from: float = 1.0
    falls: float = 0.0


@dataclass(frozen=True, slots=True)
class Point:
    """One configuration."""

    gpus: int
    dp_shard: int
    mode: str
    batch: int


@dataclass(frozen=True, slots=True)
class Run:
    """What a run of it does: tokens/s per GPU (None: out of memory), GiB reserved, allocation retries a step."""

    tps: float | None
    memory: float
    retries: int


_RUNGS = {8: 1.0, 16: 1.0, 128: 0.972, 512: 0.927}

SCENARIOS = {
    "published": Scenario(
        "published",
        16.0,
        {
            "none": Mode(33_000, 1.5, 16.4),
            "selective": Mode(30_767, 1.5, 6.65),
            "full": Mode(29_640, 4.0, 3.25, swing=3.0),
        },
        _RUNGS,
    ),
    "other": Scenario(
        "other",
        16.0,
        {
            "none": Mode(33_000, 3.0, 16.4),
            "selective": Mode(34_000, 3.0, 4.0),
            "full": Mode(29_640, 4.0, 2.5, swing=2.0),
        },
        _RUNGS,
        falls_from=0.56,
        falls=1.0,
    ),
}


def demand(scenario: Scenario, point: Point) -> float:
    """GiB that a rank would like to reserve."""
    mode = scenario.modes[point.mode]
    sharded = _PARAMETERS * _BYTES / _GIB / point.dp_shard
    replicas = _REPLICAS if point.gpus > point.dp_shard else 0.0
    swing = mode.swing * (1 if (point.batch - 2) // 4 % 2 == 0 else -1)
    return scenario.fixed + sharded + replicas + mode.each * point.batch + swing


def true(scenario: Scenario, point: Point) -> Run:
    """What a run does without noise."""
    mode, wanted = scenario.modes[point.mode], demand(scenario, point)
    if wanted > DEVICE_GIB - _RESERVE:
        return Run(None, wanted, 0)
    share = wanted / DEVICE_GIB
    tps = mode.top * point.batch / (point.batch + mode.half) * scenario.rungs[point.gpus]
    tps *= 1 - scenario.falls * max(0.0, share - scenario.falls_from)
    retries = 3 if share > _RETRIES_FROM else 0
    return Run(tps * (_SATURATED if retries else 1.0), wanted, retries)


def observed(scenario: Scenario, point: Point, drawn: str, *, rehearsed: bool = False) -> Run:
    """What one run shows; ``drawn`` names it (night, case, attempt). A rehearsal does not communicate."""
    found = true(scenario, point)
    if found.tps is None:
        return found
    noise = random.Random(f"{SEED} {scenario.name} {drawn} {rehearsed}").gauss(1.0, NOISE)  # noqa: S311 - no secret
    return Run(found.tps * noise / (_HIDDEN if rehearsed else 1.0), found.memory, found.retries)


def best(scenario: Scenario, points: Iterable[Point]) -> Point:
    """The fastest of all points, every one of them tried."""
    return max(points, key=lambda point: true(scenario, point).tps or 0.0)
