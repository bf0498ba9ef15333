"""``scaleperf baselines`` on what the plugin really wrote: records, JUnit files and folders of CI artifacts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from pytest_scaleperf.baseline import read_baselines, values_of
from pytest_scaleperf.baselines_cli import baselines_app
from pytest_scaleperf.model import Metric
from tests.plugin.conftest import FULL2, FULL4, NONE2, NONE4, SUITE, Finished, Project

PAIR = "demo-2to4gpu-none"


def command(project: Project, *args: str | Path) -> Result:
    """Run the command in the project's folder, as a user does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project.path)
        result = CliRunner().invoke(baselines_app, [str(arg) for arg in args])
    assert "Traceback" not in result.output, result.output
    return result


def tps(project: Project, case_id: str) -> float:
    return values_of(read_baselines(project.baseline_file)[case_id].samples)[Metric.TPS]


@pytest.fixture
def slower(project: Project) -> tuple[Project, Finished]:
    """One case 6 % slower, one 10 % faster, one out of memory, and what that one opens not run."""
    project.scenario({NONE2: {"tps": 940}, FULL2: {"tps": 1100}, FULL4: {"fault": "oom"}})
    return project, project.run()


def test_show_lists_values_spread_age_and_reasons(bare: Project) -> None:
    bare.scenario({NONE2: {"tps": [1000, 1010, 1020]}})
    bare.run("--record-baselines", "--repeats", "3", "-k", "none")
    text = bare.baseline_file.read_text()
    bare.baseline_file.write_text(
        text.replace(f"  {NONE4}:\n", f"  {NONE4}:\n    tolerance: {{tps: 5 %}}\n    why: shared\n")
    )
    result = command(bare, "show")
    assert result.exit_code == 0, result.output
    [line] = [line for line in result.output.splitlines() if NONE2 in line]
    assert line.split()[1:4] == ["1,010", "(cv", "1.0%)"]
    [line] = [line for line in result.output.splitlines() if NONE4 in line]
    assert "tolerance tps 5.0%; shared" in line
    assert "lab-gpu" in line
    data: dict[str, Any] = json.loads(command(bare, "show", "--json", "--case", "*2gpu*").output)
    [file] = data.values()
    assert set(file["cases"]) == {NONE2}
    assert file["cases"][NONE2]["values"]["tps"] == 1010
    assert [sample["number"] for sample in file["cases"][NONE2]["samples"]] == [1, 2, 3]


def test_show_of_nothing_is_said(bare: Project) -> None:
    result = command(bare, "show", "--system", "b200")
    assert result.exit_code == 2
    assert "expected baseline files b200/*.yaml, found none" in result.output


def test_diff_is_worst_first_and_changes_nothing(slower: tuple[Project, Finished]) -> None:
    project, _ = slower
    before = project.baseline_file.read_text()
    result = command(project, "diff")
    assert result.exit_code == 0, result.output
    lines = [line for line in result.output.splitlines() if line.startswith("demo-")]
    assert [line.split()[:2] for line in lines] == [[NONE2, "WORSE"], [FULL2, "better"]]
    assert "1,000 -> 940.0 (-6.0%)" in lines[0]
    assert f"left out: {FULL4}: it ended as oom" in result.output
    assert "left out: 1 that were not launched" in result.output
    assert project.baseline_file.read_text() == before
    data = json.loads(command(project, "diff", "--json").output)
    assert [row["case"] for row in data] == [NONE2, FULL2]
    assert data[0]["metrics"]["tps"] == {
        "stored": 1000.0,
        "found": pytest.approx(940, rel=1e-4),
        "change": pytest.approx(-0.06, rel=1e-3),
        "band": 0.03,
    }


def test_update_takes_what_is_better_and_refuses_what_is_worse(slower: tuple[Project, Finished]) -> None:
    project, _ = slower
    result = command(project, "update")
    assert result.exit_code == 1
    assert f"improved  {FULL2}: tps 1,000 -> 1,100 (+10.0%)" in result.output
    assert f"refused   {NONE2}: tps 1,000 -> 940.0 (-6.0%)" in result.output
    assert "1 improved, 1 refused" in result.output
    assert "--accept-regression" in result.output
    assert (tps(project, NONE2), tps(project, FULL2), tps(project, FULL4)) == (1000, 1100, 1000)


