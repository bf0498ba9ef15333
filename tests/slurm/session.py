"""A stand-in for pytest in a process of its own: starts two launches on the cluster and waits; to be ended by tests."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from pytest_scaleperf.launch.slurm.allocation import AllocationLauncher
from pytest_scaleperf.launch.slurm.batch import BatchLauncher
from pytest_scaleperf.model import LaunchSpec, Resources, SlurmOptions, Wanted

SLEEP = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open('up', 'w'); time.sleep(1000)"


def main() -> None:
    order = json.loads(sys.argv[1])
    inside = order["mode"] == "allocation"
    launcher = (
        AllocationLauncher(SlurmOptions(), 8, order["allocation"]) if inside else BatchLauncher(SlurmOptions(), 0.5)
    )
    with launcher:
        jobs, folders = [], []
        for number in range(2):
            folder = Path(order["folder"]) / str(number)
            folder.mkdir()
            chosen = launcher.choose([Wanted(str(number), Resources(16, 8))])
            assert chosen is not None
            argv = (order["python"], "-I", "-S", "-c", SLEEP)
            output, resources = folder / "stdout.log", chosen[0].resources
            jobs.append(
                launcher.submit(LaunchSpec(f"s.{number}", argv, dict(os.environ), folder, output, resources, chosen[1]))
            )
            folders.append(folder)
        while not all((folder / "up").exists() for folder in folders):
            time.sleep(0.05)
        sys.stdout.write("up\n")
        sys.stdout.flush()
        for job in jobs:
            job.wait(600)


if __name__ == "__main__":
    main()
