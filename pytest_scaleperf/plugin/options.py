"""The options and ini values of the plugin, read once into frozen settings."""

from __future__ import annotations

import math

import pytest

from pytest_scaleperf.model import Settings, Submit

DEFAULT_EVIDENCE_HOURS = 24.0
_SECONDS_PER_HOUR = 3600.0
_LAUNCHERS = ("auto", "local", "slurm")
_SECONDS_PER_MINUTE = 60.0
_SLURM = {
    "partition": "NAME",
    "account": "NAME",
    "qos": "NAME",
    "constraint": "FEATURES",
    "reservation": "NAME",
}
"""Options that go to sbatch by the same name, and take the place of what the system file says."""


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
        "--preflight",
        action="store_true",
        default=None,
        help="probe every GPU and link before the first case; cases that need an ill one are errors of the machine",
    )
    group.addoption(
        "--no-preflight",
        dest="preflight",
        action="store_false",
        default=None,
        help="none, although the system's file says `always`",
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
    _add_slurm(parser)
    parser.addini("scaleperf_suites", "folders with suite files (the test file's own folder)", type="paths", default=[])
    parser.addini("scaleperf_baselines", "folder with baselines and system files (baselines)", default="baselines")
    parser.addini("scaleperf_run_dir", "folder for runs and records (.scaleperf)", default=".scaleperf")


def _add_slurm(parser: pytest.Parser) -> None:
    group = parser.getgroup("scaleperf-slurm", "scaleperf on Slurm (over `slurm:` in the system file)")
    for name, what in _SLURM.items():
        group.addoption(f"--{name}", metavar=what, help=f"{name} of the jobs that are submitted")
    group.addoption("--exclude", metavar="NODES", help="nodes that nothing is started on, separated by commas")
    group.addoption("--time-limit", type=_minutes, metavar="MINUTES", help="time limit of each job that is submitted")
    group.addoption(
        "--submit", choices=[each.value for each in Submit], help="a job for each case, or one that all cases share"
    )
    group.addoption(
        "--slurm-arg", action="append", default=[], metavar="ARG", help="passed to sbatch as it is; may be repeated"
    )


def _slurm(config: pytest.Config) -> dict[str, object]:
    """What was said of Slurm on the command line, by the names of SlurmOptions."""
    said: dict[str, object] = {name: config.getoption(name) for name in (*_SLURM, "time_limit")}
    excluded, submit = config.getoption("exclude"), config.getoption("submit")
    said["exclude"] = tuple(name for name in excluded.split(",") if name) if excluded else None
    said["submit"] = None if submit is None else Submit(submit)
    said["args"] = tuple(config.getoption("slurm_arg")) or None
    return {name: value for name, value in said.items() if value is not None}


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
        slurm=_slurm(config),
        rehearse=config.getoption("rehearse"),
        preflight=config.getoption("preflight"),
    )


def _gpus(value: str) -> int:
    return _count("--gpus", "GPUs", value)


def _repeats(value: str) -> int:
    return _count("--repeats", "launches", value)


def _minutes(value: str) -> float:
    return _count("--time-limit", "minutes", value) * _SECONDS_PER_MINUTE


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
