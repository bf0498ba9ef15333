"""Systems are the kinds of machines that baselines belong to: read their files, and tell which one this is."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from pytest_scaleperf.model import Link, Metric, Network, Preflight, SuiteError, System
from pytest_scaleperf.slurm_options import SystemSlurmPart, options
from pytest_scaleperf.yamlfile import Faults, parse
from pytest_scaleperf.yamlfile.schema import (
    FRACTION,
    Count,
    FileModel,
    Fraction,
    Text,
    check_part,
    different,
    expected,
    finish,
)

SYSTEM_FILE = "system.yaml"
CPU = "cpu"
MEASURED = "measured"
_QUERY_SECONDS = 10.0
_MEASURABLE = f"a number more than 0, or the word {MEASURED}"
_METRICS = ", ".join(Metric)


def _measurable(value: object) -> float | None:
    if value == MEASURED:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise expected(_MEASURABLE)
    return float(value)


_Measurable = Annotated[float | None, BeforeValidator(_measurable)]
_MetricName = Annotated[Metric, Field(strict=False)]
_RATE = "a number more than 0"
_Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_LINKS = "a mapping of all_gather, reduce_scatter, all_reduce, each to GB/s by size (such as 64MiB: 215)"
_Operation = Literal["all_gather", "reduce_scatter", "all_reduce"]
_Size = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,5}MiB$")]
_Links = dict[_Operation, dict[_Size, _Rate]]


class SystemTracePart(FileModel):
    """What holds for traces on this system."""

    tolerance: Fraction = Field(description=FRACTION)


class SystemPreflightPart(FileModel):
    """What a pre-flight is judged by on this system: rates of one GPU, and bus bandwidths by collective and size."""

    tolerance: Fraction = Field(description=FRACTION)
    fleet_tolerance: Fraction | None = Field(default=None, description=FRACTION)
    matmul_tflops: _Rate | None = Field(default=None, description=_RATE)
    memory_gb_s: _Rate | None = Field(default=None, description=_RATE)
    inside_node: _Links = Field(default={}, description=_LINKS)
    across_nodes: _Links = Field(default={}, description=_LINKS)
    always: bool = Field(default=False, description="true or false: whether every session begins with a pre-flight")


class LinkPart(FileModel):
    """One level of the network."""

    gb_s: float = Field(gt=0, description="GB/s of one GPU in one direction, more than 0")
    latency_us: float = Field(ge=0, description="microseconds of one step of a ring, 0 or more")


class NetworkPart(FileModel):
    """What connects the GPUs, for projections to larger rungs."""

    intra_node: LinkPart = Field(description="a mapping with gb_s and latency_us")
    inter_node: LinkPart = Field(description="a mapping with gb_s and latency_us")


class SystemFile(FileModel):
    """What a system file may hold."""

    device: Text = Field(description="the device's name, such as NVIDIA B200, or cpu")
    device_match: Text = Field(description="the part of the device's name that tells it from others")
    gpus_per_node: Count = Field(description="a whole number of GPUs (ranks on a CPU), at least 1")
    peak_flops: _Measurable = Field(description=_MEASURABLE)
    memory_gib: _Measurable = Field(description=_MEASURABLE)
    judge: Annotated[list[_MetricName], different] = Field(
        min_length=1, description=f"a list of different metrics out of {_METRICS}"
    )
    tolerance: dict[_MetricName, Fraction] = Field(
        description=f"a mapping with every judged metric ({_METRICS}), each to {FRACTION}"
    )
    trace: SystemTracePart | None = Field(default=None, description="a mapping with tolerance")
    network: NetworkPart | None = Field(default=None, description="a mapping with intra_node and inter_node")
    preflight: SystemPreflightPart | None = Field(
        default=None, description="a mapping with tolerance and what a healthy GPU and its links reach"
    )
    slurm: SystemSlurmPart | None = Field(default=None, description="a mapping with what Slurm is asked for")
    note: Text = Field(default="", description="text")


def available_systems(folder: Path) -> tuple[str, ...]:
    """Names of the systems under ``folder``: its folders that hold a system file, sorted."""
    return tuple(sorted(path.parent.name for path in folder.glob(f"*/{SYSTEM_FILE}")))


def load_system(folder: Path, name: str) -> System:
    """The system ``name`` from ``<folder>/<name>/system.yaml``.

    Raises SuiteError where there is none, with those there are, or with every fault of its file.
    """
    known = available_systems(folder)
    if name not in known:
        raise SuiteError(f"{folder}: expected a folder {name} with a {SYSTEM_FILE}, found {_listed(known)}")
    faults = Faults(parse(folder / name / SYSTEM_FILE, SuiteError))
    file = check_part(faults, SystemFile, ())
    if file is not None:
        _check(faults, file)
    file = finish(faults, file, SuiteError)
    return System(
        name=name,
        device=file.device,
        device_match=file.device_match,
        gpus_per_node=file.gpus_per_node,
        peak_flops=file.peak_flops,
        memory_gib=file.memory_gib,
        judge=tuple(file.judge),
        tolerance=dict(file.tolerance),
        note=file.note,
        trace_tolerance=None if file.trace is None else file.trace.tolerance,
        network=None if file.network is None else _network(file.network),
        preflight=_preflight(file.preflight),
        slurm=None if file.slurm is None else options(file.slurm),
    )


def _network(part: NetworkPart) -> Network:
    inside, between = part.intra_node, part.inter_node
    return Network(Link(inside.gb_s, inside.latency_us), Link(between.gb_s, between.latency_us))


def _check(faults: Faults, file: SystemFile) -> None:
    if file.device_match.casefold() not in file.device.casefold():
        faults.add(("device_match",), f"a part of the device's name, {file.device}")
    for metric in file.judge:
        if metric not in file.tolerance and faults.clean(("tolerance", metric.value)):
            faults.add(("tolerance", metric.value), f"a tolerance for every judged metric: {FRACTION}", "no such key")
    for metric in file.tolerance:
        if metric not in file.judge:
            faults.add(("tolerance", metric.value), f"judged metrics only ({', '.join(file.judge)})", f"`{metric}`")


def choose_system(folder: Path, wanted: str, device: str | None = None) -> System:
    """The system that ``wanted`` names, or for ``auto`` the one whose ``device_match`` is in the device's name.

    ``device`` is what ``detect_device`` says where it is not given; it is asked only for ``auto``.
    Raises SuiteError where there is no such system, or where several or none match.
    """
    if wanted != "auto":
        return load_system(folder, wanted)
    device = detect_device() if device is None else device
    systems = [load_system(folder, name) for name in available_systems(folder)]
    matching = [system for system in systems if system.device_match.casefold() in device.casefold()]
    if len(matching) == 1:
        return matching[0]
    listed = _listed([f"{system.name} (device_match {system.device_match})" for system in matching or systems])
    how_many = "several" if matching else "none"
    raise SuiteError(
        f"{folder}: expected one system for the device {device}, found {how_many}: {listed}; say --system NAME"
    )


def detect_device(devices: Path = Path("/dev")) -> str:
    """The GPU's name as the driver gives it, or ``cpu`` where there is no GPU.

    Raises SuiteError where there are GPUs but nothing can be learnt about them: that is no CPU machine.
    """
    has_gpu = any(devices.glob("nvidia[0-9]*"))
    program = shutil.which("nvidia-smi")
    if program is None:
        if has_gpu:
            raise SuiteError(f"{devices}/nvidia*: expected nvidia-smi on PATH, found none; say --system NAME")
        return CPU
    names, problem = _ask(program)
    if len(names) == 1:
        return names[0]
    if names:
        raise SuiteError(f"{program}: expected GPUs of one kind, found {', '.join(names)}; say --system NAME")
    if has_gpu:
        raise SuiteError(f"{program}: expected the GPU's name, found {problem}; mend the driver, or say --system NAME")
    return CPU


def _ask(program: str) -> tuple[list[str], str]:
    """The different names that nvidia-smi prints, and what was wrong where there is none."""
    argv = [program, "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_QUERY_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return [], f"no answer within {_QUERY_SECONDS:g} s"
    except OSError as error:
        return [], str(error.strerror)
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    if done.returncode != 0 or lines == ["No devices were found"]:
        said = " ".join((done.stderr.strip() or done.stdout.strip()).split())[:200]
        return [], f"exit code {done.returncode}: {said!r}"
    return list(dict.fromkeys(lines)), "no output"


def _listed(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(names) or "none at all"


def _preflight(part: SystemPreflightPart | None) -> Preflight | None:
    if part is None:
        return None
    rates = {"matmul_tflops": part.matmul_tflops, "memory_gb_s": part.memory_gb_s}
    return Preflight(
        tolerance=part.tolerance,
        rates={name: value for name, value in rates.items() if value is not None},
        inside_node=_by_size(part.inside_node),
        across_nodes=_by_size(part.across_nodes),
        fleet_tolerance=part.fleet_tolerance,
        always=part.always,
    )


def _by_size(links: _Links) -> dict[tuple[str, int], float]:
    return {
        (operation, int(size.removesuffix("MiB"))): value
        for operation, sizes in links.items()
        for size, value in sizes.items()
    }
