"""How many jobs of one device each this machine can run side by side."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping

from pytest_scaleperf.model import LaunchError

_QUERY_SECONDS = 10.0
_VISIBLE = "CUDA_VISIBLE_DEVICES"


def slots(device: str, environment: Mapping[str, str]) -> int:
    """GPUs that a job would see here; for the device ``cpu`` the cores that this process may use.

    Raises LaunchError where there is no GPU: this is then not the machine to rehearse on.
    """
    if device == "cpu":
        return len(os.sched_getaffinity(0))
    told = environment.get(_VISIBLE)
    found = _gpus() if told is None else len([name for name in told.split(",") if name.strip() not in ("", "-1")])
    if found:
        return found
    what = "nvidia-smi lists none" if told is None else f"{_VISIBLE} is {told!r}"
    raise LaunchError(
        f"a rehearsal needs one {device} on this machine: expected a GPU, found none ({what}); run it where there is "
        "one, for example: srun --gpus 1 pytest suites/ --rehearse"
    )


def _gpus() -> int:
    program = shutil.which("nvidia-smi")
    if program is None:
        return 0
    try:
        done = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=_QUERY_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(1 for line in done.stdout.splitlines() if line.startswith("GPU ")) if done.returncode == 0 else 0
