"""The network of a system file: both levels with both numbers, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_scaleperf.model import Link, Network, SuiteError
from pytest_scaleperf.system import load_system

FILE = """\
device: NVIDIA B200
device_match: B200
gpus_per_node: 8
peak_flops: measured
memory_gib: measured
judge: [tps]
tolerance: {tps: 3 %}
"""


def load(folder: Path, network: str) -> Network | None:
    (folder / "b200").mkdir()
    (folder / "b200" / "system.yaml").write_text(FILE + network)
    return load_system(folder, "b200").network


def test_both_levels_are_read(tmp_path: Path) -> None:
    text = "network:\n  intra_node: {gb_s: 900, latency_us: 3.4}\n  inter_node: {gb_s: 50, latency_us: 0}\n"
    assert load(tmp_path, text) == Network(Link(900.0, 3.4), Link(50.0, 0.0))


def test_a_system_without_one_states_none(tmp_path: Path) -> None:
    assert load(tmp_path, "") is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("network: {intra_node: {gb_s: 900, latency_us: 3.4}}", "network.inter_node"),
        ("network: {intra_node: {gb_s: 0, latency_us: 3}, inter_node: {gb_s: 5, latency_us: 3}}", "more than 0"),
        ("network: {intra_node: {gb_s: 9, latency_us: -1}, inter_node: {gb_s: 5, latency_us: 3}}", "0 or more"),
        ("network: {intra_node: {gb_s: .inf, latency_us: 1}, inter_node: {gb_s: 5, latency_us: 3}}", ""),
    ],
)
def test_a_fault_names_the_key(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(SuiteError) as raised:
        load(tmp_path, text + "\n")
    assert told in str(raised.value)
    assert "system.yaml:8" in str(raised.value)
