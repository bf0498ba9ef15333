"""``--preflight``: probes of this machine's CPU before the first case, for real; and of a node with an ill GPU."""

from __future__ import annotations

import json
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_scaleperf.preflight import load
from tests.plugin.conftest import FULL4, NONE2, NONE4, Project
from tests.plugin.test_rule6_nothing_is_lost import trainers, wait_until

pytest.importorskip("torch")

STANDIN = """\
#!{python}
# The job's interpreter: the probes' ranks are invented, of which GPU 3 is slow; everything else is the real one's.
import json, os, socket, sys
if "torch.distributed.run" not in sys.argv:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
folder, count = sys.argv[-1], int(next(a for a in sys.argv if a.startswith("--nproc-per-node=")).partition("=")[2])
os.makedirs(folder + "/probes")
for rank in range(count):
    rates = {{"matmul_tflops": 612.0 if rank == 3 else 761.0, "memory_gb_s": 4300.0}}
    gpu = dict(host=socket.gethostname(), index=rank, rank=rank, device="lab-gpu", uuid=f"GPU-{{rank}}", rates=rates,
               health=None, problems=[], seconds=1.0)
    with open(f"{{folder}}/probes/rank{{rank}}.json", "w") as file:
        json.dump({{"gpu": gpu, "links": []}}, file)
print("invented")
"""
CPU = {"device": "cpu", "device_match": "cpu"}


@pytest.fixture
def ill(bare: Project) -> Project:
    """A machine of which GPU 3 is slow."""
    program = bare.path / "python"
    program.write_text(STANDIN.format(python=sys.executable))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    suite: dict[str, Any] = yaml.safe_load((bare.path / "suites/demo.yaml").read_text())
    bare.suite(trainer={**suite["trainer"], "python": str(program)})
    bare.system(preflight={"tolerance": "10 %", "matmul_tflops": 750})
    return bare


def session(project: Project) -> Path:
    [path] = (project.run_dir / "sessions").iterdir()
    return path


def test_a_healthy_machine_is_probed_once_and_said_in_every_record(bare: Project) -> None:
    bare.system(**CPU)
    done = bare.run("--preflight", "--record-baselines", "-k", "none")
    assert set(done.kinds().values()) == {"skipped"}, done.out
    assert "pre-flight: 4 of 4 devices answered in" in done.out
    assert "nothing wrong" in done.out
    probed = load(session(bare) / "preflight.json")
    assert [gpu.rank for gpu in probed.gpus] == [0, 1, 2, 3]
    assert all(gpu.rates["matmul_tflops"] > 0 for gpu in probed.gpus)
    assert len(list((session(bare) / "preflight").iterdir())) == 1
    records = bare.records()
    assert set(records) == {NONE2, NONE4}
    for record in records.values():
        assert record["preflight"]["findings"] == []
        assert record["preflight"]["medians"]["matmul_tflops"] > 0
        assert "matmul_tflops" not in json.dumps(record["fingerprint"])

    shown = subprocess.run(
        [sys.executable, "-c", "from pytest_scaleperf.cli import app; app()", "report", str(bare.run_dir)],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert "4 devices of 4 answered; nothing wrong" in shown.stdout
    again = bare.run("--preflight", "--resume", "-k", "none")
    assert "pre-flight" not in again.out, "nothing was launched"
    assert len(list((session(bare) / "preflight").iterdir())) == 1


def test_only_as_many_devices_as_the_cases_need_are_probed(bare: Project) -> None:
    bare.system(**CPU)
    bare.run("--preflight", "--record-baselines", "-k", NONE2)
    assert load(session(bare) / "preflight.json").expected == 2


def test_a_machine_below_what_its_file_states_runs_nothing(bare: Project) -> None:
    bare.system(**CPU, preflight={"tolerance": "10 %", "matmul_tflops": 1e6, "always": True})
    done = bare.run("--record-baselines", "-k", NONE2)
    assert done.kind(NONE2) == "error", done.out
    assert "matmul" in done.message(NONE2)
    assert "expected 1,000,000" in done.message(NONE2)
    assert not list(session(bare).glob("cases/*/*/stdout.log"))
    record = bare.records()[NONE2]
    assert record["decision"] == "machine_failed"
    assert "pre-flight" in record["reason"]
    assert "no-preflight" in done.out
    again = bare.run("--record-baselines", "-k", NONE2, "--no-preflight")
    assert again.kind(NONE2) == "skipped", again.out
    assert "preflight" not in bare.records()[NONE2]


def test_the_cases_that_need_an_ill_gpu_are_errors_and_the_others_run(ill: Project) -> None:
    ill.run("--record-baselines", "--no-preflight")
    done = ill.run("--preflight")
    assert done.kind(NONE2) == "passed", done.out
    assert (done.kind(NONE4), done.kind(FULL4)) == ("error", "error")
    assert "GPU 3: matmul 612 TFLOP/s, expected 750 (-18.4%)" in done.message(NONE4)
    assert "1 found wrong" in done.out
    assert done.returncode == 1


def test_a_session_that_is_ended_in_its_pre_flight_leaves_no_probe(ill: Project) -> None:
    program = ill.path / "python"
    program.write_text(program.read_text().replace('print("invented")', "import time; time.sleep(600)"))
    process = subprocess.Popen(
        ill.command("--gpus", "4", "--preflight"), cwd=ill.path, stdout=subprocess.DEVNULL, start_new_session=True
    )
    wait_until("the probes", lambda: len(list(ill.run_dir.glob("sessions/*/preflight/1/probes/*"))) == 4)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == pytest.ExitCode.INTERRUPTED
    wait_until("every process to end", lambda: not trainers(ill))
    assert not list(session(ill).glob("cases/*/*"))


def test_an_interpreter_without_torch_lets_nothing_pass_for_well(bare: Project) -> None:
    bare.system(**CPU)
    suite: dict[str, Any] = yaml.safe_load((bare.path / "suites/demo.yaml").read_text())
    program = bare.path / "python"
    program.write_text(f"#!/bin/sh\ncase \"$*\" in *distributed.run*) echo 'No module named torch' >&2; exit 1;; esac\n"
                       f'exec {sys.executable} "$@"\n')  # fmt: skip
    program.chmod(0o755)
    bare.suite(trainer={**suite["trainer"], "python": str(program)})
    done = bare.run("--preflight", "--record-baselines", "-k", NONE2)
    assert done.kind(NONE2) == "error"
    assert "No module named torch" in done.message(NONE2)


def test_a_rehearsal_has_no_use_for_it(bare: Project) -> None:
    done = bare.run("--rehearse", "--preflight")
    assert done.returncode == 4
    assert "--rehearse with --preflight" in done.out
