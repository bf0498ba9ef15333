"""On every node of a job, before what it runs: says where it is, agrees on where torchrun's ranks meet, and goes.

Standard library only, one file: the launcher copies it into the run's folder and starts it there with the job's own
Python (``python -I -S node.py FOLDER PROGRAM ...``), so that a container or a team's interpreter needs nothing of ours.
It ends as the program: exec keeps its process. Needs Python 3.8.

Writes ``nodes/<rank>.json`` (host, pid, devices, Slurm's ids) and, on the first of several nodes, ``rendezvous``.
"""
# Paths are os.path's: importing pathlib would take longer than all that is done here.
# ruff: noqa: PTH103, PTH104, PTH108, PTH118, PTH120, PTH123

from __future__ import annotations

import os
import sys
import time

PATIENCE = 300.0
"""Seconds that a node waits for the first one to say where to meet."""

FIRST_PORT, PORTS = 15000, 15000
"""So many ports from the first, below those that Linux hands out by itself (32768 and up): none is taken meanwhile."""

_SLOW = 0.3
_TRIES = 1000


def main() -> None:
    """Arguments: the run's folder, then the program with its arguments."""
    folder, argv = sys.argv[1], sys.argv[2:]
    rank, count = int(os.environ.get("SLURM_PROCID", "0")), int(os.environ.get("SLURM_STEP_NUM_NODES", "1"))
    step = f"{os.environ.get('SLURM_JOB_ID', '?')}.{os.environ.get('SLURM_STEP_ID', '?')}"
    name = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    try:
        write(os.path.join(folder, "nodes", f"{rank}.json"), describe(rank, step))
        if count > 1:
            meet(folder, rank, step)
    except OSError as error:
        sys.exit(f"node.py on {name}: [Errno {error.errno}] {error.strerror}: {error.filename}")
    try:
        os.execvpe(argv[0], argv, os.environ)  # noqa: S606 - the program as it was ordered, without a shell
    except OSError as error:
        sys.stderr.write(f"node.py on {name}: cannot start {argv[0]!r}: {error.strerror}\n")
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


def describe(rank: int, step: str) -> str:
    """What the launcher reads back: JSON, by hand, as importing json takes as long as starting Python."""
    host = os.uname().nodename
    texts = {
        "host": os.environ.get("SLURMD_NODENAME") or host,
        "hostname": host,
        "devices": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        "step": step,
    }
    said = [f'"{key}": "{quoted(value)}"' for key, value in texts.items()]
    return f'{{"rank": {rank}, "pid": {os.getpid()}, "started": {time.time()}, {", ".join(said)}}}'


def quoted(text: str) -> str:
    """Text inside of a JSON string."""
    return "".join(c if c.isascii() and c.isprintable() and c not in '"\\' else f"\\u{ord(c):04x}" for c in text)


def reachable_name() -> str:
    """This node's name for the others: Slurm's where it resolves, else the host's own."""
    import socket  # noqa: PLC0415 - costs some ms, and a job of one node needs none

    own = os.uname().nodename
    for name in (os.environ.get("SLURMD_NODENAME"), own):
        try:
            if name and socket.getaddrinfo(name, None):
                return name
        except OSError:
            continue
    return own


def write(path: str, text: str) -> None:
    """Write a file so that it is there whole, or not at all."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
    os.rename(temporary, path)


def read(path: str) -> str:
    """A file's text, empty where there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def meet(folder: str, rank: int, step: str) -> None:
    """Set torchrun's own defaults: where the ranks meet, who holds the store, and how this node is called."""
    name = reachable_name()
    path = os.path.join(folder, "rendezvous")
    if rank == 0:
        endpoint = f"{name}:{free_port()}"
        write(path, f"{step} {endpoint}")
    else:
        endpoint = await_endpoint(folder, path, rank, step)
    os.environ["PET_RDZV_ENDPOINT"] = endpoint
    os.environ["PET_RDZV_CONF"] = "is_host=true" if rank == 0 else "is_host=false"
    os.environ["PET_LOCAL_ADDR"] = name


def free_port() -> int:
    """A port on which nobody listens, at random: two jobs that share this node do not choose the same."""
    import socket  # noqa: PLC0415 - as above

    for _ in range(_TRIES):
        port = FIRST_PORT + int.from_bytes(os.urandom(4), "little") % PORTS
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        return port
    sys.exit(f"node.py: expected a free port between {FIRST_PORT} and {FIRST_PORT + PORTS}, found none")


def await_endpoint(folder: str, path: str, rank: int, step: str) -> str:
    """Where this step's ranks meet, as soon as the first node has said it."""
    until, pause = time.monotonic() + PATIENCE, 0.002
    while time.monotonic() < until:
        who, _, endpoint = read(path).partition(" ")
        if who == step and endpoint:
            return endpoint
        time.sleep(pause)
        pause = min(pause * 1.5, 1.0)
        if pause >= _SLOW:
            # A network file system may remember for a minute that there is no such file; a change of ours in the same
            # folder makes it look again.
            looking = os.path.join(folder, f".looking.{rank}")
            write(looking, "")
            os.unlink(looking)
    sys.exit(f"node.py on {os.uname().nodename}: the first node has not said in {PATIENCE:.0f} s where to meet: {path}")


if __name__ == "__main__":
    main()
