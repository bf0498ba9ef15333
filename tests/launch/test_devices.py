"""How many rehearsals run side by side: cores of a CPU, GPUs that are visible, and none is an error that says so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_scaleperf.launch.devices import slots
from pytest_scaleperf.model import LaunchError

GPU = "NVIDIA H200"


def smi(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """An nvidia-smi on PATH that runs this shell text."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_a_cpu_has_its_cores() -> None:
    assert slots("cpu", {"CUDA_VISIBLE_DEVICES": "0,1"}) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(("told", "number"), [("0", 1), ("3,5", 2), ("GPU-30b5,GPU-40c6,", 2)])
def test_what_is_visible_counts(told: str, number: int) -> None:
    assert slots(GPU, {"CUDA_VISIBLE_DEVICES": told}) == number


def test_all_of_the_machine_where_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(tmp_path, monkeypatch, "echo 'GPU 0: NVIDIA H200 (UUID: a)'; echo 'GPU 1: NVIDIA H200 (UUID: b)'")
    assert slots(GPU, {}) == 2


@pytest.mark.parametrize("text", ["echo 'No devices were found'", "echo 'GPU 0: broken'; exit 9"])
def test_no_gpu_is_an_error_with_the_next_command(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(tmp_path, monkeypatch, text)
    with pytest.raises(LaunchError, match=r"needs one NVIDIA H200 .* srun --gpus 1 pytest suites/ --rehearse"):
        slots(GPU, {})


@pytest.mark.parametrize("told", ["", "-1"])
def test_hidden_gpus_are_none(told: str) -> None:
    with pytest.raises(LaunchError, match="CUDA_VISIBLE_DEVICES is"):
        slots(GPU, {"CUDA_VISIBLE_DEVICES": told})
