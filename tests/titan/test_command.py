"""Commands: the exact arguments of every kind of case, the environment, and a script that really repeats a run."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_scaleperf.model import ActivationCheckpoint, Case, Layout, Limits, SuiteError
from pytest_scaleperf.titan import command
from pytest_scaleperf.titan.command import Command
from tests.titan import cases, golden

GENERATIONS = ("0.2", "0.3")
NAMES = tuple(cases.table("0.3"))
# Prints what a job would see, and leaves a file in the folder that it is given.
SHOW = """\
import json, os, pathlib, sys
folder = pathlib.Path(os.environ["SCALEPERF_RUN_DIR"])
(folder / "seen.json").write_text(json.dumps({"argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd()}))
"""


def build(case: Case, *, device: str = "cpu", base_env: dict[str, str] | None = None) -> Command:
    return command.build(
        case,
        cases.dialect(case.suite.trainer.dialect),
        cases.RUN_DIR,
        device=device,
        python=cases.PYTHON,
        base_env=base_env or {},
    )


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("name", NAMES)
def test_arguments_on_a_cpu(generation: str, name: str) -> None:
    argv = build(cases.table(generation)[name]).argv
    golden.compare(f"{generation}-{name}.txt", "\n".join(argv) + "\n")


@pytest.mark.parametrize("generation", GENERATIONS)
def test_arguments_on_gpus(generation: str) -> None:
    argv = build(cases.table(generation)["hsdp"], device="NVIDIA H200").argv
    golden.compare(f"{generation}-hsdp-gpu.txt", "\n".join(argv) + "\n")


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("device", ["cpu", "NVIDIA H200"])
def test_a_trace_adds_the_profiler_and_no_graphs(generation: str, device: str) -> None:
    case = cases.case(cases.trainer(generation))
    spoken, profile = cases.dialect(generation), command.Profile(freq=9, active=3, warmup=2)
    plain, traced = (
        command.flags(case, spoken, cases.RUN_DIR, device=device, profile=each) for each in (None, profile)
    )
    added = [argument for argument in traced if argument not in plain]
    graphs = [] if device == "cpu" else list(spoken.say("switches.no_cuda_graphs"))
    profiler = spoken.say("profiler", freq=9, active=3, warmup=2)
    assert added == [argument for argument in (*profiler, *graphs) if argument not in plain]
    assert " ".join(profiler) in " ".join(traced)
    own = cases.case(cases.trainer(generation, args=spoken.say("switches.no_cuda_graphs")))
    assert len(command.flags(own, spoken, cases.RUN_DIR, device="NVIDIA H200", profile=profile)) == len(
        command.flags(case, spoken, cases.RUN_DIR, device="NVIDIA H200", profile=profile)
    ), "a flag that the suite gives stands once"


def test_a_suite_that_profiles_by_its_own_arguments_cannot_be_traced() -> None:
    case = cases.case(cases.trainer(args=("--profiler.profile-freq", "7")))
    with pytest.raises(SuiteError, match=r"found --profiler\.profile-freq"):
        command.flags(
            case, cases.dialect("0.3"), cases.RUN_DIR, device="cpu", profile=command.Profile(freq=9, active=3, warmup=2)
        )


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_rehearsal_is_one_process_that_is_told_the_world(generation: str) -> None:
    case = cases.case(cases.trainer(generation), layout=Layout(128, 4))
    rehearsal = command.build_rehearsal(
        case, cases.dialect(generation), cases.RUN_DIR, device="cpu", python=cases.PYTHON, base_env={"RANK": "3"}
    )
    golden.compare(f"{generation}-rehearsal.txt", "\n".join(rehearsal.argv) + "\n")
    world = {name: rehearsal.env[name] for name in ("NGPU", "WORLD_SIZE", "RANK", "LOCAL_RANK")}
    assert world == {"NGPU": "512", "WORLD_SIZE": "512", "RANK": "0", "LOCAL_RANK": "0"}


def test_a_rehearsal_of_another_rank_has_the_first_device_and_may_be_held_to_a_share_of_it() -> None:
    case = cases.case(cases.trainer(), layout=Layout(128, 4))
    build_it = functools.partial(
        command.build_rehearsal,
        case, cases.dialect("0.3"), cases.RUN_DIR, device="NVIDIA H200", python=cases.PYTHON, base_env={},
    )  # fmt: skip
    built = build_it(), build_it(rank=511, most_memory=0.975)
    assert built[0].argv == built[1].argv, "the rank is told by the environment alone"
    added = dict(set(built[1].env.items()) - set(built[0].env.items()))
    assert added == {"RANK": "511", "SCALEPERF_MOST_MEMORY": "0.975000"}
    assert built[1].env["LOCAL_RANK"] == "0"


def test_a_program_of_the_suites_own_is_told_to_start_one_process() -> None:
    case = cases.case(cases.trainer(executable="./run.sh"), layout=Layout(8, 1))
    built = command.build_rehearsal(
        case, cases.dialect("0.3"), cases.RUN_DIR, device="cpu", python=cases.PYTHON, base_env={"COMM_MODE": "x"}
    )
    assert built.argv[0] == "/srv/suites/run.sh"
    told = {name: built.env[name] for name in ("NGPU", "WORLD_SIZE", "RANK", "LOCAL_RANK", "COMM_MODE")}
    assert told == {"NGPU": "8", "WORLD_SIZE": "8", "RANK": "0", "LOCAL_RANK": "0", "COMM_MODE": "fake_backend"}
    assert (
        "COMM_MODE"
        not in command.build(
            case, cases.dialect("0.3"), cases.RUN_DIR, device="cpu", python=cases.PYTHON, base_env={"COMM_MODE": "x"}
        ).env
    )


def test_nothing_of_an_outer_job_reaches_ours() -> None:
    outer = {"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "node1", "PET_NNODES": "2", "TORCHELASTIC_RUN_ID": "x",
             "PYTEST_CURRENT_TEST": "y", "LOCAL_RANK": "1", "NGPU": "8", "SCALEPERF_RUN_DIR": "/other",
             "PATH": "/bin", "RANKING": "kept"}  # fmt: skip
    assert build(cases.case(), device="NVIDIA H200", base_env=outer).env == {
        "PATH": "/bin",
        "RANKING": "kept",
        "PYTHONUNBUFFERED": "1",
        "SCALEPERF_RUN_DIR": str(cases.RUN_DIR),
        "SCALEPERF_CASE": "cpu-2gpu-fsdp2-dp1-none-lbs2",
    }


def test_one_core_a_rank_on_a_cpu_unless_the_suite_says_otherwise() -> None:
    base = {"OMP_NUM_THREADS": "64"}
    assert build(cases.case(), base_env=base).env["OMP_NUM_THREADS"] == "1"
    assert build(cases.case(), device="NVIDIA H200", base_env=base).env["OMP_NUM_THREADS"] == "64"
    own = cases.case(cases.trainer(env=(("OMP_NUM_THREADS", "4"),)))
    assert build(own, base_env=base).env["OMP_NUM_THREADS"] == "4"


def test_a_module_of_the_teams_own_takes_the_place_of_our_entry() -> None:
    argv = build(cases.case(cases.trainer(entry="our_fork.train"))).argv
    assert argv[argv.index("-m", 2) + 1] == "our_fork.train"
    assert command.ENTRY not in argv


@pytest.mark.parametrize(
    ("executable", "program"),
    [("run_train.sh", "run_train.sh"), ("./run.sh", "/srv/suites/run.sh"), ("/opt/run.sh", "/opt/run.sh")],
)
def test_an_executable_gets_the_flags_and_the_number_of_ranks(executable: str, program: str) -> None:
    case = cases.case(cases.trainer(executable=executable), layout=Layout(2, 2))
    built = build(case)
    assert built.argv[0] == program
    assert built.argv[1:] == command.flags(case, cases.dialect("0.3"), cases.RUN_DIR, device="cpu")
    assert built.env["NGPU"] == "4"
    assert built.env["SCALEPERF_RUN_DIR"] == str(cases.RUN_DIR)


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize(
    "own",
    [
        ("--training.seq_len", "8192"),
        ("--training.seq-len=8192",),
        ("--parallelism.data_parallel_shard_degree", "4"),
        ("--metrics.log_freq", "1"),
    ],
)
def test_a_suite_may_not_change_what_its_cases_are(generation: str, own: tuple[str, ...]) -> None:
    case = cases.case(cases.trainer(generation, args=own))
    with pytest.raises(SuiteError, match=rf"cpu\.yaml: trainer\.args: .* found {own[0]}\."):
        build(case)


@pytest.mark.parametrize(
    ("generation", "own"),
    [("0.3", "activation-checkpoint:full"), ("0.2", "--activation_checkpoint.mode=full")],
)
def test_nor_their_activation_checkpointing(generation: str, own: str) -> None:
    with pytest.raises(SuiteError, match=r"trainer\.args"):
        build(cases.case(cases.trainer(generation, args=(own,))))


def test_a_value_that_looks_like_a_setting_is_no_clash() -> None:
    assert "http://proxy:3128" in build(cases.case(cases.trainer(args=("--x.proxy", "http://proxy:3128")))).argv


def test_a_dialect_without_a_degree_cannot_ask_for_it_and_need_not_say_1() -> None:
    full = cases.dialect("0.3")
    spare = dataclasses.replace(full, words={k: v for k, v in full.words.items() if k != "layout.ep"})
    arguments = command.flags(cases.case(), spare, cases.RUN_DIR, device="cpu")
    assert "--parallelism.expert_parallel_degree" not in arguments
    with pytest.raises(SuiteError, match=r"layout\.ep"):
        command.flags(cases.table("0.3")["ep"], spare, cases.RUN_DIR, device="cpu")


@pytest.mark.parametrize(("no_progress", "seconds"), [(60, "30"), (1, "1"), (0.5, "1"), (25.9, "12")])
def test_the_watchdog_speaks_before_we_end_the_run(no_progress: float, seconds: str) -> None:
    case = cases.case(limits=Limits(startup=90.5, no_progress=no_progress, total=300))
    argv = build(case).argv
    assert argv[argv.index("--comm.train_timeout_seconds") + 1] == seconds
    assert argv[argv.index("--comm.init_timeout_seconds") + 1] == "91"


def test_the_script_repeats_a_run_into_a_new_folder(tmp_path: Path) -> None:
    run_dir, program = measured(tmp_path)
    odd = "two words, a 'quote', a \"double\" one, $HOME, `date`\nand a line"
    built = Command(
        (sys.executable, str(program), str(run_dir), f"{run_dir}/torchrun", f"--x={run_dir}/y", f"{run_dir}2", odd, ""),
        {"SCALEPERF_RUN_DIR": str(run_dir), "ODD": odd, "HF_TOKEN": "hf_abc", "PROXY": "http://me:pw@proxy", "A": "1"},
    )
    script = command.write_script(run_dir, built, tmp_path)
    before = sorted(run_dir.iterdir())
    new = tmp_path / "again and again"
    repeat(script, new, {"PATH": os.environ["PATH"], "HF_TOKEN": "theirs", "LEAK": "x"})

    seen = read_seen(new)
    assert seen["argv"] == [str(new), f"{new}/torchrun", f"--x={new}/y", f"{run_dir}2", odd, ""]
    assert seen["cwd"] == str(tmp_path)
    wanted = {"SCALEPERF_RUN_DIR": str(new), "ODD": odd, "A": "1", "HF_TOKEN": "theirs"}
    assert {name: value for name, value in seen["env"].items() if not name.startswith("LC_")} == wanted
    assert sorted(run_dir.iterdir()) == before
    text = script.read_text(encoding="utf-8")
    assert "hf_abc" not in text
    assert "me:pw" not in text
    assert "# Not written here, taken from your environment where it is set: HF_TOKEN, PROXY\n" in text


def test_the_script_makes_a_folder_where_none_is_given(tmp_path: Path) -> None:
    run_dir, program = measured(tmp_path)
    script = command.write_script(
        run_dir, Command((sys.executable, str(program)), {"SCALEPERF_RUN_DIR": str(run_dir)}), tmp_path
    )
    done = repeat(script, None, {"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path)})
    (made,) = tmp_path.glob("scaleperf-repeat.*")
    assert f"writing into {made}" in done.stderr
    assert read_seen(made)["argv"] == []


def test_the_script_overwrites_nothing(tmp_path: Path) -> None:
    run_dir, program = measured(tmp_path)
    script = command.write_script(
        run_dir, Command((sys.executable, str(program)), {"SCALEPERF_RUN_DIR": str(run_dir)}), tmp_path
    )
    done = subprocess.run([script, run_dir], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "expected an empty folder, found files in" in done.stderr
    assert not (run_dir / "seen.json").exists()


def test_the_script_of_a_case(tmp_path: Path) -> None:
    built = build(cases.table("0.3")["moe"], base_env={"PATH": "/usr/bin:/bin", "WANDB_API_KEY": "secret"})
    built = Command(
        tuple(argument.replace(str(cases.RUN_DIR), str(tmp_path)) for argument in built.argv),
        {name: value.replace(str(cases.RUN_DIR), str(tmp_path)) for name, value in built.env.items()},
    )
    text = command.write_script(tmp_path, built, Path("/srv")).read_text(encoding="utf-8")
    golden.compare("0.3-moe-command.sh", text.replace(str(tmp_path), str(cases.RUN_DIR)))


def test_every_mode_of_checkpointing_is_said_differently() -> None:
    said = {build(cases.case(checkpoint=mode)).argv[-1] for mode in ActivationCheckpoint}
    assert len(said) == len(ActivationCheckpoint)


def measured(folder: Path) -> tuple[Path, Path]:
    run_dir, program = folder / "run", folder / "show.py"
    run_dir.mkdir()
    program.write_text(SHOW, encoding="utf-8")
    return run_dir, program


def repeat(script: Path, folder: Path | None, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    argv = [str(script)] if folder is None else [str(script), str(folder)]
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=True)


def read_seen(folder: Path) -> dict[str, Any]:
    seen: dict[str, Any] = json.loads((folder / "seen.json").read_text(encoding="utf-8"))
    return seen
