"""``python -m tests.slurm.cluster up|down FOLDER``: a cluster that stays up until it is told to go; or ``try``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.slurm.cluster import trial
from tests.slurm.cluster.control import Cluster, MissingError
from tests.slurm.cluster.files import Shape


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.slurm.cluster", description=__doc__)
    parser.add_argument("what", choices=("up", "down", "power-off"), help="or `try`, with pytest's arguments")
    parser.add_argument("folder", type=Path)
    parser.add_argument("node", nargs="?", help="the node to power off")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--gpus", type=int, default=8, help="of each node; they are null devices")
    if sys.argv[1:2] == ["try"]:
        sys.exit(trial.attempt(sys.argv[2:]))
    told = parser.parse_args()
    cluster = Cluster(told.folder.absolute(), Shape(told.nodes, told.gpus))
    if told.what == "down":
        cluster.down()
        print(f"down: {cluster.folder}")  # noqa: T201 - a command's answer
    elif told.what == "power-off":
        cluster.power_off(told.node)
    else:
        cluster.up()
        print(f"export SLURM_CONF={cluster.conf}")  # noqa: T201 - as above


try:
    main()
except MissingError as error:
    raise SystemExit(str(error)) from None
