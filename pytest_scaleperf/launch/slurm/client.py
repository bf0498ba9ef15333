"""Slurm's commands, asked with a time limit and in an environment that cannot change what they print."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PATIENCE = 30.0
"""Seconds that a command may take: Slurm's own give up after 10 where the controller hangs."""

_OURS = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_CLUSTERS")
_FOREIGN = (
    "SLURM",
    "SBATCH_",
    "SALLOC_",
    "SRUN_",
    "SQUEUE_",
    "SACCT_",
    "SCONTROL_",
    "SCANCEL_",
    "SINFO_",
    "PMI_",
    "PMIX_",
)
_AWAY = (
    "Unable to contact slurm controller",
    "Socket timed out",
    "Unable to connect",
    "Connection refused",
    "Connection reset",
    "Zero Bytes were transmitted",
    "Communication connection failure",
    "Transport endpoint",
    "Insane message length",
    "in standby mode",
    "Resource temporarily unavailable",
    "Slurm temporarily unable to accept job",
)
UNKNOWN_JOB = "Invalid job id specified"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command answered; ``code`` is None where it did not end in time or could not be started."""

    code: int | None
    out: str
    err: str

    @property
    def away(self) -> bool:
        """True where the controller could not be asked: nothing is known then, least of all that a job has ended."""
        return self.code is None or (self.code != 0 and any(text in self.err for text in _AWAY))

    @property
    def said(self) -> str:
        """Its complaint in one line, for messages."""
        return " ".join((self.err.strip() or self.out.strip()).split())[:400] or f"exit code {self.code}"


def without_slurm(env: Mapping[str, str]) -> dict[str, str]:
    """``env`` without what an outer job or a user's habits say to Slurm's commands; where the cluster is, stays."""
    return {name: value for name, value in env.items() if name in _OURS or not name.startswith(_FOREIGN)}


def cluster() -> dict[str, str]:
    """Where the cluster is, as this process was told."""
    return {name: os.environ[name] for name in _OURS if name in os.environ}


def clean() -> dict[str, str]:
    """The environment in which we ask."""
    return {**without_slurm(os.environ), "LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}


def ask(argv: Sequence[str], patience: float = PATIENCE) -> Answer:
    """Run a Slurm command to its end, for ``patience`` seconds at most."""
    try:
        done = subprocess.run(
            argv, env=clean(), stdin=subprocess.DEVNULL, capture_output=True, timeout=patience, check=False
        )
    except subprocess.TimeoutExpired:
        return Answer(None, "", f"{argv[0]}: no answer within {patience:.0f} s")
    except OSError as error:
        return Answer(None, "", f"{argv[0]}: {error.strerror}")
    return Answer(done.returncode, _text(done.stdout), _text(done.stderr))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
