"""Speed and memory over the local batch: simulated ones of every kind, made for trouble, and the recorded H200 grid."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from pytest_scaleperf.model import Outcome
from pytest_scaleperf.search import Answer, EdgeResult, EdgeSearch, Findings, PeakResult, PeakSearch

RECORDED = Path(__file__).parent.parent / "data" / "h200" / "index.yaml"
ROOM = 178.4
"""GiB of a B200."""

CV = 0.005
POINTS = 16
KINDS = ("rising", "flat top", "falling", "cliff", "oscillating")


@dataclass(slots=True)
class Curve:
    """A family as a machine would have it; memory in GiB, speeds in tokens/s per GPU.

    A real run reserves ``unseen`` GiB more than its rehearsal. From ``retries`` of the room on the allocator retries,
    and speed collapses; 6 % above the room it is out of memory.
    """

    name: str
    memory: Mapping[int, float]
    speed: Mapping[int, float]
    rng: random.Random
    retries: float = 0.975
    unseen: float = 0.0
    room: float = ROOM
    cv: float = CV

    @property
    def grid(self) -> tuple[int, ...]:
        return tuple(self.memory)

    def true(self, batch: int) -> float:
        """The speed without noise; 0 where it is out of memory."""
        memory = self.memory[batch] + self.unseen
        if memory > 1.06 * self.room:
            return 0.0
        over = memory / self.room - self.retries
        return self.speed[batch] * (0.75 - 4 * over if over > 0 else 1.0)

    def rehearse(self, batch: int) -> Answer:
        """Without communication 5 % faster, and where the allocator retries, slower too (recorded: by a quarter)."""
        retries = self.memory[batch] > self.retries * self.room
        return self._answer(self.memory[batch], self.speed[batch] * 1.05 * (0.77 if retries else 1))

    def run(self, batch: int) -> Answer:
        return self._answer(self.memory[batch] + self.unseen, self.true(batch))

    def _answer(self, memory: float, speed: float) -> Answer:
        if memory > 1.06 * self.room:
            return Answer(Outcome.OOM)
        tps = speed * self.rng.gauss(1, self.cv)
        return Answer(Outcome.COMPLETED, min(memory, 0.994 * self.room), tps, memory > self.retries * self.room)

    @property
    def best(self) -> float:
        return max(map(self.true, self.grid))

    @property
    def full_grid(self) -> int:
        """Runs of a person who tries every batch from below until one is out of memory, that one included."""
        out = next((place for place, batch in enumerate(self.grid) if not self.true(batch)), None)
        return len(self.grid) if out is None else out + 1

    def loss(self, batch: int | None) -> float:
        """What choosing ``batch`` costs against the best, as a share."""
        return 1.0 if batch is None or not self.best else 1 - self.true(batch) / self.best


def simulated(kind: str, seed: int) -> Curve:
    """One curve out of endlessly many; memory fits for 3 to 20 points of the grid's 16."""
    rng = random.Random(f"{kind} {seed}")  # noqa: S311 - a curve, no secret
    first, step = rng.choice([(2, 4), (2, 4), (1, 1), (2, 2), (4, 4), (1, 2), (2, 8)])
    grid = [first + step * place for place in range(POINTS)]
    fixed = rng.uniform(0.2, 0.6) * ROOM
    each = (ROOM - fixed) / (rng.randint(3, 20) + rng.random())
    memory = {batch: fixed + each * place for place, batch in enumerate(grid)}
    if kind == "oscillating":
        height, phase = rng.uniform(0.01, 0.08) * ROOM, rng.uniform(0, 7)
        memory = {b: m + height * math.sin(2.1 * place + phase) for place, (b, m) in enumerate(memory.items())}
    most, half = rng.uniform(8e3, 6e4), rng.uniform(0.3, 6) * step
    speed = {batch: most * batch / (batch + half) for batch in grid}
    if kind == "flat top":
        cap = most * rng.uniform(0.4, 0.8)
        speed = {batch: min(tps, cap) for batch, tps in speed.items()}
    if kind == "falling":
        start, depth = rng.uniform(0.6, 0.95), rng.uniform(0.02, 0.15)
        pressure = {batch: max(0.0, memory[batch] / ROOM - start) / (1 - start) for batch in grid}
        speed = {batch: tps * (1 - depth * pressure[batch]) for batch, tps in speed.items()}
    retries = rng.uniform(0.9, 0.98) if kind == "cliff" else 0.975
    return Curve(kind, memory, speed, rng, retries, rng.choice([0.0, 0.0, 1.0, 3.0]))


def _line(first: float, each: float, points: int = 16) -> dict[int, float]:
    return {2 + 4 * place: first + each * place for place in range(points)}


