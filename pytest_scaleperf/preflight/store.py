"""Reading what the probes wrote, rank by rank, and keeping the whole report as one file."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pytest_scaleperf.model import LaunchError
from pytest_scaleperf.preflight.words import Finding, GpuProbe, Health, LinkProbe, ProbeReport, Severity

SCHEMA = 1
FILE = "preflight.json"
PARTS = "probes"
"""Folder of the ranks' own files inside the job's folder: ``rank<r>.json``."""


def read(folder: Path, *, expected: int, device: str, problems: Iterable[str] = ()) -> ProbeReport:
    """What the probes of ``expected`` ranks wrote into ``folder``; ``problems`` are the launch's own.

    A rank without a file is missing from ``gpus``, which the judgement says. Raises LaunchError where a file is there
    and cannot be understood.
    """
    gpus: list[GpuProbe] = []
    links: list[LinkProbe] = []
    for path in sorted((folder / PARTS).glob("rank*.json")):
        part = _parsed(path)
        try:
            gpus.append(_gpu(part["gpu"]))
            links += [_link(link) for link in part["links"]]
        except (KeyError, TypeError, ValueError) as error:
            raise _not_understood(path, f"{type(error).__name__}: {error}") from None
    gpus.sort(key=lambda gpu: gpu.rank)
    links.sort(key=lambda link: (-len(link.ranks), link.ranks, link.operation, link.mib))
    return ProbeReport(time.time(), expected, device, tuple(gpus), tuple(links), problems=tuple(problems))


def save(path: Path, report: ProbeReport) -> Path:
    """Write the report into ``path``, atomically: a reader sees the whole file or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.tmp")
    partial.write_text(json.dumps({"schema": SCHEMA, **asdict(report)}, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)
    return path


def load(path: Path) -> ProbeReport:
    """The report that ``save`` wrote.

    Raises LaunchError where the file cannot be read or is no such report.
    """
    data = _parsed(path)
    if data.get("schema") != SCHEMA:
        raise _not_understood(path, f"schema {data.get('schema')!r}, this version reads {SCHEMA}")
    try:
        return ProbeReport(
            when=float(data["when"]),
            expected=int(data["expected"]),
            device=str(data["device"]),
            gpus=tuple(_gpu(gpu) for gpu in data["gpus"]),
            links=tuple(_link(link) for link in data["links"]),
            findings=tuple(_finding(finding) for finding in data["findings"]),
            problems=tuple(map(str, data["problems"])),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _not_understood(path, f"{type(error).__name__}: {error}") from None


def _parsed(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _not_understood(path, str(error)) from None
    if not isinstance(data, dict):
        raise _not_understood(path, f"a {type(data).__name__}")
    return data


def _not_understood(path: Path, found: str) -> LaunchError:
    return LaunchError(f"{path}: expected a pre-flight report, found {found}. Run `scaleperf preflight` again")


def _gpu(data: Mapping[str, Any]) -> GpuProbe:
    health = data["health"]
    return GpuProbe(
        host=str(data["host"]),
        index=int(data["index"]),
        rank=int(data["rank"]),
        device=str(data["device"]),
        uuid=None if data["uuid"] is None else str(data["uuid"]),
        rates={str(name): float(value) for name, value in data["rates"].items()},
        health=None if health is None else _health(health),
        problems=tuple(map(str, data["problems"])),
        seconds=float(data["seconds"]),
    )


def _health(data: Mapping[str, Any]) -> Health:
    reasons, xids = data.get("reasons"), data.get("xids")
    return Health(**{
        **data,
        "reasons": None if reasons is None else tuple(map(str, reasons)),
        "xids": None if xids is None else tuple((int(number), str(line)) for number, line in xids),
    })  # fmt: skip


def _link(data: Mapping[str, Any]) -> LinkProbe:
    return LinkProbe(
        scope=str(data["scope"]),
        ranks=tuple(map(int, data["ranks"])),
        across_nodes=bool(data["across_nodes"]),
        operation=str(data["operation"]),
        mib=int(data["mib"]),
        gb_s=float(data["gb_s"]),
    )


def _finding(data: Mapping[str, Any]) -> Finding:
    return Finding(**{
        **data,
        "severity": Severity(data["severity"]),
        "hosts": tuple(map(str, data["hosts"])),
        "indices": tuple(map(int, data["indices"])),
        "ranks": tuple(map(int, data.get("ranks", ()))),
    })  # fmt: skip
