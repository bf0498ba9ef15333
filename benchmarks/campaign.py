"""Play the published campaign through, from 8 to 512 GPUs, and three nights after it: SIMULATED, on a virtual Slurm.

    python benchmarks/campaign.py OUTPUT [--scenario published|other]

Brings up a real Slurm of 64 virtual nodes x 8 GPUs (see docs/slurm.md for what it needs) and runs pytest inside its
allocations, as the stages of a nightly pipeline do; what trains nothing is the trainer (tests/played/surface.py says
where its numbers come from). OUTPUT must not exist; it will hold the team's folder and, under reports/, one merged
JUnit file, one merge-request summary and one page for each of:

1. campaign: stage 16 searches, stage 128 goes around its peaks while one of its nodes dies, stage 512 runs the winner;
   each is a session of its own and takes the evidence of the one before. Baselines are recorded, published efficiencies
   asserted.
2. slow-node: the next night, every rung judged; at 512 GPUs one node is slow.
3. regression: the night after, selective checkpointing is 3 % slower at 16 GPUs: its 128 and 512 do not run.

Prints what each report says, and the optimum that was found beside the surface's own (every point computed). Exits with
1 where they differ by more than 1 %, or a report does not say what happened. Everything that it starts, it ends.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # the virtual cluster and the play are those of the tests

from tests.played.director import Director
from tests.played.project import Size
from tests.played.surface import LABEL, SCENARIOS
from tests.slurm.cluster import Cluster, MissingError, Shape

SIZE = Size(nodes=64, small=16, middle=40, delay={8: 0.1, 16: 0.1, 128: 0.5, 512: 0.5})


def main() -> None:
    """Play, print, and say by the exit status whether all of it holds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--scenario", choices=sorted(SCENARIOS), default="published")
    told = parser.parse_args()
    output, began = told.output.absolute(), time.monotonic()
    for signum in (signal.SIGINT, signal.SIGTERM):  # also in the background, where a shell has SIGINT ignored
        signal.signal(signum, lambda number, _: sys.exit(128 + number))
    try:
        output.mkdir(parents=True)
    except FileExistsError:
        parser.error(f"expected a folder that does not exist, found {output}")
    print(f"{LABEL} campaign, scenario {told.scenario}, in {output}", flush=True)
    cluster = Cluster(output / "cluster", Shape(SIZE.nodes, 8))
    try:
        cluster.up()
        faults = Director(cluster, output / "team", told.scenario, SIZE).play()
    except MissingError as error:
        raise SystemExit(str(error)) from None
    finally:
        cluster.down()
    print(f"{time.monotonic() - began:.0f} s in all")
    for fault in faults:
        print(f"NOT AS EXPECTED: {fault}")
    raise SystemExit(1 if faults else 0)


if __name__ == "__main__":
    main()
