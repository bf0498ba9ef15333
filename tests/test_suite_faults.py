from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_scaleperf.model import (
    SuiteError,
)
from pytest_scaleperf.suite import load_suite
from pytest_scaleperf.yamlfile import dump
from tests.suite_texts import HEAD, RUNG, faults_of, ladder_faults

GOLDEN = Path(__file__).parent / "data" / "yaml" / "many-faults"

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
