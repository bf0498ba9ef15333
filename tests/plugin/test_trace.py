"""``--with-trace``: an extra run with the profiler on, read, judged against its own baseline, and said in words."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.plugin.conftest import FULL2, NONE2, NONE4, SUITE, Project
from tests.plugin.test_rule6_nothing_is_lost import trainers, wait_until
from tests.trace.script import ENGINE, US, Script

TRACES = Path(__file__).parent.parent / "data" / "traces"
ONLY = ("-k", "2gpu and none")
STEP_US = 1000
GATHERS = "all_gather [mesh x 2]"


def make(folder: Path, *, exposed: int = 50, gathers: int = 2, ranks: int = 2, steps: int = 3) -> Path:
    """Traces of a step of 1,000 us on two ranks: ``exposed`` us of reduce_scatter, 20 idle, the rest computes."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        script = Script(rank, 2)
        script.kernel("gemm", -20 * US, -10 * US)
        for number in range(1, steps + 1):
            at = base = number * STEP_US * US
            script.step(number, base, base + 900 * US)
            script.evaluate(base + 500 * US, base + 600 * US)
            script.kernel("gemm", at, at + 400 * US, base + 10)
            for place in range(gathers):
                begin = at + (10 + 50 * place) * US
                script.collective("_allgather_base", 1 << 18, begin, begin + 40 * US, launched=base + 20 + place)
            at += 400 * US
            computes = 1000 - 400 - 20 - exposed
            script.kernel("gemm_backward", at, at + computes * US, base + 510 * US, tid=ENGINE)
            at += computes * US
            end = at + exposed * US
            script.collective("_reduce_scatter_base", 1 << 20, at, end, launched=base + 520 * US, tid=ENGINE)
        script.write(folder / f"rank{rank}_trace.json.gz")
    return folder


def told(project: Project, traces: Path | list[Path], case: str = NONE2, **more: Any) -> None:
    paths = [str(each) for each in traces] if isinstance(traces, list) else str(traces)
    project.scenario({case: {"traces": paths, **more}})


def entry(project: Project, case: str = NONE2) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(project.baseline_file.read_text())["cases"][case]
    return found


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces with 5 % of the step exposed and 2 % idle."""
    return make(tmp_path_factory.mktemp("before"))


@pytest.fixture(scope="module")
def recorded_trace(recorded: str, before: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The baselines with what those traces show, recorded once by the plugin itself."""
    with pytest.MonkeyPatch.context() as patch:
        made = Project(tmp_path_factory.mktemp("recorded") / "project", patch)
        made.baseline_file.write_text(recorded)
        told(made, before)
        done = made.run("--with-trace", "--record-baselines", *ONLY)
        assert done.kind(NONE2) == "skipped", done.out
        assert "trace: recorded, not judged" in done.message(NONE2)
        assert len(entry(made)["samples"]) == 2, "the measured run was judged, and is a sample as always"
        return made.baseline_file.read_text()


@pytest.fixture
def traced(project: Project, before: Path, recorded_trace: str) -> Project:
    """A project with that baseline; its next trace is an equal one."""
    project.baseline_file.write_text(recorded_trace)
    told(project, before)
    return project


def test_without_the_option_nothing_is_traced(project: Project) -> None:
    done = project.run(*ONLY)
    assert done.kind(NONE2) == "passed", done.out
    record = project.records()[NONE2]
    assert "trace" not in record
    assert not list(project.run_dir.rglob("iteration_*"))
    assert not any(name.startswith("scaleperf.trace") for name in done.properties(NONE2))


def test_pytests_own_trace_option_is_told_from_ours(project: Project) -> None:
    done = project.run("--trace", "--collect-only", *ONLY)
    assert "--trace is pytest's own debugger; to trace the cases' steps, say --with-trace" in done.out
    assert "--with-trace" not in project.run("--with-trace", "--collect-only", *ONLY).out


def test_what_is_recorded(traced: Project) -> None:
    stored = entry(traced)["trace"]
    [sample] = stored["samples"]
    assert sample["shares"]["exposed_communication_pct"] == pytest.approx(5)
    assert sample["shares"]["last_backward.exposed_communication_pct"] == pytest.approx(5)
    assert sample["shares"]["idle_pct"] == pytest.approx(2)
    assert "step_ms" not in sample["shares"]
    assert stored["counts"] == {
        f"calls {GATHERS}": 2,
        f"bytes {GATHERS}": 2 * 2 * 4 << 18,
        "calls reduce_scatter [mesh x 2]": 1,
        "bytes reduce_scatter [mesh x 2]": 4 << 20,
    }


