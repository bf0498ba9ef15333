"""A SIMULATED pre-flight of one node: its GPUs are as fast as they should be, unless the play says that it is slow."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.played.surface import LABEL

MATMUL = 1_500.0
"""TFLOP/s of a GPU that is well."""


def main() -> None:
    """Arguments are torchrun's; the last one is the folder of the probe."""
    told = json.loads(Path(os.environ["SCALEPERF_PLAYED"]).read_text())
    node, folder = os.environ["SLURMD_NODENAME"], Path(sys.argv[-1]) / "probes"
    folder.mkdir(parents=True, exist_ok=True)
    [count] = [int(word.partition("=")[2]) for word in sys.argv if word.startswith("--nproc-per-node=")]
    rates = {"matmul_tflops": MATMUL * told.get("slow", {}).get(node, 1.0)}
    for index in range(count):
        rank = int(os.environ["SLURM_PROCID"]) * count + index
        gpu = {"host": node, "index": index, "rank": rank, "device": f"NVIDIA B200 ({LABEL})", "uuid": None,
               "rates": rates, "health": None, "problems": [], "seconds": 1.0}  # fmt: skip
        (folder / f"rank{rank}.json").write_text(json.dumps({"gpu": gpu, "links": []}))
