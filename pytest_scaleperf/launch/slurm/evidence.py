"""What the nodes of a job wrote about themselves, and what its output and the nodes' states say of its end."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_scaleperf.launch.slurm.client import ask
from pytest_scaleperf.launch.slurm.faults import NodeState
from pytest_scaleperf.launch.slurm.messages import Words, read
from pytest_scaleperf.launch.slurm.render import NODE
from pytest_scaleperf.model import LaunchError, LaunchSpec

_TAIL = 1 << 18
"""Bytes of the output's end that are searched for Slurm's own lines: they come last."""

_LITTLE = 1 << 16
"""A disk with fewer bytes free than this takes no more log."""

_NODE_TEXT = Path(__file__).with_name(NODE).read_bytes()


@dataclass(frozen=True, slots=True)
class Nodes:
    """``hosts`` by rank, their devices, the step's id, and when the first of them began (seconds since 1970)."""

    hosts: tuple[str, ...] = ()
    devices: Mapping[str, tuple[str, ...]] | None = None
    step: str = ""
    started: float | None = None


def prepare(spec: LaunchSpec, folder: Path) -> None:
    """Put the program that every node starts into the run's folder.

    Raises LaunchError where it cannot be written.
    """
    try:
        (folder / NODE).write_bytes(_NODE_TEXT)
    except OSError as error:
        raise LaunchError(
            f"{spec.job_name}: cannot write into its run folder {folder} ([Errno {error.errno}] {error.strerror}); "
            "expected a writable folder on storage that every node sees. Free the disk, or choose another: --run-dir"
        ) from None


def nodes_of(folder: Path) -> Nodes:
    """What ``node.py`` wrote, by rank; what is missing or torn is left out."""
    told: list[dict[str, object]] = []
    for path in sorted((folder / "nodes").glob("*.json"), key=lambda p: int(p.stem) if p.stem.isdecimal() else -1):
        try:
            told.append(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            continue
    if not told:
        return Nodes()
    hosts = tuple(str(node["host"]) for node in told)
    devices = {str(node["host"]): tuple(str(node["devices"]).split(",")) for node in told if node.get("devices")}
    started = [float(str(node["started"])) for node in told]
    return Nodes(hosts, devices, str(told[0]["step"]), min(started))


def words_of(output: Path) -> Words:
    """Slurm's own lines at the end of a job's output."""
    try:
        with output.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            data = file.read()
    except OSError:
        return Words()
    return read(data.decode("utf-8", "replace").splitlines())


def is_full(folder: Path) -> str:
    """Says that the folder's disk is full; empty where it is not."""
    try:
        disk = os.statvfs(folder)
    except OSError as error:
        return f"the run folder {folder} cannot be reached ([Errno {error.errno}] {error.strerror})"
    if disk.f_bavail * disk.f_frsize >= _LITTLE:
        return ""
    size = disk.f_blocks * disk.f_frsize
    return f"the disk under {folder} is full ({disk.f_bavail * disk.f_frsize} of {size} bytes free)"


def node_states(names: Sequence[str]) -> tuple[NodeState, ...]:
    """The states of these nodes; empty where nobody answers."""
    if not names:
        return ()
    answer = ask(("sinfo", "-h", "-N", "-n", ",".join(names), "-o", "%N|%T|%E"))
    found: dict[str, NodeState] = {}
    for line in answer.out.splitlines() if answer.code == 0 else ():
        name, _, rest = line.partition("|")
        word, _, reason = rest.partition("|")
        if name in names:
            found[name] = NodeState(name, word, reason.strip())
    return tuple(found.values())
