"""The configuration files of a virtual cluster, for Slurm 22.05 and 24.11, as text."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

OLD = (23, 11)
"""From this version on some keys have other names."""


@dataclass(frozen=True, slots=True)
class Shape:
    """``nodes`` nodes with ``gpus`` GPUs each, two nodes to a switch; silent for ``dead_after`` s a node is down."""

    nodes: int = 4
    gpus: int = 8
    cpus: int = 64
    dead_after: int = 4


def slurm_conf(folder: Path, shape: Shape, version: tuple[int, int], ports: tuple[int, int]) -> str:
    """slurm.conf: partitions ``gpu``, ``urgent`` (preempts it), ``small`` (one node a job); ports are of this host."""
    old = version < OLD
    lines = [
        "ClusterName=virtual",
        f"SlurmctldHost={socket.gethostname().partition('.')[0]}(127.0.0.1)",
        f"SlurmctldPort={ports[0]}",
        f"SlurmUser={_user()}",
        f"SlurmdUser={_user()}",
        "AuthType=auth/munge",
        "CryptoType=crypto/munge" if old else "CredType=cred/munge",
        f"AuthInfo=socket={folder}/munge/socket",
        f"StateSaveLocation={folder}/state",
        f"SlurmdSpoolDir={folder}/spool/%n",
        f"SlurmctldPidFile={folder}/run/slurmctld.pid",
        f"SlurmdPidFile={folder}/run/slurmd-%n.pid",
        f"SlurmctldLogFile={folder}/log/slurmctld.log",
        f"SlurmdLogFile={folder}/log/slurmd-%n.log",
        "ProctrackType=proctrack/linuxproc",
        *(["TaskPlugin=task/none", "SwitchType=switch/none", "JobAcctGatherType=jobacct_gather/none"] if old else []),
        "MpiDefault=none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core",
        "SlurmdParameters=config_overrides",
        "GresTypes=gpu",
        "ReturnToService=2",
        f"SlurmdTimeout={shape.dead_after}",
        "SlurmctldTimeout=30",
        "MessageTimeout=5",
        "TCPTimeout=1",
        "KillWait=1",
        "MinJobAge=3600",
        "InactiveLimit=0",
        "Waittime=0",
        "CompleteWait=0",
        "SchedulerType=sched/backfill",
        "SchedulerParameters=batch_sched_delay=0,sched_interval=2,sched_min_interval=0,bf_interval=1,bf_resolution=60",
        "AccountingStorageType=accounting_storage/none",
        "JobCompType=jobcomp/none",
        "PreemptType=preempt/partition_prio",
        "PreemptMode=CANCEL",
        "TopologyPlugin=topology/tree",
        "MaxTasksPerNode=512",
        "TreeWidth=64",
        *(_node(number, shape, ports[1]) for number in range(1, shape.nodes + 1)),
        f"PartitionName=gpu Nodes={nodes(shape)} Default=YES DefaultTime=60 MaxTime=INFINITE PriorityTier=1 State=UP",
        f"PartitionName=urgent Nodes={nodes(shape)} DefaultTime=60 PriorityTier=9 PreemptMode=OFF State=UP",
        f"PartitionName=small Nodes={nodes(shape)} DefaultTime=60 MaxNodes=1 PriorityTier=1 State=UP",
    ]
    return "\n".join(lines) + "\n"


def topology_conf(shape: Shape) -> str:
    """Leaf switches of two nodes each, under one."""
    leaves = [(n, min(n + 1, shape.nodes)) for n in range(1, shape.nodes + 1, 2)]
    lines = [f"SwitchName=leaf{i} Nodes=node[{a}-{b}]" for i, (a, b) in enumerate(leaves, 1)]
    return "\n".join([*lines, f"SwitchName=spine Switches=leaf[1-{len(leaves)}]"]) + "\n"


def gres_conf(folder: Path, shape: Shape) -> str:
    """The GPUs: character devices that do nothing."""
    return f"NodeName={nodes(shape)} Name=gpu File={folder}/dev/gpu[0-{shape.gpus - 1}]\n"


def cgroup_conf(version: tuple[int, int]) -> str:
    """No control groups: a container may not have them."""
    return f"CgroupPlugin={'cgroup/v1' if version < OLD else 'disabled'}\n"


def hosts(shape: Shape) -> str:
    """The names of the nodes as each of them sees them."""
    known = Path("/etc/hosts").read_text(encoding="utf-8")
    return known + "\n" + "".join(f"127.0.1.{n} node{n}\n" for n in range(1, shape.nodes + 1))


def nodes(shape: Shape) -> str:
    """All nodes as Slurm writes them."""
    return f"node[1-{shape.nodes}]"


def _node(number: int, shape: Shape, base: int) -> str:
    return (
        f"NodeName=node{number} NodeHostname=node{number} NodeAddr=127.0.0.1 Port={base + number} CPUs={shape.cpus} "
        f"Boards=1 SocketsPerBoard=1 CoresPerSocket={shape.cpus} ThreadsPerCore=1 RealMemory=1000000 "
        f"Gres=gpu:{shape.gpus} State=UNKNOWN"
    )


def _user() -> str:
    import pwd  # noqa: PLC0415 - only here

    return pwd.getpwuid(os.getuid()).pw_name