def test_a_reason_accepts_and_is_kept_with_date_and_old_values(slower: tuple[Project, Finished]) -> None:
    project, _ = slower
    why = "the new router: +0.3 % quality"
    result = command(project, "update", "--case", NONE2, "--accept-regression", why)
    assert result.exit_code == 0, result.output
    assert tps(project, NONE2) == pytest.approx(940, rel=1e-4)
    assert tps(project, FULL2) == 1000
    [accepted] = yaml.safe_load(project.baseline_file.read_text())["cases"][NONE2]["accepted"]
    assert accepted["why"] == why
    assert accepted["values"]["tps"] == 1000
    assert accepted["session"] == project.records()[NONE2]["session"]
    shown = command(project, "show", "--case", NONE2)
    assert f"before tps 1,000, mfu 20.00, peak_memory 40.00: {why}" in shown.output
    data = json.loads(command(project, "show", "--case", NONE2, "--json").output)
    assert data["baselines/lab/demo.yaml"]["cases"][NONE2]["accepted"][0]["values"]["tps"] == 1000
    project.scenario({NONE2: {"tps": 940}})
    assert project.run("-k", "none").returncode == 0


def test_update_twice_changes_nothing(slower: tuple[Project, Finished]) -> None:
    project, done = slower
    command(project, "update", "--accept-regression", "known")
    before = project.baseline_file.read_text()
    again = command(project, "update")
    assert again.exit_code == 0
    assert "as it was" in again.output
    assert command(project, "update", done.junit).exit_code == 0  # the same session, told by another file
    assert project.baseline_file.read_text() == before


@pytest.mark.parametrize("reason", ["", "  ", "two\nlines", "\x1b[31mred"])
def test_a_reason_must_be_one(slower: tuple[Project, Finished], reason: str) -> None:
    project, _ = slower
    before = project.baseline_file.read_text()
    result = command(project, "update", "--accept-regression", reason)
    assert result.exit_code == 2
    assert "expected the reason" in result.output
    assert project.baseline_file.read_text() == before


def test_a_junit_file_alone_is_enough(slower: tuple[Project, Finished]) -> None:
    project, done = slower
    shutil.rmtree(project.run_dir)
    result = command(project, "update", done.junit, "--accept-regression", "known")
    assert result.exit_code == 0, result.output
    assert tps(project, NONE2) == pytest.approx(940, rel=1e-4)
    assert tps(project, FULL2) == pytest.approx(1100, rel=1e-4)
    assert f"left out: {FULL4}: it ended as oom" in result.output


def test_an_artifact_folder_is_searched_and_records_say_more(bare: Project, tmp_path: Path) -> None:
    bare.scenario({NONE2: {"tps": [1000, 1010]}})
    done = bare.run("--repeats", "2", "-k", "2gpu and none")
    artifact = tmp_path / "artifact" / "job-1"
    shutil.copytree(bare.run_dir, artifact / "run")
    shutil.copy(done.junit, artifact / "scaleperf.xml")
    dry = command(bare, "update", artifact.parent, "--dry-run")
    assert "a dry run, nothing was written" in dry.output
    assert not bare.baseline_file.exists()
    result = command(bare, "update", artifact.parent)
    assert result.exit_code == 0, result.output
    assert [s.values[Metric.TPS] for s in read_baselines(bare.baseline_file)[NONE2].samples] == [1000, 1010]
    bare.baseline_file.unlink()
    command(bare, "update", artifact / "scaleperf.xml")
    assert [s.values[Metric.TPS] for s in read_baselines(bare.baseline_file)[NONE2].samples] == [1005]


def test_only_the_newest_session_of_a_run_directory_counts(project: Project) -> None:
    project.scenario({NONE2: {"tps": 1100}})
    project.run("-k", "2gpu and none")
    project.scenario({NONE2: {"tps": 1200}})
    project.run("-k", "2gpu and none")
    _rename_the_older(project)
    command(project, "update")
    assert tps(project, NONE2) == 1200