def test_the_traced_run_is_another_one_behind_the_measured_one(traced: Project) -> None:
    traced.run("--with-trace", *ONLY)
    record = traced.records()[NONE2]
    [measured] = record["samples"]
    run = record["trace"]["run"]
    assert [Path(each["folder"]).name for each in (measured, run)] == ["1", "2"]
    assert "--profiler.enable_profiling" not in measured["argv"]
    argv = run["argv"]
    value = {name: argv[argv.index(name) + 1] for name in argv if name.startswith("--") and name != argv[-1]}
    assert "--profiler.enable_profiling" in argv
    assert "--training.disable_cuda_graphs" in argv
    assert (value["--profiler.profiler_active"], value["--profiler.profiler_warmup"]) == ("3", "2")
    # Warm-up 5, a logged line every 5 steps: 7, 8 and 9 are recorded, with no logged step among them.
    assert (value["--profiler.profile_freq"], value["--training.steps"], value["--metrics.log_freq"]) == (
        "9",
        "10",
        "5",
    )
    assert (Path(run["folder"]) / "command.sh").exists()


def test_an_equal_trace_passes_with_words_numbers_and_a_picture(traced: Project) -> None:
    done = traced.run("--with-trace", *ONLY)
    assert done.returncode == 0, done.out
    assert done.kind(NONE2) == "passed"
    trace = traced.records()[NONE2]["trace"]
    assert trace["decision"] == "pass"
    assert any(line.startswith("step: 1.0 ms") for line in trace["words"]), trace["words"]
    assert any(line.startswith("last backward: ") and "reduce_scatter exposed" in line for line in trace["words"])
    assert [Path(name).name for name in trace["files"]] == ["rank0_trace.json.gz", "rank1_trace.json.gz"]
    assert all(Path(name).is_file() for name in trace["files"])
    assert Path(trace["picture"]).read_text().startswith("<?xml")
    assert Path(trace["picture"]).parent == Path(trace["files"][0]).parent
    said = done.properties(NONE2)
    assert float(said["scaleperf.trace.exposed_communication_pct"]) == pytest.approx(5)
    assert float(said["scaleperf.trace.exposed_communication_pct.baseline"]) == pytest.approx(5)
    assert said["scaleperf.trace.last_backward.exposed_communication_pct.verdict"] == "pass"
    assert said[f"scaleperf.trace.calls {GATHERS}"] == "2"
    assert said["scaleperf.trace.verdict"] == "pass"
    assert f"trace of {NONE2}: 1.0 ms" in done.out
    assert "exposed communication 5.0 %" in done.out


def test_more_exposed_communication_is_a_regression_that_names_phase_and_collective(
    traced: Project, tmp_path: Path
) -> None:
    traced.run("--with-trace", *ONLY)
    told(traced, make(tmp_path / "after", exposed=90))
    done = traced.run("--with-trace", "-k", "none")
    assert done.kind(NONE2) == "failed", done.out
    message = done.message(NONE2)
    assert "last backward: exposed communication 5.00 % -> 9.00 % of the step (+4.00 points, band +2.00)" in message
    assert "most of it reduce_scatter" in message
    assert done.properties(NONE2)["scaleperf.trace.verdict"] == "regression"
    assert done.kind(NONE4) == "skipped", "the gate is closed"
    # The trace of the session before is still there: what differs is said, and adds up.
    table = traced.records()[NONE2]["trace"]["difference"]
    assert "against the trace of" in table[0]
    assert any("reduce_scatter" in line and line.endswith("+0.040") for line in table), table
    assert "what differs:" in message
    assert "reduce_scatter: ncclDevKernel" in message
    assert "    last backward: 0.09 ms of reduce_scatter exposed" in message
    assert "to accept it: remove that `trace`" in message


def test_the_band_is_the_entrys_own_or_the_suites_or_the_systems(traced: Project, tmp_path: Path) -> None:
    told(traced, make(tmp_path / "after", exposed=90))
    traced.suite(trace={"tolerance": "5 %"})
    assert traced.run("--with-trace", *ONLY).kind(NONE2) == "passed"
    traced.suite()
    traced.system(trace={"tolerance": "5 %"})
    assert traced.run("--with-trace", *ONLY).kind(NONE2) == "passed"
    text = traced.baseline_file.read_text()
    traced.baseline_file.write_text(text.replace("    trace:\n", "    trace:\n      tolerance: 3 %\n"))
    assert traced.run("--with-trace", *ONLY).kind(NONE2) == "failed"


