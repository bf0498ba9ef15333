"""How busy a session keeps an allocation of 512 GPUs, and what a case costs above Slurm's own start of a step.

    python benchmarks/slurm.py [--nodes 64] [--small 200] [--seconds 12] [--jobs 500]

Brings up a real Slurm of virtual nodes (see docs/slurm.md) and runs pytest inside an allocation of all of it: cases of
16 GPUs, gated ones of 128 and 512. What runs is the stand-in trainer: a real process on every node, SIMULATED, that
says so and sleeps. Prints:

- busy: the share of the allocation's GPUs that runs hold while 16-GPU cases are waiting, from a run's first process on
  its nodes to srun's end (promised: 95 %); and the same from the order on, which counts the start of the step too;
- launch overhead of a case: from the order to its result, and the whole of a case in a session (gate, launch, reading,
  verdict, record), each less a bare srun of the same program and shape in the same run, taken in turns (promised:
  50 ms for the launch);
- questions to the controller, as it has counted them itself (sdiag), and the wall time;
- with --jobs: that many jobs of one GPU submitted, and the questions that it takes to watch them. 500 of them start
  2,000 processes, which two cores need minutes for.

Exits with 1 where a promise is not kept.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pytest_scaleperf.launch.slurm.allocation import AllocationLauncher
from pytest_scaleperf.launch.slurm.batch import BatchLauncher
from pytest_scaleperf.model import LaunchSpec, Resources, SlurmOptions, Wanted

sys.path.insert(0, str(Path(__file__).parent.parent))  # the virtual cluster is that of the tests

from tests.slurm.cluster import Cluster, Shape

GPUS_PER_NODE, SMALL = 8, 16
BUSY, OVERHEAD = 0.95, 0.050
PYTHON = os.path.realpath(sys.executable)
ROOT = Path(__file__).parent.parent
TRAINER = ROOT / "tests" / "standin" / "trainer.py"
STEPS, LOG_FREQ = 30, 5
SLEEPS = 1 + STEPS // LOG_FREQ
QUESTIONS = re.compile(r"REQUEST_(JOB_INFO|JOB_INFO_SINGLE|JOB_USER_INFO|JOB_STEP_INFO|NODE_INFO|PARTITION_INFO)\b")


@dataclass(frozen=True, slots=True)
class Told:
    """What the command line asked for."""

    nodes: int
    small: int
    seconds: float
    jobs: int
    rounds: int


class Project:
    """A user's repository with one suite, on storage that all nodes see."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.env = {**environment, "SCALEPERF_STANDIN": str(folder / "told.json")}
        (folder / "suites").mkdir(parents=True)
        (folder / "baselines" / "lab").mkdir(parents=True)
        (folder / "suites" / "test_it.py").write_text("def test_it(scaleperf):\n    scaleperf.check()\n")
        (folder / "pytest.ini").write_text("[pytest]\n")
        trainer = folder / "suites" / "trainer.py"
        trainer.write_text(f"#!{PYTHON} -S\n{TRAINER.read_text()}")
        trainer.chmod(0o755)
        system = {
            "device": "lab-gpu", "device_match": "lab", "gpus_per_node": GPUS_PER_NODE, "peak_flops": 1.0e14,
            "memory_gib": 80, "judge": ["tps"], "tolerance": {"tps": "3 %"},
        }  # fmt: skip
        (folder / "baselines" / "lab" / "system.yaml").write_text(yaml.safe_dump(system))

    def suite(self, rungs: Sequence[Mapping[str, Any]], seconds: Callable[[int], float], *, alone: bool) -> None:
        """Write the suite; ``seconds`` says how long the run of a local batch takes. ``alone``: one case at a time."""
        suite = {
            "name": "demo", "system": "lab", "sequence": 128, "ladder": list(rungs),
            "trainer": {"dialect": "0.3", "module": "llama3", "config": "llama3_debugmodel",
                        "executable": "./trainer.py"},
            "measure": {"steps": STEPS, "warmup": 5, "log_freq": LOG_FREQ, "exclusive": alone},
            "limits": {"startup": 120, "no_progress": 120, "total": 600},
        }  # fmt: skip
        (self.folder / "suites" / "demo.yaml").write_text(yaml.safe_dump(suite, sort_keys=False))
        batches = {batch for rung in rungs for batch in rung["local_batch"]}
        told = {f"*-lbs{batch}": {"delay": seconds(batch) / SLEEPS} for batch in batches}
        (self.folder / "told.json").write_text(json.dumps(told))

    def pytest(self, job: str, *args: str) -> float:
        """Run pytest inside the allocation; its wall time in s."""
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "suites", "--system", "lab", "-q", "--record-baselines", *args],
            cwd=self.folder, env={**self.env, "SLURM_JOB_ID": job}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        last = done.stdout.strip().splitlines()[-1:]
        print(f"  pytest: {' '.join(last)}")
        if done.returncode:
            raise SystemExit(done.stdout[-4000:] + done.stderr[-2000:])
        return time.monotonic() - began

    def sessions(self) -> list[Path]:
        """Oldest first."""
        return sorted((self.folder / ".scaleperf" / "sessions").iterdir())


