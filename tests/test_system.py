from __future__ import annotations

import stat
from pathlib import Path

import pytest

from pytest_scaleperf import system as room
from pytest_scaleperf.model import Metric, SuiteError
from pytest_scaleperf.system import available_systems, choose_system, detect_device, load_system

SHIPPED = Path(__file__).parent.parent / "baselines"
B200 = """\
device: NVIDIA B200
device_match: B200
gpus_per_node: 8
peak_flops: 2.25e15
memory_gib: 178.4
judge: [tps, mfu, peak_memory]
tolerance: {tps: 3 %, mfu: 0.03, peak_memory: 2.5 %}
note: eight to a node
"""


def write(folder: Path, name: str, text: str) -> Path:
    (folder / name).mkdir()
    path = folder / name / "system.yaml"
    path.write_text(text)
    return path


def test_a_system_file(tmp_path: Path) -> None:
    write(tmp_path, "b200", B200)
    system = load_system(tmp_path, "b200")
    assert (system.name, system.device, system.device_match, system.note) == (
        "b200",
        "NVIDIA B200",
        "B200",
        "eight to a node",
    )
    assert (system.gpus_per_node, system.peak_flops, system.memory_gib) == (8, 2.25e15, 178.4)
    assert system.judge == (Metric.TPS, Metric.MFU, Metric.PEAK_MEMORY)
    assert system.tolerance == {Metric.TPS: 0.03, Metric.MFU: 0.03, Metric.PEAK_MEMORY: 0.025}


def test_the_shipped_cpu_system_judges_no_absolute_speed() -> None:
    system = load_system(SHIPPED, "cpu")
    assert Metric.TPS not in system.judge
    assert set(system.judge) == {Metric.MFU, Metric.PEAK_MEMORY}
    assert (system.peak_flops, system.memory_gib) == (None, None)
    assert system.tolerance[Metric.MFU] < 2 / 3, "a run that is three times slower has to fall out of the band"
    assert system.tolerance[Metric.PEAK_MEMORY] < system.tolerance[Metric.MFU]
    assert choose_system(SHIPPED, "auto", "cpu") == system


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("device: NVIDIA B200\n", "", "1: device: expected this key: the device's name"),
        ("device_match: B200", "device_match: ''", "2: device_match: expected the part of the device's name"),
        (
            "device_match: B200",
            "device_match: H100",
            "2: device_match: expected a part of the device's name, NVIDIA B200",
        ),
        ("gpus_per_node: 8", "gpus_per_node: 0", "3: gpus_per_node: expected a whole number of GPUs"),
        (
            "peak_flops: 2.25e15",
            "peak_flops: fast",
            "4: peak_flops: expected a number more than 0, or the word measured",
        ),
        ("peak_flops: 2.25e15", "peak_flops: 0", "4: peak_flops: expected a number more than 0"),
        ("peak_flops: 2.25e15", "peak_flops: ~", "4: peak_flops: expected a number more than 0"),
        ("peak_flops: 2.25e15", "peak_flops: true", "4: peak_flops: expected a number more than 0"),
        ("peak_flops: 2.25e15\n", "", "1: peak_flops: expected this key"),
        ("memory_gib: 178.4", "memory_gib: -1", "5: memory_gib: expected a number more than 0"),
        ("memory_gib: 178.4", "memory_gib: .inf", "5: memory_gib: expected a finite number"),
        ("[tps, mfu, peak_memory]", "[]", "6: judge: expected a list of different metrics"),
        (
            "[tps, mfu, peak_memory]",
            "[tps, mfu, peak_memory, wps]",
            "6: judge[3]: expected a list of different metrics",
        ),
        (
            "[tps, mfu, peak_memory]",
            "[tps, mfu, peak_memory, tps]",
            "6: judge: expected different values, not tps twice",
        ),
        ("[tps, mfu, peak_memory]", "[tps, mfu]", "7: tolerance.peak_memory: expected judged metrics only (tps, mfu)"),
        ("tps: 3 %, ", "", "7: tolerance.tps: expected a tolerance for every judged metric: a percentage such as 3 %"),
        ("tps: 3 %", "tps: .nan", "7: tolerance.tps: expected a finite number"),
        ("tps: 3 %", "tps: -3 %", "7: tolerance.tps: expected a percentage such as 3 %"),
        ("note: eight", "notes: eight", "8: notes: expected one of the keys device, device_match, gpus_per_node"),
    ],
)
def test_a_fault_in_a_system_file(tmp_path: Path, old: str, new: str, fault: str) -> None:
    path = write(tmp_path, "b200", B200.replace(old, new))
    with pytest.raises(SuiteError) as caught:
        load_system(tmp_path, "b200")
    [line] = str(caught.value).splitlines()
    assert line.startswith(f"{path}:")
    assert fault in line


def test_a_system_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    write(tmp_path, "b200", B200)
    write(tmp_path, "h200", B200)
    (tmp_path / "empty").mkdir()
    assert available_systems(tmp_path) == ("b200", "h200")
    for name in ("empty", "../b200", "b300"):
        with pytest.raises(SuiteError, match=f"expected a folder {name} with a system.yaml, found b200, h200"):
            load_system(tmp_path, name)
    assert available_systems(tmp_path / "none") == ()
    with pytest.raises(SuiteError, match="found none at all"):
        load_system(tmp_path / "none", "b200")


