"""What runs inside the job, as far as it can be told without a GPU: which links, and which Xids."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from pytest_scaleperf.preflight import Health  # noqa: E402 - as below
from pytest_scaleperf.preflight.inside import links, nvml  # noqa: E402 - torch, where it is installed

LOG = """\
6,100,1,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module
4,101,2,-;NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
4,102,3,-;NVRM: Xid (PCI:0000:3d:00): 13, Graphics Exception: ESR 0x404490=0x80000001
4,103,4,-;NVRM: Xid (PCI:0000:1b:00): 48, An uncorrectable double bit error
"""


@pytest.mark.parametrize(
    ("bus", "numbers"), [("00000000:1B:00.0", [79, 48]), ("00000000:3D:00.0", [13]), ("00000000:5E:00.0", [])]
)
def test_the_xids_of_one_gpu(tmp_path: Path, bus: str, numbers: list[int]) -> None:
    path = tmp_path / "kmsg"
    path.write_text(LOG)
    found = nvml.xids(bus, path)
    assert found is not None
    assert [number for number, _ in found] == numbers
    assert all(line.startswith("NVRM: Xid") for _, line in found)


def test_a_kernel_log_that_cannot_be_read_is_unknown_and_not_clean(tmp_path: Path) -> None:
    assert nvml.xids("00000000:1B:00.0", tmp_path / "none") is None


@pytest.mark.parametrize(
    ("world", "local"), [(1, 1), (2, 2), (2, 1), (3, 3), (4, 2), (8, 8), (16, 8), (24, 8), (512, 8)]
)
def test_no_rank_is_in_two_groups_of_a_round_and_every_neighbour_is_tried(world: int, local: int) -> None:
    rounds = list(links.rounds(world, local))
    for groups in rounds:
        ranks = [rank for group in groups for rank in group.ranks]
        assert len(ranks) == len(set(ranks))
        assert all(len(group.ranks) > 1 for group in groups)
    tried = {group.ranks for groups in rounds for group in groups}
    if world == 1:
        assert tried == set()
        return
    assert tuple(range(world)) in tried
    for rank in range(world):
        if (rank + 1) % local:
            assert any({rank, rank + 1} == set(ranks) for ranks in tried), rank
        if rank + local < world:
            assert (rank, rank + local) in tried or world == 2


@pytest.mark.parametrize(("world", "local"), [(16, 8), (4, 2)])
def test_each_node_is_tried_alone(world: int, local: int) -> None:
    tried = {group.ranks for groups in links.rounds(world, local) for group in groups}
    assert {tuple(range(begin, begin + local)) for begin in range(0, world, local)} <= tried


KERNEL = """\
import os, sys, warnings
warnings.simplefilter("ignore")
from pytest_scaleperf.preflight.inside import vector_add
if sys.argv[1] == "compile":
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    aligned = {(place,): [["tt.divisibility", 16]] for place in range(4)}
    names = {"a_pointer": "*fp32", "b_pointer": "*fp32", "out_pointer": "*fp32", "n": "i32", "BLOCK": "constexpr"}
    source = ASTSource(fn=vector_add._add, signature=names, constexprs={"BLOCK": 4096}, attrs=aligned)
    print(triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"])
else:
    import torch
    a, b = torch.rand(10_000), torch.rand(10_000)
    out = torch.zeros(10_000)
    vector_add._add[(3,)](a, b, out, 10_000, BLOCK=4096)
    print(torch.equal(out, a + b))
"""


def kernel(what: str, **environment: str) -> str:
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-c", KERNEL, what],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_the_kernel_compiles_for_hopper_with_wide_loads() -> None:
    """Four floats at a time, or the memory could not be filled: told without a GPU."""
    text = kernel("compile")
    assert "sm_90" in text
    assert "ld.global.v4" in text
    assert "st.global.v4" in text


def test_the_kernel_adds() -> None:
    assert kernel("interpret", TRITON_INTERPRET="1").strip() == "True"


class Driver:
    """What stands in for pynvml where there is no driver: a GPU that is hot, with one broken link and no ECC."""

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        self.shut = 0

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's names
        pass

    def nvmlShutdown(self) -> None:  # noqa: N802 - as above
        self.shut += 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802 - as above
        return uuid

    def __getattr__(self, name: str) -> Callable[..., object]:
        answers: dict[str, Callable[..., object]] = {
            "nvmlDeviceGetUUID": lambda handle: handle,
            "nvmlDeviceGetIndex": lambda _: 5,
            "nvmlDeviceGetClockInfo": lambda _, kind: {1: 1410, 2: 3201}[kind],
            "nvmlDeviceGetMaxClockInfo": lambda _, __: 1980,
            "nvmlDeviceGetTemperature": lambda _, __: 92,
            "nvmlDeviceGetPowerUsage": lambda _: 698_250,
            "nvmlDeviceGetEnforcedPowerLimit": lambda _: 700_000,
            "nvmlDeviceGetCurrentClocksEventReasons": lambda _: 0x1 | 0x20 | 0x8,
            "nvmlDeviceGetNvLinkState": lambda _, link: self._link(link),
            "nvmlDeviceGetRemappedRows": lambda _: (0, 1, False, True),
        }
        return answers.get(name, self._unsupported)

    def _unsupported(self, *_: object) -> object:
        raise self.NVMLError("Not Supported")

    def _link(self, link: int) -> int:
        return int(link != 3)


def test_what_a_driver_tells_and_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    device = nvml.Device(types.SimpleNamespace(uuid="1b-2c"), 0)
    assert (device.uuid(), device.index()) == ("GPU-1b-2c", 5)
    assert device.health() == {
        "sm_clock": 1410, "sm_clock_max": 1980, "memory_clock": 3201, "temperature": 92, "power": 698.25,
        "power_limit": 700.0, "reasons": ["hw_slowdown", "sw_thermal_slowdown"], "ecc_uncorrected": None,
        "remapping_failed": True, "nvlinks": 17, "memory_used_gib": None, "xids": None,
    }  # fmt: skip
    assert set(device.health()) == {field.name for field in dataclasses.fields(Health)}
    device.close()
    assert driver.shut == 1
