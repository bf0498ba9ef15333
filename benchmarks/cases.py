"""What the plugin costs: collecting 10,000 cases, and running 2,000 trivial ones, each against its floor.

    python benchmarks/cases.py [--rounds 5] [--collect 10000] [--run 2000]

Both are measured against the bare thing in the same run, rounds interleaved, medians printed:
collecting against ``pytest --collect-only`` of an empty file; running against a plain loop that starts the same
executable with ``subprocess.run`` and writes its output to a file. Gate, log parsing, judgement, a durable
record and JUnit are inside the measured time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pytest_scaleperf.model import BaselineError
from pytest_scaleperf.suite import digest, load_suite
from pytest_scaleperf.yamlfile import dump, read

HEADER = "[rank0]:[titan] 2026-01-01 00:00:00,000 - root - INFO - "
STEP = "step: {:2}  loss:  7.00000  grad_norm:  1.0000  memory: 40.00GiB(50.00%)  tps: {}  tflops: 20.00  mfu: 20.00%"
LOG = [
    (
        "Trainer is initialized with local batch size 2, global batch size 2, gradient accumulation steps 1, "
        "sequence length 128, total steps 40 (warmup 2)"
    ),
    "Training starts at step 1",
    *(STEP.format(step, "20" if step == 1 else "1,000") for step in (1, 10, 20, 30, 40)),
    "Sleeping 2 seconds for other ranks to complete",
    "Training completed",
    "Process group destroyed",
]
RUNGS = (1, 2, 4, 8)
# A user's Python keeps compiled modules; without them every start would compile pytest's plugins again.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


@dataclass(frozen=True)
class Cost:
    """Wall seconds, CPU seconds of the whole process tree, and MiB of its largest process."""

    wall: float
    cpu: float
    mib: float


def timed(command: list[str], folder: Path) -> Cost:
    """Run a command that must succeed; what it used comes from wait4."""
    started = time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, env=ENVIRONMENT)
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    if status:
        raise SystemExit(f"{' '.join(command)} in {folder}: ended with status {status}")
    return Cost(wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def suite(cases: int) -> dict[str, object]:
    """A ladder of four rungs; every larger case requires the same batch one rung below."""
    batches = list(range(1, cases // len(RUNGS) + 1))
    ladder: list[dict[str, object]] = []
    for below, gpus in zip((None, *RUNGS), RUNGS, strict=False):
        rung: dict[str, object] = {
            "gpus": gpus,
            "dp_shard": gpus,
            "activation_checkpoint": "none",
            "local_batch": batches,
        }
        if below is not None:
            rung["requires"] = {"gpus": below, "same": ["local_batch"]}
        ladder.append(rung)
    return {
        "name": "bench",
        "system": "bench",
        "trainer": {"dialect": "0.3", "module": "llama3", "config": "debugmodel", "executable": "./trainer.sh"},
        "measure": {"steps": 40, "warmup": 10, "log_freq": 10},
        "limits": {"startup": 60, "no_progress": 60, "total": 60},
        "sequence": 128,
        "ladder": ladder,
    }


SYSTEM = {
    "device": "bench",
    "device_match": "bench",
    "gpus_per_node": 8,
    "peak_flops": 1.0e14,
    "memory_gib": 80,
    "judge": ["tps", "mfu", "peak_memory"],
    "tolerance": {"tps": "3 %", "mfu": "3 %", "peak_memory": "2 %"},
}


def project(folder: Path, cases: int) -> None:
    """A user's repository with one generated suite and a shell script for its trainer."""
    for part in ("suites", "baselines/bench"):
        (folder / part).mkdir(parents=True)
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "baselines/bench/system.yaml").write_text(yaml.safe_dump(SYSTEM))
    (folder / "suites/bench.yaml").write_text(yaml.safe_dump(suite(cases)))
    (folder / "suites/test_bench.py").write_text("def test_bench(scaleperf):\n    scaleperf.check()\n")
    (folder / "suites/test_empty.py").write_text("")
    script = folder / "suites/trainer.sh"
    lines = "\n".join(f"echo '{HEADER}{line}'" for line in LOG)
    script.write_text(f"#!/bin/sh\n{lines}\n")
    script.chmod(0o755)