def test_auto_takes_the_one_system_that_matches(tmp_path: Path) -> None:
    write(tmp_path, "b200", B200)
    write(tmp_path, "gb200", B200.replace("B200", "GB200"))
    write(tmp_path, "cpu", B200.replace("NVIDIA B200", "cpu").replace("B200", "cpu"))
    assert choose_system(tmp_path, "auto", "nvidia b200 sxm").name == "b200"
    assert choose_system(tmp_path, "auto", "cpu").name == "cpu"
    assert choose_system(tmp_path, "gb200", "cpu").name == "gb200"
    with pytest.raises(SuiteError, match=r"found several: b200 \(device_match B200\), gb200 .*; say --system NAME"):
        choose_system(tmp_path, "auto", "NVIDIA GB200")
    with pytest.raises(SuiteError, match=r"for the device NVIDIA H100, found none: b200 \(device_match B200\), cpu"):
        choose_system(tmp_path, "auto", "NVIDIA H100")
    with pytest.raises(SuiteError, match="found none: none at all"):
        choose_system(tmp_path / "none", "auto", "cpu")


class Machine:
    """A PATH with or without an nvidia-smi that does as it is told, and a folder in the place of /dev."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bin, self.devices = path / "bin", path / "dev"
        self.bin.mkdir()
        self.devices.mkdir()
        monkeypatch.setenv("PATH", f"{self.bin}:/usr/bin:/bin")

    def gpu(self) -> None:
        (self.devices / "nvidia0").touch()
        (self.devices / "nvidiactl").touch()

    def smi(self, body: str) -> None:
        program = self.bin / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_the_gpu_is_what_the_driver_says(machine: Machine) -> None:
    machine.gpu()
    machine.smi('[ "$*" = "--query-gpu=name --format=csv,noheader" ] || exit 2\necho NVIDIA B200; echo NVIDIA B200')
    assert detect_device(machine.devices) == "NVIDIA B200"


def test_without_a_gpu_the_device_is_cpu(machine: Machine) -> None:
    assert detect_device(machine.devices) == "cpu"
    machine.smi("echo 'No devices were found'")  # a login node: the tools, but no GPU
    assert detect_device(machine.devices) == "cpu"
    machine.smi("exit 9")
    assert detect_device(machine.devices) == "cpu"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (
            "echo 'Failed to initialize NVML: Driver/library version mismatch' >&2; exit 18",
            "exit code 18: 'Failed to init",
        ),
        ("echo 'No devices were found'", "exit code 0: 'No devices were found'"),
        ("exit 0", "no output"),
        ("exec sleep 30", "no answer within 0.2 s"),
    ],
)
def test_a_broken_driver_is_no_cpu(machine: Machine, monkeypatch: pytest.MonkeyPatch, body: str, found: str) -> None:
    monkeypatch.setattr(room, "_QUERY_SECONDS", 0.2)
    machine.gpu()
    machine.smi(body)
    with pytest.raises(SuiteError) as caught:
        detect_device(machine.devices)
    assert f"expected the GPU's name, found {found}" in str(caught.value)
    assert "--system NAME" in str(caught.value)


def test_a_gpu_without_its_tools_is_no_cpu(machine: Machine) -> None:
    machine.gpu()
    with pytest.raises(SuiteError, match="expected nvidia-smi on PATH, found none"):
        detect_device(machine.devices)


def test_a_program_that_cannot_be_started_is_said(machine: Machine) -> None:
    machine.gpu()
    machine.smi("")
    (machine.bin / "nvidia-smi").write_text("#!/nowhere/sh\n")
    with pytest.raises(SuiteError, match="found No such file"):
        detect_device(machine.devices)


def test_gpus_of_two_kinds_are_refused(machine: Machine) -> None:
    machine.gpu()
    machine.smi("echo NVIDIA A100; echo NVIDIA H100")
    with pytest.raises(SuiteError, match="expected GPUs of one kind, found NVIDIA A100, NVIDIA H100"):
        detect_device(machine.devices)


PREFLIGHT = """\
preflight:
  tolerance: 15 %
  memory_gb_s: 6800
  inside_node:
    all_gather: {64MiB: 430, 1024MiB: 610.5}
"""


def test_what_a_preflight_expects(tmp_path: Path) -> None:
    write(tmp_path, "b200", B200 + PREFLIGHT)
    found = load_system(tmp_path, "b200").preflight
    assert found is not None
    assert (found.tolerance, found.fleet_tolerance, found.rates) == (0.15, None, {"memory_gb_s": 6800.0})
    assert found.link(False, "all_gather", 1024) == 610.5
    assert found.link(True, "all_gather", 64) is None
    write(tmp_path, "plain", B200)
    assert load_system(tmp_path, "plain").preflight is None


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("64MiB", "64", "all_gather"),
        ("64MiB", "64GiB", "all_gather"),
        ("430", "fast", "all_gather.64MiB: expected"),
        ("430", "-1", "all_gather.64MiB: expected"),
        ("all_gather", "broadcast", "broadcast"),
        ("15 %", "150 %", "preflight.tolerance: expected a percentage"),
        ("memory_gb_s", "memory", "preflight.memory"),
        ("  tolerance: 15 %\n", "", "preflight.tolerance: expected this key"),
    ],
)
def test_faults_of_what_a_preflight_expects(old: str, new: str, fault: str, tmp_path: Path) -> None:
    path = write(tmp_path, "b200", B200 + PREFLIGHT.replace(old, new))
    with pytest.raises(SuiteError) as caught:
        load_system(tmp_path, "b200")
    assert f"{path}:" in str(caught.value)
    assert fault in str(caught.value)


def test_the_shipped_h200_expects_what_was_measured() -> None:
    found = load_system(SHIPPED, "h200").preflight
    assert found is not None
    assert found.rates == {"matmul_tflops": 735.0, "memory_gb_s": 4295.0}
    assert {mib for _, mib in found.inside_node} == {64, 256, 1024}