def test_one_collective_more_is_a_regression_without_any_band(traced: Project, tmp_path: Path) -> None:
    told(traced, make(tmp_path / "after", gathers=3))
    done = traced.run("--with-trace", *ONLY)
    assert done.kind(NONE2) == "failed", done.out
    assert f"{GATHERS}: 2 -> 3 calls, 4,194,304 -> 6,291,456 bytes a step" in done.message(NONE2)


def test_a_collective_that_is_gone_is_named_too(traced: Project, tmp_path: Path) -> None:
    told(traced, make(tmp_path / "after", gathers=0))
    done = traced.run("--with-trace", *ONLY)
    assert done.kind(NONE2) == "failed", done.out
    assert f"{GATHERS} is gone: 2 calls, 4,194,304 bytes a step in the baseline" in done.message(NONE2)


def test_less_exposed_is_an_improvement_that_recording_takes(traced: Project, tmp_path: Path) -> None:
    told(traced, make(tmp_path / "after", exposed=10))
    done = traced.run("--with-trace", *ONLY)
    assert done.kind(NONE2) == "passed", done.out
    assert done.properties(NONE2)["scaleperf.verdict"] == "improvement"
    assert "baseline stale" in done.out
    traced.run("--with-trace", "--record-baselines", *ONLY)
    [sample] = entry(traced)["trace"]["samples"]
    assert sample["shares"]["exposed_communication_pct"] == pytest.approx(1)


def test_recording_never_takes_what_is_worse(traced: Project, tmp_path: Path) -> None:
    told(traced, make(tmp_path / "a", exposed=90))
    done = traced.run("--with-trace", "--record-baselines", *ONLY)
    assert done.kind(NONE2) == "failed", done.out
    assert "not recorded: step: exposed communication 5.00 % -> 9.00 %" in done.message(NONE2)
    told(traced, make(tmp_path / "b", exposed=69))  # 6.9 %: inside the band, and the median is then 5.95 %
    assert traced.run("--with-trace", "--record-baselines", *ONLY).kind(NONE2) == "passed"
    told(traced, make(tmp_path / "c", exposed=64))  # would make it 6.4 %: more than half a band above the first
    done = traced.run("--with-trace", "--record-baselines", *ONLY)
    assert done.kind(NONE2) == "passed", done.out
    assert "not recorded: step: exposed communication 5.00 % -> 6.40 %" in done.properties(NONE2)["scaleperf.note"]
    samples = [sample["shares"]["exposed_communication_pct"] for sample in entry(traced)["trace"]["samples"]]
    assert samples == [pytest.approx(5), pytest.approx(6.9)]


def test_no_baseline_of_the_trace_is_never_green(project: Project, tmp_path: Path) -> None:
    told(project, make(tmp_path / "now"))
    done = project.run("--with-trace", *ONLY)
    assert done.kind(NONE2) == "failed", done.out
    assert "no_baseline" in done.message(NONE2)
    assert "--with-trace --record-baselines" in done.message(NONE2)


def test_a_lacking_rank_is_an_error(traced: Project, tmp_path: Path) -> None:
    told(traced, make(tmp_path / "after", ranks=1))
    done = traced.run("--with-trace", *ONLY)
    assert done.kind(NONE2) == "error", done.out
    assert "expected the traces of 2 ranks" in done.message(NONE2)
    assert "missing: 1" in done.message(NONE2)
    record = traced.records()[NONE2]
    assert record["decision"] == "machine_failed"
    assert len(record["samples"]) == 1, "the measured run is kept"


def test_a_trace_that_cannot_be_read_is_an_error(traced: Project, tmp_path: Path) -> None:
    folder = make(tmp_path / "after")
    damaged = folder / "rank1_trace.json.gz"
    damaged.write_bytes(damaged.read_bytes()[:-40])
    told(traced, folder)
    done = traced.run("--with-trace", *ONLY)
    assert done.kind(NONE2) == "error", done.out
    assert "rank1_trace.json.gz" in done.message(NONE2)
    assert "Traceback" not in done.message(NONE2)


