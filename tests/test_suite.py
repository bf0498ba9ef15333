from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_scaleperf.baseline import read_baselines
from pytest_scaleperf.baseline.schema import BaselineFile, CasePart
from pytest_scaleperf.model import (
    AXES,
    ActivationCheckpoint,
    Case,
    Layout,
    Limits,
    Measure,
    Metric,
    Outcome,
    Requirement,
    Suite,
    SuiteError,
)
from pytest_scaleperf.suite import Ladder, digest, load_suite, load_suites
from pytest_scaleperf.suite.layouts import MAX_BATCH_FACTOR, is_far, make_batch, make_layouts
from pytest_scaleperf.suite.schema import LimitsPart, MeasurePart, RequiresPart, RungPart, SuiteFile, TrainerPart
from pytest_scaleperf.system import SystemFile, load_system
from pytest_scaleperf.yamlfile import dump
from pytest_scaleperf.yamlfile.schema import FileModel

GOLDEN = Path(__file__).parent / "data" / "yaml" / "many-faults"

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


# What a suite file says


def test_everything_a_suite_may_say(tmp_path: Path) -> None:
    (tmp_path / "fork.yaml").write_text("a: 1\n")
    suite = load(
        tmp_path,
        """\
name: moe-30b
system: b200
trainer:
  dialect: fork.yaml
  module: our_fork.models
  config: 30B-A3B
  entry: our_fork.train
  python: ../.venv/bin/python
  executable: ./trainer.sh
  args: ["--training.seed", "7", ""]
  env: {NCCL_DEBUG: WARN, NCCL_IB_TIMEOUT: 22, A: 1e3, B: 28_400, C: "no"}
  force_load_balance: true
measure: {steps: 40, warmup: 10, log_freq: 10, repeats: 2, max_samples: 5}
limits: {startup: 300, no_progress: 120.5, total: 1800}
tolerance: {tps: 3 %, mfu: 0.03, peak_memory: 2.5%}
compare_across: [torchtitan_commit, nccl]
sequence: 4096
ladder:
  - gpus: 16
    dp_shard: [8, 16]
    activation_checkpoint: [none, selective]
    local_batch: [2, 6]
    global_batch: 1152
    exclude: [{dp_shard: 8, activation_checkpoint: none}]
    include: [{dp_shard: 16, activation_checkpoint: full, local_batch: 38, expect: oom}]
  - gpus: 128
    requires: {gpus: 16, same: [activation_checkpoint, local_batch]}
    dp_shard: 128
    activation_checkpoint: selective
    local_batch: 6
""",
    )
    assert dataclasses.asdict(suite.trainer) == {
        "dialect": "fork.yaml",
        "module": "our_fork.models",
        "config": "30B-A3B",
        "entry": "our_fork.train",
        "python": str(tmp_path.parent / ".venv/bin/python"),
        "executable": str(tmp_path / "trainer.sh"),
        "args": ("--training.seed", "7", ""),
        "env": (("NCCL_DEBUG", "WARN"), ("NCCL_IB_TIMEOUT", "22"), ("A", "1e3"), ("B", "28_400"), ("C", "no")),
        "force_load_balance": True,
    }
    assert (suite.name, suite.system, suite.path) == ("moe-30b", "b200", tmp_path / "demo.yaml")
    assert suite.measure == Measure(steps=40, warmup=10, log_freq=10, repeats=2, max_samples=5)
    assert suite.limits == Limits(300, 120.5, 1800)
    assert suite.tolerance == {Metric.TPS: 0.03, Metric.MFU: 0.03, Metric.PEAK_MEMORY: 0.025}
    assert suite.compare_across == ("torchtitan_commit", "nccl")
    assert ids(suite) == [
        "moe-30b-16gpu-fsdp8-dp2-selective-lbs2-gbs1152",
        "moe-30b-16gpu-fsdp8-dp2-selective-lbs6-gbs1152",
        "moe-30b-16gpu-fsdp16-dp1-none-lbs2-gbs1152",
        "moe-30b-16gpu-fsdp16-dp1-none-lbs6-gbs1152",
        "moe-30b-16gpu-fsdp16-dp1-selective-lbs2-gbs1152",
        "moe-30b-16gpu-fsdp16-dp1-selective-lbs6-gbs1152",
        "moe-30b-16gpu-fsdp16-dp1-full-lbs38-gbs1216",
        "moe-30b-128gpu-fsdp128-dp1-selective-lbs6",
    ]
    assert [case.expect for case in suite.cases()] == [Outcome.COMPLETED] * 6 + [Outcome.OOM, Outcome.COMPLETED]
    assert all(case.suite is suite for case in suite.cases())
    assert suite.rungs[1].requires == Requirement(16, ("activation_checkpoint", "local_batch"))


def test_what_may_be_left_out(tmp_path: Path) -> None:
    suite = load(tmp_path, HEAD + RUNG)
    assert (suite.trainer.entry, suite.trainer.python, suite.trainer.executable) == ("synthetic", None, None)
    assert (suite.trainer.args, suite.trainer.env, suite.trainer.force_load_balance) == ((), (), False)
    assert (suite.measure.repeats, suite.measure.max_samples) == (1, 3)
    assert (suite.tolerance, suite.compare_across) == ({}, ())
    [case] = suite.cases()
    assert case.layout == Layout(dp_shard=2, dp_replicate=2)
    assert (case.batch.local, case.batch.global_, case.batch.accumulation, case.batch.target) == (2, 8, 1, None)
    assert suite.rungs[0].requires is None


