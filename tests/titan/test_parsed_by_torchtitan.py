"""torchtitan's own parser reads our arguments as we mean them: every word of both dialects, with the real package."""

from __future__ import annotations

import functools
import json
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pytest_scaleperf.model import Case
from pytest_scaleperf.titan import command
from tests.titan import cases, interpreters

GENERATIONS = ("0.2", "0.3")
# Reads one list of arguments a line, answers with what torchtitan made of each: one start-up for the whole table.
PARSE = """\
import dataclasses, json, sys
from torchtitan.config import ConfigManager

def plain(value):
    if not dataclasses.is_dataclass(value):
        return value if isinstance(value, (int, float, str, type(None))) else None
    fields = {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value) if f.name != "model_spec"}
    return {**fields, "_class": type(value).__qualname__}

def parse(arguments):
    config = ConfigManager().parse_args(arguments)
    spec = getattr(config, "model_spec", None)
    model = [spec.name, spec.flavor] if spec else [config.model.name, config.model.flavor]
    return {**plain(config), "_model": model}

print(json.dumps([parse(arguments) for arguments in json.load(sys.stdin)]))
"""
AC_03 = {
    "none": None,
    "selective": "SelectiveAC.Config",
    "full": "FullAC.Config",
    "memory_budget": "MemoryBudgetAC.Config",
}


def read_by_torchtitan(
    generation: str, lists: Mapping[str, Sequence[str]], seconds: float
) -> dict[str, dict[str, Any]]:
    """What this torchtitan makes of each list of arguments, by its name; within ``seconds``."""
    python = interpreters.of(generation)
    done = subprocess.run(
        [python, "-c", PARSE],
        input=json.dumps(list(lists.values())),
        env=interpreters.environment(python),
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(zip(lists, json.loads(done.stdout.splitlines()[-1]), strict=True))


def tried(generation: str) -> dict[str, tuple[Case, str]]:
    """Each case on a CPU and on a GPU; without compilation a CPU can have no memory budget."""
    table = cases.table(generation)
    return {f"{name}-{device}": (case, device) for name, case in table.items() for device in ("cpu", "NVIDIA H200")}


@functools.cache
def parsed(generation: str) -> dict[str, dict[str, Any]]:
    spoken = cases.dialect(generation)
    lists = {
        name: command.flags(case, spoken, cases.RUN_DIR, device=device)
        for name, (case, device) in tried(generation).items()
    }
    dense = lists["dense-cpu"]
    checkpoint = spoken.say("activation_checkpoint.none")
    for word in sorted(word for word in spoken.words if word.startswith("switches.")):
        lists[word] = (*dense[: -len(checkpoint)], *spoken.say(word), *checkpoint)
    profiler = spoken.say("profiler", freq=10, active=2, warmup=3)
    lists["profiler"] = (*dense[: -len(checkpoint)], *profiler, *checkpoint)
    return read_by_torchtitan(generation, lists, seconds=120)


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("name", list(tried("0.3")))
def test_a_case_is_read_as_it_is_meant(generation: str, name: str) -> None:
    case, device = tried(generation)[name]
    config = parsed(generation)[name]
    layout, batch, measure = case.layout, case.batch, case.suite.measure
    degrees = {
        "data_parallel_shard_degree": layout.dp_shard,
        "data_parallel_replicate_degree": layout.dp_replicate,
        "tensor_parallel_degree": layout.tp,
        "context_parallel_degree": layout.cp,
        "pipeline_parallel_degree": layout.pp,
        "expert_parallel_degree": layout.ep,
    }
    assert {key: config["parallelism"][key] for key in degrees} == degrees
    training = {
        "local_batch_size": batch.local,
        "global_batch_size": batch.global_,
        "seq_len": batch.sequence,
        "steps": measure.steps,
    }
    assert {key: config["training"][key] for key in training} == training
    metrics = {"log_freq": measure.log_freq, "enable_tensorboard": True, "save_for_all_ranks": True}
    assert {key: config["metrics"][key] for key in metrics} == metrics
    folder = config["dump_folder"] if generation == "0.3" else config["job"]["dump_folder"]
    assert folder == str(cases.RUN_DIR)
    assert (config["comm"]["init_timeout_seconds"], config["comm"]["train_timeout_seconds"]) == (180, 30)
    assert config["debug"]["moe_force_load_balance"] is case.suite.trainer.force_load_balance
    assert config["debug"]["seed"] == (7 if name.startswith("own-arguments") else 0)
    assert config["compile"]["enable"] is name.startswith("memory-budget")
    if generation == "0.3":
        assert (config["parallelism"]["spmd_backend"] == "partial_dtensor") is (device == "cpu")


@pytest.mark.parametrize("name", list(tried("0.3")))
def test_activation_checkpointing_is_read_as_it_is_meant(name: str) -> None:
    case, _ = tried("0.3")[name]
    found = parsed("0.3")[name]["activation_checkpoint"]
    assert (found and found["_class"]) == AC_03[case.activation_checkpoint]


@pytest.mark.parametrize("name", list(tried("0.2")))
def test_activation_checkpointing_is_read_as_it_is_meant_in_02(name: str) -> None:
    case, _ = tried("0.2")[name]
    settings = parsed("0.2")[name]["activation_checkpoint"]
    assert settings["mode"] == case.activation_checkpoint
    assert settings["selective_ac_option"] == "op" or case.activation_checkpoint != "selective"


@pytest.mark.parametrize("generation", GENERATIONS)
def test_switches_and_profiler_are_read_as_they_are_meant(generation: str) -> None:
    found = parsed(generation)
    assert found["switches.fake_backend"]["comm"]["mode"] == "fake_backend"
    assert found["switches.force_load_balance"]["debug"]["moe_force_load_balance"] is True
    assert found["switches.compile"]["compile"]["enable"] is True
    assert found["switches.no_compile"]["compile"]["enable"] is False
    profiler = found["profiler"]["profiler" if generation == "0.3" else "profiling"]
    wanted = {"enable_profiling": True, "profile_freq": 10, "profiler_active": 2, "profiler_warmup": 3}
    assert {key: profiler[key] for key in wanted} == wanted


@pytest.mark.parametrize("generation", GENERATIONS)
def test_the_model_is_the_one_that_is_named(generation: str) -> None:
    found = parsed(generation)
    assert found["dense-cpu"]["_model"] == ["llama3", "debugmodel"]
    assert found["moe-cpu"]["_model"] == ["deepseek_v3", "debugmodel"]


def test_03_captures_no_graphs_on_a_cpu_nor_of_a_pipeline() -> None:
    found = parsed("0.3")
    assert found["dense-cpu"]["training"]["disable_cuda_graphs"] is True
    assert found["dense-NVIDIA H200"]["training"]["disable_cuda_graphs"] is False
    assert found["tp-pp-NVIDIA H200"]["training"]["disable_cuda_graphs"] is True
    assert found["switches.no_cuda_graphs"]["training"]["disable_cuda_graphs"] is True


@pytest.mark.parametrize("generation", GENERATIONS)
def test_no_word_of_a_dialect_is_left_untried(generation: str) -> None:
    """A word that nobody says is a word that may be misspelt: each is in the cases, or said alone above."""
    spoken = cases.dialect(generation)
    said = {
        argument
        for case, device in tried(generation).values()
        for argument in command.flags(case, spoken, cases.RUN_DIR, device=device)
    }
    unsaid = {
        word
        for word, arguments in spoken.words.items()
        if not {argument for argument in arguments if argument.startswith("--")} <= said
    }
    assert unsaid == {"switches.fake_backend", "profiler"}
