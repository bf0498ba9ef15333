"""What the local launcher costs per case, beside a bare ``subprocess.run`` loop over the same executable.

``python benchmarks/launch_overhead.py [--launches 2000] [--rounds 3]`` interleaves the two, prints every round, the
medians and the ratio, and exits with 1 where a case costs more than 0.6 ms above the bare loop.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pytest_scaleperf.launch.local import LocalLauncher
from pytest_scaleperf.model import JobState, LaunchSpec, Resources

LIMIT_MS = 0.6
LINES = 12
_SCRIPT = "#!/bin/sh\n" + "".join(f"echo 'step: {n} loss: 8.0 tps: 1,500'\n" for n in range(1, LINES + 1))


def bare_loop(script: Path, folder: Path, launches: int) -> float:
    """Seconds per launch of the loop that a person would write by hand."""
    began = time.perf_counter()
    for number in range(launches):
        with (folder / f"bare{number}.txt").open("ab") as output:
            subprocess.run([script], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, check=True)
    return (time.perf_counter() - began) / launches


def launcher_loop(script: Path, folder: Path, launches: int) -> float:
    """Seconds per launch through LocalLauncher, its start and close included."""
    began = time.perf_counter()
    environment = dict(os.environ)
    with LocalLauncher() as launcher:
        for number in range(launches):
            output = folder / f"job{number}.txt"
            spec = LaunchSpec(f"case {number}", (str(script),), environment, folder, output, Resources(1, 1))
            result = launcher.submit(spec).wait(60.0)
            if result is None or result.state is not JobState.COMPLETED:
                raise SystemExit(f"{spec.job_name}: expected it to complete, found {result}")
    return (time.perf_counter() - began) / launches


def measure(loop: Callable[[Path, Path, int], float], launches: int) -> float:
    """Milliseconds per launch in a fresh folder; checks that the output is complete."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = folder / "case.sh"
        script.write_text(_SCRIPT, encoding="utf-8")
        script.chmod(0o755)
        milliseconds = loop(script, folder, launches) * 1000
        complete = sum(path.read_bytes().count(b"\n") == LINES for path in folder.glob("*.txt"))
        if complete != launches:
            raise SystemExit(f"expected {launches} complete output files, found {complete}")
    return milliseconds


def main() -> int:
    """Print the table; 1 where the median is above the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launches", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"{options.launches} launches of a script that prints {LINES} lines, ms per launch")
    print(f"{'round':>8} {'bare loop':>10} {'launcher':>10} {'above':>8} {'ratio':>7}")
    rounds = []
    for number in range(1, options.rounds + 1):
        bare, ours = measure(bare_loop, options.launches), measure(launcher_loop, options.launches)
        rounds.append((bare, ours))
        print(f"{number:>8} {bare:>10.3f} {ours:>10.3f} {ours - bare:>+8.3f} {ours / bare:>7.2f}", flush=True)
    bare, ours = (statistics.median(column) for column in zip(*rounds, strict=True))
    above = statistics.median(ours - bare for bare, ours in rounds)
    print(f"{'median':>8} {bare:>10.3f} {ours:>10.3f} {above:>+8.3f} {ours / bare:>7.2f}")
    print(f"limit {LIMIT_MS} ms above: {'kept' if above <= LIMIT_MS else 'BROKEN'}")
    return 0 if above <= LIMIT_MS else 1


if __name__ == "__main__":
    sys.exit(main())
