"""`python -m pytest_scaleperf.preflight.inside.probe FOLDER [--cpu]`: one rank of a pre-flight, under torchrun.

Writes ``FOLDER/probes/rank<r>.json`` as soon as the device is probed, and again with the links. A probe that fails
becomes a line in ``problems``, so that one broken GPU does not hide what the others say; a broken link ends the job,
and the files of the devices are there already.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pytest_scaleperf.preflight.inside import compute, links

_LINK_SECONDS = 60


def main() -> None:
    """Probe this rank's device, then the links together with the other ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cpu", action="store_true")
    given = parser.parse_args()
    warnings.filterwarnings("ignore", category=FutureWarning)  # newer names of collectives that torch 2.11 lacks
    rank, world, local_rank, local = (
        int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    )
    device = torch.device("cpu") if given.cpu else torch.device("cuda", local_rank)
    path = given.folder / "probes" / f"rank{rank}.json"
    if device.type == "cuda":
        torch.cuda.set_device(device)  # a Triton kernel runs on the current one, and can read no other's memory
    gpu = _probe_device(device, rank, local_rank)
    _write(path, {"gpu": gpu, "links": []})
    # Without device_id: bound to a device, every new group would connect all ranks at once.
    dist.init_process_group("gloo" if given.cpu else "nccl", timeout=dt.timedelta(seconds=_LINK_SECONDS))
    try:
        found = links.measure(rank, world, local, device)
    finally:
        dist.destroy_process_group()
    _write(path, {"gpu": gpu, "links": found})


def _probe_device(device: Any, rank: int, local_rank: int) -> dict[str, Any]:  # noqa: ANN401 - a torch device
    """Fields of ``GpuProbe``."""
    begin = time.perf_counter()
    gpu: dict[str, Any] = {
        "host": os.environ.get("SLURMD_NODENAME") or platform.node(),  # by the name that its launcher knows
        "index": local_rank,
        "rank": rank,
        "device": "cpu",
        "uuid": None,
        "rates": {},
        "health": None,
        "problems": [],
    }
    driver = _driver(device, local_rank, gpu) if device.type == "cuda" else None

    def look() -> None:
        if driver is not None:
            gpu["health"] = driver.health()

    _try(gpu, "matmul", lambda: gpu["rates"].update(matmul_tflops=compute.matmul(device, look)))
    _try(gpu, "memory", lambda: gpu["rates"].update(memory_gb_s=compute.memory(device)))
    if device.type == "cuda":
        torch.cuda.empty_cache()
    if driver is not None:
        driver.close()
    gpu["seconds"] = time.perf_counter() - begin
    return gpu


def _driver(device: Any, local_rank: int, gpu: dict[str, Any]) -> Any:  # noqa: ANN401 - torch's and NVML's objects
    """The GPU as NVML sees it, or None where NVML is not there; fills in the names."""
    from pytest_scaleperf.preflight.inside import nvml  # noqa: PLC0415 - nothing of it is needed on a CPU

    found = []
    _try(gpu, "device", lambda: found.append(torch.cuda.get_device_properties(device)))
    if not found:
        return None
    gpu["device"] = found[0].name
    try:
        driver = nvml.Device(found[0], local_rank)
    except ImportError:
        return None
    except Exception as error:  # noqa: BLE001 - whatever the library says, the rates are measured all the same
        if "LibraryNotFound" not in type(error).__name__:  # a container may lack it; any other trouble is the driver's
            gpu["problems"].append(f"NVML: {_line(error)}")
        return None
    gpu["uuid"] = driver.uuid()
    index = driver.index()
    gpu["index"] = local_rank if index is None else index
    return driver


def _try(gpu: dict[str, Any], name: str, probe: Callable[[], object]) -> None:
    try:
        probe()
    except Exception as error:  # noqa: BLE001 - a sick device raises anything; what it says is the finding
        gpu["problems"].append(f"{name}: {_line(error)}")


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _write(path: Path, facts: dict[str, Any]) -> None:
    """Atomically: a reader sees the whole file or the one before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.tmp")
    partial.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


if __name__ == "__main__":
    main()
