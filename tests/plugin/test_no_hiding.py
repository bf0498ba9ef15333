"""Ways to make a case green that was not: each was found by trying, each stays shut."""

from __future__ import annotations

import time

import pytest

from tests.plugin.conftest import FULL2, NONE2, NONE4, SUITE, Project

SLOW = {NONE2: {"tps": 500}}
BODIES = {
    "caught": (
        "def test_throughput(scaleperf):\n    try:\n        scaleperf.check()\n"
        "    except BaseException:\n        pass\n"
    ),
    "raises": (
        "import pytest\nfrom pytest_scaleperf.plugin import Regression\n"
        "def test_throughput(scaleperf):\n    with pytest.raises(Regression):\n        scaleperf.check()\n"
    ),
    "skip": "import pytest\ndef test_throughput(scaleperf):\n    pytest.skip('not today')\n",
    "xfail": "import pytest\ndef test_throughput(scaleperf):\n    pytest.xfail('not today')\n",
}


@pytest.mark.parametrize("how", sorted(BODIES))
def test_a_body_cannot_hide_its_verdict(project: Project, how: str) -> None:
    project.scenario(SLOW)
    (project.path / "suites/test_throughput.py").write_text(BODIES[how])
    done = project.run("-k", "none")
    assert done.returncode == 1, done.out
    assert project.records()[NONE2]["decision"] == "run_failed"
    assert done.kind(NONE4) == "skipped"


@pytest.mark.parametrize("told", [{"tps": 500}, {"fault": "node_failure"}, {"fault": "oom"}])
def test_an_xfail_added_late_hides_no_error(project: Project, told: dict[str, object]) -> None:
    project.scenario({NONE2: told})
    (project.path / "conftest.py").write_text(
        "import pytest\n@pytest.hookimpl(trylast=True)\ndef pytest_collection_modifyitems(items):\n"
        "    for item in items:\n        item.add_marker(pytest.mark.xfail(reason='hidden'))\n"
    )
    done = project.run("-k", "2gpu and none")
    expected_by_the_user = told.get("fault") != "node_failure"
    assert done.returncode == (0 if expected_by_the_user else 1), done.out


def test_xfail_that_does_not_run_is_refused(project: Project) -> None:
    (project.path / "suites/test_throughput.py").write_text(
        "import pytest\nfrom pytest_scaleperf.plugin import Regression\n"
        "@pytest.mark.xfail(raises=Regression, run=False)\ndef test_throughput(scaleperf):\n    scaleperf.check()\n"
    )
    assert project.run().returncode == 4


def test_setup_only_is_refused(project: Project) -> None:
    assert project.run("--setup-only").returncode == 4
    assert not project.records()


def test_only_a_suite_of_another_system_is_not_green(project: Project) -> None:
    import yaml  # noqa: PLC0415 - one test needs it

    (project.path / "suites/far.yaml").write_text(yaml.safe_dump(dict(SUITE) | {"name": "far", "system": "b200"}))
    assert project.run("-k", "far").returncode == 5


def test_a_second_test_of_a_case_does_not_undo_its_failure(project: Project) -> None:
    project.scenario({NONE2: {"tps": [500, 1000, 1000, 1000]}})
    (project.path / "suites/test_throughput.py").write_text(
        "def test_a(scaleperf):\n    scaleperf.check()\n\ndef test_b(scaleperf):\n    scaleperf.check()\n"
    )
    done = project.run("-k", "none")
    assert done.returncode == 1
    assert not list(project.run_dir.glob(f"sessions/*/cases/{NONE4}"))


def test_a_machine_failure_is_no_evidence(project: Project) -> None:
    project.scenario({NONE2: {"fault": "node_failure"}})
    assert project.run("-k", "2gpu and none").returncode == 1
    project.scenario({})
    done = project.run("-k", "4gpu and none")
    assert done.kind(NONE4) == "error"
    assert NONE2 in done.message(NONE4)


def test_resume_takes_no_half_sampled_case_and_says_what_it_did_not_launch(project: Project) -> None:
    assert project.run("-k", "2gpu").returncode == 0
    done = project.run("--resume", "-k", "2gpu")
    assert done.returncode == 0
    assert "2 of 2 cases were not launched" in done.out
    assert "scaleperf.replayed" in done.properties(FULL2)
    project.suite(measure=dict(SUITE["measure"]) | {"repeats": 2})
    done = project.run("--resume", "-k", "2gpu and none")
    assert "not launched" not in done.out
    assert done.properties(NONE2)["scaleperf.samples"] == "2"


def test_an_endless_line_stalls_nothing(project: Project) -> None:
    project.suite(limits={"startup": 30, "no_progress": 30, "total": 40})
    noise = project.path / "noise"
    noise.write_bytes(b" - Peak " * 60_000 + b"]: mfu:  loss: " * 20_000 + b"\nstep: " + b"9" * 5000 + b"\n")
    project.scenario({NONE2: {"fault": "noise", "bytes": str(noise)}})
    started = time.monotonic()
    done = project.run("-k", "2gpu and none")
    assert time.monotonic() - started < 60
    assert done.kind(NONE2) == "failed"


def test_what_the_reader_doubts_is_said_with_the_verdict(project: Project) -> None:
    project.scenario({NONE2: {"total_steps": 1000}})
    done = project.run("-k", "2gpu and none")
    assert "1000" in done.properties(NONE2).get("scaleperf.note", ""), done.properties(NONE2)
