"""The command line of the pre-flight's job: torchrun starts one probe on each GPU of each node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

MODULE = "pytest_scaleperf.preflight.inside.probe"
CPU = "cpu"
SECONDS = 180.0
"""After this long a pre-flight is not slow but stuck (a first NCCL connection of 512 ranks takes tens of seconds)."""

_LEAKS = frozenset({
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT",
})  # fmt: skip
_LEAK_PREFIXES = ("TORCHELASTIC_", "PYTEST_")


@dataclass(frozen=True, slots=True)
class ProbeJob:
    """One process for each node: arguments (never a shell string) and the whole environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


def command(  # noqa: PLR0913 - what a process is made of; each named where it is called
    folder: Path, *, gpus: int, nodes: int = 1, device: str, python: str, base_env: Mapping[str, str]
) -> ProbeJob:
    """The probes of ``gpus`` GPUs in all, to be started once on each of ``nodes``; they write into ``folder`` only.

    ``device`` is ``"cpu"`` or a GPU's name, ``python`` the job's interpreter. Of several nodes the launcher says where
    torchrun's ranks meet (``PET_RDZV_ENDPOINT``).
    """
    env = {k: v for k, v in base_env.items() if k not in _LEAKS and not k.startswith(_LEAK_PREFIXES)}
    env["PYTHONUNBUFFERED"] = "1"
    if device == CPU:
        env["OMP_NUM_THREADS"] = "1"  # one core a rank, as one GPU a rank
    here = ("--rdzv-endpoint=localhost:0", "--local-addr=localhost") if nodes == 1 else ()
    argv = (
        python, "-m", "torch.distributed.run", f"--nnodes={nodes}", f"--nproc-per-node={gpus // nodes}",
        "--rdzv-backend=c10d", "--rdzv-id=scaleperf-preflight", *here, "--role=rank",
        "-m", MODULE, str(folder), *(("--cpu",) if device == CPU else ()),
    )  # fmt: skip
    return ProbeJob(argv, env)
