"""What a layout's data parallelism sends in one micro-batch, and how long rings of a stated network take for it: pure.

The model has two levels (inside a node, between nodes) and no parameter that is fitted. Per FSDP unit (each layer, and
one for embedding and head together) there is one all_gather of the parameters in the forward pass, one in the backward
pass where they were given back in between, and one reduce_scatter of the gradients; with replicas one all_reduce of
each rank's shard of the gradients follows, once an optimiser step. A ring over n ranks on k nodes takes

    steps = n - 1  (all_reduce: twice that),  of which k - 1 (twice that) leave a node
    time  = (steps - leaving) x latency inside + leaving x latency between + bytes x steps / n / bandwidth

where the bandwidth between nodes is that of all the ring's GPUs of one node together, at most the one inside. The form
is that of NCCL's own cost model (src/graph/tuning.cc). Tensor, context, pipeline, expert parallelism: not modelled.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pytest_scaleperf.model import Layout, Network


class Operation(StrEnum):
    """What FSDP and its replicas send."""

    GATHER_FORWARD = "all_gather forward"
    GATHER_BACKWARD = "all_gather backward"
    SCATTER = "reduce_scatter"
    REDUCE = "all_reduce"


@dataclass(frozen=True, slots=True)
class ModelSize:
    """A model, as far as its communication needs it: bytes are those of one parameter and of one gradient on the wire.

    The defaults are BF16 parameters and FP32 gradients, torchtitan's own and the published ones.
    """

    parameters: float
    layers: int
    parameter_bytes: float = 2.0
    gradient_bytes: float = 4.0


@dataclass(frozen=True, slots=True)
class Collective:
    """One kind of collective of one micro-batch: ``count`` calls that together work on ``size`` bytes.

    ``ranks`` form the ring, ``per_node`` of them share a node.
    """

    operation: Operation
    ranks: int
    per_node: int
    count: float
    size: float

    @property
    def nodes(self) -> int:
        """Nodes that the ring passes through."""
        return -(-self.ranks // self.per_node)

    def seconds(self, network: Network) -> float:
        """How long its rings take one after the other."""
        twice = 2 if self.operation is Operation.REDUCE else 1
        steps, leaving = twice * (self.ranks - 1), twice * (self.nodes - 1)
        inside, between = network.intra_node, network.inter_node
        rate = inside.gb_s if self.nodes == 1 else min(inside.gb_s, self.per_node * between.gb_s)
        latency = (steps - leaving) * inside.latency_us + leaving * between.latency_us
        return self.count * latency * 1e-6 + self.size * steps / self.ranks / (rate * 1e9)


def collectives(
    layout: Layout, model: ModelSize, gpus_per_node: int, *, accumulation: int = 1, reshard: bool = True
) -> tuple[Collective, ...]:
    """What one micro-batch sends. ``reshard``: parameters are given back after the forward pass (torchtitan's default).

    The all_reduce comes once an optimiser step, so that a micro-batch has 1 / ``accumulation`` of it.
    """
    units = model.layers + 1
    shards, replicas = layout.dp_shard, layout.dp_replicate
    found = []
    if shards > 1:
        near = min(shards, gpus_per_node)
        weights, gradients = model.parameters * model.parameter_bytes, model.parameters * model.gradient_bytes
        found.append(Collective(Operation.GATHER_FORWARD, shards, near, units, weights))
        if reshard:
            found.append(Collective(Operation.GATHER_BACKWARD, shards, near, units, weights))
        found.append(Collective(Operation.SCATTER, shards, near, units, gradients))
    if replicas > 1:
        near = max(1, min(replicas, gpus_per_node // shards))
        size = model.parameters * model.gradient_bytes / shards
        found.append(Collective(Operation.REDUCE, replicas, near, units / accumulation, size / accumulation))
    return tuple(found)


def seconds(sent: tuple[Collective, ...], network: Network) -> float:
    """All of them one after the other."""
    return sum(collective.seconds(network) for collective in sent)


def not_modelled(layout: Layout) -> str:
    """Which parallelism of the layout this model knows nothing of, in words; empty where it knows all."""
    others = (("tp", layout.tp), ("cp", layout.cp), ("pp", layout.pp), ("ep", layout.ep))
    return ", ".join(f"{name} {degree}" for name, degree in others if degree > 1)
