from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_scaleperf.launch.slurm import allotted, node, render
from pytest_scaleperf.launch.slurm.states import parse_job
from pytest_scaleperf.model import Container, ContainerKind, LaunchSpec, Resources, SlurmOptions

GOLDEN = Path(__file__).parents[2] / "golden" / "slurm"
TOKEN = "scaleperf:0123"  # noqa: S105 - a job's comment
FOLDER, CWD = Path("/shared/runs/case 1/1"), Path("/home/me/fork")
SITE = SlurmOptions(
    partition="batch",
    account="llm",
    qos="high",
    constraint="h200&ib",
    reservation="nightly",
    exclude=("node[7-8]",),
    time_limit=90.0,
    args=("--hint=nomultithread",),
    srun_args=("--mpi=none",),
    setup="module load cuda/12.8\nexport NCCL_IB_HCA=mlx5\n",
)
PYXIS = SlurmOptions(
    container=Container(ContainerKind.PYXIS, "/images/titan.sqsh", ("/data:/data:ro",), ("--no-container-remap-root",))
)
APPTAINER = SlurmOptions(container=Container(ContainerKind.APPTAINER, "/images/titan.sif", ("/data",), ("--nv",)))


def spec(*argv: str) -> LaunchSpec:
    return LaunchSpec("s.case", argv, {}, CWD, FOLDER / "stdout.log", Resources(16, 8))


def step(options: SlurmOptions) -> tuple[str, ...]:
    command = render.node_command(spec("python", "-m", "torch.distributed.run", "--nnodes=2", "it's"), FOLDER)
    return render.srun(options, command, nodes=2, gpus_on_each=8, name="s.case", folder=FOLDER, cwd=CWD)


def placed(options: SlurmOptions) -> tuple[str, ...]:
    return render.srun(
        options,
        render.node_command(spec("/opt/trainer.sh"), FOLDER),
        nodes=2,
        gpus_on_each=8,
        name="s.case.x-1",
        folder=FOLDER,
        cwd=CWD,
        job="12",
        hosts=("node1", "node2"),
        cpus=64,
    )


def submitted(options: SlurmOptions, *exclude: str) -> tuple[str, ...]:
    return render.sbatch(
        options,
        name="s.case",
        nodes=2,
        gpus_on_each=8,
        output=FOLDER / "100%.log",
        cwd=CWD,
        token=TOKEN,
        exclude=exclude,
    )


TEXTS: dict[str, Callable[[], str]] = {
    "site.sbatch": lambda: "\n".join(submitted(SITE, "node9")),
    "plain.sbatch": lambda: "\n".join(submitted(SlurmOptions())),
    "site.sh": lambda: render.script(SITE, step(SITE)),
    "plain.sh": lambda: render.script(SlurmOptions(), step(SlurmOptions())),
    "pyxis.sh": lambda: render.script(PYXIS, step(PYXIS)),
    "apptainer.sh": lambda: render.script(APPTAINER, step(APPTAINER)),
    "step.srun": lambda: "\n".join(placed(SITE)),
}


@pytest.mark.parametrize("name", TEXTS)
def test_what_slurm_is_given(name: str) -> None:
    """To renew after a look at the difference: SCALEPERF_GOLDEN=write pytest tests/launch/slurm."""
    text = TEXTS[name]().rstrip("\n") + "\n"
    if os.environ.get("SCALEPERF_GOLDEN") == "write":
        (GOLDEN / name).write_text(text, encoding="utf-8")
    assert text == (GOLDEN / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["site.sh", "plain.sh", "pyxis.sh", "apptainer.sh"])
def test_the_script_passes_every_argument_as_it_is(name: str, tmp_path: Path) -> None:
    (tmp_path / "srun").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "srun").chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    script = TEXTS[name]().replace("module load cuda/12.8\n", "")
    done = subprocess.run(["bash"], input=script, env=env, capture_output=True, text=True, check=True)
    options = {"site.sh": SITE, "plain.sh": SlurmOptions(), "pyxis.sh": PYXIS, "apptainer.sh": APPTAINER}[name]
    assert done.stdout.splitlines() == list(step(options)[1:])
    assert shlex.split(script.splitlines()[-1])[-1] == "it's"


NODE = [sys.executable, "-I", "-S", str(Path(render.__file__).with_name("node.py"))]


