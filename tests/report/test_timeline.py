"""The chart of a session's launches: who had which node when, in which colour, and what the GPUs did in sum."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pytest_scaleperf.campaign import timeline as written
from pytest_scaleperf.model import JobState
from pytest_scaleperf.report import page, timeline
from pytest_scaleperf.report.assemble import read
from pytest_scaleperf.report.contents import Report
from pytest_scaleperf.report.pictures.album import Album
from tests.plugin.conftest import Project
from tests.report import build, hostile
from tests.report.test_page import Page

NO_PICTURES = Album((), ())


def ran(case: str, begin: float, end: float, *hosts: str, state: str = "completed", gpus: int = 8) -> dict[str, Any]:
    return {
        "case": case, "attempt": 1, "hosts": list(hosts), "gpus": gpus, "started": build.T0 + begin,
        "ended": build.T0 + end, "waited": 0.0, "state": state,
    }  # fmt: skip


def report(folder: Path, told: object) -> Report:
    build.write(folder, [build.record()])
    (folder / "sessions" / build.SESSION / "timeline.json").write_text(json.dumps(told))
    return read([folder])[0]


TOLD = {
    "capacity_gpus": 16,
    "left_out": ["node007: ECC errors"],
    "gpu_seconds": {"busy": 4_800.0, "lost": 800.0, "idle": 4_000.0},
    "timeline": [
        ran("wide", 0, 200, "node000", "node001", gpus=16),
        ran("a", 200, 400, "node000"),
        ran("b", 200, 300, "node001", state="node_fail"),
        ran("c", 300, 600, "node001", state="failed"),
    ],
}


def bars(html: str) -> list[tuple[float, float, float, str, str]]:
    """x, y, width, colour and text of each bar."""
    form = r'<rect x="([0-9.]+)" y="(\d+)" width="([0-9.]+)" height="14" fill="([^"]+)"><title>([^<]*)</title>'
    return [(float(x), float(y), float(w), fill, text) for x, y, w, fill, text in re.findall(form, html)]


def test_bars_lie_where_and_when_the_launches_ran(tmp_path: Path) -> None:
    html = page.render(report(tmp_path / "run", TOLD), NO_PICTURES)
    found = bars(html)
    assert [(text.partition(",")[0], y) for _, y, _, _, text in found] == [
        ("wide", 8), ("wide", 26), ("a", 8), ("b", 26), ("c", 26),
    ]  # fmt: skip
    wide, again, a, b, c = found
    assert wide[0] == again[0] < a[0] == b[0] < c[0]
    assert a[2] == pytest.approx(2 * b[2], abs=0.2)
    assert c[2] == pytest.approx(3 * b[2], abs=0.3)
    assert b[0] + b[2] == pytest.approx(c[0], abs=0.2)
    colours = dict(timeline.KINDS)
    assert [bar[3] for bar in found[2:]] == [colours["completed"], colours["lost to the machine"], colours["failed"]]
    assert "node_fail, 8 GPUs, 100 s" in b[4]


def test_the_sums_and_the_nodes_left_out_are_said(tmp_path: Path) -> None:
    html = page.render(report(tmp_path / "run", TOLD), NO_PICTURES)
    assert "4 launches on up to 16 GPUs; GPU-hours: 1.333 busy (50 %), 0.222 lost (8 %), 1.111 idle (42 %)" in html
    assert "Nodes left out: node007: ECC errors." in html
    assert Page(html).faults == []


def test_without_the_sums_they_are_taken_from_the_launches(tmp_path: Path) -> None:
    told = {name: value for name, value in TOLD.items() if name != "gpu_seconds"}
    (found,) = report(tmp_path / "run", told).timelines
    assert found.told.spent == {"busy": 16 * 200 + 8 * 200 + 8 * 300, "lost": 800.0, "idle": 9_600 - 7_200 - 800}


def test_there_is_no_chart_without_a_file(tmp_path: Path) -> None:
    html = page.render(read([build.write(tmp_path / "run", [build.record()])])[0], NO_PICTURES)
    assert 'id="timeline"' not in html
    assert "#timeline" not in html


@pytest.mark.parametrize("told", [[], {"timeline": []}, {"capacity_gpus": 8, "timeline": [{"case": 1}]}])
def test_another_form_is_named(tmp_path: Path, told: object) -> None:
    found = report(tmp_path / "run", told)
    (fault,) = found.faults
    assert fault.where.endswith("timeline.json")
    assert "no timeline:" in fault.why


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    told = {"capacity_gpus": 8, "left_out": [hostile.ALL], "timeline": [ran(hostile.ALL, 0, 1, *hostile.TEXTS)]}
    html = page.render(report(tmp_path / "run", told), NO_PICTURES)
    found = Page(html)
    assert found.faults == []
    assert found.tags.count("script") == found.tags.count("h1") == 1
    assert not [name for _, name, _ in found.attributes if name.startswith("on")]
    assert not set(html) & {chr(c) for c in range(0x20) if chr(c) not in "\n\t"}


def test_a_very_long_session_is_drawn_in_part_and_says_so(tmp_path: Path) -> None:
    launches = [ran(f"case {at}", at, at + 1, f"node{at % 200:03d}") for at in range(6_000)]
    html = page.render(report(tmp_path / "run", {"capacity_gpus": 1_600, "timeline": launches}), NO_PICTURES)
    assert len(html) < 3_000_000
    assert "136 of 200 nodes, 1,000 of 6,000 launches" in html


@pytest.mark.parametrize("state", list(JobState))
def test_every_state_has_a_colour(tmp_path: Path, state: JobState) -> None:
    told = {"capacity_gpus": 8, "timeline": [ran("a", 0, 1, state=state)]}
    ((*_, colour, text),) = bars(page.render(report(tmp_path / "run", told), NO_PICTURES))
    assert colour in dict(timeline.KINDS).values()
    assert state in text


def test_it_reads_what_a_session_writes(project: Project) -> None:
    assert timeline.FILE == written.FILE
    assert project.run("-k", "none", gpus=2).returncode == 0
    (found,) = read([project.run_dir])[0].timelines
    assert found.told.timeline
    assert all(each.state is JobState.COMPLETED for each in found.told.timeline)
    assert found.told.spent["busy"] > 0
