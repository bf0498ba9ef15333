"""The rank's own file, ``<run dir>/ranks/rank<r>.json``: who it is, its software, and on a CPU its matmul rate.

``matmul_flops`` is the rate of a short matrix multiplication in FLOP/s, measured by all ranks at the same time
just before training, ``matmul_flops_after`` the same just after; the peak that CPU runs are judged against. Both
are null on an accelerator, whose peak the system file knows.
"""

from __future__ import annotations

import json
import os
import platform
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed

from pytest_scaleperf.titan.inside.say import say

if TYPE_CHECKING:
    from collections.abc import Callable

RUN_DIR = "SCALEPERF_RUN_DIR"
_SIZE = 512  # of three square fp32 matrices, 3 MiB in all: large enough for a steady rate, a few ms each
_SECONDS = 0.3


def install(trainer: type[Any], *, cpu: bool, device_name: Callable[[], str]) -> None:
    """Write the file as training begins and again after it. Nothing is done where no run directory is known."""
    run_dir = os.environ.get(RUN_DIR)
    if not run_dir:
        say(f"{RUN_DIR} is not set: no rank files are written")
        return
    rank = int(os.environ.get("RANK", "0"))
    path = Path(run_dir) / "ranks" / f"rank{rank}.json"
    original = trainer.train

    def train(self: Any) -> Any:  # noqa: ANN401 - a torchtitan class
        facts = _facts(rank, device_name())
        facts["matmul_flops"] = _measure() if cpu else None
        _write(path, facts)
        result = original(self)
        facts["matmul_flops_after"] = _measure() if cpu else None
        _write(path, facts)
        return result

    trainer.train = train


def _facts(rank: int, device_name: str) -> dict[str, Any]:
    return {
        "rank": rank,
        "host": platform.node(),
        "pid": os.getpid(),
        "device": device_name,
        "matmul_flops": None,
        "matmul_flops_after": None,
        "software": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "torchtitan": _version("torchtitan"),
            "pytest-scaleperf": _version("pytest-scaleperf"),
        },
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _measure() -> float:
    """Rate of ``_SIZE``^3 fp32 products in FLOP/s, over ``_SECONDS``.

    All ranks begin together, so that they compete for the machine as they do in training.
    """
    a, b = torch.rand(_SIZE, _SIZE), torch.rand(_SIZE, _SIZE)
    out = torch.empty(_SIZE, _SIZE)
    for _ in range(3):
        torch.mm(a, b, out=out)
    torch.distributed.barrier()
    products = 0
    start = time.perf_counter()
    while (elapsed := time.perf_counter() - start) < _SECONDS:
        torch.mm(a, b, out=out)
        products += 1
    return float(products * 2 * _SIZE**3 / elapsed)


def _write(path: Path, facts: dict[str, Any]) -> None:
    """Atomically: a reader sees the whole file or the one before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.tmp")
    partial.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)
