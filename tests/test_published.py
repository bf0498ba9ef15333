"""Published values: what their file may hold, and what they are as a baseline."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_scaleperf import published
from pytest_scaleperf.model import BaselineError, Fingerprint, Metric

TEXT = """\
suite: demo
system: lab
source: "somebody, somewhere"
date: 2026-11-30
cases:
  demo-2gpu-fsdp2-dp1-none-lbs2: {gpus: 2, tps: 1000, memory_pct: 90, tolerance: {tps: 5 %}}
scaling:
  demo-2to4gpu-none: {efficiency: 0.9, tolerance: 2 %}
"""
CASE = "demo-2gpu-fsdp2-dp1-none-lbs2"
RUN = Fingerprint("gpu", "1", "2.0", None, "0.3.0", None, "abc", 1e15)


def written(folder: Path, text: str = TEXT) -> Path:
    path = published.path_of(folder, "lab", "demo")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def test_values_become_a_baseline_of_the_runs_own_fingerprint(tmp_path: Path) -> None:
    said = published.read(written(tmp_path))
    assert said is not None
    baseline = said.baseline(CASE, RUN, 200.0)
    assert baseline is not None
    assert baseline.fingerprint == RUN
    assert baseline.samples[0].values == {Metric.TPS: 1000.0, Metric.PEAK_MEMORY: 180.0}
    assert baseline.tolerance == {Metric.TPS: 0.05}
    assert said.scaling["demo-2to4gpu-none"].efficiency == 0.9


def test_without_the_devices_memory_no_memory_is_made_up(tmp_path: Path) -> None:
    said = published.read(written(tmp_path))
    assert said is not None
    baseline = said.baseline(CASE, RUN, None)
    assert baseline is not None
    assert Metric.PEAK_MEMORY not in baseline.samples[0].values
    assert said.baseline("another", RUN, None) is None


def test_no_file_is_nothing_published(tmp_path: Path) -> None:
    assert published.read(published.path_of(tmp_path, "lab", "demo")) is None


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("suite: demo", "suite: other", "suite: expected demo, as the file is named"),
        ("system: lab", "system: other", "system: expected lab, as the folder is named"),
        ("2026-11-30", "soon", "date: expected a date"),
        ("tps: 1000", "tps: 0", "tps: expected a number more than 0"),
        (", tolerance: {tps: 5 %}", "", "tolerance: expected this key"),
        ("efficiency: 0.9", "efficency: 0.9", "did you mean efficiency?"),
    ],
)
def test_a_fault_is_named_with_file_and_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = written(tmp_path, TEXT.replace(old, new))
    with pytest.raises(BaselineError) as caught:
        published.read(path)
    assert said in str(caught.value)
    assert f"{path}:" in str(caught.value)