def test_programs_without_a_slash_are_left_to_the_search_path(tmp_path: Path) -> None:
    suite = load(tmp_path, HEAD.replace("trainer:\n", "trainer:\n  python: python3.12\n  executable: train\n") + RUNG)
    assert (suite.trainer.python, suite.trainer.executable) == ("python3.12", "train")


def test_entries_of_one_gpu_count_are_one_rung_and_rungs_rise(tmp_path: Path) -> None:
    suite = ladder(
        tmp_path,
        """
        - {gpus: 4, dp_shard: 4, activation_checkpoint: none, local_batch: 2, requires: {gpus: 2, same: []}}
        - {gpus: 2, dp_replicate: 2, activation_checkpoint: none, local_batch: 2}
        - {gpus: 4, dp_shard: 4, activation_checkpoint: full, local_batch: 2, requires: {gpus: 2, same: []}}
        """,
    )
    assert [(rung.gpus, len(rung.cases)) for rung in suite.rungs] == [(2, 1), (4, 2)]
    assert suite.rungs[0].cases[0].layout == Layout(dp_shard=1, dp_replicate=2)


def test_all_six_degrees_and_the_ids_they_give(tmp_path: Path) -> None:
    suite = ladder(
        tmp_path,
        """
        - {gpus: 64, dp_shard: 8, tp: 2, cp: 2, pp: 2, ep: [1, 16],
           activation_checkpoint: memory_budget, local_batch: 1}
        """,
    )
    assert ids(suite) == [
        "demo-64gpu-fsdp8-dp1-tp2-cp2-pp2-memory-budget-lbs1",
        "demo-64gpu-fsdp8-dp1-tp2-cp2-pp2-ep16-memory-budget-lbs1",
    ]


def test_the_sequence_is_in_the_id_only_where_it_tells_cases_apart(tmp_path: Path) -> None:
    suite = ladder(
        tmp_path,
        """
        - {gpus: 1, dp_shard: 1, activation_checkpoint: none, local_batch: [1, 2], sequence: [4096, 8192],
           exclude: [{local_batch: 2, sequence: 8192}]}
        """,
    )
    assert ids(suite) == [
        "demo-1gpu-fsdp1-dp1-none-lbs1-seq4096",
        "demo-1gpu-fsdp1-dp1-none-lbs2",
        "demo-1gpu-fsdp1-dp1-none-lbs1-seq8192",
    ]
    assert [case.batch.sequence for case in suite.cases()] == [4096, 4096, 8192]


def test_several_global_batches_differ_in_their_ids(tmp_path: Path) -> None:
    suite = ladder(
        tmp_path, "- {gpus: 2, dp_shard: 2, activation_checkpoint: none, local_batch: 2, global_batch: [4, 8, 16]}"
    )
    assert [name.partition("none-")[2] for name in ids(suite)] == ["lbs2", "lbs2-gbs8", "lbs2-gbs16"]


def test_an_included_case_takes_what_the_rung_has_only_one_of(tmp_path: Path) -> None:
    suite = ladder(
        tmp_path,
        """
        - gpus: 4
          dp_shard: 4
          activation_checkpoint: [none, full]
          local_batch: 2
          global_batch: 32
          expect: oom
          include:
            - {activation_checkpoint: selective}
            - {activation_checkpoint: none, dp_replicate: 4, expect: completed}
        """,
    )
    assert ids(suite)[2:] == ["demo-4gpu-fsdp4-dp1-selective-lbs2-gbs32", "demo-4gpu-fsdp1-dp4-none-lbs2-gbs32"]
    assert [case.expect for case in suite.cases()[2:]] == [Outcome.OOM, Outcome.COMPLETED]


def test_a_rung_may_be_nothing_but_included_cases(tmp_path: Path) -> None:
    suite = ladder(
        tmp_path, "- {gpus: 4, include: [{dp_shard: 4, activation_checkpoint: none, local_batch: 2, global_batch: 64}]}"
    )
    assert ids(suite) == ["demo-4gpu-fsdp4-dp1-none-lbs2-gbs64"]


def test_suites_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text(HEAD.replace("demo", "b") + RUNG)
    (tmp_path / "a.yml").write_text(HEAD.replace("demo", "a") + RUNG)
    (tmp_path / "test_x.py").write_text("")
    (tmp_path / "dialects").mkdir()
    (tmp_path / "dialects" / "fork.yaml").write_text("no suite")
    assert [suite.name for suite in load_suites(tmp_path)] == ["a", "b"]
    (tmp_path / "a.yml").write_text(HEAD.replace("demo", "a b") + RUNG)
    (tmp_path / "c.yaml").write_text("")
    with pytest.raises(SuiteError) as caught:
        load_suites(tmp_path)
    assert [Path(line.split(":")[0]).name for line in str(caught.value).splitlines()] == ["a.yml", "c.yaml"]
    assert load_suites(tmp_path / "none") == ()


# Faults


