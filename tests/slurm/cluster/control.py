"""Bring a virtual cluster up and down, and do to its nodes what happens to nodes.

Each slurmd runs in a UTS and a mount namespace of its own (host name and /etc/hosts of its node), so all processes of a
node can be told by their namespace. Everything lies under one folder; only processes that it started are signalled.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pytest_scaleperf.launch import processes
from tests.slurm.cluster import files
from tests.slurm.cluster.files import Shape

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "unshare")
_START_NODE = 'hostname "$1"; mount --bind "$2/etc/hosts" /etc/hosts; exec slurmd -D -N "$1" -f "$2/etc/slurm.conf"'
_READY_SECONDS = 60.0
_COMPLETING_SECONDS = 8.0


class MissingError(Exception):
    """This machine lacks what a virtual cluster needs; the text says what to install."""


class Cluster:
    """One virtual cluster under ``folder``."""

    def __init__(self, folder: Path, shape: Shape | None = None) -> None:
        self.folder = folder
        self.shape = shape or Shape()
        self.conf = folder / "etc" / "slurm.conf"
        self._children: list[subprocess.Popen[bytes]] = []

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(f"node{number}" for number in range(1, self.shape.nodes + 1))

    @property
    def env(self) -> dict[str, str]:
        """What a program needs in its environment to speak to this cluster."""
        return {"SLURM_CONF": str(self.conf)}

    def up(self) -> None:
        """Start every daemon, and return once all nodes are idle."""
        _require()
        for name in ("etc", "run", "log", "state", "spool", "dev", "munge"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        _open_to_all(self.folder)
        self._configure()
        self._start_munge()
        self.start_controller()
        for node in self.nodes:
            self.power_on(node)
        self.await_idle()

    def down(self) -> None:
        """End every daemon and all that they have started."""
        if self._look("slurmctld") is not None:
            with suppress(subprocess.TimeoutExpired):
                self.tell("scancel", "--me")
        for node in self.nodes:
            self.power_off(node)
        self._signal("slurmctld", signal.SIGKILL)
        self._signal("munged", signal.SIGKILL)
        for child in self._children:
            child.wait()

    def start_controller(self) -> None:
        self._start("slurmctld", ["slurmctld", "-D", "-i", "-f", str(self.conf)])

    def stop_controller(self) -> None:
        """End the controller as a reboot of its host would; its state stays on the disk."""
        self._signal("slurmctld", signal.SIGTERM)
        self._await_end("slurmctld")

    def power_on(self, node: str) -> None:
        """Start a node; one that was down comes back by itself."""
        (self.folder / "spool" / node).mkdir(exist_ok=True)
        argv = ["unshare", "--uts", "--mount", "--propagation", "private", "sh", "-ec", _START_NODE, "sh"]
        self._start(node, [*argv, node, str(self.folder)])

    def power_off(self, node: str) -> None:
        """SIGKILL to everything on the node, at once."""
        seen = self._look(node)
        if seen is None:
            return
        namespace = _namespace(seen.pid)
        processes.send(seen, signal.SIGSTOP)  # it must not report what dies
        strangers = {None, _namespace(os.getpid())}
        for _ in range(3):  # what was forking meanwhile
            for pid in processes.everyone():
                other = processes.look(pid)
                if other is not None and namespace not in strangers and _namespace(pid) == namespace:
                    processes.send(other, signal.SIGKILL)
        processes.send(seen, signal.SIGKILL)
        self._await_end(node)

    def kill_daemon(self, node: str) -> None:
        """SIGKILL to a node's slurmd alone; what runs there runs on."""
        self._signal(node, signal.SIGKILL)
        self._await_end(node)

    def processes_of(self, text: str) -> list[int]:
        """Pids of everything alive whose command line holds ``text``."""
        found = []
        for pid in processes.everyone():
            with suppress(OSError):
                if text.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ") and _lives(pid):
                    found.append(pid)
        return found

    def tell(self, *argv: str, env: Mapping[str, str] | None = None) -> str:
        """The output of a Slurm command, whatever its exit code."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
        done = subprocess.run(
            argv, env={**clean, **self.env, **(env or {})}, capture_output=True, text=True, timeout=20, check=False
        )
        return done.stdout.strip()

    def await_idle(self, seconds: float = _READY_SECONDS) -> None:
        """Return once every node is idle; what is drained or down is resumed."""
        deadline = time.monotonic() + seconds
        states: Sequence[str] = ()
        while time.monotonic() < deadline:
            states = self.tell("sinfo", "-h", "-N", "-p", "gpu", "-o", "%N %T").splitlines()
            if len(states) == self.shape.nodes and all(line.endswith(" idle") for line in states):
                return
            for line in states:
                node, _, state = line.partition(" ")
                if self._look(node) is None:
                    self.power_on(node)
                elif state == "completing" and time.monotonic() > deadline - seconds + _COMPLETING_SECONDS:
                    # Its last word was lost with a controller; Slurm asks again after minutes, an operator does this.
                    self.tell("scontrol", "update", f"nodename={node}", "state=down", "reason=completing")
                elif re.match(r"drain|down$", state):
                    self.tell("scontrol", "update", f"nodename={node}", "state=resume")
            time.sleep(0.1)
        raise AssertionError(f"expected {self.shape.nodes} idle nodes, found {states}; see {self.folder / 'log'}")

    def left(self) -> list[str]:
        """Jobs and steps that the controller knows as not yet ended."""
        jobs = self.tell("squeue", "-h", "-o", "%i %T").splitlines()
        return jobs + self.tell("squeue", "-h", "-s", "-o", "%i").splitlines()

    def _configure(self) -> None:
        version, folder = _version(), self.folder
        if self.conf.exists():
            return
        for number in range(self.shape.gpus):
            with suppress(FileExistsError):
                os.mknod(folder / "dev" / f"gpu{number}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        (folder / "etc" / "topology.conf").write_text(files.topology_conf(self.shape))
        (folder / "etc" / "gres.conf").write_text(files.gres_conf(folder, self.shape))
        (folder / "etc" / "cgroup.conf").write_text(files.cgroup_conf(version))
        (folder / "etc" / "plugstack.conf").write_text("")
        (folder / "etc" / "hosts").write_text(files.hosts(self.shape))
        base = _free_ports(self.shape.nodes + 1)
        self.conf.write_text(files.slurm_conf(folder, self.shape, version, (base, base)))

    def _start_munge(self) -> None:
        home = self.folder / "munge"
        key = home / "key"
        if not key.exists():
            key.touch(mode=0o600)
            key.write_bytes(os.urandom(1024))
        (home / "socket").unlink(missing_ok=True)
        self._start(
            "munged",
            ["munged", "--foreground", "--force",  # a parent folder may be closed to others
             f"--socket={home}/socket", f"--key-file={key}", f"--pid-file={home}/pid",
             f"--log-file={home}/log", f"--seed-file={home}/seed", "--num-threads=4"],
        )  # fmt: skip
        deadline = time.monotonic() + 10
        while not (home / "socket").exists():
            assert time.monotonic() < deadline, f"munged does not come up: see {self.folder / 'log' / 'munged.out'}"
            time.sleep(0.02)

    def _start(self, name: str, argv: Sequence[str]) -> None:
        if self._look(name) is not None:
            return
        clean = {key: value for key, value in os.environ.items() if not key.startswith("SLURM")}
        with (self.folder / "log" / f"{name}.out").open("ab") as output:
            child = subprocess.Popen(
                argv,
                env={**clean, **self.env},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                cwd="/",
            )
        self._children.append(child)
        seen = processes.look(child.pid)
        assert seen is not None
        (self.folder / "run" / f"{name}.id").write_text(f"{seen.pid} {seen.start}")

    def _look(self, name: str) -> processes.Process | None:
        """The daemon as it was started, where it still lives."""
        try:
            pid, start = map(int, (self.folder / "run" / f"{name}.id").read_text().split())
        except FileNotFoundError:
            return None
        seen = processes.look(pid)
        return seen if seen is not None and seen.start == start and seen.state != "Z" else None

    def _signal(self, name: str, signum: signal.Signals) -> None:
        seen = self._look(name)
        if seen is not None:
            processes.send(seen, signum)

    def _await_end(self, name: str) -> None:
        deadline = time.monotonic() + 30
        while self._look(name) is not None:
            assert time.monotonic() < deadline, f"{name} does not end"
            time.sleep(0.02)
        for child in self._children:
            child.poll()


def _lives(pid: int) -> bool:
    seen = processes.look(pid)
    return seen is not None and seen.state != "Z"


def _namespace(pid: int) -> str | None:
    try:
        return str(Path(f"/proc/{pid}/ns/uts").readlink())
    except OSError:
        return None


def _require() -> None:
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        raise MissingError(
            f"expected Slurm on this machine, found no {', '.join(missing)}; install it: "
            "apt-get install -y --no-install-recommends slurmctld slurmd slurm-client munge"
        )
    if os.getuid() != 0:
        raise MissingError("expected root (virtual nodes need namespaces of their own), found another user")
    done = subprocess.run(["unshare", "--uts", "--mount", "true"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise MissingError(f"expected leave to make namespaces (CAP_SYS_ADMIN), found {done.stderr.strip()!r}")


def _version() -> tuple[int, int]:
    said = subprocess.run(["slurmctld", "-V"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"(\d+)\.(\d+)", said)
    assert found is not None, said
    return int(found[1]), int(found[2])


def _open_to_all(folder: Path) -> None:
    """For munged, which trusts only folders that others may pass but not write."""
    for name in ("", "etc", "run", "log", "munge"):
        (folder / name).chmod(0o755)


def _free_ports(count: int) -> int:
    """The first of ``count`` ports in a row that nobody listens on, below those that the kernel hands out."""
    for _ in range(100):
        base = random.randrange(20000, 32000 - count)  # noqa: S311 - no secret
        try:
            for port in range(base, base + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return base
    raise AssertionError("no free ports")
