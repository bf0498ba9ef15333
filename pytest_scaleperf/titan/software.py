"""What a number depends on besides the case: the software of the job's interpreter, the driver and the machine."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_scaleperf.model import Fingerprint, LaunchError, Trainer
from pytest_scaleperf.titan.dialect import Dialect

_SECONDS = 60  # a cold interpreter on a busy shared file system has been seen to take 20
_INSTALL = "pip install 'pytest-scaleperf[titan]'"
_CPU = "cpu"
_DRIVER_FILE = Path("/proc/driver/nvidia/version")

# Runs in the job's interpreter: the standard library only, and no import of torch, which would take seconds.
_SCRIPT = """
import importlib.util, json, platform
from importlib.metadata import PackageNotFoundError, distribution

def get(name):
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None

torch, torchtitan = get("torch"), get("torchtitan")
needed = [word.split(";")[0].split("=")[0].strip() for word in (torch.requires or [])] if torch else []
names = ["triton", "pytest-scaleperf", *(name for name in needed if name.startswith("nvidia-nccl-cu"))]
found = {"torch": torch, "torchtitan": torchtitan, **{name: get(name) for name in names}}
spec = importlib.util.find_spec("torchtitan")
modules = ("torch", "torchtitan", "triton", "pytest_scaleperf")
print(json.dumps({
    "python": platform.python_version(),
    "found": {name: package.version for name, package in found.items() if package},
    "url": torchtitan.read_text("direct_url.json") if torchtitan else None,
    "origin": spec.origin if spec else None,
    "installed": str(torchtitan.locate_file("torchtitan/__init__.py")) if torchtitan else None,
    "modules": [name for name in modules if importlib.util.find_spec(name)],
}))
"""


@dataclass(frozen=True, slots=True)
class Software:
    """What an interpreter has. None: it is not there.

    ``torchtitan_commit`` is the commit that torchtitan was installed or checked out from, with ``-dirty`` where
    the checkout has changes; None where it came from an index. ``modules`` are those that can be imported of
    torch, torchtitan, triton and pytest_scaleperf: a checkout on PYTHONPATH is a module without a version.
    """

    interpreter: str
    python: str
    torch: str | None
    torchtitan: str | None
    torchtitan_commit: str | None
    triton: str | None
    nccl: str | None
    driver: str | None
    scaleperf: str | None
    modules: frozenset[str]


def probe(python: str, env: Mapping[str, str], *, cwd: Path | None = None) -> Software:
    """Ask the interpreter ``python``, run as the job will be (``env``, ``cwd``), what it has. Imports nothing of it.

    Raises LaunchError where it cannot be asked.
    """
    answer = _ask(python, env, cwd)
    found: dict[str, str] = answer["found"]
    nccl = sorted(name for name in found if name.startswith("nvidia-nccl-cu"))
    url = json.loads(answer["url"] or "{}")
    editable = url.get("dir_info", {}).get("editable", False)
    if answer["origin"] != answer["installed"] and not editable:
        found.pop("torchtitan", None)  # a checkout on the path hides the installed package: its version says nothing
    return Software(
        interpreter=python,
        python=answer["python"],
        torch=found.get("torch"),
        torchtitan=found.get("torchtitan"),
        torchtitan_commit=_commit(answer["origin"], url),
        triton=found.get("triton"),
        nccl=found[nccl[-1]] if nccl else None,
        driver=_driver(),
        scaleperf=found.get("pytest-scaleperf"),
        modules=frozenset(answer["modules"]),
    )


def check(software: Software, trainer: Trainer, dialect: Dialect) -> None:
    """Whether this interpreter can run the trainer at all, before a run finds out.

    An executable of the user's own brings what it needs: nothing is asked of the interpreter then.

    Raises LaunchError with what is missing and the command that installs it.
    """
    if trainer.executable is not None:
        return
    where = f"in {software.interpreter}, which trainer.python names or which runs pytest"
    missing = [name for name in ("torch", "torchtitan") if name not in software.modules]
    if missing:
        raise LaunchError(
            f"expected {' and '.join(missing)} {where}, found neither the package nor a checkout on its path. "
            f"Install it there ({_INSTALL}), or set trainer.python to the interpreter that has it"
        )
    if trainer.entry == "synthetic" and "pytest_scaleperf" not in software.modules:
        raise LaunchError(
            f"expected pytest-scaleperf {where}, as trainer.entry is synthetic, found none. Install it there: "
            f"{software.interpreter} -m pip install --no-deps pytest-scaleperf"
        )
    if software.torchtitan is not None and not dialect.speaks(software.torchtitan):
        raise LaunchError(
            f"expected {dialect.versions} for trainer.dialect {dialect.name!r}, found {software.torchtitan} {where}. "
            "Set trainer.dialect to the one that speaks to that version, or trainer.python to another interpreter"
        )


def fingerprint(config: str, software: Software, device: str, peak_flops: float | None) -> Fingerprint:
    """The fingerprint of one case: ``config`` is its digest, ``device`` the machine's, ``peak_flops`` the system's.

    On the CPU neither driver nor NCCL takes part, nor for which accelerator torch was built (``+cpu``, ``+cu130``):
    a baseline of one would otherwise hold on no machine with another build of the same release.
    """
    on_cpu = device == _CPU
    torch = software.torch
    return Fingerprint(
        device=device,
        driver=None if on_cpu else software.driver,
        torch=torch.partition("+")[0] if torch is not None and on_cpu else torch,
        nccl=None if on_cpu else software.nccl,
        torchtitan=software.torchtitan,
        torchtitan_commit=software.torchtitan_commit,
        config=config,
        peak_flops=peak_flops,
    )


def _ask(python: str, env: Mapping[str, str], cwd: Path | None) -> dict[str, Any]:
    try:
        done = subprocess.run(
            [python, "-c", _SCRIPT],
            env=dict(env),
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except OSError as exc:
        raise LaunchError(
            f"expected a Python interpreter at {python} (trainer.python, or the one that runs pytest), found: "
            f"{exc.strerror}. Set trainer.python to one that has torchtitan ({_INSTALL})"
        ) from None
    except subprocess.TimeoutExpired:
        raise LaunchError(f"expected {python} to list its packages, found no answer after {_SECONDS} s") from None
    try:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise LaunchError(
            f"expected {python} to list its packages, found exit code {done.returncode}: {last!r}. "
            f"Set trainer.python to a Python 3.11 or newer that has torchtitan ({_INSTALL})"
        ) from None
    return answer


def _commit(origin: str | None, url: Mapping[str, Any]) -> str | None:
    """Commit of the checkout that torchtitan is imported from, or the one that pip noted when it installed it."""
    if origin is not None:
        commit = _head(Path(origin))
        if commit is not None:
            return commit
    commit_id = url.get("vcs_info", {}).get("commit_id")
    return str(commit_id) if commit_id else None


def _head(file: Path) -> str | None:
    """HEAD of the work tree that tracks ``file``, ``-dirty`` where it has changes; None where none tracks it.

    A file in a virtual environment inside some checkout is not tracked, so that checkout does not count.
    """
    if not any((parent / ".git").exists() for parent in file.parents):
        return None
    if _git(file.parent, "ls-files", "--error-unmatch", file.name) is None:
        return None
    head = _git(file.parent, "rev-parse", "HEAD")
    changes = _git(file.parent, "status", "--porcelain", "--untracked-files=no")
    if head is None or changes is None:
        return None
    return f"{head}-dirty" if changes else head


def _git(folder: Path, *arguments: str) -> str | None:
    """Standard output of one git command in ``folder``, None where it fails or there is no git."""
    # A checkout on a shared file system belongs to someone else, which git refuses unless it is told.
    command = ["git", "-c", "safe.directory=*", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _driver() -> str | None:
    """Version of the NVIDIA driver of this machine: from the kernel where it tells, else from nvidia-smi."""
    try:
        text = _DRIVER_FILE.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    version = driver_version(text)
    if version is not None:
        return version
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.split()
    return lines[0] if done.returncode == 0 and lines else None


def driver_version(text: str) -> str | None:
    """The version in the text of ``/proc/driver/nvidia/version``, which a proprietary and an open driver write."""
    match = re.search(r"^NVRM version:.*Kernel Module(?: for \S+)?\s+([0-9]+(?:\.[0-9]+)+)", text, re.MULTILINE)
    return match[1] if match else None