def test_the_text_of_a_suite_with_many_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(GOLDEN)
    with pytest.raises(SuiteError) as caught:
        load_suite(Path("suite.yaml"))
    assert str(caught.value) + "\n" == Path("expected.txt").read_text()


BAD_HEADS = [
    ("name: demo", "name: Demo", "1: name: expected a name of a-z, 0-9 and -, such as cpu-dense, found `Demo`"),
    ("name: demo", "name: ../demo", "1: name: expected a name"),
    (
        "name: demo",
        "name: demo\nnam: x",
        "2: nam: expected one of the keys compare_across, ladder, limits, measure, name,",
    ),
    ("name: demo\n", "", "1: name: expected this key: a name of a-z, 0-9 and -, such as cpu-dense, found no such key"),
    ("system: cpu", "system: ~", "2: system: expected a system's name"),
    ("system: cpu", "system: cpu\nsystem: b200", "3: system: expected each key once, found `system` again"),
    ('  dialect: "0.3"', "  dialect: 0.3", 'found `0.3`, which is no text; write "0.3" in quotes'),
    ('  dialect: "0.3"', "  dialect: ours/fork.yaml", "4: trainer.dialect: expected the path of a dialect file"),
    ('  dialect: "0.3"', '  dialect: ""', '4: trainer.dialect: expected a dialect in quotes, such as "0.3"'),
    ("  module: llama3", "  module: a b", "5: trainer.module: expected torchtitan's name of the model"),
    ("  module: llama3", "  module: llama3\n  args: --x", "6: trainer.args: expected a list of arguments"),
    ("  module: llama3", "  module: llama3\n  args: [--x, 7]", "6: trainer.args[1]: expected a list of arguments"),
    ("  module: llama3", '  module: llama3\n  args: ["\\0"]', "6: trainer.args[0]: expected a list of arguments"),
    ("  module: llama3", "  module: llama3\n  env: {A: true}", "6: trainer.env.A: expected text or a number"),
    ("  module: llama3", "  module: llama3\n  env: {A: [1]}", "6: trainer.env.A: expected text or a number"),
    ("  module: llama3", "  module: llama3\n  env: {A-B: x}", "6: trainer.env.A-B: expected a mapping from names of"),
    (
        "  module: llama3",
        "  module: llama3\n  entry: train.py --x",
        "6: trainer.entry: expected synthetic, or a module",
    ),
    ("  module: llama3", "  module: llama3\n  python:", "6: trainer.python: expected a Python interpreter"),
    ("  module: llama3", "  module: llama3\n  force_load_balance: 1", "force_load_balance: expected true or false"),
    ("  module: llama3", "  module: llama3\n  force_load_balance: on", "which YAML 1.1 reads as true"),
    ("steps: 30", "steps: -1", "7: measure.steps: expected a whole number of steps, at least 1, found `-1`"),
    ("steps: 30", "steps: 1e2", "found `1e2`; write 100"),
    ("steps: 30", "steps: 32", "7: measure.steps: expected a multiple of log_freq 5, so that the last step is logged"),
    ("warmup: 10", "warmup: 30", "7: measure.warmup: expected fewer than the 30 steps, found `30`"),
    ("warmup: 10", "warmup: 0", "7: measure.warmup: expected a whole number of steps, at least 1"),
    (
        "warmup: 10",
        "warmup: 16",
        "7: measure.steps: expected at least 3 logged intervals after warm-up, found 2 (steps 30, warmup 16, log",
    ),
    ("log_freq: 5", "log_freq: 5, repeats: 0", "7: measure.repeats: expected a whole number of runs"),
    ("log_freq: 5", "log_freq: 5, repeats: 4, max_samples: 2", "7: measure.max_samples: expected at least repeats, 4"),
    ("log_freq: 5", "", "7: measure.log_freq: expected this key: a whole number of steps"),
    ("startup: 300", "startup: 0", "8: limits.startup: expected a number of seconds, more than 0, found `0`"),
    ("startup: 300", "startup: 5:00", "8: limits.startup: expected a decimal number"),
    ("startup: 300", "startup: 2000", "8: limits.startup: expected at most total, 1800 s: it could never be reached"),
    ("no_progress: 120", "no_progress: 2000", "8: limits.no_progress: expected at most total"),
    ("no_progress: 120, ", "", "8: limits.no_progress: expected this key: a number of seconds"),
    ("no_progress: 120", "no_progress: .inf", "8: limits.no_progress: expected a finite number"),
    (
        "sequence: 4096",
        "sequence: 4,096",
        "9: sequence: expected a whole number of tokens, at least 1, found `4,096`; write",
    ),
    ("sequence: 4096", "sequence: 1\ntolerance: {tps: -3 %}", "10: tolerance.tps: expected a percentage such as 3 %"),
    ("sequence: 4096", "sequence: 1\ntolerance: {tps: 0}", "10: tolerance.tps: expected a percentage"),
    ("sequence: 4096", "sequence: 1\ntolerance: {tps: 1}", "10: tolerance.tps: expected a percentage"),
    ("sequence: 4096", "sequence: 1\ntolerance: {tsp: 1 %}", "10: tolerance.tsp: expected one of the keys tps, mfu"),
    ("sequence: 4096", "sequence: 1\ncompare_across: [cuda]", "10: compare_across[0]: expected one of device, driver"),
    ("sequence: 4096", "sequence: 1\ncompare_across: torch", "10: compare_across: expected a list of different names"),
    ("sequence: 4096", "sequence: 1\ncompare_across: [torch, torch]", "expected different values, not torch twice"),
]