def test_a_node_says_where_it_is_and_goes(tmp_path: Path) -> None:
    env = {
        **os.environ,
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "3",
        "SLURMD_NODENAME": 'a"\\ä',
        "CUDA_VISIBLE_DEVICES": "0,1",
    }
    argv = [
        *NODE,
        str(tmp_path),
        sys.executable,
        "-c",
        "import os; print(os.getpid(), os.environ.get('PET_RDZV_ENDPOINT'))",
    ]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    told = json.loads((tmp_path / "nodes" / "0.json").read_text())
    assert done.stdout == f"{told['pid']} None\n"
    assert (told["host"], told["step"], told["devices"], told["rank"]) == ('a"\\ä', "7.3", "0,1", 0)
    assert not (tmp_path / "rendezvous").exists()


def test_nodes_meet_where_the_first_one_says_and_not_where_an_earlier_step_did(tmp_path: Path) -> None:
    (tmp_path / "rendezvous").write_text("7.2 elsewhere:1")
    say = "import os; print(os.environ['PET_RDZV_ENDPOINT'], os.environ['PET_RDZV_CONF'])"
    env = {
        **os.environ,
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "3",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURMD_NODENAME": "localhost",
    }
    argv = [*NODE, str(tmp_path), sys.executable, "-I", "-S", "-c", say]
    second = subprocess.Popen(argv, env={**env, "SLURM_PROCID": "1"}, stdout=subprocess.PIPE, text=True)
    first = subprocess.run(argv, env={**env, "SLURM_PROCID": "0"}, capture_output=True, text=True, check=True)
    out, _ = second.communicate(timeout=10)
    endpoint = (tmp_path / "rendezvous").read_text().removeprefix("7.3 ")
    assert (first.stdout, out) == (f"{endpoint} is_host=true\n", f"{endpoint} is_host=false\n")
    host, _, port = endpoint.partition(":")
    assert host == "localhost"
    assert node.FIRST_PORT <= int(port) < node.FIRST_PORT + node.PORTS


@pytest.mark.parametrize(("program", "code"), [("/no/such", 127), ("/etc/passwd", 126)])
def test_a_node_that_cannot_start_its_program_says_so(tmp_path: Path, program: str, code: int) -> None:
    done = subprocess.run([*NODE, str(tmp_path), program], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert f"cannot start '{program}'" in done.stderr


TEXT = (
    "JobId=12 JobName=x UserId=a(1) JobState=RUNNING Reason=None NodeList=n[1-3] NumNodes=3 JOB_GRES=gpu:20 "
    "  Nodes=n[1-2] CPU_IDs=0-7,16-23 Mem=1000 GRES=gpu:h200:8(IDX:0-7),nic:2(IDX:0-1) "
    "  Nodes=n3 CPU_IDs=0-3 Mem=1000 GRES=gpu:4(IDX:0,2-4) MinCPUsNode=1"
)


def test_an_allocation_with_nodes_of_two_kinds() -> None:
    seen = parse_job(TEXT)
    assert seen is not None
    found = allotted.describe("12", TEXT, seen, 8, {"n1": "leaf1"})
    assert [(n.name, n.gpus, n.switch) for n in found.nodes] == [("n1", 8, "leaf1"), ("n2", 8, None), ("n3", 4, None)]
    assert (found.gpus, found.counts_gpus, found.cpus) == (20, True, {"n1": 16, "n2": 16, "n3": 4})
    assert [allotted.cpus_for(found, *what) for what in ((("n1", "n2"), 8), (("n1",), 2), (("n3",), 1))] == [16, 4, 1]


def test_a_cluster_that_does_not_count_gpus() -> None:
    text = TEXT.replace("GRES=gpu:h200:8(IDX:0-7),nic:2(IDX:0-1)", "GRES=").replace("GRES=gpu:4(IDX:0,2-4)", "GRES=")
    seen = parse_job(text)
    assert seen is not None
    found = allotted.describe("12", text, seen, 8, {})
    assert ([n.gpus for n in found.nodes], found.counts_gpus) == ([8, 8, 8], False)


def test_leaf_switches() -> None:
    text = (
        "SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=node[1-2]\nSwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=node3\n"
        "SwitchName=spine Level=1 LinkSpeed=1 Nodes=node[1-3] Switches=leaf[1-2]\n"
    )
    assert allotted.parse_topology(text) == {"node1": "leaf1", "node2": "leaf1", "node3": "leaf2"}