def rung(gpus: int, batches: int, below: int | None = None) -> dict[str, Any]:
    """So many cases of that size, each behind the same local batch of the rung below."""
    gate = {} if below is None else {"requires": {"gpus": below, "same": ["local_batch"]}}
    return {"gpus": gpus, "dp_shard": gpus, "activation_checkpoint": "none",
            "local_batch": list(range(1, batches + 1)), **gate}  # fmt: skip


def varied(seconds: float) -> Callable[[int], float]:
    """Within 20 %, the same each time."""
    return lambda batch: seconds * (0.8 + 0.4 * ((batch * 7919) % 101) / 100)


def busy(entries: Sequence[Mapping[str, Any]], capacity: int, *, start: bool) -> float:
    """The share of ``capacity`` GPUs that runs held while some 16-GPU case had yet to be ordered.

    ``start``: from the order on, else from the first process on a node.
    """
    ordered = {id(entry): entry["started"] - entry["waited"] for entry in entries}
    first = min(ordered.values())
    last = max(ordered[id(entry)] for entry in entries if entry["gpus"] == SMALL)
    spans = ((e["gpus"], ordered[id(e)] if start else e["started"], min(e["ended"], last)) for e in entries)
    return float(sum(gpus * max(0.0, end - begin) for gpus, begin, end in spans) / (capacity * (last - first)))


def questions(cluster: Cluster) -> int:
    """How often the controller was asked something since it started, by its own count."""
    lines = (line.split() for line in cluster.tell("sdiag").splitlines() if QUESTIONS.search(line))
    return sum(int(re.sub(r"\D", "", word.partition(":")[2])) for words in lines for word in words if "count:" in word)


def allocated(cluster: Cluster, nodes: int) -> str:
    """A job that holds all nodes."""
    job = cluster.tell(
        "sbatch", "--parsable", "--no-kill", f"--nodes={nodes}", f"--gpus-per-node={GPUS_PER_NODE}", "--exclusive",
        "--mem=0", "--time=60", "--output=/dev/null", "--wrap=exec sleep infinity",
    )  # fmt: skip
    until = time.monotonic() + 60
    while cluster.tell("squeue", "-h", "-j", job, "-o", "%T") != "RUNNING":
        if time.monotonic() > until:
            raise SystemExit(f"the allocation does not start: {cluster.tell('squeue')}")
        time.sleep(0.1)
    return job