def test_no_trace_at_all_is_an_error(traced: Project) -> None:
    traced.scenario({})
    done = traced.run("--with-trace", *ONLY)
    assert done.kind(NONE2) == "error", done.out
    assert "expected the traces of 2 ranks" in done.message(NONE2)
    assert "found none" in done.message(NONE2)


def test_a_trace_without_a_whole_step_is_no_baseline(project: Project, tmp_path: Path) -> None:
    told(project, make(tmp_path / "now", steps=1))
    done = project.run("--with-trace", "--record-baselines", *ONLY)
    assert done.kind(NONE2) == "error", done.out
    assert "expected a whole step on every rank, found none" in done.message(NONE2)
    assert "trace" not in entry(project)


def test_a_traced_run_that_fails_says_so(traced: Project) -> None:
    traced.scenario({NONE2: {"fault": [None, "oom"]}})
    done = traced.run("--with-trace", *ONLY)
    assert done.kind(NONE2) == "failed", done.out
    assert "run_failed: traced run: oom" in done.message(NONE2)


def test_on_a_cpu_shares_are_shown_and_counts_are_judged(project: Project, tmp_path: Path) -> None:
    for name in ("before", "fewer"):
        (tmp_path / name).mkdir()
        for rank in (0, 1):
            shutil.copy(TRACES / f"gloo-rank{rank}.json.gz", tmp_path / name / f"rank{rank}_trace.json.gz")
    told(project, tmp_path / "before")
    project.run("--with-trace", "--record-baselines", *ONLY)
    text = project.baseline_file.read_text()
    assert "exposed_communication_pct: 53." in text
    project.baseline_file.write_text(text.replace("exposed_communication_pct: 53.", "exposed_communication_pct: 3."))
    done = project.run("--with-trace", *ONLY)
    assert done.kind(NONE2) == "passed", done.out
    assert done.properties(NONE2)["scaleperf.trace.exposed_communication_pct.verdict"] == "not_judged"
    assert any("a CPU trace" in line for line in project.records()[NONE2]["trace"]["words"])
    name = '"calls all_gather [default_pg x 2]"'
    assert f"{name}: 12" in text
    project.baseline_file.write_text(text.replace(f"{name}: 12", f"{name}: 11"))
    done = project.run("--with-trace", *ONLY)
    assert done.kind(NONE2) == "failed", done.out
    assert "all_gather [default_pg x 2]: 11 -> 12 calls a step" in done.message(NONE2)


