"""The speed to expect of a larger rung, from a measurement below it and the network that the system states: pure.

Time of a micro-batch at the larger rung = its tokens at the measured speed + the communication that is added there.

The added communication is the difference of the two layouts' rings (see ``communication``), and it is taken as paid
in full: the ranks below were chosen so that theirs is just hidden, so nothing is left to hide more behind. It may be
hidden all the same, or cost twice (a network that is half as fast as stated, rings that disturb each other): these are
the bounds, with the measurement's own noise added. What is sent less than below may have been hidden there: it is no
gain. Nothing is fitted to measurements of the larger rung.

With rehearsed ceilings (the speed without communication) of both cases the compute time is the larger rung's own, and
what was paid below is known: time = tokens / ceiling + what was paid below + what is added.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_scaleperf.model import Batch, Layout, Network
from pytest_scaleperf.plan.communication import Collective, ModelSize, collectives, seconds

_WORST = 2.0
"""The added communication costs at most this many times what the stated network says."""

_NORMAL_95 = 1.96


@dataclass(frozen=True, slots=True)
class Configuration:
    """A layout with its batch; ``ceiling`` is the rehearsed tokens/s per GPU, None where it was not rehearsed."""

    layout: Layout
    batch: Batch
    ceiling: float | None = None
    reshard: bool = True

    @property
    def tokens(self) -> int:
        """Tokens of one micro-batch on one GPU."""
        return self.batch.local * self.batch.sequence

    def sent(self, machine: Machine) -> tuple[Collective, ...]:
        """What one micro-batch sends."""
        accumulation = self.batch.accumulation
        return collectives(
            self.layout, machine.model, machine.gpus_per_node, accumulation=accumulation, reshard=self.reshard
        )


@dataclass(frozen=True, slots=True)
class Machine:
    """What a projection assumes: the model's size, the network, GPUs of a node."""

    model: ModelSize
    network: Network
    gpus_per_node: int


@dataclass(frozen=True, slots=True)
class Measured:
    """A speed that was measured: tokens/s per GPU, ``spread`` the standard error as a fraction of it."""

    what: Configuration
    tps: float
    spread: float = 0.0


@dataclass(frozen=True, slots=True)
class Projection:
    """Tokens/s per GPU to expect, with bounds. ``added`` are seconds of communication more than below a micro-batch.

    ``seconds`` is the expected time of a micro-batch. ``rehearsed`` says whether ceilings were used.
    """

    tps: float
    low: float
    high: float
    seconds: float
    added: float
    rehearsed: bool


def project(below: Measured, target: Configuration, machine: Machine) -> Projection:
    """What ``target`` will reach, given what was measured ``below``; only layouts of dp_shard and dp_replicate."""
    more = seconds(target.sent(machine), machine.network) - seconds(below.what.sent(machine), machine.network)
    added = max(0.0, more)
    ceilings = below.what.ceiling, target.ceiling
    base = target.tokens / below.tps
    rehearsed = None not in ceilings
    if ceilings[0] is not None and ceilings[1] is not None:
        paid = below.what.tokens / below.tps - below.what.tokens / ceilings[0]
        base = target.tokens / ceilings[1] + paid
    noise = _NORMAL_95 * below.spread
    return Projection(
        tps=target.tokens / (base + added),
        low=target.tokens / (base + _WORST * added) * (1 - noise),
        high=target.tokens / base * (1 + noise),
        seconds=base + added,
        added=added,
        rehearsed=rehearsed,
    )
