"""Texts of suite files, and the ways in which the tests load them."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from pytest_scaleperf.model import (
    Suite,
    SuiteError,
)
from pytest_scaleperf.suite import load_suite

HEAD = """\
name: demo
system: cpu
trainer:
  dialect: "0.3"
  module: llama3
  config: llama3_debugmodel
measure: {steps: 30, warmup: 10, log_freq: 5}
limits: {startup: 300, no_progress: 120, total: 1800}
sequence: 4096
"""
RUNG = """\
ladder:
  - gpus: 4
    dp_shard: 2
    activation_checkpoint: none
    local_batch: 2
"""


def load(folder: Path, text: str) -> Suite:
    path = folder / "demo.yaml"
    path.write_text(text)
    return load_suite(path)


def ladder(folder: Path, text: str) -> Suite:
    return load(folder, HEAD + "ladder:\n" + textwrap.indent(textwrap.dedent(text), "  "))


def faults_of(folder: Path, text: str) -> list[str]:
    with pytest.raises(SuiteError) as caught:
        load(folder, text)
    return [line.removeprefix(f"{folder / 'demo.yaml'}:") for line in str(caught.value).splitlines()]


def ladder_faults(folder: Path, text: str) -> list[str]:
    return faults_of(folder, HEAD + "ladder:\n" + textwrap.indent(textwrap.dedent(text), "  "))


def ids(suite: Suite) -> list[str]:
    return [case.id for case in suite.cases()]
