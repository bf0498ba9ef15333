"""From a case to the process that trains it: arguments and environment, and a script to repeat the run by hand."""

from __future__ import annotations

import functools
import math
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from pytest_scaleperf.model import Case, SuiteError
from pytest_scaleperf.titan.dialect import Dialect

ENTRY = "pytest_scaleperf.titan.entry"
RUN_DIR = "SCALEPERF_RUN_DIR"
CASE = "SCALEPERF_CASE"
MOST_MEMORY = "SCALEPERF_MOST_MEMORY"
SCRIPT = "command.sh"
SEED = 0  # said in every run, so that two runs differ in nothing but the time that they take

# What an outer torchrun or scheduler has set would speak to ours: PET_* are torchrun's own defaults.
_LEAKS = frozenset({
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
    "ROLE_WORLD_SIZE", "ROLE_NAME", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "NGPU", "LOG_RANK", "COMM_MODE", RUN_DIR,
    CASE, MOST_MEMORY,
})  # fmt: skip
_LEAK_PREFIXES = ("TORCHELASTIC_", "PET_", "PYTEST_")
_HERE = ("--rdzv-endpoint=localhost:0", "--rdzv-id=scaleperf", "--local-addr=localhost")
_SUBCOMMAND = re.compile(r"[a-z][a-z_-]*")
_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSW|KEY|CREDENTIAL", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"://[^/\s]*@")  # a URL that holds a user's name or password


@dataclass(frozen=True, slots=True)
class Command:
    """One process to start: arguments (never a shell string) and its whole environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Profile:
    """When the profiler of a traced run records: the last ``active`` of every ``freq`` steps, after ``warmup``."""

    freq: int
    active: int
    warmup: int


def build(  # noqa: PLR0913 - what a process is made of; each named where it is called
    case: Case,
    dialect: Dialect,
    run_dir: Path,
    *,
    device: str,
    python: str,
    base_env: Mapping[str, str],
    profile: Profile | None = None,
    nodes: int = 1,
) -> Command:
    """The process that trains ``case``, to be started once on each of ``nodes``; it writes into ``run_dir`` only.

    torchrun starts the ranks and puts ``[rank0]:`` before their lines; where the suite names an executable, that
    program gets the flags and the number of all ranks (``NGPU``) and starts its node's ranks itself. Of several nodes
    the launcher says where torchrun's ranks meet (``PET_RDZV_ENDPOINT``). ``device`` is ``"cpu"`` or a
    GPU's name, ``python`` the job's interpreter, ``base_env`` what the job inherits. With ``profile`` every rank
    writes a trace, and where the dialect can say so no CUDA graphs are captured, as a graph hides the phases.

    Raises SuiteError where the dialect cannot say what the case needs.
    """
    trainer = case.suite.trainer
    env = _environment(case, run_dir, device, base_env)
    arguments = flags(case, dialect, run_dir, device=device, profile=profile)
    if trainer.executable is not None:
        program = _program(trainer.executable, case.suite.path.parent)
        return Command((program, *arguments), {**env, "NGPU": str(case.gpus), **dict(trainer.env)})
    torchrun = (
        "-m", "torch.distributed.run", f"--nnodes={nodes}", f"--nproc-per-node={case.gpus // nodes}",
        "--rdzv-backend=c10d", *(_HERE if nodes == 1 else ("--rdzv-id=scaleperf",)), "--role=rank", "--tee=3",
        f"--log-dir={run_dir / 'torchrun'}",
    )  # fmt: skip
    return Command((python, *torchrun, "-m", entry_module(case), *arguments), {**env, **dict(trainer.env)})


def build_rehearsal(  # noqa: PLR0913 - as build
    case: Case,
    dialect: Dialect,
    run_dir: Path,
    *,
    device: str,
    python: str,
    base_env: Mapping[str, str],
    rank: int = 0,
    most_memory: float | None = None,
) -> Command:
    """One process that stands for ``rank`` of ``case``: its collectives do nothing, its memory and compute are real.

    ``rank`` lies in 0 .. GPUs - 1, whatever the rank its device is the first that it sees. ``most_memory`` is the
    share of the device's memory that its allocator may take (our entry only; None: all that is free). A suite's own
    program is told with COMM_MODE to start a single process, as torchtitan's run_train.sh is.

    Raises SuiteError as ``build`` does.
    """
    trainer, size = case.suite.trainer, str(case.gpus)
    env = _environment(case, run_dir, device, base_env)
    env |= {"NGPU": size, "WORLD_SIZE": size, "RANK": str(rank), "LOCAL_RANK": "0"}
    if most_memory is not None:
        env[MOST_MEMORY] = f"{most_memory:.6f}"
    arguments = flags(case, dialect, run_dir, device=device, switches=("fake_backend",))
    if trainer.executable is not None:
        program = _program(trainer.executable, case.suite.path.parent)
        return Command((program, *arguments), {**env, "COMM_MODE": "fake_backend", **dict(trainer.env)})
    return Command((python, "-m", entry_module(case), *arguments), {**env, **dict(trainer.env)})


def entry_module(case: Case) -> str:
    """The module that every rank runs."""
    return ENTRY if case.suite.trainer.entry == "synthetic" else case.suite.trainer.entry


def flags(  # noqa: PLR0913 - as build
    case: Case,
    dialect: Dialect,
    run_dir: Path,
    *,
    device: str,
    switches: tuple[str, ...] = (),
    profile: Profile | None = None,
) -> tuple[str, ...]:
    """Arguments of torchtitan for ``case``: ours, then the suite's own, which win where both set something.

    Raises SuiteError where the dialect cannot say what the case needs, or where the suite's own arguments would
    change what the case is.
    """
    trainer = case.suite.trainer
    measured = (
        *dialect.say("model", module=trainer.module, config=trainer.config),
        *_layout(case, dialect),
        *_batch(case, dialect),
        *dialect.say("run.steps", value=case.suite.measure.steps),
        *dialect.say("run.log_freq", value=case.suite.measure.log_freq),
        *dialect.say("run.metrics"),
        *dialect.say("run.dump_folder", value=run_dir),
        *_profiler(dialect, profile),
    )
    checkpoint = dialect.say(f"activation_checkpoint.{case.activation_checkpoint}")
    _refuse_changes(case, (*measured, *checkpoint))
    return (
        *measured,
        *_defaults(case, dialect),
        *_switches(case, dialect, device, switches, traced=profile is not None),
        *(() if dialect.activation_checkpoint_last else checkpoint),
        *trainer.args,
        *(checkpoint if dialect.activation_checkpoint_last else ()),
    )


def _refuse_changes(case: Case, ours: tuple[str, ...]) -> None:
    """A suite's own argument may not set what its matrix sets: the case would run something else than it says."""
    taken = {_setting(argument) for argument in ours} - {None}
    clash = [argument for argument in case.suite.trainer.args if _setting(argument) in taken]
    if clash:
        raise SuiteError(
            f"{case.suite.path}: trainer.args: expected only what the suite does not set by keys of its own, "
            f"found {', '.join(clash)}. Take it out of trainer.args and set the key"
        )


