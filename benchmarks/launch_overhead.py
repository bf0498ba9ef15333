"""What the local launcher costs per case, beside a bare ``subprocess.run`` loop over the same executable.

``python benchmarks/launch_overhead.py [--launches 2000] [--rounds 3]`` takes the two in turns, prints every round, the
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
from pathlib import Path

from pytest_scaleperf.launch.local import LocalLauncher
from pytest_scaleperf.model import JobState, LaunchSpec, Resources

LIMIT_MS = 0.6
LINES = 12
BLOCK = 50
_SCRIPT = "#!/bin/sh\n" + "".join(f"echo 'step: {n} loss: 8.0 tps: 1,500'\n" for n in range(1, LINES + 1))


def bare(script: Path, output: Path) -> None:
    """One launch as a person would write it by hand."""
    with output.open("ab") as stream:
        subprocess.run([script], stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT, check=True)


def launched(launcher: LocalLauncher, environment: dict[str, str], script: Path, output: Path) -> None:
    """One launch through the local launcher: submit, and wait for the result."""
    spec = LaunchSpec(output.name, (str(script),), environment, output.parent, output, Resources(1, 1))
    result = launcher.submit(spec).wait(60.0)
    if result is None or result.state is not JobState.COMPLETED:
        raise SystemExit(f"{spec.job_name}: expected it to complete, found {result}")


def one_round(launches: int) -> tuple[float, float]:
    """Milliseconds per launch of both, taken in turns of BLOCK, so that what else the machine does hits both alike.

    The launcher's start and close are in its time. Checks that every output is complete.
    """
    environment = dict(os.environ)
    spent = {"bare": 0.0, "launcher": 0.0}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = folder / "case.sh"
        script.write_text(_SCRIPT, encoding="utf-8")
        script.chmod(0o755)
        launcher = LocalLauncher()
        for first in range(0, launches, BLOCK):
            block = range(first, min(first + BLOCK, launches))
            began = time.perf_counter()
            for number in block:
                bare(script, folder / f"bare{number}.txt")
            between = time.perf_counter()
            for number in block:
                launched(launcher, environment, script, folder / f"launcher{number}.txt")
            spent["bare"] += between - began
            spent["launcher"] += time.perf_counter() - between
        began = time.perf_counter()
        launcher.close()
        spent["launcher"] += time.perf_counter() - began
        complete = sum(path.read_bytes().count(b"\n") == LINES for path in folder.glob("*.txt"))
        if complete != 2 * launches:
            raise SystemExit(f"expected {2 * launches} complete output files, found {complete}")
    return spent["bare"] * 1000 / launches, spent["launcher"] * 1000 / launches


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
        by_hand, ours = one_round(options.launches)
        rounds.append((by_hand, ours))
        print(f"{number:>8} {by_hand:>10.3f} {ours:>10.3f} {ours - by_hand:>+8.3f} {ours / by_hand:>7.2f}", flush=True)
    by_hand, ours = (statistics.median(column) for column in zip(*rounds, strict=True))
    above = statistics.median(ours - by_hand for by_hand, ours in rounds)
    print(f"{'median':>8} {by_hand:>10.3f} {ours:>10.3f} {above:>+8.3f} {ours / by_hand:>7.2f}")
    print(f"limit {LIMIT_MS} ms above: {'kept' if above <= LIMIT_MS else 'BROKEN'}, if the machine did nothing else")
    return 0 if above <= LIMIT_MS else 1


if __name__ == "__main__":
    sys.exit(main())