def packed(cluster: Cluster, project: Project, job: str, told: Told) -> bool:
    """The session of the promise: how busy it keeps the allocation."""
    capacity = told.nodes * GPUS_PER_NODE
    mid, big = capacity // 4, capacity
    project.suite(
        [rung(SMALL, told.small), rung(mid, min(10, told.small), SMALL), rung(big, min(2, told.small), mid)],
        varied(told.seconds),
        alone=False,
    )
    before, load = questions(cluster), os.getloadavg()[0]
    wall = project.pytest(job)
    asked = questions(cluster) - before
    whole = json.loads((project.sessions()[-1] / "timeline.json").read_text())
    entries, spent = whole["timeline"], whole["gpu_seconds"]
    ran, held = busy(entries, capacity, start=False), busy(entries, capacity, start=True)
    slower = [entry["ended"] - entry["started"] for entry in entries if entry["gpus"] == SMALL]
    starts = [entry["waited"] for entry in entries]
    print(f"{len(entries)} launches on {told.nodes} nodes x {GPUS_PER_NODE}, wall time {wall:.0f} s")
    print(f"  busy while {SMALL}-GPU cases wait: {ran:.1%} by runs, {held:.1%} with the start of their steps")
    print(f"  over all: {spent['busy'] / (capacity * wall):.1%} busy by runs")
    print(f"  a run of {SMALL} GPUs: {statistics.median(slower):.2f} s, told to sleep about {told.seconds:.0f} s")
    loads = f"load before {load:.1f}, after {os.getloadavg()[0]:.1f}"
    print(f"  a step's start here: {statistics.median(starts):.2f} s; {loads}")
    print(f"  questions to the controller: {asked} in {wall:.0f} s, {asked / wall:.2f} a second")
    return ran >= BUSY


def overhead(cluster: Cluster, project: Project, job: str, told: Told) -> bool:
    """A launch of two nodes through the launcher and a bare srun of the same, in turns; then cases one by one."""
    project.suite([rung(SMALL, told.rounds)], lambda _: 0.0, alone=True)
    project.pytest(job)
    session = project.sessions()[-1]
    whole = json.loads((session / "timeline.json").read_text())
    orders = sorted(entry["started"] - entry["waited"] for entry in whole["timeline"])
    cases = [later - earlier for earlier, later in itertools.pairwise(orders)]
    record = json.loads(next(iter(sorted((session / "records").glob("*.json")))).read_text())
    argv = tuple(record["samples"][0]["argv"])
    os.environ.update(cluster.env)
    bare, ours = [], []
    with AllocationLauncher(SlurmOptions(), GPUS_PER_NODE, job) as launcher:
        for number in range(told.rounds):
            folder = project.folder / "alone" / "case" / str(number + 1)
            bare.append(by_hand(project, job, argv, folder / "1"))
            ours.append(by_launcher(project, launcher, argv, folder / "2"))
    print(f"launch overhead of a case of {SMALL} GPUs, {told.rounds} of each in turns, in ms: median (lower quartile)")
    print(f"  bare srun of the same program and shape: {shown(bare)}; through the launcher: {shown(ours)}; "
          f"a whole case in a session: {shown(cases)}")  # fmt: skip
    above = quartile(ours) - quartile(bare)
    print(f"  above the srun, by the quartiles: launch {above * 1000:+.0f} ms, whole case "
          f"{(quartile(cases) - quartile(bare)) * 1000:+.0f} ms")  # fmt: skip
    return above <= OVERHEAD


def quartile(values: Sequence[float]) -> float:
    """The lower one: what else this machine does meanwhile is none of the launcher's."""
    return statistics.quantiles(values, n=4)[0]


def shown(values: Sequence[float]) -> str:
    """Milliseconds."""
    return f"{statistics.median(values) * 1000:.0f} ({quartile(values) * 1000:.0f})"


def by_hand(project: Project, job: str, argv: Sequence[str], folder: Path) -> float:
    """Seconds of a bare srun."""
    folder.mkdir(parents=True)
    command = (
        "srun", f"--jobid={job}", "--exact", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--cpus-per-task=64",
        f"--gres=gpu:{GPUS_PER_NODE}", "--label", "--unbuffered", *argv,
    )  # fmt: skip
    began = time.perf_counter()
    with (folder / "stdout.log").open("wb") as log:
        env = {**project.env, "SCALEPERF_RUN_DIR": str(folder)}
        subprocess.run(command, check=True, cwd=project.folder, env=env, stdin=subprocess.DEVNULL, stdout=log)
    return time.perf_counter() - began


