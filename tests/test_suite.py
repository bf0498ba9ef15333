from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_scaleperf.baseline import read_baselines
from pytest_scaleperf.baseline.schema import BaselineFile, CasePart
from pytest_scaleperf.model import (
    AXES,
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
from pytest_scaleperf.suite.schema import LimitsPart, MeasurePart, RequiresPart, RungPart, SuiteFile, TrainerPart
from pytest_scaleperf.system import SystemFile, load_system
from pytest_scaleperf.yamlfile.schema import FileModel
from tests.suite_texts import HEAD, RUNG, ids, ladder, load

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
    assert (suite.measure.repeats, suite.measure.max_samples) == (1, 4)
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
