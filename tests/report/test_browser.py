"""The page of a thousand cases in a real browser: it is fast, whole, works, and asks no network for anything."""

from __future__ import annotations

import json
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from tests.report import build

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((path for name in NAMES if (path := shutil.which(name)) is not None), None)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # the browser itself finds no network either
)
REPORT = (sys.executable, "-c", "from pytest_scaleperf.report.command import report_app; report_app()")
CASES, NIGHTS = 1_000, 13

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH: apt-get install chromium")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a thousand cases with two weeks of history, made by the command as a user makes it."""
    folder = tmp_path_factory.mktemp("thousand")
    build.write(folder / "run", build.many(CASES, NIGHTS))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([*REPORT, str(folder / "run"), "--html", str(folder / "r.html")], check=True, timeout=300)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    (folder / "seconds").write_text(str(spent))
    return folder / "r.html"


def browse(page: Path, *flags: str, address: str = "", profile: Path) -> str:
    """Open a page without a window; what it prints."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", *flags, f"file://{page}{address}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def test_it_is_small_and_made_in_time(made: Path) -> None:
    """Processor time, so that a busy machine does not decide; a report on an idle one takes as long."""
    assert made.stat().st_size < 10_000_000
    assert float((made.parent / "seconds").read_text()) < 60


def test_the_browser_shows_everything_and_the_script_runs(made: Path, tmp_path: Path) -> None:
    document = browse(made, "--dump-dom", profile=tmp_path)
    assert re.findall(r"<h2[^>]*>([^<]*)</h2>", document)[:6] == [
        "What changed",
        "The ladder: the optimum of each rung",
        "Pictures",
        "Not run",
        "All cases",
        "Sessions",
    ]
    table = document.partition('id="all-cases"')[2].partition("</table>")[0]
    assert table.count("<tr data-verdict=") == CASES
    assert f"{CASES} of {CASES} shown" in document
    assert document.count('<article class="case"') == CASES
    assert document.count("<figure") > CASES


def asked_by(page: Path, folder: Path) -> set[str]:
    """Addresses that a page asked for; what the browser asks for itself has no origin."""
    log = folder / "net.json"
    browse(page, "--dump-dom", f"--log-net-log={log}", profile=folder / "profile")
    text = log.read_text().rstrip()
    told = json.loads(text if text.endswith("}") else text.rstrip(",") + "]}")
    requests = [event["params"] for event in told["events"] if "initiator" in event.get("params", {})]
    return {request["url"] for request in requests if request["initiator"] != "not an origin"}


def test_it_asks_no_network_for_anything(made: Path, tmp_path: Path) -> None:
    asking = tmp_path / "asking.html"
    asking.write_text('<img src="http://elsewhere.example/x.png">')
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    assert asked_by(asking, tmp_path / "a") == {"http://elsewhere.example/x.png"}
    assert asked_by(made, tmp_path / "b") == set()


@pytest.mark.parametrize(("name", "address"), [("overview", ""), ("case", "#case-7")])
def test_a_picture_of_it_is_not_empty(made: Path, tmp_path: Path, name: str, address: str) -> None:
    shot = tmp_path / f"{name}.png"
    browse(made, f"--screenshot={shot}", "--window-size=1400,2000", address=address, profile=tmp_path / "profile")
    with Image.open(shot) as image:
        assert image.size == (1400, 2000)
        colours = image.convert("RGB").getcolors(1 << 24)
    assert colours is not None
    assert len(colours) > 50
    white = max(colours)[0] / (1400 * 2000)
    assert 0.3 < white < 0.97


def test_a_case_has_a_page_of_its_own_without_any_script(tmp_path: Path) -> None:
    """The overview gives way to the section that the address names: told by what is laid out, in a page of 7 cases."""
    build.write(tmp_path / "run", list(build.many(7)))
    target = tmp_path / "small.html"
    subprocess.run([*REPORT, str(tmp_path / "run"), "--html", str(target)], check=True, timeout=120)
    probe = """<script>addEventListener("load", () => { document.title = JSON.stringify(
      ["overview", "case-2", "case-3"].map((id) => document.getElementById(id).getClientRects().length > 0));
    });</script>"""
    text = re.sub(r"<meta http-equiv[^>]*>", "", target.read_text()).replace("</body>", f"{probe}</body>")
    target.write_text(text)
    for address, shown in (("", [True, False, False]), ("#case-2", [False, True, False])):
        document = browse(target, "--dump-dom", address=address, profile=tmp_path / f"profile{address[1:]}")
        assert json.loads(re.findall(r"<title>(.*?)</title>", document)[0]) == shown


def test_the_table_is_filtered_and_sorted(made: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy.html"
    probe = """<script>addEventListener("load", () => {
      const rows = () => [...document.querySelectorAll("#all-cases tbody tr")].filter((row) => !row.hidden);
      const search = document.getElementById("search");
      search.value = "suite-1 128gpu"; search.dispatchEvent(new Event("input"));
      document.querySelector('#tools button[data-verdict="regression"]').click();
      document.querySelectorAll("#all-cases th")[3].click();
      const falling = rows().map((row) => Number(row.cells[3].dataset.value));
      document.querySelectorAll("#all-cases th")[3].click();
      const rising = rows().map((row) => Number(row.cells[3].dataset.value));
      const names = rows().map((row) => row.cells[0].textContent);
      document.title = JSON.stringify({falling, rising, names, shown: document.getElementById("shown").textContent});
    });</script>"""
    text = re.sub(r"<meta http-equiv[^>]*>", "", made.read_text()).replace("</body>", f"{probe}</body>")
    target.write_text(text)
    document = browse(target, "--dump-dom", profile=tmp_path / "profile")
    found = json.loads(re.findall(r"<title>(.*?)</title>", document)[0])
    assert found["falling"] == sorted(found["falling"], reverse=True)
    assert found["rising"] == sorted(found["rising"])
    assert len(found["names"]) > 3
    assert all(name.startswith("suite-1-128gpu") for name in found["names"])
    assert found["shown"] == f"{len(found['names'])} of {CASES} shown"
