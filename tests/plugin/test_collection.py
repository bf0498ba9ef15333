"""Collection: cheap, complete about faults, and at home in other people's repositories."""

from __future__ import annotations

import os
import pty
import subprocess

import yaml

from tests.plugin.conftest import FULL2, NONE2, NONE4, SUITE, Project

HEAVY = ("torch", "torchtitan", "triton", "numpy", "tensorboard", "matplotlib", "pytest_scaleperf.campaign")

TELL_MODULES = """
import sys

def pytest_unconfigure(config):
    print("LOADED", *sorted(name for name in sys.modules if name in {heavy!r}))
"""


def test_ten_thousand_cases_are_collected_without_importing_torch(project: Project) -> None:
    batches = list(range(1, 5001))
    rung = {"gpus": 2, "dp_shard": 2, "activation_checkpoint": ["none", "full"], "local_batch": batches}
    project.suite(ladder=[rung])
    (project.path / "conftest.py").write_text(TELL_MODULES.format(heavy=HEAVY))
    done = project.run_raw("--collect-only", "-q")
    assert done.returncode == 0, done.out[-2000:]
    assert done.out.count("test_throughput[demo-2gpu") == 10_000
    assert "LOADED\n" in done.out + "\n"
    assert "10000 tests collected" in done.out


def test_every_fault_of_every_file_is_said_at_once(project: Project) -> None:
    faulty = dict(SUITE) | {"squence": 128, "measure": {"steps": 30, "warmup": 40, "log_freq": 7}}
    (project.path / "suites/a.yaml").write_text(yaml.safe_dump(faulty | {"name": "a"}, sort_keys=False))
    (project.path / "suites/b.yaml").write_text("name: b\nname: c\nsystem: no\n")
    done = project.run()
    assert done.returncode == 2
    for part in ("a.yaml:", "squence", "warmup", "log_freq", "b.yaml:2", "system"):
        assert part in done.out
    assert "Traceback" not in done.out
    assert not (project.path / ".scaleperf").exists(), "nothing may be launched"


def test_an_unknown_dialect_stops_at_collection_and_lists_the_known_ones(project: Project) -> None:
    project.suite(trainer=SUITE["trainer"] | {"dialect": "9.9"})
    done = project.run()
    assert done.returncode == 2
    assert "0.2" in done.out
    assert "0.3" in done.out
    assert "Traceback" not in done.out


def test_an_unknown_system_lists_the_known_ones(project: Project) -> None:
    done = project.run("--system", "b200")
    assert done.returncode == 2
    assert "lab" in done.out
    assert "Traceback" not in done.out


def test_two_suites_of_one_name_are_refused(project: Project) -> None:
    (project.path / "suites/twin.yaml").write_text((project.path / "suites/demo.yaml").read_text())
    done = project.run()
    assert done.returncode == 2
    assert "demo" in done.out


def test_ini_says_where_suites_and_baselines_are(project: Project) -> None:
    (project.path / "perf").mkdir()
    (project.path / "suites/demo.yaml").rename(project.path / "perf/demo.yaml")
    (project.path / "suites/trainer.py").rename(project.path / "perf/trainer.py")
    (project.path / "baselines").rename(project.path / "perf/stored")
    (project.path / "pytest.ini").write_text(
        "[pytest]\nscaleperf_suites = perf\nscaleperf_baselines = perf/stored\nscaleperf_run_dir = out/runs\n"
    )
    done = project.run("-k", "2gpu")
    assert done.returncode == 0, done.out
    assert done.kinds() == {NONE2: "passed", FULL2: "passed"}
    assert list((project.path / "out/runs/sessions").iterdir())


def test_a_project_without_cases_is_left_alone(project: Project) -> None:
    (project.path / "suites/test_throughput.py").write_text("def test_plain():\n    pass\n")
    done = project.run_raw()
    assert done.returncode == 0
    assert "scaleperf" not in done.out.partition("collected")[2]
    assert not (project.path / ".scaleperf").exists()


def test_the_users_own_assertion_counts(project: Project) -> None:
    (project.path / "suites/test_throughput.py").write_text(
        "def test_throughput(scaleperf):\n    scaleperf.check()\n    assert scaleperf.case.gpus == 99\n"
    )
    done = project.run("-k", "none")
    assert done.kind(NONE2) == "failed"
    assert done.kind(NONE4) == "skipped"
    assert project.records()[NONE2]["decision"] == "run_failed"


def test_a_terminal_shows_where_a_running_case_is(project: Project) -> None:
    project.scenario({NONE2: {"delay": 0.3}})
    master, slave = pty.openpty()
    command = project.command("--gpus", "2", "-k", "2gpu and none")
    with subprocess.Popen(command, cwd=project.path, stdout=slave, stderr=slave) as process:
        os.close(slave)
        shown = b""
        while True:
            try:
                chunk = os.read(master, 65536)
            except OSError:  # the other end is closed
                break
            if not chunk:
                break
            shown += chunk
    os.close(master)
    assert process.returncode == 0
    assert b"\rscaleperf: case 1/1: step " in shown
    assert b"tokens/s/GPU" in shown
    assert b"s left" in shown


def test_the_cpu_system_says_that_it_measures_a_cpu(project: Project) -> None:
    (project.path / "baselines/lab").rename(project.path / "baselines/cpu")
    system = yaml.safe_load((project.path / "baselines/cpu/system.yaml").read_text())
    system |= {"device": "cpu", "device_match": "cpu"}
    (project.path / "baselines/cpu/system.yaml").write_text(yaml.safe_dump(system))
    project.suite(system="cpu")
    done = project.run("--system", "cpu", "-k", "2gpu")
    assert "THIS MEASURES A CPU" in done.out