@pytest.mark.parametrize(("old", "new", "fault"), BAD_HEADS)
def test_a_fault_in_the_head(tmp_path: Path, old: str, new: str, fault: str) -> None:
    assert HEAD.count(old) == 1
    [line] = faults_of(tmp_path, HEAD.replace(old, new) + RUNG)
    assert fault in line


NONE = "activation_checkpoint: none"
FSDP2, FSDP4 = f"gpus: 2, dp_shard: 2, {NONE}", f"gpus: 4, dp_shard: 4, {NONE}"
FREE = "requires: {gpus: 2, same: []}"
LIKE = "requires: {gpus: 2, same: [activation_checkpoint]}"

BAD_LADDERS = [
    ("[]", "ladder: expected a list of rungs, at least one, found an empty list"),
    ("[3]", "ladder[0]: expected a list of rungs"),
    (f"[{{gpus: 0, dp_shard: 1, {NONE}, local_batch: 1}}]", "ladder[0].gpus: expected a whole number"),
    (f"[{{gpus: 4, {NONE}, local_batch: 1}}]", "ladder[0].dp_shard: expected this key or dp_replicate"),
    ("[{gpus: 4, dp_shard: 4, local_batch: 1}]", "ladder[0].activation_checkpoint: expected this key: one of none,"),
    (f"[{{{FSDP4}}}]", "ladder[0].local_batch: expected this key: a whole number"),
    (f"[{{gpus: 4, dp_shard: -1, {NONE}, local_batch: 1}}]", "ladder[0].dp_shard: expected a whole number"),
    ("[{gpus: 4, dp_shard: 4, activation_checkpoint: None, local_batch: 1}]", "found `None`; did you mean none?"),
    ("[{gpus: 4, dp_shard: 4, activation_checkpoint: ~, local_batch: 1}]", "found `~`"),
    (
        "[{gpus: 4, dp_shard: 4, activation_checkpoint: no, local_batch: 1}]",
        "found `no`, which YAML 1.1 reads as false",
    ),
    ("[{gpus: 4, dp_shard: 4, activation_checkpoint: [full, full], local_batch: 1}]", "values, not full twice"),
    (f"[{{{FSDP4}, local_batch: [2, 0]}}]", "ladder[0].local_batch[1]: expected a whole number"),
    (f"[{{{FSDP4}, local_batch: []}}]", "found an empty list"),
    (f"[{{{FSDP4}, local_batch: {{around: peak}}}}]", "found a mapping of 1 keys"),
    (f"[{{{FSDP4}, local_batch: 1, expect: ooom}}]", "did you mean oom?"),
    (f"[{{{FSDP4}, local_batch: 1, expect: node_failure}}]", "never expected"),
    # Layouts
    (f"[{{gpus: 4, dp_shard: [3, 4], {NONE}, local_batch: 1}}]", "ladder[0].dp_shard[0]: expected a degree that a"),
    (f"[{{gpus: 4, dp_shard: 3, {NONE}, local_batch: 1}}]", "ladder[0].dp_shard: expected a degree that a layout of 4"),
    (f"[{{{FSDP4}, tp: 2, local_batch: 1}}]", "cp x pp = 4 for some of the values, found dp_shard [4], tp [2]"),
    (f"[{{gpus: 4, dp_replicate: 8, {NONE}, local_batch: 1}}]", "ladder[0].dp_replicate: expected a degree"),
    (f"[{{{FSDP4}, ep: 3, local_batch: 1}}]", "ladder[0].ep: expected a degree that a layout of 4 GPUs can have (ep"),
    (
        f"[{{gpus: 8, dp_shard: [2, 8], ep: 8, {NONE}, local_batch: 1}}]",
        "dp_shard[0]: expected a degree that a layout of 8 GPUs can have (ep divides dp_shard x cp x tp), found 2",
    ),
    # Batches
    (
        f"[{{{FSDP4}, local_batch: [4, 10], global_batch: 16}}]",
        "ladder[0].local_batch[1]: expected a batch within a factor of 2 of global_batch 16, found local_batch 10 on",
    ),
    (f"[{{{FSDP4}, local_batch: 10, global_batch: 16}}]", "4 data-parallel ranks: the closest global batch is 40"),
    # What is left out and what is added
    (f"[{{{FSDP4}, local_batch: 1, exclude: [{{tp: 2}}]}}]", "ladder[0].exclude[0]: expected a combination that is in"),
    (
        f"[{{{FSDP4}, local_batch: 1, exclude: [{{}}]}}]",
        "ladder[0].exclude[0]: expected at least one axis with a value",
    ),
    (
        f"[{{{FSDP4}, local_batch: 1, exclude: [{{local_batch: 1}}]}}]",
        "ladder[0]: expected at least one case, found an",
    ),
    (f"[{{{FSDP4}, local_batch: 1, exclude: [{{gpus: 4}}]}}]", "ladder[0].exclude[0].gpus: expected one of the keys"),
    (
        f"[{{{FSDP4}, local_batch: 1, include: [{{local_batch: 1}}]}}]",
        "ladder[0].include[0]: expected each configuration once, found demo-4gpu-fsdp4-dp1-none-lbs1 again",
    ),
    (
        "[{gpus: 4, dp_shard: 4, activation_checkpoint: [none, full], local_batch: 1, include: [{local_batch: 2}]}]",
        "ladder[0].include[0].activation_checkpoint: expected one value, found none here and [none, full] in the rung",
    ),
    (
        f"[{{gpus: 4, include: [{{dp_shard: 4, {NONE}, local_batch: [1, 2]}}]}}]",
        "ladder[0].include[0].local_batch: expected one value, found [1, 2]",
    ),
    (f"[{{gpus: 4, include: [{{dp_shard: 4, {NONE}}}]}}]", "ladder[0].include[0].local_batch: expected this key"),
    (
        f"[{{gpus: 4, include: [{{{NONE}, local_batch: 1}}]}}]",
        "ladder[0].include[0].dp_shard: expected this key or dp_",
    ),
    (f"[{{gpus: 4, include: [{{dp_shard: 3, {NONE}, local_batch: 1}}]}}]", "ladder[0].include[0].dp_shard: expected a"),
    (
        f"[{{gpus: 4, include: [{{dp_shard: 4, {NONE}, local_batch: 9, global_batch: 4}}]}}]",
        "ladder[0].include[0].local_batch: expected a batch within a factor of 2 of global_batch 4",
    ),
    # Gates
    (
        f"[{{{FSDP4}, local_batch: 1, {FREE}}}]",
        "ladder[0].requires.gpus: expected the GPU count of a smaller rung (there is none), found `2`",
    ),
    (f"[{{{FSDP2}, local_batch: 1, {FREE}}}]", "ladder[0].requires.gpus: expected the GPU count of a smaller rung"),
    (
        f"[{{{FSDP4}, local_batch: 1, requires: {{gpus: 2, same: [ac]}}}}]",
        "ladder[0].requires.same[0]: expected one of",
    ),
    (
        f"[{{{FSDP2}, local_batch: 1}}, {{{FSDP4.replace('none', '[none, full]')}, local_batch: [1, 2], {LIKE}}}]",
        "found none: demo-4gpu-fsdp4-dp1-full-lbs1 and 1 more could never run",
    ),
    (
        f"[{{{FSDP2}, local_batch: 1, expect: oom}}, {{{FSDP4}, local_batch: 1, {FREE}}}]",
        "ladder[1].requires: expected a case of 2 GPUs that can pass before it, found none",
    ),
    (
        f"[{{{FSDP2}, local_batch: 1}}, {{{FSDP4}, local_batch: 1, {FREE}}}, {{{FSDP4}, local_batch: 2}}]",
        "ladder[2].requires: expected the same as in the entry of 4 GPUs in line 10, found nothing",
    ),
    # The same twice
    (
        f"[{{{FSDP4}, local_batch: 1}}, {{{FSDP4}, local_batch: 1}}]",
        "ladder[1]: expected each configuration once, found demo-4gpu-fsdp4-dp1-none-lbs1 again; it is in line 10",
    ),
    (
        f"[{{{FSDP4}, local_batch: 1, global_batch: [15, 16]}}]",
        "expected each configuration once, found demo-4gpu-fsdp4-dp1-none-lbs1-gbs16 for global_batch 15 and for 16",
    ),
]