def _setting(argument: str) -> str | None:
    """What an argument sets, in one spelling: ``--a.b_c=1`` and ``--a.b-c`` the same, ``x:full`` and ``x:none`` too."""
    if argument.startswith("--"):
        return argument.partition("=")[0].replace("_", "-")
    name, colon, _ = argument.partition(":")
    return name.replace("_", "-") if colon and _SUBCOMMAND.fullmatch(name) else None


def _profiler(dialect: Dialect, profile: Profile | None) -> tuple[str, ...]:
    if profile is None:
        return ()
    return dialect.say("profiler", freq=profile.freq, active=profile.active, warmup=profile.warmup)


def _switches(case: Case, dialect: Dialect, device: str, wanted: tuple[str, ...], *, traced: bool) -> tuple[str, ...]:
    if case.suite.trainer.force_load_balance:
        wanted = ("force_load_balance", *wanted)
    if device == "cpu":
        wanted = ("cpu", *wanted)
    elif (case.layout.pp > 1 or traced) and _must_say_no_graphs(case, dialect):
        wanted = ("no_cuda_graphs", *wanted)  # no torchtitan captures a pipeline, and 0.3 refuses to start
    return tuple(argument for switch in wanted for argument in dialect.say(f"switches.{switch}"))


def _must_say_no_graphs(case: Case, dialect: Dialect) -> bool:
    """False where the dialect cannot say it, or the suite's own arguments say it already."""
    word = "switches.no_cuda_graphs"
    return dialect.has(word) and not set(dialect.say(word)) <= set(case.suite.trainer.args)


def _layout(case: Case, dialect: Dialect) -> tuple[str, ...]:
    """Every degree, also those of 1, as a configuration may set another; 1 need not be said where it cannot be."""
    arguments: list[str] = []
    for degree in fields(case.layout):
        value = getattr(case.layout, degree.name)
        if value > 1 or dialect.has(f"layout.{degree.name}"):
            arguments += dialect.say(f"layout.{degree.name}", value=value)
    return tuple(arguments)


