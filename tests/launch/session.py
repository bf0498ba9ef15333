"""A stand-in for pytest in a process of its own: submits jobs, tells their markers, waits; to be killed by tests."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from pytest_scaleperf.launch.local import LocalLauncher
from pytest_scaleperf.model import LaunchError, LaunchSpec, Resources


def spec(name: str, folder: Path, *argv: str) -> LaunchSpec:
    return LaunchSpec(name, argv, dict(os.environ), folder, folder / f"{name}.txt", Resources(1, 1))


def main() -> None:
    order = json.loads(sys.argv[1])
    folder = Path(order["folder"])
    with LocalLauncher(grace=1.0, kill_limit=2.0) as launcher:
        jobs = [launcher.submit(spec(f"job {n}", folder, *order["argv"])) for n in range(order["jobs"])]
        if order["mode"] == "forked" and os.fork() == 0:
            # A child that keeps a copy of everything open, as multiprocessing's fork method does.
            time.sleep(20)
            os._exit(0)
        told = {"guardian": launcher.guardian_pid, "markers": [job.marker for job in jobs]}
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()
        for job in jobs:
            try:
                result = job.wait(600)
            except LaunchError as error:
                sys.stdout.write(f"{error}\n")
            else:
                sys.stdout.write(f"{result}\n")
        if order["mode"] == "one more":
            last = launcher.submit(spec("one more", folder, "true")).wait(600)
            sys.stdout.write(f"one more: {last and last.state}, leftovers {last and last.leftovers}\n")


if __name__ == "__main__":
    main()