def by_launcher(project: Project, launcher: AllocationLauncher, argv: tuple[str, ...], folder: Path) -> float:
    """Seconds from the order to the result."""
    folder.mkdir(parents=True)
    began = time.perf_counter()
    chosen = launcher.choose([Wanted("one", Resources(SMALL, GPUS_PER_NODE))])
    if chosen is None:
        raise SystemExit("expected an empty allocation")
    env = {**project.env, "SCALEPERF_RUN_DIR": str(folder)}
    spec = LaunchSpec("one", argv, env, project.folder, folder / "stdout.log", chosen[0].resources, chosen[1])
    result = launcher.submit(spec).wait(60)
    if result is None or result.exit_code:
        raise SystemExit(f"expected it to complete, found {result}; {(folder / 'stdout.log').read_text()}")
    return time.perf_counter() - began


def submitted(cluster: Cluster, folder: Path, jobs: int, seconds: float = 30.0) -> bool:
    """Many jobs in the queue at once: what watching them costs the controller."""
    os.environ.update(cluster.env)
    with BatchLauncher(SlurmOptions(max_jobs=jobs, time_limit=600)) as launcher:
        began = time.monotonic()
        for number in range(jobs):
            run = folder / "jobs" / str(number)
            run.mkdir(parents=True)
            chosen = launcher.choose([Wanted(str(number), Resources(1, GPUS_PER_NODE))])
            if chosen is None:
                raise SystemExit("expected room for another job")
            launcher.submit(LaunchSpec(f"many.{number}", ("sleep", "600"), dict(os.environ), run, run / "stdout.log",
                                       chosen[0].resources, chosen[1]))  # fmt: skip
        took, before, until = time.monotonic() - began, launcher.asked, time.monotonic() + seconds
        while time.monotonic() < until:
            launcher.wait(0.5)
        asked = launcher.asked - before
        states = cluster.tell("squeue", "-h", "-o", "%T").split()
    print(f"{jobs} jobs submitted in {took:.0f} s ({took / jobs * 1000:.0f} ms each), {states.count('RUNNING')} run")
    print(f"  questions to the controller in {seconds:.0f} s: {asked} squeue, {asked / seconds * 5:.1f} in 5 s")
    return asked <= seconds / 5 + 1


def main() -> None:
    """Bring a cluster up, measure, take it down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--small", type=int, default=200, help=f"cases of {SMALL} GPUs")
    parser.add_argument("--seconds", type=float, default=12.0, help="that the stand-in sleeps, within 20 %%")
    parser.add_argument("--rounds", type=int, default=15, help="launches for the overhead")
    parser.add_argument("--jobs", type=int, default=0, help="also submit so many jobs")
    told = Told(**vars(parser.parse_args()))
    with tempfile.TemporaryDirectory(prefix="scaleperf-slurm-") as name:
        folder = Path(name)
        cluster = Cluster(folder / "cluster", Shape(told.nodes, GPUS_PER_NODE, dead_after=120))
        quick = folder / "bin"
        quick.mkdir()
        (quick / "python3").symlink_to(PYTHON)  # not a shim of a version manager: it is started on every node
        env = {**os.environ, **cluster.env, "PATH": f"{quick}:{os.environ['PATH']}"}
        try:
            began = time.monotonic()
            cluster.up()
            print(f"{told.nodes} virtual nodes up in {time.monotonic() - began:.1f} s; trainers are SIMULATED")
            project = Project(folder / "project", env)
            job = allocated(cluster, told.nodes)
            kept = [overhead(cluster, project, job, told), packed(cluster, project, job, told)]
            cluster.tell("scancel", job)
            if told.jobs:
                kept.append(submitted(cluster, folder, told.jobs))
        finally:
            cluster.down()
    sys.exit(0 if all(kept) else 1)


if __name__ == "__main__":
    main()
