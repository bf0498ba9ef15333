"""Cases for the tests of the titan room, made by hand: the suite room is not asked."""

from __future__ import annotations

import os
from pathlib import Path

from pytest_scaleperf.model import ActivationCheckpoint, Batch, Case, Layout, Limits, Measure, Suite, Trainer
from pytest_scaleperf.titan.dialect import Dialect, load_dialect

SUITE_FILE = Path("/srv/suites/cpu.yaml")
RUN_DIR = Path("/srv/runs/7/case-a")
PYTHON = "/opt/job/bin/python"
MODELS = {
    ("0.3", "dense"): ("llama3", "llama3_debugmodel"),
    ("0.3", "moe"): ("deepseek_v3", "deepseek_v3_debugmodel"),
    ("0.2", "dense"): ("llama3", "debugmodel"),
    ("0.2", "moe"): ("deepseek_v3", "debugmodel"),
}


def dialect(name: str) -> Dialect:
    return load_dialect(name, relative_to=Path("/nowhere"))


def traced(generation: str) -> tuple[str, ...]:
    """Arguments that trace the third step of a run of at least four."""
    return dialect(generation).say("profiler", freq=3, active=1, warmup=1)


def trainer(generation: str = "0.3", model: str = "dense", **words: object) -> Trainer:
    module, config = MODELS[generation, model]
    return Trainer(generation, module, config, **words)  # type: ignore[arg-type] # fields by name, checked where used


def case(  # noqa: PLR0913 - one keyword for each thing that a case is made of
    trained: Trainer | None = None,
    *,
    layout: Layout | None = None,
    checkpoint: ActivationCheckpoint = ActivationCheckpoint.NONE,
    local: int = 2,
    accumulation: int = 1,
    sequence: int = 256,
    measure: Measure | None = None,
    limits: Limits | None = None,
    suite_file: Path = SUITE_FILE,
) -> Case:
    layout = layout or Layout(2, 1)
    suite = Suite(
        name="cpu",
        path=suite_file,
        system="cpu",
        trainer=trained or trainer(),
        measure=measure or Measure(steps=10, warmup=2, log_freq=2),
        limits=limits or Limits(startup=180, no_progress=60, total=300),
        tolerance={},
        compare_across=(),
    )
    batch = Batch(local, local * layout.data_parallel * accumulation, accumulation, sequence)
    name = f"cpu-{layout.world_size}gpu-{layout.label}-{checkpoint}-lbs{local}"
    return Case(name, suite, layout.world_size, layout, checkpoint, batch)


def table(generation: str) -> dict[str, Case]:
    """Every kind of case that a dialect has to spell: one at least for each word."""
    tried = {
        "dense": case(trainer(generation)),
        "moe": case(trainer(generation, "moe", force_load_balance=True)),
        "accumulation": case(trainer(generation), accumulation=3, local=4),
        "selective": case(trainer(generation), checkpoint=ActivationCheckpoint.SELECTIVE),
        "full": case(trainer(generation), checkpoint=ActivationCheckpoint.FULL),
        "hsdp": case(trainer(generation), layout=Layout(2, 2)),
        "tp-pp": case(trainer(generation), layout=Layout(2, 1, tp=2, pp=2)),
        "cp": case(trainer(generation), layout=Layout(1, 1, cp=2)),
        "ep": case(
            trainer(generation, "moe", args=() if generation == "0.2" else ("--training.disable_cuda_graphs",)),
            layout=Layout(4, 1, ep=4),
        ),
        "own-arguments": case(
            trainer(generation, args=("--parallelism.fsdp_reshard_after_forward", "never", "--debug.seed", "7")),
            checkpoint=ActivationCheckpoint.FULL,
        ),
    }
    memory_budget = trainer(generation, args=("--compile.enable",))
    return {**tried, "memory-budget": case(memory_budget, checkpoint=ActivationCheckpoint.MEMORY_BUDGET)}


def inherited(**extra: str) -> dict[str, str]:
    """The environment of this process, for jobs that really run."""
    return {**os.environ, **extra}
