"""The CI files of docs/examples/ci: valid YAML, jobs that exist, scripts that exist, options that our commands have."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from pytest_scaleperf.report.command import report_app

EXAMPLES = Path(__file__).parent.parent / "docs" / "examples"
GITLAB, GITHUB = EXAMPLES / "ci" / "gitlab-ci.yml", EXAMPLES / "ci" / "github-workflow.yml"
JOB_KEYS = {
    "artifacts", "extends", "interruptible", "needs", "resource_group", "rules", "script", "stage", "tags",
}  # fmt: skip
STEP_KEYS = {"name", "uses", "with", "run", "if"}


class NoTwice(yaml.SafeLoader):
    """YAML in which a key may stand once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - as yaml calls it
        keys = [self.construct_object(key) for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"a key stands twice: {keys}"
        return dict(super().construct_mapping(node, deep=deep))


def load(path: Path) -> dict[Any, Any]:
    found = yaml.load(path.read_text(), NoTwice)  # noqa: S506 - a safe loader
    assert isinstance(found, dict)
    return found


def gitlab_jobs() -> dict[str, dict[str, Any]]:
    return {name: job for name, job in load(GITLAB).items() if name not in ("stages", "variables")}


def github_steps() -> list[dict[str, Any]]:
    return [step for job in load(GITHUB)["jobs"].values() for step in job["steps"]]


def commands() -> list[list[str]]:
    """Every command of both files, in words."""
    lines = [line for job in gitlab_jobs().values() for line in job.get("script", [])]
    lines += [step["run"].replace("\\\n", " ") for step in github_steps() if "run" in step]
    return [shlex.split(line) for line in lines]


def test_gitlabs_jobs_are_of_stages_and_need_jobs_that_exist() -> None:
    file, jobs = load(GITLAB), gitlab_jobs()
    for name, job in jobs.items():
        assert job.keys() <= JOB_KEYS, name
        assert not {"when", "rules"} <= job.keys(), "rules have their own `when`"
        if name.startswith("."):
            continue
        assert job["stage"] in file["stages"]
        assert job["script"]
        needed = [each if isinstance(each, str) else each["job"] for each in job.get("needs", [])]
        assert set(needed) <= jobs.keys()
        earlier = file["stages"][: file["stages"].index(job["stage"])]
        assert all(jobs[each]["stage"] in earlier for each in needed)
        if "extends" in job:
            assert job["extends"] in jobs


def test_githubs_workflow_has_the_keys_that_it_needs() -> None:
    file = load(GITHUB)
    assert {"name", "jobs"} < file.keys()
    assert file.get("on", file.get(True)), "when it runs"  # YAML 1.1 reads `on` as true
    for job in file["jobs"].values():
        assert {"runs-on", "steps"} <= job.keys()
    for step in github_steps():
        assert step.keys() <= STEP_KEYS
        assert ("run" in step) is not ("uses" in step)


def test_a_larger_rung_is_tried_whatever_the_smaller_one_found() -> None:
    jobs = gitlab_jobs()
    assert all(rule["when"] == "always" for name in ("rung-128", "rung-512") for rule in jobs[name]["rules"])
    after = [step for step in github_steps() if "stage128" in step.get("run", "") or "stage512" in step.get("run", "")]
    assert [step["if"] for step in after] == ["${{ !cancelled() }}"] * 2


def test_every_script_that_is_submitted_is_among_the_examples() -> None:
    scripts = [words[words.index("--wait") + 1] for words in commands() if words[0] == "sbatch"]
    assert len(scripts) == 6
    for script in scripts:
        assert (EXAMPLES / "nightly" / script.removeprefix("ci/")).is_file(), script


def test_both_files_ask_for_reports_with_options_that_there_are() -> None:
    told = CliRunner().invoke(report_app, ["--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).output
    known = set(re.findall(r"--[a-z-]+", told))
    asked = [words for words in commands() if words[0] == "scaleperf"]
    assert len(asked) == 2
    for words in asked:
        assert words[1] == "report"
        assert {word for word in words if word.startswith("--")} <= known


@pytest.mark.parametrize("path", [GITLAB, GITHUB], ids=lambda path: path.stem)
def test_records_lie_where_every_stage_sees_them(path: Path) -> None:
    file = load(path)
    runs = (file.get("variables") or file.get("env"))["SCALEPERF_RUNS"]  # type: ignore[index]  # one of them is there
    assert runs.startswith("/")
    for script in (EXAMPLES / "nightly").glob("*.sh"):
        assert "SCALEPERF_RUNS" in script.read_text()
