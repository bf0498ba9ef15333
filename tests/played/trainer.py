"""A SIMULATED trainer: reads torchtitan's flags, says what the surface says, in torchtitan's own lines and event files.

The file that SCALEPERF_PLAYED names says which scenario is played, which night it is, how long an interval of steps
lasts (seconds, by GPUs), which node is slow, and which mode became slower. It runs on every node; the first speaks.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from pytest_scaleperf.launch.slurm.hostlist import expand
from tests.played.surface import DEVICE_GIB, FLOPS_PER_TOKEN, LABEL, SCENARIOS, Point, Run, observed
from tests.standin.trainer import EventFile, option, say

OOM = (
    "[rank0]:[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {:.2f} GiB. GPU 0 has a total "
    f"capacity of {DEVICE_GIB} GiB of which 1.68 GiB is free."
)
_WOBBLE = 0.001


def point(argv: list[str]) -> Point:
    """What the command line asks for."""
    shard = int(option(argv, "--parallelism.data_parallel_shard_degree"))
    replicas = int(option(argv, "--parallelism.data_parallel_replicate_degree"))
    [mode] = [word.partition(":")[2] for word in argv if word.startswith("activation-checkpoint:")]
    return Point(shard * replicas, shard, mode, int(option(argv, "--training.local_batch_size")))


def slowed(told: dict[str, Any], at: Point, nodes: tuple[str, ...]) -> float:
    """The share of its speed that a run has: of the slowest node, and of what a change made slower."""
    slowest = min((told.get("slow", {}).get(node, 1.0) for node in nodes), default=1.0)
    return float(slowest * told.get("slower", {}).get(at.mode, 1.0))


def speak(argv: list[str], run_dir: Path, run: Run, tps: float, delay: float) -> None:
    """The lines and scalars of a run that fits."""
    steps, log_freq = int(option(argv, "--training.steps")), int(option(argv, "--metrics.log_freq"))
    events, share = EventFile(run_dir / "titan" / "tb" / "20260101-0000" / "rank_0"), 100 * run.memory / DEVICE_GIB
    for step in (n for n in range(1, steps + 1) if n == 1 or n % log_freq == 0):
        time.sleep(delay)
        now = tps / 50 if step == 1 else tps * (1 + _WOBBLE * (-1) ** (step // log_freq))
        scalars = {
            "throughput(tps)": now,
            "tflops": now * FLOPS_PER_TOKEN / 1e12,
            "memory/max_reserved(GiB)": run.memory,
            "memory/max_reserved(%)": share,
            "memory/num_alloc_retries": float(run.retries * (step - 1)),
        }
        for tag, value in scalars.items():
            events.scalar(step, tag, value)
        say(f"step: {step:2}  loss: {8 - 0.01 * step:8.5f}  grad_norm:  1.0000  "
            f"memory: {run.memory:5.2f}GiB({share:.2f}%)  tps: {now:,.0f}  "
            f"tflops: {now * FLOPS_PER_TOKEN / 1e12:,.2f}  mfu: N/A")  # fmt: skip
    say("Training completed")


def main() -> None:
    """One run, as the flags and the file say."""
    argv, run_dir = sys.argv[1:], Path(os.environ["SCALEPERF_RUN_DIR"])
    told: dict[str, Any] = json.loads(Path(os.environ["SCALEPERF_PLAYED"]).read_text())
    at, rehearsed = point(argv), os.environ.get("COMM_MODE") == "fake_backend"
    delay = 0.0 if rehearsed else float(told["delay"].get(str(at.gpus), 0.1))
    if os.environ.get("SLURM_NODEID", "0") != "0":
        time.sleep(delay * (1 + int(option(argv, "--training.steps")) // int(option(argv, "--metrics.log_freq"))))
        return
    drawn = f"{told['night']} {run_dir.parent.name} {run_dir.name}"
    run = observed(SCENARIOS[told["scenario"]], at, drawn, rehearsed=rehearsed)
    say(f"{LABEL}: a model of speed and memory (scenario {told['scenario']}), no training takes place")
    say(f"CUDA capacity: NVIDIA B200 ({LABEL}) with {DEVICE_GIB}GiB memory")
    say("Training starts at step 1")
    if run.tps is None:
        sys.stdout.write(OOM.format(run.memory - DEVICE_GIB + 2) + "\n")
        sys.exit(1)
    nodes = () if rehearsed else expand(os.environ.get("SLURM_STEP_NODELIST", ""))
    speak(argv, run_dir, run, run.tps * (1.0 if rehearsed else slowed(told, at, nodes)), delay)


if __name__ == "__main__":
    main()
