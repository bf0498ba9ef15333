"""The 30 cases from real reports: every one whose subject is a log or a list of scalars, through `scaleperf observe`.

Each quantity that an expected.yaml names is looked up under that name in the command's JSON. The few whose names or
outcome words are the case's own are translated in one table; nothing else is special to a case.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from pytest_scaleperf.cli import app

CASES = Path(__file__).parents[1] / "data/cases"
# Cases of other rooms: JUnit, node ids, gates, baselines and suite files.
OTHERS = frozenset(
    {
        "junit-control-chars",
        "junit-properties-xdist",
        "junit-param-ids",
        "dep-deselected-by-k",
        "yaml-number-forms",
        "yaml-ac-mode-no",
        "compare-missing-metric",
    }
)
OPTIONS = frozenset({"exit_code", "world_size", "requested_steps", "log_freq"})
# Our words for a case's: preempted is a class of its own, and so is host memory (told by `where`).
WORDS = {"pass": "completed"}
NARROWER = {("cancelled", "preemption"): "preempted", ("oom", "host"): "host_oom"}
# Two logs that are compared with each other: a test of their own.
COMPARED = "mfu-denominator-changed"
# Remarks in the cases, and numbers that they call wrong.
REMARKS = frozenset(
    {"rule", "note", "no_exception", "must_not", "tps_trusted", "last_WRONG", "mean_including_first_WRONG"}
)


def inputs() -> list[tuple[str, str]]:
    found = []
    for folder in sorted(CASES.iterdir()):
        if folder.is_dir() and folder.name not in OTHERS | {COMPARED}:
            found += [(folder.name, path.name) for path in sorted(folder.iterdir()) if path.suffix in (".log", ".json")]
    return found


def load(case: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((CASES / case / "expected.yaml").read_text(encoding="utf-8"))
    return content


def observed(case: str, name: str) -> dict[str, Any]:
    given = load(case)["given"]
    facts = {key: value for key, value in given.items() if not isinstance(value, dict)} | given.get(name, {})
    arguments = ["observe", "--json", str(CASES / case / name)]
    for key, value in facts.items():
        arguments += [f"--{key.replace('_', '-')}", str(value)] if key in OPTIONS else ["--given", f"{key}={value}"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def outcome_is(found: dict[str, Any], expect: dict[str, Any], expected: str) -> None:
    why = str(expect.get("reason", expect.get("where")))
    assert found["outcome"] == NARROWER.get((expected, why), WORDS.get(expected, expected))


def steps_are(found: dict[str, Any], _expect: dict[str, Any], expected: Any) -> None:
    if isinstance(expected, int):
        assert found["steps"] == expected
    else:
        assert within(found["samples"], expected)


def tps_are(found: dict[str, Any], _expect: dict[str, Any], expected: dict[int, Any]) -> None:
    for step, value in expected.items():
        low, high = value if isinstance(value, list) else (value, value)
        assert low <= found["tps"][str(step)] <= high


def usable_are(found: dict[str, Any], _expect: dict[str, Any], expected: Any) -> None:
    if isinstance(expected, list):
        assert found["usable_steps"] == expected
    else:
        assert within(found["usable"], expected)


def step_20(found: dict[str, Any], _expect: dict[str, Any], expected: dict[str, Any]) -> None:
    sample = found["train"]["20"]
    assert sample["loss"] == expected["loss"]
    assert sample["tps"] in expected["tps_any_of"]


def step_30(found: dict[str, Any], _expect: dict[str, Any], expected: dict[str, Any]) -> None:
    whole = expected["either"][0]
    assert within(found["train"]["30"], whole) if "30" in found["train"] else found["malformed_lines"] == 1


def outcome_any_of(found: dict[str, Any], _expect: dict[str, Any], expected: list[str]) -> None:
    assert found["outcome"] in [WORDS.get(word, word) for word in expected]


SPECIAL: dict[str, Callable[[dict[str, Any], dict[str, Any], Any], None]] = {
    "outcome": outcome_is,
    "outcome_any_of": outcome_any_of,
    "steps": steps_are,
    "tps": tps_are,
    "usable": usable_are,
    "step_20": step_20,
    "step_30": step_30,
}


def within(found: Any, expected: Any) -> bool:
    """Whether everything that is expected is found; what is found beside it does not matter."""
    if isinstance(expected, dict):
        known = {str(key): value for key, value in expected.items() if key != "note"}
        return all(key in found and within(found[key], value) for key, value in known.items())
    if isinstance(expected, list):
        return len(found) == len(expected) and all(within(f, e) for f, e in zip(found, expected, strict=True))
    return bool(found == expected)


def test_all_thirty_are_here_and_each_has_an_owner() -> None:
    folders = {folder.name for folder in CASES.iterdir() if folder.is_dir()}
    assert len(folders) == 30
    assert folders >= OTHERS
    assert {case for case, _ in inputs()} == folders - OTHERS - {COMPARED}


@pytest.mark.parametrize(("case", "name"), inputs(), ids=str)
def test_case(case: str, name: str) -> None:
    expect = load(case)["expect"]
    expect = expect.get(name, expect)
    found = observed(case, name)
    for key, expected in expect.items():
        value = expected[name] if isinstance(expected, dict) and name in expected else expected
        if key in SPECIAL:
            SPECIAL[key](found, expect, value)
        elif key not in REMARKS:
            assert key in found, f"the JSON has no {key}"
            assert within(found[key], value), f"{key}: {found[key]!r} is not {value!r}"


def test_the_same_speed_under_two_peaks() -> None:
    expect = load(COMPARED)["expect"]
    before, after = observed(COMPARED, "baseline_0.1.0.log"), observed(COMPARED, "current_0.2.2.log")
    for found, numbers in ((before, expect["baseline"]), (after, expect["current"])):
        assert found["outcome"] == WORDS[expect["outcome"]]
        assert (found["median_tps"], found["tflops"], found["mfu_pct"]) == tuple(numbers.values())
    assert before["median_tps"] == after["median_tps"]
    assert before["peak_flops"] == 4.5e15
    assert after["peak_flops"] == 2.25e15


def test_the_wrong_step_time_of_tensorboard_is_shown_and_never_used() -> None:
    found = observed("tb-step-time-divisor", "resumed_at_96.json")
    assert found["tb_value"]["100"] == 0.08
    assert found["true_step_time_s"]["100"] == 2.0
    assert found["step_time_s"] == 2.0
