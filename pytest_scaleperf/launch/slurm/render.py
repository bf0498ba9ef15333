"""The command lines and scripts that Slurm is given, as text; nothing is run here."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path, PurePath

from pytest_scaleperf.model import Container, ContainerKind, LaunchSpec, SlurmOptions

NODE = "node.py"
_SECONDS_A_MINUTE = 60


def node_command(spec: LaunchSpec, folder: Path) -> tuple[str, ...]:
    """What is started on every node: ``node.py`` by the job's own Python, then the program."""
    python = spec.argv[0] if PurePath(spec.argv[0]).name.startswith("python") else "python3"
    return (python, "-I", "-S", str(folder / NODE), str(folder), *spec.argv)


def srun(  # noqa: PLR0913 - what a step is made of; each named where it is called
    options: SlurmOptions,
    command: Sequence[str],
    *,
    nodes: int,
    gpus_on_each: int | None,
    name: str,
    folder: Path,
    cwd: Path,
    job: str | None = None,
    hosts: Sequence[str] = (),
    cpus: int | None = None,
) -> tuple[str, ...]:
    """The srun of one step, one task a node; ``gpus_on_each`` None where Slurm does not count GPUs.

    ``job``, ``hosts`` and ``cpus`` (of each task) place it in an allocation that others share: ``--exact`` takes only
    what is asked for. Without them it is the only step of its own job, and has all of it.
    """
    placed = () if job is None else (f"--jobid={job}", "--exact", f"--nodelist={','.join(hosts)}")
    flags, prefix = _contained(options.container, folder, cwd)
    return (
        "srun",
        *placed,
        f"--job-name={name}",
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        "--ntasks-per-node=1",
        *(() if cpus is None else (f"--cpus-per-task={cpus}",)),
        *(() if gpus_on_each is None else (f"--gres=gpu:{gpus_on_each}",)),
        "--export=ALL",
        "--label",
        "--unbuffered",
        "--kill-on-bad-exit=1",
        *flags,
        *options.srun_args,
        *prefix,
        *command,
    )


def sbatch(  # noqa: PLR0913 - as above
    options: SlurmOptions,
    *,
    name: str,
    nodes: int,
    gpus_on_each: int | None,
    output: Path,
    cwd: Path,
    token: str,
    exclude: Sequence[str] = (),
    whole_nodes: bool = False,
    no_kill: bool = False,
) -> tuple[str, ...]:
    """The sbatch of one job; the script comes on its standard input.

    ``token`` is its comment, by which a job is found again whose id was lost on the way.
    """
    left_out = [*options.exclude, *(host for host in exclude if host not in options.exclude)]
    said = {
        "partition": options.partition,
        "account": options.account,
        "qos": options.qos,
        "constraint": options.constraint,
        "reservation": options.reservation,
        "exclude": ",".join(left_out) or None,
        "time": None if options.time_limit is None else str(math.ceil(options.time_limit / _SECONDS_A_MINUTE)),
    }
    return (
        "sbatch",
        "--parsable",
        "--no-requeue",
        *(("--no-kill",) if no_kill else ()),
        f"--job-name={name}",
        f"--comment={token}",
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        "--ntasks-per-node=1",
        *(() if gpus_on_each is None else (f"--gres=gpu:{gpus_on_each}",)),
        *(("--exclusive",) if whole_nodes else ()),
        *(f"--{option}={value}" for option, value in said.items() if value is not None),
        f"--chdir={cwd}",
        f"--output={str(output).replace('%', '%%')}",
        "--open-mode=append",
        "--export=ALL",
        *options.args,
    )


def script(options: SlurmOptions, command: Sequence[str]) -> str:
    """A shell script: the site's own lines, then the command in the script's place."""
    setup = options.setup.rstrip("\n")
    return "\n".join(["#!/bin/bash", *([setup] if setup else []), f"exec {shlex.join(command)}", ""])


def _contained(container: Container | None, folder: Path, cwd: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Options of srun, and words in front of the command; the run's folder is mounted as it is."""
    if container is None:
        return (), ()
    mounts = (*container.mounts, f"{folder}:{folder}")
    if container.kind is ContainerKind.PYXIS:
        flags = (
            f"--container-image={container.image}",
            f"--container-mounts={','.join(mounts)}",
            f"--container-workdir={cwd}",
            *container.args,
        )
        return flags, ()
    binds = tuple(f"--bind={mount}" for mount in mounts)
    return (), ("apptainer", "exec", *binds, f"--pwd={cwd}", *container.args, container.image)
