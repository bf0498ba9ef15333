"""Rules 3 to 5: machine against code; better, worse and undecided; what is never judged."""

from __future__ import annotations

import pytest

from tests.plugin.conftest import FULL2, NONE2, NONE4, SUITE, Project


def test_a_failure_of_the_machine_is_an_error_not_a_regression(project: Project) -> None:
    project.scenario({NONE2: {"fault": "node_failure"}})
    done = project.run("-k", "none")
    assert done.returncode == 1
    assert done.kind(NONE2) == "error"
    assert "node_failure" in done.message(NONE2)
    assert done.kind(NONE4) == "skipped"


@pytest.mark.parametrize(
    ("told", "outcome"),
    [
        ({"fault": "oom"}, "oom"),
        ({"fault": "crash"}, "error"),
        ({"nan": True}, "nan_loss"),
        ({"fault": "sigkill"}, "killed"),
        ({"tps": 900}, "regression"),
        ({"memory": 44}, "regression"),
    ],
)
def test_a_failure_of_code_or_configuration_is_a_failure(
    project: Project, told: dict[str, object], outcome: str
) -> None:
    project.scenario({NONE2: told})
    done = project.run("-k", "none")
    assert done.kind(NONE2) == "failed", done.out
    assert outcome in done.message(NONE2)
    assert done.kind(NONE4) == "skipped"


def test_a_hang_ends_at_the_no_progress_limit(project: Project) -> None:
    project.suite(limits={"startup": 30, "no_progress": 2, "total": 60})
    project.scenario({NONE2: {"fault": "hang", "at": 12}})
    done = project.run("-k", "2gpu and none")
    assert done.kind(NONE2) == "failed"
    assert "hang" in done.message(NONE2)


def test_a_start_that_takes_too_long_ends(project: Project) -> None:
    project.suite(limits={"startup": 1, "no_progress": 30, "total": 60})
    project.scenario({NONE2: {"fault": "hang", "at": 1}})
    done = project.run("-k", "2gpu and none")
    assert done.kind(NONE2) == "failed"
    assert "hang" in done.message(NONE2)


XFAIL = """
import pytest
from pytest_scaleperf.plugin import Regression

@pytest.mark.xfail({arguments})
def test_throughput(scaleperf):
    scaleperf.check()
"""


def test_xfail_may_expect_a_verdict_only(project: Project) -> None:
    test = project.path / "suites/test_throughput.py"
    test.write_text(XFAIL.format(arguments="raises=Regression, reason='known'"))
    project.scenario({NONE2: {"tps": 500}, FULL2: {"fault": "node_failure"}})
    done = project.run("-k", "2gpu")
    assert done.kind(NONE2) == "skipped"  # JUnit shows an expected failure so
    assert done.kind(FULL2) == "error"


def test_xfail_without_the_class_is_refused(project: Project) -> None:
    test = project.path / "suites/test_throughput.py"
    test.write_text(XFAIL.format(arguments="reason='hides everything'"))
    done = project.run()
    assert done.returncode == 4
    assert "raises=" in done.out


def test_faster_passes_is_marked_stale_and_opens_the_gate(project: Project) -> None:
    project.scenario({NONE2: {"tps": 1200}})
    done = project.run("-k", "none")
    assert done.returncode == 0, done.out
    assert done.properties(NONE2)["scaleperf.verdict"] == "improvement"
    assert "stale" in done.out
    assert done.kind(NONE4) == "passed"


def test_inconclusive_takes_another_sample_and_keeps_the_first(project: Project) -> None:
    # Steps swing by 10 % around 880, their median is 968: at the edge of the 3 % band, and too noisy to tell it.
    project.scenario({NONE2: {"tps": 880, "wobble": 0.1}})
    done = project.run("-k", "2gpu and none")
    assert done.properties(NONE2)["scaleperf.samples"] == "4"
    record = project.records()[NONE2]
    assert len(record["samples"]) == 4
    assert len({sample["folder"] for sample in record["samples"]}) == 4
    assert done.kind(NONE2) == "failed"
    assert "inconclusive" in done.message(NONE2)


