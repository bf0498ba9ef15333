"""An allocation as Slurm describes it: its nodes with their GPUs, CPUs and leaf switches."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_scaleperf.launch.slurm.client import ask
from pytest_scaleperf.launch.slurm.hostlist import expand
from pytest_scaleperf.launch.slurm.states import Seen, parse_job, parse_records
from pytest_scaleperf.model import JobState, LaunchError
from pytest_scaleperf.packing import Node

_DETAIL = re.compile(r"(?:^|\s)Nodes=(?P<nodes>\S+) CPU_IDs=(?P<cpus>\S+) Mem=\S* GRES=(?P<gres>\S*)")
_GPUS = re.compile(r"(?:^|,)gpu(?::[^:,()]+)?:(\d+)")


@dataclass(frozen=True, slots=True)
class Allotted:
    """One running allocation. ``counts_gpus``: Slurm itself hands its GPUs out. ``cpus`` by node."""

    job: str
    nodes: tuple[Node, ...]
    cpus: dict[str, int]
    counts_gpus: bool

    @property
    def gpus(self) -> int:
        """All its GPUs."""
        return sum(node.gpus for node in self.nodes)


def read(job: str, gpus_per_node: int) -> Allotted:
    """The allocation with this job id; ``gpus_per_node`` holds where Slurm does not count GPUs.

    Raises LaunchError where it is not there, not running, or nobody answers.
    """
    answer = ask(("scontrol", "show", "job", "-d", "-o", job))
    seen = parse_job(answer.out) if answer.code == 0 else None
    if seen is None:
        raise LaunchError(
            f"the allocation {job}: expected scontrol to describe it, found: {answer.said}; is the controller there "
            "(`scontrol ping`), and the job still running (`squeue --me`)?"
        )
    if seen.state is not JobState.RUNNING:
        raise LaunchError(
            f"the allocation {job}: expected a running job, found the state {seen.word} (reason {seen.reason}); make "
            "another with salloc or sbatch"
        )
    return describe(job, answer.out, seen, gpus_per_node, switches())


def describe(job: str, text: str, seen: Seen, gpus_per_node: int, leaves: dict[str, str]) -> Allotted:
    """From ``scontrol show job -d -o`` and the leaf switch by node; pure."""
    gpus: dict[str, int] = {}
    cpus: dict[str, int] = {}
    for found in _DETAIL.finditer(text):
        count = sum(int(number) for number in _GPUS.findall(re.sub(r"\([^)]*\)", "", found["gres"])))
        for name in expand(found["nodes"]):
            gpus[name], cpus[name] = count, _how_many(found["cpus"])
    names = expand(seen.nodes)
    counts = any(gpus.values())
    nodes = (Node(n, gpus.get(n, 0) if counts else gpus_per_node, leaves.get(n)) for n in names)
    return Allotted(job, tuple(node for node in nodes if node.gpus), cpus, counts)


def switches() -> dict[str, str]:
    """The leaf switch of every node; empty where the topology is not known."""
    answer = ask(("scontrol", "show", "topology"))
    return parse_topology(answer.out) if answer.code == 0 else {}


def parse_topology(text: str) -> dict[str, str]:
    """``scontrol show topology``: the lines of level 0."""
    leaves: dict[str, str] = {}
    for record in parse_records(text):
        if record.get("Level") == "0" and "SwitchName" in record:
            leaves.update(dict.fromkeys(expand(record.get("Nodes", "")), record["SwitchName"]))
    return leaves


def cpus_for(allotted: Allotted, names: Sequence[str], gpus_on_each: int) -> int:
    """A launch's share of its nodes' CPUs: as large as its share of their GPUs, and at least one."""
    by_name = {node.name: node.gpus for node in allotted.nodes}
    shares = [allotted.cpus[n] * gpus_on_each // by_name[n] for n in names if n in allotted.cpus and by_name.get(n)]
    return max(1, min(shares, default=1))


def _how_many(text: str) -> int:
    """``0-7,16`` is 9."""
    count = 0
    for piece in text.split(","):
        first, dash, last = piece.partition("-")
        if first.isdecimal():
            count += int(last) - int(first) + 1 if dash and last.isdecimal() else 1
    return count
