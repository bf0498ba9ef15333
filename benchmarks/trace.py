"""Speed and memory of `scaleperf trace` on a large trace, and the ratio to HolisticTraceAnalysis in the same run.

    python benchmarks/trace.py [--hta-python PATH] [--mb 400] [--ranks 8]

Enlarges a real trace in a temporary folder: copies one after the other, with times, correlation and external ids,
flow ids and step numbers moved on. HTA needs an interpreter of its own (it pins old libraries):

    python -m venv hta && hta/bin/pip install HolisticTraceAnalysis==0.5.0 pandas==2.3.3
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REAL = Path(__file__).parents[1] / "tests" / "data" / "traces" / "trfsdp-rank0.json.gz"
MB = 1_000_000
SPEED = 200  # MB/s of JSON that are wanted
MEMORY = 512  # MiB
MOVED = re.compile(
    rb'(?P<ts>"ts": )(?P<us>\d+)\.(?P<ns>\d{3})'
    rb'|(?P<key>"(?:correlation|External id|id)": )(?P<id>\d+)'
    rb"|(?P<step>ProfilerStep#)(?P<number>\d+)"
)
# VmHWM, for getrusage's own peak begins with that of the process that started it.
PEAK = """
import re, resource
def peak():
    own = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
    return max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) / 1024
"""
OURS = """
import json, sys, time
from pathlib import Path
from pytest_scaleperf.trace.analyse import analyse
if __name__ == "__main__":
    begin = time.perf_counter()
    analyse([Path(name) for name in sys.argv[1:]])
    seconds = time.perf_counter() - begin
    print(json.dumps({"seconds": seconds, "mib": peak()}))
"""
HTA = """
import json, sys, time
from hta.trace_analysis import TraceAnalysis
if __name__ == "__main__":
    begin = time.perf_counter()
    analysis = TraceAnalysis(trace_dir=sys.argv[1])
    analysis.get_temporal_breakdown(visualize=False)
    analysis.get_comm_comp_overlap(visualize=False)
    seconds = time.perf_counter() - begin
    print(json.dumps({"seconds": seconds, "mib": peak()}))
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """Wall seconds without imports, and the largest process's peak memory."""

    seconds: float
    mib: float


def enlarge(source: Path, target: Path, size: int) -> int:
    """Write copies of a trace, ``size`` bytes of JSON or a little more; returns the bytes written."""
    text = gzip.decompress(source.read_bytes())
    opening = re.search(rb'"traceEvents"\s*:\s*\[', text)
    closing = text.rfind(b'"traceName"')
    if opening is None or closing < 0:
        raise SystemExit(f"{source}: expected a trace as Kineto writes it")
    end = text.rfind(b"]", 0, closing)
    body = text[opening.end() : end]
    written = len(text)
    with gzip.open(target, "wb", compresslevel=1) as out:
        out.write(text[: opening.end()])
        for number, copy in enumerate(copies(body)):
            out.write(b"," * (number > 0) + copy)
            written += len(copy) * (number > 0)
            if written >= size:
                break
        out.write(text[end:])
    return written


