"""``--repeats N``: every launch of a recorded case is a sample of its own, with its date and session."""

from __future__ import annotations

import pytest
import yaml

from tests.plugin.conftest import FULL2, NONE2, NONE4, SUITE, Project


def stored(project: Project, case_id: str) -> list[dict[str, object]]:
    samples: list[dict[str, object]] = yaml.safe_load(project.baseline_file.read_text())["cases"][case_id]["samples"]
    return samples


def test_each_launch_is_a_sample(bare: Project) -> None:
    bare.scenario({NONE2: {"tps": [1000, 1010, 1005], "memory": [40, 41, 40.5]}})
    done = bare.run("--record-baselines", "--repeats", "3", "-k", "2gpu")
    assert set(done.kinds().values()) == {"skipped"}, done.out
    samples = stored(bare, NONE2)
    assert [s["tps"] for s in samples] == [1000.0, 1010.0, 1005.0]
    assert [s["peak_memory"] for s in samples] == [40.0, 41.0, 40.5]
    assert [s.get("sample", 1) for s in samples] == [1, 2, 3]
    assert len({s["session"] for s in samples}) == 1
    assert done.properties(NONE2)["scaleperf.samples"] == "3"
    judged = bare.run("-k", "2gpu and none")
    assert judged.kind(NONE2) == "passed"
    assert float(judged.properties(NONE2)["scaleperf.tps.baseline"]) == pytest.approx(1005)


def test_the_suite_says_how_often_where_the_option_does_not(bare: Project) -> None:
    bare.suite(measure={**SUITE["measure"], "repeats": 2})
    bare.run("--record-baselines", "-k", "2gpu and none")
    assert len(stored(bare, NONE2)) == 2
    bare.run("--record-baselines", "--repeats", "1", "-k", "2gpu and full")
    assert len(stored(bare, FULL2)) == 1


def test_a_launch_that_fails_spoils_the_case(bare: Project) -> None:
    bare.scenario({NONE2: {"fault": [None, "oom", None]}})
    done = bare.run("--record-baselines", "--repeats", "3", "-k", "2gpu and none")
    assert done.kind(NONE2) == "failed"
    assert "oom" in done.message(NONE2)
    assert not bare.baseline_file.exists()


def test_a_faster_run_takes_the_place_of_the_stored_samples(project: Project) -> None:
    project.scenario({NONE2: {"tps": 1200}})
    done = project.run("--record-baselines", "-k", "none")
    assert done.returncode == 0, done.out
    entry = yaml.safe_load(project.baseline_file.read_text())["cases"][NONE2]
    assert [s["tps"] for s in entry["samples"]] == [1200.0]
    assert entry["replaced"]["values"]["tps"] == pytest.approx(1000)
    assert len(stored(project, NONE4)) == 2  # inside its band: beside the stored one


@pytest.mark.parametrize("wrong", ["0", "-1", "often", "²"])
def test_repeats_must_be_a_count(bare: Project, wrong: str) -> None:
    done = bare.run(f"--repeats={wrong}")
    assert done.returncode == 4
    assert "--repeats: expected a whole number of launches" in done.out