OWN_ASSERTION = """
def test_throughput(scaleperf):
    assert scaleperf.run.case.gpus > 100
    scaleperf.check()
"""


def test_a_test_that_failed_by_itself_gives_no_baseline(project: Project) -> None:
    (project.path / "suites/test_throughput.py").write_text(OWN_ASSERTION)
    project.scenario({NONE2: {"tps": 1100}})
    done = project.run("-k", "2gpu and none")
    for source in (project.run_dir, done.junit):
        assert f"left out: {NONE2}" in command(project, "update", source).output
    assert tps(project, NONE2) == 1000


def test_it_gives_none_where_there_was_none_either(bare: Project) -> None:
    (bare.path / "suites/test_throughput.py").write_text(OWN_ASSERTION)
    bare.run("-k", "2gpu and none")
    assert "the test itself failed" in command(bare, "update").output
    assert not bare.baseline_file.exists()


def test_a_case_that_is_expected_to_fail_needs_no_baseline(bare: Project) -> None:
    bare.suite(ladder=[SUITE["ladder"][0] | {"expect": "oom"}])
    bare.scenario({NONE2: {"fault": "oom"}})
    bare.run("--record-baselines")
    assert not bare.baseline_file.exists()  # FULL2 fits after all: still judged by its outcome alone
    result = command(bare, "update")
    assert f"left out: {NONE2}: it ended as oom" in result.output
    assert f"left out: {FULL2}: its outcome alone is judged" in result.output
    assert not bare.baseline_file.exists()


def test_prune_lists_first_and_removes_with_yes_after_a_complete_run(project: Project) -> None:
    project.suite(ladder=[SUITE["ladder"][0]])
    project.run()
    listed = command(project, "prune")
    assert listed.exit_code == 0, listed.output
    assert "2 unused" in listed.output
    assert NONE4 in listed.output
    assert "say --yes" in listed.output
    assert set(read_baselines(project.baseline_file)) == {NONE2, FULL2, NONE4, FULL4}
    assert "removed" in command(project, "prune", "--yes").output
    assert set(read_baselines(project.baseline_file)) == {NONE2, FULL2}
    assert "nothing is unused" in command(project, "prune", "--yes").output


def test_prune_after_a_selection_is_refused_with_the_reason(project: Project) -> None:
    project.suite(ladder=[SUITE["ladder"][0]])
    done = project.run("-k", "none")
    for source in (project.run_dir, done.junit):
        result = command(project, "prune", source, "--yes")
        assert result.exit_code == 1
        assert f"expected a complete run of demo, found no record of {FULL2}" in result.output
    assert set(read_baselines(project.baseline_file)) == {NONE2, FULL2, NONE4, FULL4}


def test_prune_leaves_the_file_of_a_suite_that_is_gone(project: Project) -> None:
    project.run("-k", "2gpu")
    other = project.baseline_file.with_name("gone.yaml")
    other.write_text(project.baseline_file.read_text().replace("suite: demo", "suite: gone"))
    result = command(project, "prune", "--yes")
    assert "no suite of that name" in result.output
    assert other.exists()


@pytest.mark.parametrize("name", ["show", "diff", "update", "prune"])
def test_a_fault_in_the_file_is_a_sentence(slower: tuple[Project, Finished], name: str) -> None:
    project, _ = slower
    project.baseline_file.write_text("suite: demo\nsystem: lab\ncases: [\n")
    result = command(project, name)
    assert result.exit_code == 2
    assert "demo.yaml:" in result.output


@pytest.mark.parametrize("name", ["diff", "update", "prune"])
def test_sources_that_are_none_are_said(project: Project, name: str, tmp_path: Path) -> None:
    assert "found nothing" in command(project, name).output  # no session has run yet
    (tmp_path / "empty").mkdir()
    result = command(project, name, tmp_path / "empty")
    assert result.exit_code == 2
    assert "found none" in result.output


