"""The rank's own file, ``<run dir>/ranks/rank<r>.json``: who it is, its software, and on a CPU its matmul rate.

``matmul_flops`` is the median rate in FLOP/s of the samples from just before training to its last logged step but
one, ``matmul_flops_after`` that from the first step to the last, null where the run did not get there; their mean is
the peak that CPU runs are judged against. ``matmul_samples`` holds each sample. All are null on an accelerator, whose
peak the system file knows, and a run that is traced has only the sample before it.
"""

from __future__ import annotations

import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from pytest_scaleperf.titan.inside.peak import Peak
from pytest_scaleperf.titan.inside.say import say

if TYPE_CHECKING:
    from collections.abc import Callable

RUN_DIR = "SCALEPERF_RUN_DIR"


def install(
    trainer: type[Any], *, cpu: bool, device_name: Callable[[], str], is_profiling: Callable[[Any], bool]
) -> None:
    """Write the file as training begins and again at its last step. Nothing is done where no run directory is known."""
    run_dir = os.environ.get(RUN_DIR)
    if not run_dir:
        say(f"{RUN_DIR} is not set: no rank files are written")
        return
    rank = int(os.environ.get("RANK", "0"))
    path = Path(run_dir) / "ranks" / f"rank{rank}.json"
    peak = Peak()
    original, original_step = trainer.train, trainer.train_step

    def train(self: Any) -> Any:  # noqa: ANN401 - a torchtitan class
        if cpu:
            peak.sample_before()
        _write(path, _facts(rank, device_name(), peak))
        return original(self)

    def train_step(self: Any, data_iterator: Any) -> Any:  # noqa: ANN401 - torchtitan classes
        result = original_step(self, data_iterator)
        if cpu and not is_profiling(self):
            peak.sample_step(self)
            if peak.after is not None:
                _write(path, _facts(rank, device_name(), peak))
        return result

    trainer.train, trainer.train_step = train, train_step


def _facts(rank: int, device_name: str, peak: Peak) -> dict[str, Any]:
    return {
        "rank": rank,
        "host": platform.node(),
        "pid": os.getpid(),
        "device": device_name,
        "software": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "torchtitan": _version("torchtitan"),
            "pytest-scaleperf": _version("pytest-scaleperf"),
        },
        **peak.facts(),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _write(path: Path, facts: dict[str, Any]) -> None:
    """Atomically: a reader sees the whole file or the one before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.tmp")
    partial.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)
