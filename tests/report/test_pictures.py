"""Pictures: what is in a cell, where the OOM edge is, and that SVG and PNG are whole and the same each time."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from PIL import Image

from pytest_scaleperf.model import Metric, ScalePerfError
from pytest_scaleperf.report import views
from pytest_scaleperf.report.assemble import read
from pytest_scaleperf.report.contents import Report
from pytest_scaleperf.report.grid import CellKind, Grid, grid
from pytest_scaleperf.report.pictures.album import MOST_PICTURES, album
from pytest_scaleperf.report.pictures.style import Picture
from pytest_scaleperf.report.sparkline import history, series
from tests.report import build, hostile

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    """Every text of a picture, in order."""
    return ["".join(each.itertext()) for each in ET.fromstring(svg).iter(f"{SVG}text")]  # noqa: S314 - our own


def named(report: Report, start: str) -> Picture:
    (picture,) = [p for p in album(report).pictures if p.name.startswith(start)]
    return picture


def first_grid(report: Report) -> Grid:
    return grid(views.ladder(report)[0].cases)


def test_every_case_of_a_rung_has_its_cell(ladder: Report) -> None:
    cells = first_grid(ladder)
    assert cells.batches == (2, 6, 10, 14, 18, 22, 26, 30, 34, 38)
    assert [line.label for line in cells.lines] == ["fsdp16-dp1 none", "fsdp16-dp1 selective", "fsdp16-dp1 full"]
    assert [line.oom_from for line in cells.lines] == [14, 26, None]
    best = [[b for b, cell in line.cells.items() if cell.is_best] for line in cells.lines]
    assert best == [[10], [18], [38]]
    assert len(cells.cells()) == len(views.ladder(ladder)[0].cases)


def test_each_kind_of_cell(tmp_path: Path) -> None:
    told = [
        build.record(local=2),
        build.oom(local=4),
        build.record(local=6, tps=None, outcome="hang", reason="hang"),
        build.skipped("closed", "closed by its parent: x (oom)", local=8),
        build.oom(local=10, decision="pass"),
    ]
    (line,) = first_grid(read([build.write(tmp_path, told)])[0]).lines
    kinds = [line.cells[b].kind for b in (2, 4, 6, 8, 10)]
    assert kinds == [CellKind.MEASURED, CellKind.OOM, CellKind.FAILED, CellKind.NOT_RUN, CellKind.OOM]
    assert line.oom_from == 4


def test_cases_that_differ_in_more_than_two_axes_cover_none_of_each_other(tmp_path: Path) -> None:
    plain, gathered, longer, twin = (build.record() for _ in range(4))
    gathered["batch"] |= {"global_": 1152, "accumulation": 4, "target": 1152}
    longer["batch"] |= {"sequence": 8192}
    for number, each in enumerate((plain, gathered, longer, twin)):
        each["case"] += f"-{number}"
    cells = first_grid(read([build.write(tmp_path, [plain, gathered, longer, twin])])[0])
    assert len(cells.cells()) == 4
    assert {line.label for line in cells.lines} == {
        "fsdp16-dp1 selective seq4096",
        "fsdp16-dp1 selective gbs1152 seq4096",
        "fsdp16-dp1 selective seq8192",
    }


def test_a_heatmap_shows_values_edge_and_retries(ladder: Report) -> None:
    svg = named(ladder, "heatmap-b200-b200-30b-a3b-16gpu").svg()
    shown = texts(svg)
    assert shown.count("OOM") == 4  # two cells in each of the two panels
    assert "28.4k ★" in shown
    assert "92.0 ★" in shown
    assert shown.count("▲ 18") == 2
    edges = re.findall(r"stroke: #d55e00; stroke-width: 4", svg)
    assert len(edges) >= 4
    assert {"TPS, tokens/s/GPU", "peak reserved memory, % of the device", "local batch, sequences per GPU"} <= set(
        shown
    )


def test_a_scaling_curve_names_what_is_lost(ladder: Report) -> None:
    shown = texts(named(ladder, "scaling").svg())
    assert {"16", "128", "512", "GPUs", "ideal", "all tokens/s", "-1.4%", "-6.0%"} <= set(shown)


def test_memory_against_speed_names_the_batches(ladder: Report) -> None:
    shown = texts(named(ladder, "memory").svg())
    assert {"16 GPUs (numbers: local batch)", "checkpointing: selective", "allocation retries", "18"} <= set(shown)


def test_a_history_has_its_dates_and_its_band(ladder: Report) -> None:
    picture = named(ladder, "history")
    assert picture.place == ("case", "b200-30b-a3b-16gpu-fsdp16-dp1-selective-lbs22")
    shown = texts(picture.svg())
    assert {"regression or inconclusive", "its band", "2026-11-21 00:53"} <= set(shown)


def test_a_picture_is_the_same_each_time_and_holds_no_bitmap(ladder: Report) -> None:
    for picture in album(ladder).pictures:
        svg = picture.svg()
        assert svg == picture.svg()
        assert svg.startswith("<svg ")
        root = ET.fromstring(svg)  # noqa: S314 - our own
        assert not list(root.iter(f"{SVG}image"))
        assert not list(root.iter(f"{SVG}script"))
        assert "mathdefault" not in svg


def test_two_pictures_share_no_id(ladder: Report) -> None:
    ids = [re.findall(r' id="([^"]*)"', picture.svg()) for picture in album(ladder).pictures]
    every = [name for some in ids for name in some]
    assert len(every) == len(set(every))


def test_png_is_written_beside(ladder: Report, tmp_path: Path) -> None:
    for picture in album(ladder).pictures:
        with Image.open(picture.png(tmp_path)) as image:
            assert image.format == "PNG"
            assert min(image.size) > 300
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(ScalePerfError, match="cannot be written"):
        album(ladder).pictures[0].png(blocked)


def test_hostile_names_are_text_in_pictures(tmp_path: Path) -> None:
    report, _ = read([build.write(tmp_path, hostile.records())])
    pictures = album(report).pictures
    assert len(pictures) >= 2
    for picture in pictures:
        assert re.fullmatch(r"[A-Za-z0-9._-]+", picture.name)
        root = ET.fromstring(picture.svg())  # noqa: S314 - our own
        assert not list(root.iter(f"{SVG}script"))
    shown = " ".join(text for picture in pictures for text in texts(picture.svg()))
    assert "<script>alert(1)</script>" in shown
    assert "$x^2$" in shown


def test_too_many_pictures_are_named_not_drawn(tmp_path: Path) -> None:
    told = [build.record(suite=f"suite{n}", local=local) for n in range(30) for local in (2, 4)]
    found = album(read([build.write(tmp_path, told)])[0])
    assert len(found.pictures) == MOST_PICTURES
    assert len(found.left_out) == 30 * 2 - MOST_PICTURES
    assert all("suite" in title for title in found.left_out)


def test_what_has_one_case_or_one_rung_needs_no_picture(tmp_path: Path) -> None:
    assert album(read([build.write(tmp_path, [build.record()])])[0]).pictures == ()


def test_memory_in_gib_where_no_share_is_known(tmp_path: Path) -> None:
    told = [build.record(local=local) for local in (2, 4)]
    for each in told:
        each["samples"][0]["measurement"]["memory_pct"] = None
    report, _ = read([build.write(tmp_path, told)])
    assert "peak reserved memory, GiB" in texts(named(report, "heatmap").svg())
    assert "peak reserved memory, GiB" in texts(named(report, "memory").svg())


def test_equal_speeds_are_written_without_exponents(tmp_path: Path) -> None:
    report, _ = read([build.write(tmp_path, [build.record(local=local) for local in (2, 4)])])
    shown = texts(named(report, "heatmap").svg())
    assert "28,400" in shown
    assert not [text for text in shown if "e+" in text]


def test_small_pictures_hold_their_ends(ladder: Report) -> None:
    slow = views.changed(ladder)[0]
    small = history(slow, Metric.TPS)
    assert small is not None
    assert {"2026-11-21", "2026-11-30"} <= set(re.findall(r"<text[^>]*>([^<]*)<", small))
    assert small.count("l5 5l-5 5l-5-5z") == 4  # four records below the band
    steps = series(slow.now)
    assert steps is not None
    assert {"step 11", "step 30"} <= set(re.findall(r"<text[^>]*>([^<]*)<", steps))
    assert len(re.findall(r"[\d.]+,[\d.]+", steps)) == 20
    assert len(small) < 2_500


def test_no_numbers_no_small_picture(tmp_path: Path) -> None:
    report, _ = read([build.write(tmp_path, [build.oom()])])
    assert series(report.cases[0].now) is None
    assert history(report.cases[0], Metric.TPS) is None