def test_a_record_that_cannot_be_read_is_said_and_ends_with_1(project: Project) -> None:
    project.run("-k", "2gpu")
    [record] = project.run_dir.glob(f"sessions/*/records/{FULL2}.json")
    record.write_text("{")
    result = command(project, "update")
    assert result.exit_code == 1
    assert str(record.name) in result.output
    assert len(read_baselines(project.baseline_file)[NONE2].samples) == 2


@pytest.mark.parametrize(("system", "suite"), [("../lab", "demo"), ("lab", "../../demo"), ("lab", "")])
def test_names_in_an_artifact_do_not_leave_the_folder(project: Project, system: str, suite: str) -> None:
    done = project.run("-k", "2gpu and none")
    text = done.junit.read_text()
    for name, old, new in (("system", "lab", system), ("suite", "demo", suite)):
        text = text.replace(f'name="scaleperf.{name}" value="{old}"', f'name="scaleperf.{name}" value="{new}"')
    done.junit.write_text(text)
    result = command(project, "update", done.junit)
    assert "expected a system and a suite" in result.output
    assert len(read_baselines(project.baseline_file)[NONE2].samples) == 1


def test_a_case_without_a_judged_number_gives_no_baseline(bare: Project) -> None:
    bare.scenario({NONE2: {"no_tps": True}})
    done = bare.run("-k", "2gpu and none", "--record-baselines")
    assert done.kind(NONE2) == "failed"
    assert not bare.baseline_file.exists()
    for source in (bare.run_dir, done.junit):
        result = command(bare, "update", source)
        assert f"left out: {NONE2}: tps: missing_metric" in result.output
    assert not bare.baseline_file.exists()


def test_an_unknown_system_is_said(project: Project) -> None:
    done = project.run("-k", "2gpu and none")
    result = command(project, "update", done.junit, "--baselines", "elsewhere")
    assert result.exit_code == 2
    assert "expected a folder lab with a system.yaml" in result.output


@pytest.fixture
def uneven(bare: Project) -> tuple[Project, Finished]:
    """Scaling is tested; since the baselines were recorded the larger rung has lost 2.6 % more."""
    bare.suite(scaling={"tolerance": "2 %"})
    (bare.path / "suites/test_scaling.py").write_text(
        "def test_scaling(scaleperf_scaling):\n    scaleperf_scaling.check()\n"
    )
    bare.run("--record-baselines", "-k", "none")
    bare.scenario({NONE4: {"tps": 974}})
    return bare, bare.run("-k", "none")


@pytest.mark.parametrize("alone", [False, True])
def test_a_worse_efficiency_needs_a_reason_too(uneven: tuple[Project, Finished], alone: bool) -> None:  # noqa: FBT001
    project, done = uneven
    assert done.kind(PAIR) == "failed"
    source: Path = done.junit if alone else project.run_dir
    if not alone:
        _rename_the_older(project)
    shown = command(project, "diff", source)
    assert "WORSE                 1.0000 -> 0.9740 (-2.6%)" in shown.output
    refused = command(project, "update", source, "--case", PAIR)
    assert refused.exit_code == 1
    assert f"refused   {PAIR}: efficiency 1.0000 -> 0.9740 (-2.6%)" in refused.output
    taken = command(project, "update", source, "--case", PAIR, "--accept-regression", "a longer cable")
    assert taken.exit_code == 0, taken.output
    [accepted] = yaml.safe_load(project.baseline_file.read_text())["scaling"][PAIR]["accepted"]
    assert (accepted["efficiency"], accepted["why"]) == (1.0, "a longer cable")
    assert project.run("-k", "none").kind(PAIR) == "passed"


def _rename_the_older(project: Project) -> None:
    """Names are by the second: of two sessions of the same second, the newest is not told by its name."""
    sessions = sorted(project.run_dir.glob("sessions/*"), key=lambda path: path.stat().st_mtime_ns)
    for number, path in enumerate(sessions[:-1]):
        path.rename(path.with_name(f"20200101-00000{number}-aaaaaa"))