def test_real_traces_of_two_gpus(project: Project, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    for rank in (0, 1):
        shutil.copy(TRACES / f"trfsdp-rank{rank}.json.gz", tmp_path / "real" / f"rank{rank}_trace.json.gz")
    told(project, tmp_path / "real")
    project.run("--with-trace", "--record-baselines", *ONLY)
    shares = entry(project)["trace"]["samples"][0]["shares"]
    assert shares["forward.exposed_communication_pct"] == pytest.approx(1.921, abs=0.01)
    assert entry(project)["trace"]["counts"]["calls reduce_scatter [default_pg x 2]"] == 20
    assert any("reduce_scatter exposed" in line for line in project.records()[NONE2]["trace"]["words"])


def test_a_suite_may_always_be_traced_and_may_name_kernels(project: Project, tmp_path: Path) -> None:
    told(project, make(tmp_path / "now"))
    project.suite(trace={"always": True, "steps": 4, "rules": {"communication": ["^gemm_backward$"]}})
    done = project.run("--record-baselines", *ONLY)
    assert done.kind(NONE2) == "skipped", done.out
    shares = entry(project)["trace"]["samples"][0]["shares"]
    assert shares["exposed_communication_pct"] == pytest.approx(100 * (1000 - 400 - 20) / 1000)
    argv = project.records()[NONE2]["trace"]["run"]["argv"]
    assert argv[argv.index("--profiler.profiler_active") + 1] == "4"
    project.suite(trace=True)
    done = project.run(*ONLY)
    assert done.kind(NONE2) == "failed"
    assert "the baseline of its trace is of another fingerprint: config is" in done.message(NONE2)


def test_a_regression_is_traced_where_an_earlier_trace_can_explain_it(traced: Project, tmp_path: Path) -> None:
    traced.run("--with-trace", *ONLY)
    told(traced, make(tmp_path / "after", exposed=60), tps=900)
    done = traced.run("--with-trace", *ONLY)
    assert done.kind(NONE2) == "failed", done.out
    assert "regression: tps" in done.message(NONE2)
    assert any("reduce_scatter" in line and line.endswith("+0.010") for line in
               traced.records()[NONE2]["trace"]["difference"])  # fmt: skip
    assert "what differs:" in done.message(NONE2)
    shutil.rmtree(traced.run_dir)
    done = traced.run("--with-trace", *ONLY)
    assert done.kind(NONE2) == "failed"
    assert "trace" not in traced.records()[NONE2], "nothing to compare with: no GPU time for it"


def test_a_case_that_is_to_fail_is_not_traced(project: Project) -> None:
    ladder = [dict(SUITE["ladder"][0]) | {"activation_checkpoint": "none", "expect": "oom"}]
    project.suite(ladder=ladder)
    project.scenario({NONE2: {"fault": "oom"}})
    done = project.run("--with-trace")
    assert done.kind(NONE2) == "passed", done.out
    assert done.properties(NONE2)["scaleperf.note"] == "not traced: it is expected to end in oom"


def test_a_suite_whose_arguments_set_the_profiler_is_refused_before_anything_runs(project: Project) -> None:
    project.suite(trainer=SUITE["trainer"] | {"args": ["--profiler.profile_freq", "7"]})
    done = project.run("--with-trace", *ONLY)
    assert done.kind(NONE2) == "error", done.out
    assert "found --profiler.profile_freq" in done.message(NONE2)
    assert not list(project.run_dir.rglob("stdout.log"))


def test_a_resumed_session_traces_what_is_missing_and_nothing_twice(traced: Project) -> None:
    done = traced.run("--with-trace", *ONLY)
    assert done.kind(NONE2) == "passed"
    done = traced.run("--with-trace", "--resume", "-k", "2gpu")
    session = max(traced.run_dir.glob("sessions/*"))
    assert done.kind(NONE2) == "passed", done.out
    assert done.properties(NONE2)["scaleperf.trace.verdict"] == "pass"
    assert sorted(p.name for p in (session / "cases" / NONE2).iterdir()) == ["1", "2"]
    assert done.kind(FULL2) == "error", "it has no trace: the stand-in was not told one"


def test_a_traced_run_that_hangs_keeps_the_measured_run(traced: Project) -> None:
    traced.suite(limits={"startup": 1, "no_progress": 1, "total": 5})
    traced.scenario({NONE2: {"fault": [None, "hang"]}})
    done = traced.run("--with-trace", *ONLY)
    assert done.kind(NONE2) == "failed", done.out
    assert "run_failed: traced run: hang" in done.message(NONE2)
    assert traced.records()[NONE2]["samples"][0]["outcome"] == "completed"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_what_was_measured_survives_the_end_of_pytest_and_is_not_measured_again(
    traced: Project, before: Path, number: signal.Signals
) -> None:
    traced.scenario({NONE2: {"fault": [None, "hang"]}})
    process = subprocess.Popen(
        traced.command("--gpus", "2", "--with-trace", *ONLY), cwd=traced.path, stdout=subprocess.DEVNULL
    )

    def hanging() -> bool:
        logs = list(traced.run_dir.glob(f"sessions/*/cases/{NONE2}/2/stdout.log"))
        return bool(logs) and b"Training starts" in logs[0].read_bytes()

    wait_until("the traced run to hang", hanging)
    process.send_signal(number)
    process.wait(timeout=30)
    wait_until("every process to end", lambda: not trainers(traced))
    record = traced.records()[NONE2]
    assert (record["decision"], record["reason"]) == ("machine_failed", "interrupted: before it was traced")
    assert [sample["outcome"] for sample in record["samples"]] == ["completed"]
    told(traced, before)
    done = traced.run("--with-trace", "--resume", *ONLY)
    assert done.kind(NONE2) == "passed", done.out
    record = traced.records()[NONE2]
    assert (record["decision"], record["trace"]["decision"]) == ("pass", "pass")
    assert [Path(each["folder"]).name for each in (*record["samples"], record["trace"]["run"])] == ["1", "3"]


def test_a_case_has_one_record(traced: Project) -> None:
    assert traced.run("--with-trace", *ONLY).kind(NONE2) == "passed"
    [path] = traced.run_dir.glob("sessions/*/records/*.json")
    assert json.loads(path.read_text())["decision"] == "pass"