def copies(body: bytes) -> Iterator[bytes]:
    """The events again and again, each time later, with ids of their own."""
    found = list(MOVED.finditer(body))
    times = [int(match["us"]) for match in found if match["us"]]
    span = (max(times) - min(times) + 1000) * 1000
    ids = max(int(match["id"]) for match in found if match["id"]) + 1
    steps = [int(match["number"]) for match in found if match["number"]]
    count = max(steps) - min(steps) + 1
    times_moved = 0
    while True:

        def moved(match: re.Match[bytes], by: int = times_moved) -> bytes:
            if match["us"]:
                nanoseconds = int(match["us"]) * 1000 + int(match["ns"]) + by * span
                return b"%s%d.%03d" % (match["ts"], nanoseconds // 1000, nanoseconds % 1000)
            if match["id"]:
                return b"%s%d" % (match["key"], int(match["id"]) + by * ids)
            return b"%s%d" % (match["step"], int(match["number"]) + by * count)

        yield MOVED.sub(moved, body)
        times_moved += 1


def cost(python: str, program: str, *args: str, repeats: int = 1) -> Cost:
    """Run a program that prints its cost; the best of ``repeats``."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        # A file, not -c: the processes that it starts import it again.
        script = Path(folder) / "measured.py"
        script.write_text(PEAK + program, encoding="utf-8")
        for _ in range(repeats):
            done = subprocess.run(
                [python, str(script), *args],
                capture_output=True,
                text=True,
                check=False,
                env={**os.environ, "HTA_DISABLE_NS_ROUNDING": "1"},
            )
            if done.returncode:
                raise SystemExit(f"{python} failed:\n{done.stderr[-2000:]}")
            said = json.loads(done.stdout.splitlines()[-1])
            found.append(Cost(said["seconds"], said["mib"]))
    return min(found, key=lambda each: each.seconds)


def line(what: str, found: Cost, size: int) -> None:
    """Print one measurement."""
    print(f"{what:40} {found.seconds:8.2f} s {size / MB / found.seconds:8.0f} MB/s {found.mib:8.0f} MiB", flush=True)


def ranks_of(source: Path, folder: Path, count: int) -> int:
    """Write the real trace as that of ``count`` ranks; returns the bytes of JSON of all."""
    folder.mkdir()
    text = gzip.decompress(source.read_bytes())
    for rank in range(count):
        own = re.sub(rb'"rank": \d+', b'"rank": %d' % rank, text, count=1)
        own = re.sub(rb'"world_size": \d+', b'"world_size": %d' % count, own, count=1)
        (folder / f"rank{rank}.json.gz").write_bytes(gzip.compress(own, 1))
    return count * len(text)


def compare(chosen: argparse.Namespace, folder: Path) -> None:
    """Make the traces, measure, and print the ratios."""
    (folder / "large").mkdir()
    large = folder / "large" / "rank0.json.gz"
    size = enlarge(chosen.trace, large, chosen.mb * MB)
    all_size = ranks_of(chosen.trace, folder / "several", chosen.ranks)
    cores = len(os.sched_getaffinity(0))
    print(f"{size / MB:.0f} MB of JSON, {large.stat().st_size / MB:.0f} MB gzipped; {cores} cores\n")

    ours = cost(sys.executable, OURS, str(large), repeats=chosen.repeats)
    line("scaleperf trace, one rank", ours, size)
    files = sorted(map(str, (folder / "several").iterdir()))
    together = cost(sys.executable, OURS, *files, repeats=chosen.repeats)
    line(f"scaleperf trace, {chosen.ranks} ranks", together, all_size)
    if chosen.hta_python:
        theirs = cost(chosen.hta_python, HTA, str(large.parent))
        line("HolisticTraceAnalysis, one rank", theirs, size)
        theirs_together = cost(chosen.hta_python, HTA, str(folder / "several"))
        line(f"HolisticTraceAnalysis, {chosen.ranks} ranks", theirs_together, all_size)
        print(
            f"\nratios to HTA: {theirs.seconds / ours.seconds:.1f} times as fast on one rank, "
            f"{theirs_together.seconds / together.seconds:.1f} on {chosen.ranks}; "
            f"1/{theirs.mib / ours.mib:.0f} of its memory"
        )
    else:
        print("\nHTA was not measured: give --hta-python")
    speed = size / MB / ours.seconds
    print(f"wanted: {SPEED} MB/s ({'met' if speed >= SPEED else 'MISSED'}), {MEMORY} MiB "
          f"({'met' if ours.mib <= MEMORY else 'MISSED'})")  # fmt: skip


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--trace", type=Path, default=REAL, help="the real trace to enlarge (.json.gz)")
    options.add_argument("--mb", type=int, default=400, help="MB of JSON (400)")
    options.add_argument("--ranks", type=int, default=8, help="files of the run with several ranks (8)")
    options.add_argument("--repeats", type=int, default=3, help="the best of so many runs of ours (3)")
    options.add_argument("--hta-python", help="an interpreter with HolisticTraceAnalysis")
    chosen = options.parse_args()
    if chosen.hta_python and shutil.which(chosen.hta_python) is None:
        raise SystemExit(f"--hta-python: expected an interpreter, found none at {chosen.hta_python}")
    with tempfile.TemporaryDirectory(prefix="scaleperf-trace-") as folder:
        compare(chosen, Path(folder))


if __name__ == "__main__":
    main()
