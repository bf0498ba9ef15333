"""How good the plan is: projections against the published rungs, and packing against a full allocation.

    python benchmarks/plan.py [--campaigns 20]

Projections start from one published row and never look at the row that they are compared with. The network is that of
baselines/b200/system.yaml, varied one number at a time to show what hangs on it. Packing: 64 nodes of 8 GPUs, 200 cases
of 16 GPUs, 10 of 128, 2 of 512, durations within 20 %, the larger ones gated or there from the start.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pytest_scaleperf.model import Batch, Layout, Link, Network, Resources, Wanted
from pytest_scaleperf.packing import Packer
from pytest_scaleperf.plan.communication import ModelSize
from pytest_scaleperf.plan.projection import Configuration, Machine, Measured, project
from pytest_scaleperf.plan.simulate import Task, nodes_of, simulate
from pytest_scaleperf.system import load_system

ROOT = Path(__file__).parents[1]
SIZE = ModelSize(30_532_122_624, 48)
PUBLISHED = {16: 28_400.0, 128: 28_000.0, 512: 26_700.0}
SMALL = 16
LAYOUTS = {16: (16, 1, 18), 128: (128, 1, 22), 512: (128, 4, 22)}


def configuration(gpus: int) -> Configuration:
    """What was published at that GPU count."""
    shards, replicas, local = LAYOUTS[gpus]
    return Configuration(Layout(shards, replicas), Batch(local, local * gpus, 1, 4096))


def networks(stated: Network) -> dict[str, Network]:
    """The stated network, and with one thing changed."""
    inside, between = stated.intra_node, stated.inter_node
    slower = replace(stated, inter_node=Link(between.gb_s / 2, between.latency_us))
    return {
        "as stated": stated,
        "InfiniBand at 80 %": replace(stated, inter_node=Link(between.gb_s * 0.8, between.latency_us)),
        "InfiniBand at 50 %": slower,
        "latencies halved": Network(
            Link(inside.gb_s, inside.latency_us / 2), Link(between.gb_s, between.latency_us / 2)
        ),
        "no latencies": Network(Link(inside.gb_s, 0.0), Link(between.gb_s, 0.0)),
    }


def show_projections() -> None:
    """Each rung from a smaller one, under each network."""
    system = load_system(ROOT / "baselines", "b200")
    if system.network is None:
        raise SystemExit("baselines/b200/system.yaml states no network")
    print(f"{'from':>4} {'to':>4}  {'network':20} {'expected':>9} {'between':>17} {'published':>9} {'off by':>7}")
    for below, above in ((16, 128), (16, 512), (128, 512)):
        for name, network in networks(system.network).items():
            machine = Machine(SIZE, network, system.gpus_per_node)
            found = project(Measured(configuration(below), PUBLISHED[below]), configuration(above), machine)
            error = found.tps / PUBLISHED[above] - 1
            print(
                f"{below:4} {above:4}  {name:20} {found.tps:9,.0f} {found.low:8,.0f} -{found.high:7,.0f} "
                f"{PUBLISHED[above]:9,.0f} {error:+7.1%}"
            )
        hidden = PUBLISHED[below] / PUBLISHED[above] - 1
        print(f"{below:4} {above:4}  {'(no loss at all)':20} {PUBLISHED[below]:9,.0f} {'':17} {'':9} {hidden:+7.1%}")


def tasks(seed: int, *, gated: bool) -> list[Task]:
    """A campaign; gated, each larger case waits for three of the smaller size."""
    chance = random.Random(seed)  # noqa: S311 - a reproducible campaign, no secret
    found: list[Task] = []
    for gpus, count, parents in ((16, 200, 0), (128, 10, 16), (512, 2, 128)):
        below = [task.key for task in found if task.gpus == parents]
        for number in range(count):
            after = tuple(chance.sample(below, 3)) if gated and below else ()
            found.append(Task(f"{gpus}-{number}", gpus, 600 * chance.uniform(0.8, 1.2), after))
    return found


def show_packing(campaigns: int) -> None:
    """Busy share of the allocation while 16-GPU cases wait (up to the start of the last one), and over all."""
    for gated in (False, True):
        waiting, whole = [], []
        for seed in range(campaigns):
            found = simulate(tasks(seed, gated=gated), 512, 8)
            whole.append(found.busy / found.available)
            waiting.append(busy_while_waiting(tasks(seed, gated=gated), found.starts))
        name = "gated" if gated else "not gated"
        print(
            f"{name:9}: busy while 16-GPU cases wait: median {statistics.median(waiting):.1%}, worst "
            f"{min(waiting):.1%} of {campaigns}; over the whole campaign {statistics.median(whole):.1%}"
        )
    packer = Packer(nodes_of(512, 8))
    big = Wanted("running", Resources(504, 8))
    placed = packer.choose([big])
    if placed is not None:
        packer.take(big.key, placed[1])
    queue = [Wanted(f"k{i}", Resources((16, 32, 64, 128, 512)[i % 5], 8)) for i in range(10_000)]
    times = []
    for _ in range(20):
        began = time.perf_counter()
        packer.choose(queue)
        times.append(time.perf_counter() - began)
    print(f"choose among 10,000 that wait on 64 nodes: median {statistics.median(times) * 1e3:.2f} ms")


def busy_while_waiting(campaign: list[Task], starts: Mapping[str, float]) -> float:
    """Busy share up to the start of the last 16-GPU case."""
    until = max(starts[task.key] for task in campaign if task.gpus == SMALL)
    spans = ((task, starts[task.key]) for task in campaign)
    busy = sum(task.gpus * (min(begin + task.seconds, until) - begin) for task, begin in spans if begin < until)
    return busy / (512 * until)


def main() -> None:
    """Print both."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--campaigns", type=int, default=20)
    arguments = parser.parse_args()
    show_projections()
    print()
    show_packing(arguments.campaigns)


if __name__ == "__main__":
    main()
