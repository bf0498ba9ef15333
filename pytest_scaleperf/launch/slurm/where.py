"""Where this process is: in a Slurm allocation and of what size, or where jobs can be submitted."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

_PROGRAMS = ("srun", "sbatch", "squeue", "scontrol", "scancel")


def is_here(env: Mapping[str, str] | None = None) -> bool:
    """True where Slurm's commands are on the PATH."""
    path = (os.environ if env is None else env).get("PATH", os.defpath)
    return all(shutil.which(program, path=path) for program in _PROGRAMS)


def allocation(env: Mapping[str, str] | None = None) -> str | None:
    """The job id of the allocation that this process is in; None on a login node, or where Slurm is not there.

    A process that a step runs (``srun --pty bash``) is in the allocation too.
    """
    env = os.environ if env is None else env
    job = env.get("SLURM_JOB_ID", "")
    return job if job.isdecimal() and is_here(env) else None


def gpus(job: str, gpus_per_node: int) -> int:
    """GPUs of an allocation: what ``--gpus`` is where nobody says it.

    Raises LaunchError where there is no such allocation.
    """
    from pytest_scaleperf.launch.slurm import allotted  # noqa: PLC0415 - a collection outside Slurm need not pay for it

    return allotted.read(job, gpus_per_node).gpus
