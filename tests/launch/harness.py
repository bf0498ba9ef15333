"""What the tests of the launcher share: specs of small real programs, and a session in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pytest_scaleperf.launch import processes
from pytest_scaleperf.model import LaunchSpec, Resources

SESSION = Path(__file__).with_name("session.py")

# A daemon that has left its job's session and process group, and ignores every polite signal, as do its children.
STUBBORN = "setsid sh -c 'trap \"\" TERM HUP INT QUIT; echo stubborn; sleep 1000; sleep 1000' &"


def spec(
    folder: Path, *argv: str, env: Mapping[str, str] | None = None, cwd: Path | None = None, output: Path | None = None
) -> LaunchSpec:
    return LaunchSpec(
        job_name="suite[case]",
        argv=argv,
        env=dict(os.environ) if env is None else env,
        cwd=cwd or folder,
        output=output or folder / "out.txt",
        resources=Resources(gpus=2, gpus_per_node=2),
    )


def shell(folder: Path, script: str, output: Path | None = None) -> LaunchSpec:
    return spec(folder, "/bin/sh", "-c", script, output=output)


def until(condition: Callable[[], object], timeout: float = 10.0) -> bool:
    """Whether the condition came true within ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return False


def said(output: Path, text: str, times: int = 1) -> Callable[[], bool]:
    return lambda: output.exists() and output.read_text(errors="replace").count(text) >= times


def alive(pid: int) -> bool:
    seen = processes.look(pid)
    return seen is not None and seen.state != "Z"


@dataclass(frozen=True, slots=True)
class Session:
    """A process that has submitted jobs and waits for them."""

    process: subprocess.Popen[bytes]
    guardian: int
    markers: tuple[str, ...]

    @property
    def marker(self) -> str:
        return self.markers[0]

    def left(self) -> list[int]:
        """What is alive of its jobs and its guardian."""
        jobs = [pid for marker in self.markers for pid in processes.marked(marker)]
        return jobs + ([self.guardian] if alive(self.guardian) else [])


@contextmanager
def session(
    folder: Path, *argv: str, jobs: int = 1, mode: str = "wait", prefix: tuple[str, ...] = ()
) -> Iterator[Session]:
    """Run ``session.py`` as a user's pytest would run: in a process group of its own, in the foreground or not."""
    order = json.dumps({"folder": str(folder), "argv": argv, "jobs": jobs, "mode": mode})
    process = subprocess.Popen(
        [*prefix, sys.executable, str(SESSION), order],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        process_group=0,
    )
    markers: tuple[str, ...] = ()
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, f"the session ended at once with {process.wait()}"
        told = json.loads(line)
        markers = tuple(told["markers"])
        yield Session(process, told["guardian"], markers)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        for marker in markers:
            processes.end_marked(marker, 10.0)
