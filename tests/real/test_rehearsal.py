"""Real torchtitan 0.3.0 rehearses rungs up to 512 ranks on this machine's CPU, through pytest as a user starts it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from junitparser import JUnitXml

from tests.titan import interpreters

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "suites" / "cpu_ladder.yaml"
WRONG = "ladder-512gpu-fsdp4-dp4-tp32-none-lbs2"


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The shipped ladder with one case a rung, and a layout that is wrong at 512 ranks only."""
    interpreters.of("0.3")
    folder = tmp_path_factory.mktemp("project")
    suite = yaml.safe_load(SHIPPED.read_text())
    ladder = [{**entry, "activation_checkpoint": "none"} for entry in suite["ladder"][:3]]
    wrong = {**ladder[-1], "dp_shard": 4, "dp_replicate": 4, "tp": 32}
    (folder / "suites").mkdir()
    (folder / "pytest.ini").write_text(f"[pytest]\nscaleperf_baselines = {ROOT / 'baselines'}\n")
    (folder / "suites/ladder.yaml").write_text(yaml.safe_dump({**suite, "name": "ladder", "ladder": [*ladder, wrong]}))
    (folder / "suites/test_fit.py").write_text("def test_fit(scaleperf):\n    scaleperf.check()\n")
    command = [sys.executable, "-m", "pytest", "suites/", "--rehearse", "--system", "cpu", "--junitxml=junit.xml"]
    finished = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=240)
    cases = {case.name.partition("[")[2].rstrip("]"): case for suite in JUnitXml.fromfile(str(folder / "junit.xml"))
             for case in suite}  # fmt: skip
    records = {path.stem: json.loads(path.read_text()) for path in folder.glob(".scaleperf/sessions/*/rehearsals/*")}
    return {"code": finished.returncode, "out": finished.stdout, "cases": cases, "records": records, "folder": folder}


def test_the_layout_that_is_wrong_at_512_ranks_only_is_found(done: dict[str, Any]) -> None:
    assert done["code"] == 1, done["out"]
    failed = [name for name, case in done["cases"].items() if case.result]
    assert failed == [WRONG]
    assert "tensor_parallel_degree (32) must divide n_heads (16)" in done["cases"][WRONG].result[0].text
    assert done["records"][WRONG]["fit"] == "invalid"


def test_every_other_rung_ran_in_one_process_of_its_whole_mesh(done: dict[str, Any]) -> None:
    well = {name: record for name, record in done["records"].items() if name != WRONG}
    assert sorted(record["gpus"] for record in well.values()) == [16, 128, 512]
    for name, record in well.items():
        [rank] = record["ranks"]
        assert (record["fit"], rank["rank"]) == ("fits", 0)
        assert 0.3 < rank["peak_gib"] < 8
        assert rank["tps"] > 0
        assert rank["margin_gib"] is None, "on a CPU only whether it ran says whether it fits"
        log = (Path(rank["folder"]) / "stdout.log").read_text()
        layout = record["layout"]
        assert f"dp_replicate={layout['dp_replicate']}, dp_shard={layout['dp_shard']}" in log, name


def test_a_report_of_the_session_shows_them(done: dict[str, Any]) -> None:
    command = [sys.executable, "-c", "from pytest_scaleperf.cli import app; app()", "report", ".scaleperf"]
    shown = subprocess.run(command, cwd=done["folder"], capture_output=True, text=True, check=False, timeout=60)
    assert "1 of 4 rehearsals not well" in shown.stdout, shown.stderr