def adversarial(seed: int) -> tuple[Curve, ...]:
    """Curves that break what the search assumes, or nearly do. All fit for 16 points, but for what is said."""
    easy = _line(40, 8)

    def curve(name: str, tps: Callable[[int], float], memory: Mapping[int, float] = easy, **more: Any) -> Curve:
        speed = {batch: tps(place) for place, batch in enumerate(memory)}
        rng = random.Random(f"{name} {seed}")  # noqa: S311 - noise, no secret
        return Curve(name, memory, speed, rng, **more)

    def hump(place: float, centre: float, width: float) -> float:
        return math.exp(-(((place - centre) / width) ** 2))

    return (
        curve("peak at the first point", lambda place: 3e4 * (1 - 0.03 * place)),
        curve("peak at the last point", lambda place: 3e4 * (0.4 + 0.04 * place)),
        curve("plateau", lambda _: 3e4),
        curve("plateau that falls by 0.3 % a point", lambda place: 3e4 * (1 - 0.003 * place)),
        curve("narrow peak in the middle", lambda place: 3e4 - 1500 * abs(place - 6)),
        curve("two humps, the higher one left", lambda p: 2e4 + 1e4 * hump(p, 3, 2) + 6e3 * hump(p, 12, 2)),
        curve("two humps, the higher one right", lambda p: 2e4 + 6e3 * hump(p, 3, 2) + 1e4 * hump(p, 12, 2)),
        curve("two humps and a hollow of 5 %", lambda p: 3e4 * (p + 3) / (p + 5) * (0.95 if 6 <= p <= 8 else 1)),
        curve("every second batch 1.5 % slower", lambda p: 3e4 * (p + 1) / (p + 3) * (1 - 0.015 * (p % 2))),
        curve("one batch 3 % above its neighbours", lambda p: 3e4 * (p + 1) / (p + 3) * (1.03 if p == 9 else 1)),
        curve("retries from the second point on", lambda p: 3e4 * (p + 1) / (p + 3), _line(172, 3)),
        curve("retries from the first point on", lambda p: 3e4 * (p + 1) / (p + 3), _line(175, 1)),
        curve("only the first point fits", lambda p: 3e4 * (p + 1) / (p + 3), _line(170, 40)),
        curve("real runs need 15 GiB more", lambda p: 3e4 * (p + 1) / (p + 3), _line(60, 12), unseen=15.0),
        curve("noise of 2 %", lambda p: 3e4 * (p + 1) / (p + 3), cv=0.02),
    )


@dataclass(slots=True)
class Recorded:
    """What 2 x H200 and their rehearsals did, by local batch; a batch without a rehearsal is rehearsed as it ran.

    (Below saturation memory of a rehearsal is that of the real run to the last digit, in 5 of 5.)
    """

    name: str
    real: dict[int, Answer] = field(default_factory=dict)
    rehearsed: dict[int, Answer] = field(default_factory=dict)
    room: float = 139.8

    @property
    def grid(self) -> tuple[int, ...]:
        return tuple(sorted(self.real or self.rehearsed))

    def run(self, batch: int) -> Answer:
        return self.real[batch]

    def rehearse(self, batch: int) -> Answer:
        return self.rehearsed.get(batch) or self.real[batch]

    @property
    def full_grid(self) -> int:
        return len(self.real)

    def loss(self, batch: int | None) -> float:
        speeds = {b: answer.tps or 0.0 for b, answer in self.real.items()}
        return 1.0 if batch is None else 1 - speeds[batch] / max(speeds.values())


def recorded(model: str = "A3B-8L", world_size: int = 2) -> tuple[Recorded, ...]:
    """The recorded grid of one model, a family for each mode of activation checkpointing."""
    found: dict[str, Recorded] = {}
    for run in yaml.safe_load(RECORDED.read_text()):
        plain = run["log_freq"] in (2, 5) and "fsdp_reshard_after_forward" not in run and run["dp_replicate"] == 1
        mine = run["model"] == model and run["world_size"] == world_size and run["global_batch_size"] == -1
        if not (plain and mine):
            continue
        family = found.setdefault(run["activation_checkpoint"], Recorded(run["activation_checkpoint"]))
        outcome = Outcome.OOM if run["outcome"] == "oom" else Outcome.COMPLETED
        retries = bool(run.get("alloc_retries_cumulative"))
        answer = Answer(outcome, run.get("peak_reserved_gib"), run.get("tps_median_from_step_5"), retries)
        (family.rehearsed if run["rehearsal"] else family.real).setdefault(run["local_batch_size"], answer)
    return tuple(found.values())


@dataclass(frozen=True, slots=True)
class Searched:
    """A search that was driven to its end; ``waves``: how many times launches were waited for."""

    edge: EdgeResult | None
    peak: PeakResult
    findings: Findings
    waves: int


def drive(curve: Curve | Recorded, *, rehearse: bool = True, width: int = 1) -> Searched:
    """Search ``curve`` to the end with up to ``width`` launches at a time."""
    findings = Findings(curve.grid, curve.room)
    edge, peak, waves = EdgeSearch(findings), PeakSearch(findings), 0
    while True:
        while rehearse and (asked := edge.wanted(width)):
            assert not set(asked) & set(findings.rehearsed)
            findings.rehearsed.update({batch: curve.rehearse(batch) for batch in asked})
        if not (asked := peak.wanted(width)):
            break
        assert not set(asked) & set(findings.real)
        findings.real.update({batch: curve.run(batch) for batch in asked})
        waves += 1
    return Searched(edge.result() if rehearse else None, peak.result(), findings, waves)
