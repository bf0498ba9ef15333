"""The options and ini values of the plugin, read once into frozen settings."""

from __future__ import annotations

import math

import pytest

from pytest_scaleperf.model import Settings

DEFAULT_EVIDENCE_HOURS = 24.0
_SECONDS_PER_HOUR = 3600.0
_LAUNCHERS = ("auto", "local")


def add(parser: pytest.Parser) -> None:
    """Declare options and ini values; nothing is read or run here."""
    group = parser.getgroup("scaleperf", "performance of torchtitan at scale")
    group.addoption("--gpus", type=_gpus, metavar="N", help="GPUs of this session; larger rungs are skipped")
    group.addoption("--system", default="auto", metavar="NAME", help="auto, or a folder of the baselines (auto)")
    group.addoption("--launcher", default="auto", choices=_LAUNCHERS, help="how jobs are started (auto)")
    group.addoption("--run-dir", metavar="PATH", help="folder for runs and records (ini scaleperf_run_dir)")
    group.addoption(
        "--record-baselines", action="store_true", help="store what is measured where no baseline is; those cases skip"
    )
    group.addoption(
        "--repeats",
        type=_repeats,
        metavar="N",
        help="launches of each case at least (the suite's measure.repeats); with --record-baselines each is a sample",
    )
    group.addoption(
        "--with-trace",
        action="store_true",
        help="trace every selected case that passes, in a run of its own, and judge what its step's time went to",
    )
    group.addoption(
        "--rehearse",
        action="store_true",
        help="launch no case: rehearse each selected one, of every rung, by one process on one device; needs no --gpus",
    )
    group.addoption(
        "--evidence-max-age",
        type=_hours,
        default=DEFAULT_EVIDENCE_HOURS,
        metavar="HOURS",
        help=f"how old a record may be that opens a gate ({DEFAULT_EVIDENCE_HOURS:g})",
    )
    group.addoption(
        "--resume",
        nargs="?",
        const="latest",
        metavar="SESSION",
        help="go on with an interrupted session, the latest if none is named; reruns only what is missing",
    )
    parser.addini("scaleperf_suites", "folders with suite files (the test file's own folder)", type="paths", default=[])
    parser.addini("scaleperf_baselines", "folder with baselines and system files (baselines)", default="baselines")
    parser.addini("scaleperf_run_dir", "folder for runs and records (.scaleperf)", default=".scaleperf")


def read(config: pytest.Config) -> Settings:
    """One session's settings; paths in the ini are relative to the root directory, options to where pytest started."""
    root, started = config.rootpath, config.invocation_params.dir
    run_dir = config.getoption("run_dir")
    return Settings(
        gpus=config.getoption("gpus"),
        system=config.getoption("system"),
        launcher=config.getoption("launcher"),
        run_dir=started / run_dir if run_dir else root / config.getini("scaleperf_run_dir"),
        baselines=root / config.getini("scaleperf_baselines"),
        record_baselines=config.getoption("record_baselines"),
        evidence_max_age=config.getoption("evidence_max_age") * _SECONDS_PER_HOUR,
        resume=config.getoption("resume"),
        repeats=config.getoption("repeats"),
        trace=config.getoption("with_trace"),
        rehearse=config.getoption("rehearse"),
    )


def _gpus(value: str) -> int:
    return _count("--gpus", "GPUs", value)


def _repeats(value: str) -> int:
    return _count("--repeats", "launches", value)


def _count(option: str, what: str, value: str) -> int:
    if not (value.isascii() and value.isdecimal()) or int(value) < 1:
        raise pytest.UsageError(f"{option}: expected a whole number of {what}, at least 1, found {value!r}")
    return int(value)


def _hours(value: str) -> float:
    try:
        hours = float(value)
    except ValueError:
        hours = math.nan
    if not (math.isfinite(hours) and hours > 0):
        raise pytest.UsageError(f"--evidence-max-age: expected hours above 0, found {value!r}")
    return hours