def test_a_further_sample_never_replaces_the_first(project: Project) -> None:
    # The first run is below the band by little, the second inside it: the verdict rests on their mean.
    project.scenario({NONE2: {"tps": [967, 990]}})
    done = project.run("-k", "2gpu and none")
    values = [s["measurement"]["values"]["tps"] for s in project.records()[NONE2]["samples"]]
    assert values == pytest.approx([967, 990])
    assert done.kind(NONE2) == "passed"
    assert float(done.properties(NONE2)["scaleperf.tps"]) == pytest.approx(978.5)


def test_a_steady_window_that_is_too_short_is_never_green(project: Project) -> None:
    # The run is slow until its 24th step of 30: no part of it is steady for long enough.
    project.suite(measure={"steps": 30, "warmup": 1, "log_freq": 1})
    project.baseline_file.unlink()
    project.record_baselines()
    project.scenario({NONE2: {"slow_until": 24}})
    done = project.run("-k", "2gpu and none")
    assert done.kind(NONE2) == "failed"
    assert "no steady window" in done.message(NONE2)
    assert len(project.records()[NONE2]["samples"]) == 4  # a disturbed run is followed by others; here all are
    project.baseline_file.unlink()
    again = project.run("--record-baselines", "-k", "2gpu and none")
    assert again.kind(NONE2) == "failed"
    assert not project.baseline_file.exists()


def test_step_1_and_warm_up_are_never_judged(project: Project) -> None:
    # The stand-in prints step 1 at a fiftieth of the speed; with it the median or mean would fall out of the band.
    project.suite(measure={"steps": 20, "warmup": 5, "log_freq": 5})
    project.baseline_file.unlink()
    project.record_baselines()
    assert "tps: 1000" in project.baseline_file.read_text()
    record = project.records()[NONE2]
    assert record["samples"][0]["measurement"]["steps"] == [10, 15, 20]


def test_expected_oom_passes_and_fitting_after_all_is_an_improvement(project: Project) -> None:
    rung = SUITE["ladder"][0] | {"expect": "oom"}
    project.suite(ladder=[rung])
    project.scenario({NONE2: {"fault": "oom"}})
    done = project.run()
    assert done.returncode == 0, done.out
    assert done.properties(NONE2)["scaleperf.verdict"] == "pass"
    assert done.properties(FULL2)["scaleperf.verdict"] == "improvement"


def test_oom_names_rank_and_size(project: Project) -> None:
    project.scenario({NONE2: {"fault": "oom"}})
    done = project.run("-k", "2gpu and none")
    assert "oom" in done.message(NONE2)
    assert "rank 0" in done.message(NONE2)
    assert "2.50 GiB" in done.message(NONE2)
    failure = project.records()[NONE2]["samples"][0]["failure"]
    assert failure["rank"] == 0
    assert failure["requested_gib"] == pytest.approx(2.5)


def test_another_fingerprint_is_never_green_and_is_named(project: Project) -> None:
    text = project.baseline_file.read_text()
    assert "device: lab-gpu" in text
    project.baseline_file.write_text(text.replace("device: lab-gpu", "device: other-gpu"))
    done = project.run("-k", "2gpu")
    assert done.kind(NONE2) == "failed"
    assert "fingerprint" in done.message(NONE2)
    assert "other-gpu" in done.message(NONE2)
    assert "lab-gpu" in done.message(NONE2)


def test_a_difference_that_the_suite_allows_is_named_and_compared(project: Project) -> None:
    text = project.baseline_file.read_text()
    project.baseline_file.write_text(text.replace("device: lab-gpu", "device: other-gpu"))
    project.suite(compare_across=["device"])
    done = project.run("-k", "2gpu")
    assert done.kind(NONE2) == "passed", done.out
    assert "other-gpu" in done.properties(NONE2)["scaleperf.note"]


def test_a_case_that_cannot_be_started_is_an_error_and_in_the_table(project: Project) -> None:
    (project.path / "suites/trainer.py").chmod(0o644)
    done = project.run("-k", "none")
    assert done.returncode == 1
    assert done.kind(NONE2) == "error"
    assert "trainer.py" in done.message(NONE2)
    assert f"{NONE2}  machine_failed" in done.out
    assert project.records()[NONE2]["decision"] == "machine_failed"
    assert "interrupted" not in project.records()[NONE2]["reason"]
    assert done.kind(NONE4) == "skipped"