@pytest.mark.parametrize(("rungs", "fault"), BAD_LADDERS)
def test_a_fault_in_the_ladder(tmp_path: Path, rungs: str, fault: str) -> None:
    [line] = faults_of(tmp_path, f"{HEAD}ladder: {rungs}\n")
    assert line.startswith("10: ")
    assert fault in line


def test_one_rung_shows_all_kinds_of_faults_at_once(tmp_path: Path) -> None:
    lines = ladder_faults(
        tmp_path,
        """
        - gpus: 16
          dp_shard: [3, 16]
          activation_checkpoint: [no, full]
          local_batch: [2, 40]
          global_batch: 32
          local_batsh: 2
          gpus: 8
        """,
    )
    assert [line.split(": ")[1] for line in lines] == [
        "ladder[0].dp_shard[0]",
        "ladder[0].activation_checkpoint[0]",
        "ladder[0].local_batch[1]",
        "ladder[0].local_batsh",
        "ladder[0].gpus",
    ]


COMMENTS = st.lists(st.sampled_from(["", "# comment", "   # more"]), max_size=3)
BREAKABLE = {
    "name: demo": "name: no",
    "system: cpu": "system: 3",
    "  module: llama3": "  module: []",
    "  config: llama3_debugmodel": "  confik: llama3_debugmodel\n  config: x",
    "sequence: 4096": "sequence: 0",
    "  - gpus: 4": "  - gpus: 1:30",
    "    dp_shard: 2": "    dp_shard: 3",
    "    activation_checkpoint: none": "    activation_checkpoint: off",
    "    local_batch: 2": "    local_batch: 0",
}