def _batch(case: Case, dialect: Dialect) -> tuple[str, ...]:
    return (
        *dialect.say("batch.local", value=case.batch.local),
        *dialect.say("batch.global", value=case.batch.global_),
        *dialect.say("batch.sequence", value=case.batch.sequence),
    )


def _defaults(case: Case, dialect: Dialect) -> tuple[str, ...]:
    """Seed and time limits of collectives; a dialect may lack them, and a suite's own arguments may set others.

    A collective may take half of the limit without progress: so the watchdog, which knows the rank and the
    collective, speaks before we end the run.
    """
    limits = case.suite.limits
    values = {
        "seed": SEED,
        "init_timeout": math.ceil(limits.startup),
        "train_timeout": max(1, int(limits.no_progress / 2)),
    }
    return tuple(
        argument
        for word, value in values.items()
        if dialect.has(f"run.{word}")
        for argument in dialect.say(f"run.{word}", value=value)
    )


def _environment(case: Case, run_dir: Path, device: str, base_env: Mapping[str, str]) -> dict[str, str]:
    env = {
        name: value for name, value in base_env.items() if name not in _LEAKS and not name.startswith(_LEAK_PREFIXES)
    }
    env |= {RUN_DIR: str(run_dir), CASE: case.id, "PYTHONUNBUFFERED": "1"}
    if device == "cpu":
        env["OMP_NUM_THREADS"] = "1"  # one core a rank, as one GPU a rank
    return env


def _program(executable: str, folder: Path) -> str:
    """A name is looked up on PATH, a relative path is meant from the suite's folder."""
    return str(folder / executable) if "/" in executable else executable


def write_script(run_dir: Path, command: Command, cwd: Path) -> Path:
    """Write ``command.sh`` into ``run_dir``: the run once more, by hand, into a folder of its own.

    Whatever looks like a secret is not written; the script takes it from the environment of whoever runs it.
    """
    secret = sorted(name for name, value in command.env.items() if _is_secret(name, value))
    lines = [
        "#!/usr/bin/env bash",
        f"# Repeats the run in {_comment(str(run_dir))} by hand, into another folder.",
        "# usage: command.sh [NEW_FOLDER]    (without one: a new folder under ${TMPDIR:-/tmp})",
        "# Not written here, taken from your environment where it is set: " + (", ".join(secret) or "nothing"),
        "set -euo pipefail",
        'folder=${1:-$(mktemp -d "${TMPDIR:-/tmp}/scaleperf-repeat.XXXXXX")}',
        'mkdir -p -- "$folder"',
        'folder=$(cd -- "$folder" && pwd)',
        'if [ -n "$(ls -A -- "$folder")" ]; then',
        '  echo "expected an empty folder, found files in $folder" >&2',
        "  exit 2",
        "fi",
        'echo "writing into $folder" >&2',
        f"cd -- {shlex.quote(str(cwd))}",
        "exec env -i \\",
    ]
    words = [f'${{{name}+"{name}=${{{name}}}"}}' for name in secret if name.isidentifier()]
    words += [f"{name}={_quote(command.env[name], run_dir)}" for name in sorted(command.env.keys() - set(secret))]
    words += [_quote(argument, run_dir) for argument in command.argv]
    lines.append(" \\\n".join(f"  {word}" for word in words))
    path = run_dir / SCRIPT
    with os.fdopen(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o755), "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    return path


@functools.lru_cache(maxsize=4096)
def _is_secret(name: str, value: str) -> bool:
    return bool(_SECRET_NAME.search(name) or _SECRET_VALUE.search(value))


def _comment(text: str) -> str:
    return text if text.isprintable() else repr(text)


def _quote(text: str, run_dir: Path) -> str:
    """``text`` for a shell, with the measured run's folder replaced by the new one."""
    folder = str(run_dir)
    if folder not in text:
        return _plain(text)
    words, rest = [""], text
    while rest:
        before, found, rest = rest.partition(folder)
        words[-1] += before
        if found and (not rest or rest.startswith("/")):
            words.append("")
        else:
            words[-1] += found  # the folder's name goes on: another folder
    return '"$folder"'.join(_plain(word) if word else "" for word in words) or "''"


@functools.lru_cache(maxsize=4096)
def _plain(text: str) -> str:
    """A session quotes the same environment for every case."""
    return shlex.quote(text)
