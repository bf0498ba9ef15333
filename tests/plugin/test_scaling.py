"""The scaling test: efficiency of a rung against its own baseline, gated on both measurements, nothing launched."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_scaleperf.baseline import read_scaling
from tests.plugin.conftest import FULL2, FULL4, NONE2, NONE4, SUITE, Project

NONE, FULL, BEST = "demo-2to4gpu-none", "demo-2to4gpu-full", "demo-2to4gpu-optimum"
TEST_FILE = """
def test_scaling(scaleperf_scaling):
    scaleperf_scaling.check()
"""
SPEEDS: dict[str, dict[str, Any]] = {FULL2: {"tps": 900}, NONE4: {"tps": 986}, FULL4: {"tps": 880}}


@pytest.fixture
def ladder(bare: Project) -> Project:
    """A project that asks for scaling tests, without baselines; ``none`` loses 1.4 %, ``full`` 2.2 %."""
    bare.suite(scaling={"tolerance": "2 %"})
    (bare.path / "suites/test_scaling.py").write_text(TEST_FILE)
    bare.scenario(SPEEDS)
    return bare


@pytest.fixture
def tested(ladder: Project) -> Project:
    """The same with recorded baselines."""
    done = ladder.run("--record-baselines")
    assert set(done.kinds().values()) == {"skipped"}, done.out
    return ladder


def test_recorded_judged_and_shown(tested: Project) -> None:
    stored = read_scaling(tested.baseline_file)
    assert {name: round(entry.efficiency, 3) for name, entry in stored.items()} == {
        NONE: 0.986,
        FULL: 0.978,
        BEST: 0.986,
    }
    assert (stored[BEST].samples[0].upper, stored[BEST].samples[0].lower) == (NONE4, NONE2)
    done = tested.run("-v")
    assert done.returncode == 0, done.out
    assert [done.kind(name) for name in (NONE, FULL, BEST)] == ["passed"] * 3
    said = done.properties(NONE)
    assert float(said["scaleperf.efficiency"]) == pytest.approx(0.986)
    assert float(said["scaleperf.efficiency.baseline"]) == pytest.approx(0.986)
    assert (said["scaleperf.upper"], said["scaleperf.lower"]) == (NONE4, NONE2)
    assert float(said["scaleperf.lower.tps"]) == pytest.approx(1000)
    assert "0.9860 (+0.0%)  2 GPUs: 1,000, 4 GPUs: 986.0 tokens/s/GPU" in done.out
    order = [line for line in done.out.splitlines() if "::test_" in line]
    assert ["scaling" in line for line in order] == [False] * 4 + [True] * 3
    kept = max(tested.run_dir.glob(f"sessions/*/scaling/{NONE}.json"), key=lambda path: path.stat().st_mtime_ns)
    assert json.loads(kept.read_text())["decision"] == "pass"


def test_losing_more_is_a_regression_although_both_cases_pass(tested: Project) -> None:
    """The smaller rung is 2 % faster, the larger one 2 % slower: inside their bands, but 4 % more is lost."""
    tested.scenario({**SPEEDS, NONE2: {"tps": 1020}, NONE4: {"tps": 966}})
    done = tested.run("-k", "none")
    assert done.kinds() == {NONE2: "passed", NONE4: "passed", NONE: "failed"}
    message = done.message(NONE)
    assert "regression: efficiency 0.9471 against 0.9860 (-3.9%, band -2.0%" in message
    assert NONE2 in message
    assert "demo.yaml:" in message
    assert done.properties(NONE)["scaleperf.verdict"] == "regression"
    before = tested.baseline_file.read_text()
    again = tested.run("--record-baselines", "-k", "none and to4gpu")
    assert again.kind(NONE) == "failed"  # and recording does not lower it
    assert tested.baseline_file.read_text() == before


def test_losing_less_passes_as_stale_and_recording_takes_it(tested: Project) -> None:
    tested.scenario({**SPEEDS, NONE2: {"tps": 985}, NONE4: {"tps": 1000}})
    done = tested.run("--record-baselines", "-k", "none")
    assert done.kind(NONE) == "passed", done.out
    assert done.properties(NONE)["scaleperf.verdict"] == "improvement"
    assert "stale" in done.properties(NONE)["scaleperf.reason"]
    [sample] = read_scaling(tested.baseline_file)[NONE].samples
    assert sample.efficiency == pytest.approx(1000 / 985, rel=1e-5)


def test_no_baseline_fails_and_says_how_to_record(tested: Project) -> None:
    text = tested.baseline_file.read_text()
    tested.baseline_file.write_text(text[: text.index("scaling:")])
    done = tested.run("-k", "none")
    assert done.kind(NONE) == "failed"
    assert "no_baseline" in done.message(NONE)
    assert "--record-baselines" in done.message(NONE)


def test_a_failed_measurement_is_a_skip_that_names_it(tested: Project) -> None:
    tested.scenario({**SPEEDS, NONE4: {"fault": "oom"}})
    done = tested.run()
    assert done.kind(NONE) == "skipped"
    assert f"{NONE4} (run_failed)" in done.message(NONE)
    assert done.kind(FULL) == "passed"
    # The optimum of 4 GPUs is not known: by its baseline the failed case is faster than the one that passed.
    assert done.kind(BEST) == "skipped"
    assert f"{NONE4} (run_failed), which may be the fastest" in done.message(BEST)


def test_a_slower_case_that_fails_leaves_the_optimum_known(tested: Project) -> None:
    tested.scenario({**SPEEDS, FULL2: {"fault": "crash"}})
    done = tested.run()
    assert done.kinds()[BEST] == "passed"
    assert done.kinds()[FULL] == "skipped"
    assert f"{FULL2} (run_failed)" in done.message(FULL)
    assert f"{FULL4} (skipped)" in done.message(FULL)


def test_without_evidence_it_is_an_error_that_names_the_command(tested: Project) -> None:
    done = tested.run("-k", "to4gpu-none", "--evidence-max-age", "0.0000001")
    assert done.returncode == 1
    assert done.kinds() == {NONE: "error"}
    assert "Run it first: pytest --gpus 4" in done.message(NONE)
    assert NONE4 in done.message(NONE)


def test_fresh_records_are_enough(tested: Project) -> None:
    assert tested.run("-k", "none and not to4gpu").returncode == 0
    done = tested.run_raw("-k", "to4gpu-none")
    assert done.returncode == 0, done.out
    assert done.kinds() == {NONE: "passed"}


def test_a_rung_beyond_this_session_is_a_skip(tested: Project) -> None:
    done = tested.run("-k", "none", gpus=2)
    assert done.kinds() == {NONE2: "passed", NONE4: "skipped", NONE: "skipped"}
    assert "needs 4 GPUs, this session has 2" in done.message(NONE)
    hollow = tested.run("-k", "to4gpu", gpus=2)
    assert hollow.returncode == 5


def test_another_fingerprint_is_never_green(tested: Project) -> None:
    text = tested.baseline_file.read_text()
    head, _, tail = text.partition("scaling:")
    other = head.replace("fingerprints:\n", "fingerprints:\n  f2: {device: other-gpu, driver: null, nccl: null, "
                         "peak_flops: 1e14, torch: null, torchtitan: null, torchtitan_commit: null}\n")  # fmt: skip
    tested.baseline_file.write_text(other + "scaling:" + tail.replace("fingerprint: f1", "fingerprint: f2"))
    done = tested.run("-k", "none")
    assert done.kind(NONE2) == "passed"
    assert done.kind(NONE) == "failed"
    assert "fingerprint" in done.message(NONE)
    assert "other-gpu" in done.message(NONE)


def test_a_system_that_does_not_judge_speed_is_one_skip_with_that_reason(ladder: Project) -> None:
    ladder.system(judge=["mfu", "peak_memory"], tolerance={"mfu": "3 %", "peak_memory": "2 %"})
    done = ladder.run("-k", "test_scaling", "--record-baselines")
    assert done.kinds() == {"demo": "skipped"}
    assert "does not judge tps" in done.message("demo")


def test_a_suite_that_does_not_ask_is_one_skip_with_that_reason(ladder: Project) -> None:
    ladder.suite()
    done = ladder.run("-k", "test_scaling")
    assert done.kinds() == {"demo": "skipped"}
    assert "scaling: {tolerance: 2 %}" in done.message("demo")


def test_a_test_that_never_checks_is_an_error(tested: Project) -> None:
    (tested.path / "suites/test_scaling.py").write_text(TEST_FILE.replace("scaleperf_scaling.check()", "pass"))
    done = tested.run("-k", "none")
    assert done.returncode == 1
    assert "never called scaleperf_scaling.check()" in done.out


def test_three_rungs_are_compared_with_the_one_below_and_the_first(ladder: Project) -> None:
    third = SUITE["ladder"][1] | {"gpus": 8, "dp_shard": 8, "requires": {"gpus": 4, "same": ["activation_checkpoint"]}}
    ladder.suite(scaling={"tolerance": "2 %"}, ladder=[*SUITE["ladder"], third])
    ladder.scenario({**SPEEDS, "demo-8gpu-*": {"tps": 940}})
    done = ladder.run("--record-baselines", "-k", "none", gpus=8)
    assert {name for name in done.kinds() if "to" in name} == {NONE, "demo-4to8gpu-none", "demo-2to8gpu-none"}
    stored = read_scaling(ladder.baseline_file)
    assert stored["demo-2to8gpu-none"].efficiency == pytest.approx(0.94)
    assert stored["demo-4to8gpu-none"].efficiency == pytest.approx(940 / 986, rel=1e-5)


def test_both_fixtures_in_one_test_are_refused(ladder: Project) -> None:
    (ladder.path / "suites/test_scaling.py").write_text("def test_x(scaleperf, scaleperf_scaling):\n    pass\n")
    done = ladder.run()
    assert done.returncode == 2
    assert "expected one of scaleperf and scaleperf_scaling" in done.out
