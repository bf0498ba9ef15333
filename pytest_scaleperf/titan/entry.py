"""`python -m pytest_scaleperf.titan.entry FLAGS`: torchtitan's own training with synthetic tokens, on GPUs or a CPU.

Runs inside a job, one process per rank (torchrun), or alone in place of one rank of any world size
(``--comm.mode fake_backend`` with NGPU, WORLD_SIZE, RANK and LOCAL_RANK in the environment). FLAGS are
torchtitan's. Nothing of it is needed by a team that runs an entry module of its own.

Environment: ``SCALEPERF_RUN_DIR`` (where the rank files go), ``SCALEPERF_MOST_MEMORY`` (see `inside/memory.py`),
``SCALEPERF_LAYERS`` (a model cut to its first layers, see `inside/cut.py`), ``SCALEPERF_SLOWDOWN``,
``SCALEPERF_BALLAST_GIB`` and ``SCALEPERF_FAULT`` (see `inside/trials.py`).
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import Any

import torch

from pytest_scaleperf.titan.inside import cpu, cut, memory, phases, rank_file, trials
from pytest_scaleperf.titan.inside.say import refuse, say

_INSTALL = "pip install 'pytest-scaleperf[titan]'"


def main() -> None:
    """Prepare this rank, then hand over to torchtitan's main."""
    slowdown, fault = trials.read_slowdown(os.environ), trials.read_fault(os.environ)
    ballast, layers = trials.read_ballast(os.environ), cut.read_layers(os.environ)
    share, on_cpu = memory.read_share(os.environ), cpu.is_needed()
    if on_cpu:
        cpu.prepare()
        say("no accelerator here: torchtitan trains on the CPU")
    try:
        generation = _generation()
    except ModuleNotFoundError as exc:
        refuse(f"torchtitan needs the module {exc.name}, which is not installed in {sys.executable}: {_INSTALL}")
    memory.limit(share)
    generation.install(cpu=on_cpu, layers=layers)
    trainer = generation.TRAINER
    trials.install_fault(trainer, fault)
    trials.install_slowdown(trainer, slowdown)
    trials.install_ballast(trainer, ballast)
    phases.install(trainer, generation.is_profiling)
    device_name = cpu.name if on_cpu else _accelerator_name
    rank_file.install(trainer, cpu=on_cpu, device_name=device_name, is_profiling=generation.is_profiling)
    generation.run()


def _generation() -> Any:  # noqa: ANN401 - a module
    """The module that knows the torchtitan that is installed, told by its layout: a fork may call itself anything."""
    if find_spec("torchtitan") is None:
        refuse(f"torchtitan is not installed in {sys.executable}: {_INSTALL}")
    if find_spec("torchtitan.trainer") is not None:
        from pytest_scaleperf.titan.inside import generation_03  # noqa: PLC0415 - imports torchtitan, after the patches

        return generation_03
    if find_spec("torchtitan.protocols.train_spec") is not None:
        from pytest_scaleperf.titan.inside import generation_02  # noqa: PLC0415 - imports torchtitan, after the patches

        return generation_02
    return refuse(
        "expected the layout of torchtitan 0.2 (protocols/train_spec.py) or 0.3 (trainer.py), found neither: "
        "set trainer.entry to a module of your own"
    )


def _accelerator_name() -> str:
    """Name of the device that this rank has taken. Asked once training begins: before, it would be rank 0's."""
    if torch.cuda.is_available():
        return str(torch.cuda.get_device_name())
    return str(torch.accelerator.current_accelerator())


if __name__ == "__main__":
    main()
