"""The part ``slurm:`` of a system file: what it may hold, and the options that come of it."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from pytest_scaleperf.model import Container, ContainerKind, SlurmOptions, Submit
from pytest_scaleperf.yamlfile.schema import Count, FileModel, Text, expected

_SECONDS = "a number of seconds, more than 0"
_OPTIONS = "a list of Slurm's long options, such as --hint=nomultithread"
_OURS = re.compile(
    r"--(output|error|open-mode|job-name|comment|parsable|requeue|no-requeue|wrap|array|nodes|ntasks|ntasks-per-node"
    r"|gres|gpus-per-node|chdir|export|jobid|nodelist|label|partition|account|qos|constraint|reservation|exclude|time)"
)


def _option(value: str) -> str:
    name = value.partition("=")[0]
    if not value.startswith("--"):
        raise expected("long options, such as --hint=nomultithread")
    if _OURS.fullmatch(name):
        raise expected(f"options that have no key of their own and are not set for every job; {name} is")
    return value


_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
_Option = Annotated[Text, AfterValidator(_option)]


class SystemContainerPart(FileModel):
    """The container of a job's processes."""

    kind: Annotated[ContainerKind, Field(strict=False)] = Field(description="pyxis or apptainer")
    image: Text = Field(description="the image, as its tool takes it")
    mounts: list[Text] = Field(default=[], description="a list of mounts, such as /data:/data")
    args: list[Text] = Field(default=[], description="a list of options of srun (pyxis) or of apptainer exec")


class SystemSlurmPart(FileModel):
    """How the site's Slurm is asked for nodes; a key that is left out is not said to Slurm."""

    partition: Text | None = Field(default=None, description="a partition")
    account: Text | None = Field(default=None, description="an account")
    qos: Text | None = Field(default=None, description="a quality of service")
    constraint: Text | None = Field(default=None, description="features of nodes, as sbatch --constraint takes them")
    reservation: Text | None = Field(default=None, description="a reservation")
    exclude: list[Text] = Field(default=[], description="a list of nodes, such as node[1-3]")
    time_limit: _Seconds | None = Field(default=None, description=_SECONDS)
    pending_limit: _Seconds | None = Field(default=None, description=_SECONDS)
    max_jobs: Count = Field(default=32, description="a whole number of jobs, at least 1")
    submit: Annotated[Submit, Field(strict=False)] = Field(default=Submit.CASE, description="case or rung")
    args: list[_Option] = Field(default=[], description=_OPTIONS)
    srun_args: list[_Option] = Field(default=[], description=_OPTIONS)
    setup: Text = Field(default="", description="lines of shell")
    env: dict[_Variable, str] = Field(default={}, description="a mapping from names of variables to texts")
    container: SystemContainerPart | None = Field(default=None, description="a mapping with kind, image, mounts, args")


def options(part: SystemSlurmPart) -> SlurmOptions:
    """The part as a word."""
    box = part.container
    return SlurmOptions(
        partition=part.partition,
        account=part.account,
        qos=part.qos,
        constraint=part.constraint,
        reservation=part.reservation,
        exclude=tuple(part.exclude),
        time_limit=part.time_limit,
        args=tuple(part.args),
        srun_args=tuple(part.srun_args),
        setup=part.setup,
        env=tuple(part.env.items()),
        container=None if box is None else Container(box.kind, box.image, tuple(box.mounts), tuple(box.args)),
        submit=part.submit,
        pending_limit=part.pending_limit,
        max_jobs=part.max_jobs,
    )