def pytest_command(*args: str) -> list[str]:
    """Pytest of this interpreter without plugins that have nothing to do with it."""
    off = [
        word
        for name in ("cacheprovider", "xdist", "anyio", "hypothesispytest", "typeguard")
        for word in ("-p", f"no:{name}")
    ]
    return [sys.executable, "-m", "pytest", "-q", *off, *args]


def store_baselines(folder: Path, base: list[str]) -> None:
    """Let the plugin record one case, and give every other case the same numbers under its own digest."""
    first, *others = load_suite(folder / "suites/bench.yaml").cases()
    timed([*base, "--record-baselines", f"suites/test_bench.py::test_bench[{first.id}]"], folder)
    path = folder / "baselines/bench/bench.yaml"
    stored: Any = read(path, BaselineError).data
    for case in others:
        stored["cases"][case.id] = {**stored["cases"][first.id], "config": digest(case)}
    path.write_text(dump(stored))


LOOP = """
import pathlib, subprocess, sys
script, count = sys.argv[1], int(sys.argv[2])
for number in range(count):
    with open("loop.log", "wb") as log:
        subprocess.run([script], stdout=log, stderr=subprocess.STDOUT, check=True)
"""


def medians(costs: list[Cost]) -> Cost:
    """Median of each column."""
    return Cost(*(statistics.median(column) for column in zip(*((c.wall, c.cpu, c.mib) for c in costs), strict=True)))


def collect(folder: Path, cases: int, rounds: int) -> None:
    """Collecting ``cases`` cases against collecting an empty file."""
    project(folder, cases)
    ours, bare = list[Cost](), list[Cost]()
    for _ in range(rounds):
        # An empty file has no tests, which pytest calls status 5; the file with one test costs the same.
        (folder / "suites/test_empty.py").write_text("def test_nothing():\n    pass\n")
        bare.append(timed(pytest_command("--collect-only", "suites/test_empty.py"), folder))
        ours.append(timed(pytest_command("--collect-only", "--system", "bench", "suites/test_bench.py"), folder))
    a, b = medians(ours), medians(bare)
    print(f"collect {cases:,} cases, median of {rounds}")
    print(f"  pytest, an empty file  {b.wall:6.2f} s  cpu {b.cpu:6.2f} s  {b.mib:6.0f} MiB")
    print(f"  scaleperf              {a.wall:6.2f} s  cpu {a.cpu:6.2f} s  {a.mib:6.0f} MiB")
    print(f"  above it               {a.wall - b.wall:6.2f} s  (limit 1.00)   {a.mib - b.mib:6.0f} MiB (limit 90)")


def run(folder: Path, cases: int, rounds: int) -> None:
    """Running ``cases`` gated cases against a bare loop over the same executable."""
    project(folder, cases)
    script = folder / "suites/trainer.sh"
    base = pytest_command("--system", "bench", "--gpus", "8", "--junitxml=junit.xml")
    store_baselines(folder, base)
    ours, bare = list[Cost](), list[Cost]()
    for number in range(rounds):
        bare.append(timed([sys.executable, "-c", LOOP, str(script), str(cases)], folder))
        ours.append(timed([*base, "--run-dir", f"runs-{number}", "suites/test_bench.py"], folder))
    a, b = medians(ours), medians(bare)
    above = (a.wall - b.wall) / cases * 1e3
    print(f"run {cases:,} trivial cases, median of {rounds}")
    for name, cost in (("bare subprocess loop", b), ("scaleperf", a)):
        each = cost.wall / cases * 1e3
        print(f"  {name:20}   {cost.wall:6.2f} s  cpu {cost.cpu:6.2f} s  {cost.mib:6.0f} MiB  {each:.2f} ms a case")
    print(f"  above it               {above:6.2f} ms a case (limit 2.00), ratio {a.wall / b.wall:.2f}")


def main() -> None:
    """Measure both and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--collect", type=int, default=10_000)
    parser.add_argument("--run", type=int, default=2_000)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        collect(Path(folder) / "collect", wanted.collect, wanted.rounds)
        run(Path(folder) / "run", wanted.run, wanted.rounds)


if __name__ == "__main__":
    main()
