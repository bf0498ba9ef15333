"""Which launcher starts a session's jobs: on this machine, as steps of a Slurm allocation, or as Slurm jobs."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_scaleperf.launch.local import LocalLauncher
from pytest_scaleperf.launch.protocol import Launcher
from pytest_scaleperf.launch.slurm import where
from pytest_scaleperf.launch.slurm.allocation import AllocationLauncher
from pytest_scaleperf.launch.slurm.batch import BatchLauncher
from pytest_scaleperf.launch.slurm.holder import HolderLauncher
from pytest_scaleperf.model import LaunchError, ProbePlace, Settings, SlurmOptions, Submit, System
from pytest_scaleperf.packing import Node

_SUBMITTED = (
    "each job gets nodes of its own, which are not known before; run pytest inside an allocation (salloc, sbatch) to "
    "have its nodes probed"
)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The launcher of a session, how many GPUs it has at most, and what a pre-flight would probe."""

    launcher: Launcher
    capacity: int
    place: ProbePlace


def choose(settings: Settings, system: System, folder: Path) -> Chosen:
    """The launcher of a session in ``folder``.

    ``auto`` is the allocation that pytest runs in, and else this machine. ``slurm`` outside an allocation submits.
    Raises LaunchError where there is no Slurm to submit to.
    """
    gpus, job = settings.gpus or system.gpus_per_node, where.allocation()
    if settings.launcher == "local" or (settings.launcher == "auto" and job is None):
        return Chosen(LocalLauncher(), gpus, ProbePlace(gpus))
    options = asked(settings, system)
    if job is not None:
        steps = AllocationLauncher(options, system.gpus_per_node, job)
        for host in options.exclude:
            steps.leave_out(host)
        return Chosen(steps, steps.total_gpus, _all_of(steps.nodes))
    if not where.is_here():
        raise LaunchError(
            "--launcher slurm: expected sbatch, srun, squeue, scontrol and scancel on the PATH, found "
            f"{os.environ.get('PATH', '')!r}; run on a login node of the cluster, or with --launcher local"
        )
    if options.submit is Submit.RUNG:
        name = f"scaleperf.{folder.name}"
        holder = HolderLauncher(options, system.gpus_per_node, folder, name=name, gpus=settings.gpus)
        return Chosen(holder, gpus, ProbePlace(gpus, why_not=_SUBMITTED))
    return Chosen(BatchLauncher(options), gpus, ProbePlace(gpus, why_not=_SUBMITTED))


def _all_of(nodes: Sequence[Node]) -> ProbePlace:
    """As many GPUs of each node as the smallest of them has: torchrun starts the same number everywhere."""
    if not nodes:
        return ProbePlace(0, 0, why_not="no node of the allocation is in use")
    return ProbePlace(len(nodes) * min(node.gpus for node in nodes), len(nodes), may_leave_out=True)


def asked(settings: Settings, system: System) -> SlurmOptions:
    """The system file's options for Slurm, with what the command line says in their place."""
    stored = SlurmOptions() if system.slurm is None else system.slurm
    said: dict[str, Any] = dict(settings.slurm)
    return dataclasses.replace(stored, **said)
