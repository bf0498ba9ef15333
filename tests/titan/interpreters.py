"""The interpreters that real torchtitan runs in: this one for 0.3, the one of an environment variable for 0.2."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

import pytest

from pytest_scaleperf.model import LaunchError
from pytest_scaleperf.titan.software import Software, check, probe
from tests.titan import cases

ROOT = Path(__file__).parents[2]
TITAN02 = "SCALEPERF_TITAN02_PYTHON"


@functools.cache
def software(python: str) -> Software:
    return probe(python, environment(python))


def environment(python: str, **extra: str) -> dict[str, str]:
    """What a job of this interpreter inherits; another one than ours finds this package by path."""
    env = cases.inherited(**extra)
    return env if python == sys.executable else {**env, "PYTHONPATH": str(ROOT)}


def of(generation: str) -> str:
    """The interpreter that has this torchtitan; skips where there is none."""
    python = sys.executable if generation == "0.3" else os.environ.get(TITAN02)
    if not python:
        pytest.skip(f"{TITAN02} names no interpreter that has torchtitan 0.2.2")
    try:
        check(software(python), cases.trainer(generation), cases.dialect(generation))
    except LaunchError as exc:
        pytest.skip(str(exc))
    return python