@settings(deadline=None)
@given(st.data(), st.sets(st.sampled_from(sorted(BREAKABLE)), min_size=1))
def test_every_fault_names_its_line(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, broken: set[str]
) -> None:
    lines: list[str] = []
    expected = []
    for line in (HEAD + RUNG).splitlines():
        if not line.startswith("measure"):
            lines += data.draw(COMMENTS)
        if line in broken:
            expected.append(len(lines) + 1)
        lines += BREAKABLE[line].splitlines() if line in broken else [line]
    if "    dp_shard: 2" in broken and "  - gpus: 4" in broken:
        expected.remove(lines.index("    dp_shard: 3") + 1)  # of an unknown GPU count, nothing can be said of layouts
    found = faults_of(tmp_path_factory.getbasetemp(), "\n".join(lines))
    assert [int(line.split(":")[0]) for line in found] == expected


FULL = (
    HEAD
    + """\
tolerance: {tps: 3 %}
compare_across: [torch]
ladder:
  - gpus: 2
    dp_shard: [1, 2]
    activation_checkpoint: [none, full]
    local_batch: [1, 2]
    global_batch: 8
    exclude: [{dp_shard: 1, local_batch: 1}]
  - gpus: 4
    requires: {gpus: 2, same: [activation_checkpoint]}
    include: [{dp_shard: 4, activation_checkpoint: none, local_batch: 2, expect: oom}]
"""
)
ODD = st.sampled_from(
    ["", " ", "\n", ":", "-", "[", "]", "{", "}", "no", "~", "&a", "*a", "!!int", "1e3", "-1", "\t", "'", "0"]
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 9)
    | st.floats(-1, 9)
    | st.sampled_from(["", "none", "no", "3 %", "tp"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["gpus", "same", "tp", "x"]), inner),
    max_leaves=4,
)


