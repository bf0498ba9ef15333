"""The JUnit cases of real reports: control characters, odd ids, and properties under xdist."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from junitparser import JUnitXml, Properties

from tests.plugin.conftest import NONE2, Project

CASES = Path(__file__).parent.parent / "data" / "cases"


def expected(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CASES / name / "expected.yaml").read_text())["expect"]
    return found


def run(folder: Path, *args: str) -> Path:
    """Run pytest with our plugin loaded; the JUnit file it wrote."""
    junit = folder / "out.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", f"--junitxml={junit}", *args]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return junit


def test_control_characters_of_a_log_give_valid_xml(project: Project) -> None:
    project.scenario({NONE2: {"fault": "noise", "bytes": str(CASES / "junit-control-chars/tail.log")}})
    done = project.run("-k", "2gpu and none")
    assert done.kind(NONE2) == "failed"
    wanted = expected("junit-control-chars")
    text = done.message(NONE2)
    for part in wanted["contains"]:
        assert part in text
    raw = done.junit.read_bytes().decode("utf-8")
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff\ud800-\udfff]", raw)
    assert not re.search(r"&#(x?0*(?:[0-8bcBC]|1[0-9a-fA-F]?));", raw.replace("&#10;", "").replace("&#13;", ""))
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f]", done.out), "a log must not control the terminal"


def test_odd_ids_stay_distinct(tmp_path: Path) -> None:
    shutil.copy(CASES / "junit-param-ids/test_ids.py", tmp_path)
    wanted = expected("junit-param-ids")
    cases = [case for suite in JUnitXml.fromfile(str(run(tmp_path))) for case in suite]
    assert len(cases) == wanted["n_tests"]
    assert len({(case.classname, case.name) for case in cases}) == wanted["n_distinct_keys"]
    assert {case.classname for case in cases} == {wanted["classname"]}
    assert [case.name for case in cases] == wanted["names"]


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])
@pytest.mark.parametrize("family", ["xunit1", "xunit2"])
def test_properties_of_a_test_survive_xdist(tmp_path: Path, workers: tuple[str, ...], family: str) -> None:
    shutil.copy(CASES / "junit-properties-xdist/test_props.py", tmp_path)
    junit = run(tmp_path, "-o", f"junit_family={family}", *workers)
    cases = [case for suite in JUnitXml.fromfile(str(junit)) for case in suite]
    assert len(cases) == 2
    for case in cases:
        properties = case.child(Properties)
        assert properties is not None
        assert {p.name: p.value for p in properties}["tps"] == "7000"


def test_properties_land_under_both_junit_families(project: Project) -> None:
    for family in ("xunit1", "xunit2"):
        done = project.run("-k", "2gpu and none", "-o", f"junit_family={family}")
        assert done.returncode == 0, done.out
        assert done.properties(NONE2)["scaleperf.verdict"] == "pass"
