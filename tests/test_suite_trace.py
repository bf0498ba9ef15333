"""``trace`` of a suite file and of a system file: what may be said, and the faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_scaleperf.model import SuiteError, Tracing
from pytest_scaleperf.system import load_system
from tests.suite_texts import HEAD, RUNG, faults_of, load

SYSTEM = """\
device: NVIDIA B200
device_match: B200
gpus_per_node: 8
peak_flops: 2.25e15
memory_gib: 178.4
judge: [tps]
tolerance: {tps: 3 %}
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", Tracing()),
        ("trace: true\n", Tracing(always=True)),
        ("trace: false\n", Tracing()),
        ("trace: {steps: 5, tolerance: 1.5 %}\n", Tracing(steps=5, tolerance=0.015)),
        (
            "trace: {always: true, rules: {forward: ['\\(F\\)$'], communication: [^a, ^b]}}\n",
            Tracing(always=True, rules=(("communication", ("^a", "^b")), ("forward", (r"\(F\)$",)))),
        ),
    ],
)
def test_what_a_suite_may_say(tmp_path: Path, text: str, said: Tracing) -> None:
    assert load(tmp_path, HEAD + text + RUNG).trace == said


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("trace: often", "trace: expected true, false, or a mapping with always, steps, tolerance and rules"),
        ("trace:", "trace: expected true, false, or a mapping"),
        ("trace: {steps: 2}", "trace.steps: expected a whole number of steps, at least 3, found `2`"),
        ("trace: {tolerance: 0}", "trace.tolerance: expected a percentage such as 3 %"),
        ("trace: {rules: {kernels: [a]}}", "trace.rules.kernels: expected one of the keys communication, compute, "),
        ("trace: {rules: {compute: ['(']}}", "trace.rules.compute[0]: expected a regular expression (missing )"),
        ("trace: {rules: {compute: a}}", "trace.rules.compute: expected a mapping from communication, compute, "),
    ],
)
def test_the_faults_of_trace(tmp_path: Path, text: str, fault: str) -> None:
    [found] = faults_of(tmp_path, HEAD + text + "\n" + RUNG)
    assert found.startswith("10: ")
    assert fault in found


def test_a_system_may_say_a_tolerance(tmp_path: Path) -> None:
    (tmp_path / "b200").mkdir()
    file = tmp_path / "b200/system.yaml"
    file.write_text(SYSTEM)
    assert load_system(tmp_path, "b200").trace_tolerance is None
    file.write_text(SYSTEM + "trace: {tolerance: 2.5 %}\n")
    assert load_system(tmp_path, "b200").trace_tolerance == 0.025
    file.write_text(SYSTEM + "trace: {steps: 3}\n")
    with pytest.raises(SuiteError, match=r"8: trace\.tolerance: expected this key"):
        load_system(tmp_path, "b200")