def is_suite_or_faults(folder: Path, text: str) -> None:
    path = folder / "demo.yaml"
    path.write_text(text)
    faults = ""
    try:
        assert load_suite(path).cases()
    except SuiteError as error:
        faults = str(error)
    assert all(line.startswith(f"{path}:") for line in faults.splitlines())


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_whatever_is_typed_is_a_suite_or_a_fault(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    text = FULL
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 12)))
        text = text[:start] + data.draw(ODD) + text[end:]
    is_suite_or_faults(tmp_path_factory.getbasetemp(), text)


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_whatever_stands_for_a_value_is_a_suite_or_a_fault(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole: dict[str, Any] = yaml.safe_load(FULL)
    for _ in range(data.draw(st.integers(1, 2))):
        at: Any = whole
        while True:
            keys = list(at) if isinstance(at, dict) else list(range(len(at)))
            if not keys:
                break
            key = data.draw(st.sampled_from(keys))
            if not isinstance(at[key], dict | list) or data.draw(st.booleans()):
                at[key] = data.draw(VALUES)
                break
            at = at[key]
    is_suite_or_faults(tmp_path_factory.getbasetemp(), dump(whole))


# Layouts and batches


DEGREES = st.lists(st.sampled_from([1, 2, 3, 4, 6, 8, 16]), min_size=1, max_size=4, unique=True)


@settings(deadline=None)
@given(
    gpus=st.sampled_from([1, 2, 4, 6, 8, 16, 24, 48, 64]),
    degrees=st.fixed_dictionaries(
        {"dp_shard": DEGREES}, optional=dict.fromkeys(("dp_replicate", "tp", "cp", "pp", "ep"), DEGREES)
    ),
)
def test_every_layout_multiplies_to_its_gpu_count(gpus: int, degrees: dict[str, list[int]]) -> None:
    layouts = make_layouts(gpus, degrees)
    assert len(set(layouts)) == len(layouts)
    for layout in layouts:
        assert layout.dp_shard * layout.dp_replicate * layout.tp * layout.cp * layout.pp == gpus
        assert layout.dp_shard * layout.cp * layout.tp % layout.ep == 0
        assert all(getattr(layout, axis) in values for axis, values in degrees.items())


def test_no_layout_is_missed() -> None:
    every = [1, 2, 3, 4, 6, 12]
    found = make_layouts(12, dict.fromkeys(("dp_shard", "dp_replicate", "tp", "cp", "pp"), every))
    # 12 = 2^2 x 3: the twos go to five places in C(6, 4) = 15 ways, the three in 5.
    assert len(found) == 15 * 5


@given(
    local=st.integers(1, 64),
    ranks=st.integers(1, 1024),
    target=st.none() | st.integers(1, 100_000),
    sequence=st.integers(1, 1 << 20),
)
def test_a_batch_adds_up_and_is_the_closest(local: int, ranks: int, target: int | None, sequence: int) -> None:
    batch = make_batch(local, ranks, target, sequence)
    assert batch.global_ == batch.local * ranks * batch.accumulation
    assert (batch.local, batch.sequence, batch.target) == (local, sequence, target)
    assert batch.accumulation >= 1
    if target is None:
        assert batch.accumulation == 1
        return
    unit = local * ranks
    others = [unit * accumulation for accumulation in range(1, target // unit + 3)]
    distance = abs(batch.global_ - target)
    assert distance == min(abs(other - target) for other in others)
    assert batch.global_ == max(other for other in others if abs(other - target) == distance)
    assert is_far(batch) == (unit > MAX_BATCH_FACTOR * target)


@st.composite
def suites(draw: st.DrawFn) -> dict[str, Any]:
    gpus = draw(st.sampled_from([2, 4, 8, 16]))
    divisors = [n for n in (1, 2, 4, 8, 16) if gpus % n == 0]
    modes = [m.value for m in ActivationCheckpoint]
    entry: dict[str, Any] = {
        "gpus": gpus,
        "dp_shard": draw(st.lists(st.sampled_from(divisors), min_size=1, unique=True)),
        "activation_checkpoint": draw(st.lists(st.sampled_from(modes), min_size=1, unique=True)),
        "local_batch": draw(st.lists(st.integers(1, 40), min_size=1, max_size=5, unique=True)),
    }
    if draw(st.booleans()):
        entry["global_batch"] = draw(st.integers(1000, 5000))
    if draw(st.booleans()):
        entry["sequence"] = draw(st.lists(st.sampled_from([1024, 4096, 8192]), min_size=1, unique=True))
    return {
        "name": "drawn",
        "system": "cpu",
        "trainer": {"dialect": "0.3", "module": "llama3", "config": "llama3_debugmodel"},
        "measure": {"steps": 30, "warmup": 10, "log_freq": 5},
        "limits": {"startup": 300, "no_progress": 120, "total": 1800},
        "sequence": 4096,
        "ladder": [entry],
    }


@settings(deadline=None)
@given(suites())
def test_cases_of_any_suite_are_whole_and_distinct(
    tmp_path_factory: pytest.TempPathFactory, data: dict[str, Any]
) -> None:
    suite = load(tmp_path_factory.getbasetemp(), dump(data))
    [entry] = data["ladder"]
    cases = suite.cases()
    sequences = entry.get("sequence", [4096])
    axes = (entry["dp_shard"], entry["activation_checkpoint"], entry["local_batch"], sequences)
    combinations = 1
    for values in axes:
        combinations *= len(values)
    assert len(cases) == combinations
    for case in cases:
        assert case.layout.world_size == case.gpus == entry["gpus"]
        assert case.batch.global_ == case.batch.local * case.layout.data_parallel * case.batch.accumulation
        assert re.fullmatch(r"[a-z0-9.-]+", case.id)
        assert case.axis("local_batch") in entry["local_batch"]
    assert len({case.id for case in cases}) == len({digest(case) for case in cases}) == len(cases)


# Identity


def one(folder: Path, head: str = HEAD, rung: str = RUNG) -> str:
    return digest(load(folder, head + rung).cases()[0])


CHANGES = {
    "dialect": ('dialect: "0.3"', 'dialect: "0.2"'),
    "module": ("module: llama3", "module: qwen3"),
    "config": ("config: llama3_debugmodel", "config: other"),
    "entry": ("  module: llama3", "  module: llama3\n  entry: our.train"),
    "executable": ("  module: llama3", "  module: llama3\n  executable: ./t.sh"),
    "args": ("  module: llama3", "  module: llama3\n  args: [--x]"),
    "env": ("  module: llama3", "  module: llama3\n  env: {A: b}"),
    "load balance": ("  module: llama3", "  module: llama3\n  force_load_balance: true"),
    "steps": ("steps: 30", "steps: 40"),
    "warmup": ("warmup: 10", "warmup: 5"),
    "log_freq": ("log_freq: 5", "log_freq: 2"),
    "sequence": ("sequence: 4096", "sequence: 2048"),
    "layout": ("dp_shard: 2", "dp_shard: 4"),
    "mode": ("activation_checkpoint: none", "activation_checkpoint: full"),
    "local batch": ("local_batch: 2", "local_batch: 3"),
    "accumulation": ("local_batch: 2", "local_batch: 2\n    global_batch: 16"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_digest_changes_with_what_runs(tmp_path: Path, change: str) -> None:
    old, new = CHANGES[change]
    before = one(tmp_path)
    assert re.fullmatch(r"[0-9a-f]{12}", before)
    assert one(tmp_path, HEAD.replace(old, new), RUNG.replace(old, new)) != before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("name: demo", "name: other"),
        ("system: cpu", "system: other"),
        ("total: 1800", "total: 3600"),
        ("log_freq: 5", "log_freq: 5, repeats: 2, max_samples: 9"),
        ("  module: llama3", "  module: llama3\n  python: ../venv/bin/python"),
        ("sequence: 4096", "sequence: 4096\ntolerance: {tps: 9 %}"),
        ("sequence: 4096", "sequence: 4096\ncompare_across: [torch]"),
        ("local_batch: 2", "local_batch: 2\n    global_batch: 7"),
        ("local_batch: 2", "local_batch: 2\n    expect: oom"),
    ],
)
def test_the_digest_does_not_change_with_anything_else(tmp_path: Path, old: str, new: str) -> None:
    assert one(tmp_path, HEAD.replace(old, new), RUNG.replace(old, new)) == one(tmp_path)


def test_the_digest_is_the_same_in_another_folder_and_for_ever(tmp_path: Path) -> None:
    head = HEAD.replace("  module", "  executable: ./bin/train.sh\n  module")
    (tmp_path / "elsewhere").mkdir()
    assert one(tmp_path, head) == one(tmp_path / "elsewhere", head)
    # A change of this value makes every stored baseline one of another fingerprint.
    assert one(tmp_path) == "eae760a08385"


# Gates


def brute_force(suite: Suite, case: Case) -> list[Case]:
    rung = suite.rung(case.gpus)
    assert rung is not None
    if rung.requires is None:
        return []
    below = suite.rung(rung.requires.gpus)
    assert below is not None
    same = rung.requires.same
    return [
        parent
        for parent in below.cases
        if all(parent.axis(name) == case.axis(name) for name in same) and parent.expect in ("completed", case.expect)
    ]


@pytest.mark.parametrize("same", [[], ["activation_checkpoint"], ["local_batch", "tp"], list(AXES[-4:-1])])
def test_parents_are_the_cases_with_the_same_values(tmp_path: Path, same: list[str]) -> None:
    suite = ladder(
        tmp_path,
        f"""
        - gpus: 4
          dp_shard: [2, 4]
          tp: [1, 2]
          activation_checkpoint: [none, full]
          local_batch: [2, 4]
          global_batch: 64
        - gpus: 4
          dp_shard: 4
          activation_checkpoint: [none, full]
          local_batch: 9
          global_batch: 64
          expect: oom
        - gpus: 8
          requires: {{gpus: 4, same: [{", ".join(same)}]}}
          dp_shard: [4, 8]
          tp: [1, 2]
          activation_checkpoint: [full, none]
          local_batch: [4, 2]
          global_batch: 64
        """,
    )
    gates = Ladder(suite)
    for case in suite.cases():
        assert list(gates.parents(case)) == brute_force(suite, case)
    assert all(gates.parents(case) for case in suite.cases() if case.gpus == 8)


def test_an_expected_failure_may_follow_the_same_failure(tmp_path: Path) -> None:
    suite = ladder(
        tmp_path,
        """
        - {gpus: 2, dp_shard: 2, activation_checkpoint: none, local_batch: [2, 3]}
        - {gpus: 2, dp_shard: 2, activation_checkpoint: none, local_batch: 9, expect: oom}
        - gpus: 4
          requires: {gpus: 2, same: [activation_checkpoint]}
          dp_shard: 4
          activation_checkpoint: none
          local_batch: 2
          include: [{local_batch: 9, expect: oom}]
        """,
    )
    small, edge = suite.cases()[3:]
    gates = Ladder(suite)
    assert [parent.batch.local for parent in gates.parents(small)] == [2, 3]
    assert [parent.batch.local for parent in gates.parents(edge)] == [2, 3, 9]


# Speed


def big_suite(folder: Path) -> Path:
    path = folder / "big.yaml"
    many = ", ".join(map(str, range(1, 251)))
    path.write_text(
        HEAD
        + f"""\
ladder:
  - gpus: 16
    dp_shard: [1, 2, 4, 8, 16]
    activation_checkpoint: [none, selective, full, memory_budget]
    local_batch: [{many}]
    global_batch: 100000
  - gpus: 128
    requires: {{gpus: 16, same: [activation_checkpoint]}}
    dp_shard: [8, 16, 32, 64, 128]
    activation_checkpoint: [none, selective, full, memory_budget]
    local_batch: [{many}]
    global_batch: 100000
"""
    )
    return path


def test_10_000_cases_take_a_fraction_of_a_second(tmp_path: Path) -> None:
    path = big_suite(tmp_path)
    best = 9.0
    for _ in range(3):
        start = time.process_time()
        suite = load_suite(path)
        gates = Ladder(suite)
        found = sum(len(gates.parents(case)) for case in suite.cases())
        best = min(best, time.process_time() - start)
    assert len(suite.cases()) == 10_000
    assert found == 5000 * 1250
    assert best < 0.3  # 0.07 s here; the figure that is promised is 0.15 s on a machine of its own


def test_loading_a_suite_imports_nothing_heavy(tmp_path: Path) -> None:
    heavy = {"torch", "torchtitan", "triton", "numpy", "tensorboard", "pytest"}
    code = (
        "import sys, pathlib; from pytest_scaleperf.suite import load_suite; "
        "load_suite(pathlib.Path(sys.argv[1])); "
        f"sys.exit(sorted({heavy} & set(sys.modules)) or 0)"
    )
    argv = [sys.executable, "-c", code, str(big_suite(tmp_path))]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# The reference

REFERENCE = Path(__file__).parent.parent / "docs" / "suite-files.md"


def test_the_examples_of_the_reference_are_what_it_says(tmp_path: Path) -> None:
    suite, system, baselines = re.findall(r"```yaml\n(.*?)```", REFERENCE.read_text(), re.DOTALL)
    loaded = load(tmp_path, suite)
    assert [(rung.gpus, len(rung.cases)) for rung in loaded.rungs] == [(16, 26), (128, 4), (512, 1)]
    (tmp_path / "b200").mkdir()
    (tmp_path / "b200" / "system.yaml").write_text(system)
    assert loaded.system == load_system(tmp_path, "b200").name
    stored = tmp_path / "b200" / f"{loaded.name}.yaml"
    stored.write_text(baselines)
    assert set(read_baselines(stored)) < {case.id for case in loaded.cases()}


def test_the_reference_names_every_key() -> None:
    text = REFERENCE.read_text()
    models: list[type[FileModel]] = [SuiteFile, TrainerPart, MeasurePart, LimitsPart, RequiresPart, RungPart]
    models += [SystemFile, BaselineFile, CasePart]
    keys = {key for model in models for key in model.model_fields}
    assert {key for key in keys if f"`{key}`" not in text} == set()
