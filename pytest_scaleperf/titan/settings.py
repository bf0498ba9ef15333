"""What torchtitan's start-up lines say of the run: versions, device, batch, mesh."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_MESH = re.compile(r"\b(pp|dp_replicate|dp_shard|dp|cp|tp|ep|etp)=(\d+)")
_OLD_MESH = re.compile(r"Building \d+-D device mesh with \[(?P<names>[^\]]*)\], \[(?P<sizes>[^\]]*)\]")
_BATCH = {
    "local_batch": re.compile(r"local batch size (\d+)"),
    "global_batch": re.compile(r"global batch size (\d+)"),
    "accumulation": re.compile(r"gradient accumulation steps (\d+)"),
    "sequence": re.compile(r"sequence length (\d+)"),
    "total_steps": re.compile(r"total steps (\d+)"),
}
_CAPACITY = re.compile(r"\w+ capacity: (?P<device>.+?)(?: \(\d+\))? with (?P<gib>\d+(?:\.\d+)?)GiB memory")
_PEAK = re.compile(r"Peak FLOPS used for computing MFU: (\d+(?:\.\d+)?(?:e[+-]?\d+)?)")
_VERSION = re.compile(r"torchtitan version: (\S+)")
_LOSS_RANK = re.compile(r"Pipeline Parallel loss is not visible.*?rank (\d+)")
# The degrees that multiply to the world size (``dp`` before dp_shard and dp_replicate were told apart).
_DEGREES = ("pp", "dp_replicate", "dp_shard", "dp", "cp", "tp")
# Pipeline schedules in which the first stage also ends: the loss is on rank 0 (torchtitan, metrics.py).
_V_SCHEDULES = frozenset({"ZBVZeroBubble"})
_GUESSED_PEAK = re.compile(r"Peak flops undefined for: .*fallback to", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Settings:
    """What the log says of the run. ``mesh`` holds the degrees of parallelism by torchtitan's names.

    ``peak_flops`` is torchtitan's own table value in FLOP/s, ``peak_flops_guessed`` where it did not know the GPU.
    ``loss_rank`` is the rank that torchtitan's pipeline warning names. None: not printed.
    """

    version: str | None = None
    device: str | None = None
    device_memory_gib: float | None = None
    peak_flops: float | None = None
    peak_flops_guessed: bool = False
    local_batch: int | None = None
    global_batch: int | None = None
    accumulation: int | None = None
    sequence: int | None = None
    total_steps: int | None = None
    mesh: dict[str, int] = field(default_factory=dict)
    loss_rank: int | None = None

    @property
    def world_size(self) -> int | None:
        """Ranks of the mesh (expert parallelism lies inside data parallelism), or None where no mesh was printed."""
        return mesh_size(self.mesh) if self.mesh else None


def with_facts(known: Settings, facts: Mapping[str, int | str]) -> Settings:
    """The settings with what a caller knows of a log that does not print it: degrees of the mesh, the schedule."""
    degrees = {name: value for name, value in facts.items() if name in _DEGREES and isinstance(value, int)}
    if degrees and not known.mesh:
        known = replace(known, mesh=degrees)
    if facts.get("schedule") in _V_SCHEDULES and known.mesh.get("pp", 1) > 1:
        known = replace(known, loss_rank=0)
    return known


def mesh_size(mesh: dict[str, int]) -> int:
    """Product of the degrees that multiply to the world size; a degree that is not there is 1."""
    size = 1
    for name in _DEGREES:
        size *= mesh.get(name, 1)
    return size


def add(known: Settings, message: str) -> Settings:
    """What is known, with what one message adds or corrects."""
    if message.startswith("torchtitan version"):
        found = _VERSION.match(message)
        return replace(known, version=found.group(1)) if found and found.group(1) != "0.0.0" else known
    if message.startswith("Building "):
        mesh = _mesh(message)
        return replace(known, mesh=mesh) if mesh else known
    if message.startswith("Tra"):
        return _add_batch(known, message)
    if message.startswith("P"):
        return _add_peak_or_loss_rank(known, message)
    found = _CAPACITY.match(message)
    if found:
        return replace(known, device=found["device"], device_memory_gib=float(found["gib"]))
    return known


def _mesh(message: str) -> dict[str, int]:
    old = _OLD_MESH.match(message)
    if old:
        names = re.findall(r"\w+", old["names"])
        sizes = [int(size) for size in re.findall(r"\d+", old["sizes"])]
        return dict(zip(names, sizes, strict=False))
    if not message.startswith("Building device mesh"):
        return {}
    return {name: int(size) for name, size in _MESH.findall(message)}


def _add_batch(known: Settings, message: str) -> Settings:
    found = {name: pattern.search(message) for name, pattern in _BATCH.items()}
    numbers = {name: int(match.group(1)) for name, match in found.items() if match}
    return replace(
        known,
        local_batch=numbers.get("local_batch", known.local_batch),
        global_batch=numbers.get("global_batch", known.global_batch),
        accumulation=numbers.get("accumulation", known.accumulation),
        sequence=numbers.get("sequence", known.sequence),
        total_steps=numbers.get("total_steps", known.total_steps),
    )


def _add_peak_or_loss_rank(known: Settings, message: str) -> Settings:
    peak = _PEAK.match(message)
    if peak:
        return replace(known, peak_flops=float(peak.group(1)))
    rank = _LOSS_RANK.match(message)
    if rank:
        return replace(known, loss_rank=int(rank.group(1)))
    return replace(known, peak_flops_guessed=True) if _GUESSED_PEAK.match(message) else known
