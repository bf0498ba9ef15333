"""The numbers of Markdown, HTML, metrics and JUnit are those of the records."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from pytest_scaleperf.report import markdown, openmetrics, page
from pytest_scaleperf.report.assemble import read
from pytest_scaleperf.report.contents import Report
from pytest_scaleperf.report.junit_merge import merge, write
from pytest_scaleperf.report.numbers import change, counted, figure, hours, moment, percent
from pytest_scaleperf.report.pictures.album import Album
from tests.plugin.conftest import FULL2, FULL4, NONE2, NONE4, Finished, Project
from tests.report import build

METRICS = ("tps", "mfu", "peak_memory")
DIGITS = 6e-4  # four significant digits
Row = dict[str, tuple[float | None, float | None]]  # metric -> value and change in per cent


class Tables(HTMLParser):
    """Every table of a page as rows of cell texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self._in_cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, _attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self._in_cell = True

    def handle_endtag(self, tag: str) -> None:
        self._in_cell = self._in_cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._in_cell:
            self.tables[-1][-1][-1] += data


def number(text: str) -> tuple[float | None, float | None]:
    """``27,100 (-4.2%)`` as value and change."""
    found = re.fullmatch(r"\**([\d.,]+)(?: \(([+-][\d.]+)%\))?\**", text.strip())
    if found is None:
        return None, None
    changed = found.group(2)
    return float(found.group(1).replace(",", "")), None if changed is None else float(changed)


def from_markdown(text: str) -> dict[str, Row]:
    """The table of every launched case."""
    table = text.partition("Every launched case")[2]
    rows = re.findall(r"^\| <code>(.*?)</code> \| [\w, ]* \| (.*?) \| (.*?) \| (.*?) \| ", table, re.MULTILINE)
    return {case: dict(zip(METRICS, map(number, cells), strict=True)) for case, *cells in rows}


def from_page(text: str) -> dict[str, Row]:
    (table,) = [t for t in Tables(text).tables if t[0][0] == "case" and t[0][-1] == "outcome"]
    return {row[0]: dict(zip(METRICS, map(number, row[3:6]), strict=True)) for row in table[1:]}


def from_metrics(text: str) -> dict[str, dict[str, float]]:
    names = {"tps": "scaleperf_tps", "mfu": "scaleperf_mfu_percent", "peak_memory": "scaleperf_peak_memory_gib"}
    found: dict[str, dict[str, float]] = {}
    for metric, name in names.items():
        for case, value in re.findall(rf'^{name}{{.*case="([^"]*)"}} (\S+)$', text, re.MULTILINE):
            found.setdefault(case, {})[metric] = float(value)
    return found


def everything(report: Report, junits: list[Path], folder: Path) -> tuple[Any, ...]:
    files = read(junits)[1]
    write(merge(files), folder / "all.xml")
    return (
        from_markdown(markdown.render(report)),
        from_page(page.render(report, Album((), ()))),
        from_metrics(openmetrics.render(report)),
        Finished(0, "", folder / "all.xml"),
    )


def test_all_formats_say_what_the_plugins_records_say(project: Project, tmp_path: Path) -> None:
    project.scenario(
        {
            NONE2: {"tps": 871.3, "memory": 41.77},
            FULL2: {"tps": 54_321.9, "memory": 39.123},
            FULL4: {"fault": "oom"},
        }
    )
    done = project.run()
    report, _ = read([project.run_dir])
    in_markdown, in_page, in_metrics, junit = everything(report, [done.junit], tmp_path)
    stored = project.records()
    assert set(in_page) == set(stored) == set(junit.cases)
    launched = {case for case, told in stored.items() if told["samples"]}
    assert set(in_markdown) == launched
    compared = 0
    for case in launched:
        properties = junit.properties(case)
        assert properties["scaleperf.verdict"] == stored[case]["decision"]
        for told in stored[case]["metrics"]:
            metric, value = told["metric"], told["value"]
            if metric not in METRICS:
                continue
            assert in_metrics[case][metric] == pytest.approx(value, rel=1e-5)
            assert float(properties[f"scaleperf.{metric}"]) == pytest.approx(value, rel=1e-5)
            assert float(properties[f"scaleperf.{metric}.change_pct"]) == pytest.approx(100 * told["change"], abs=0.006)
            for shown, changed in (in_markdown[case][metric], in_page[case][metric]):
                assert shown == pytest.approx(value, rel=DIGITS)
                assert changed == pytest.approx(100 * told["change"], abs=0.051)
            compared += 1
    assert compared == 2 * 3
    assert in_page[FULL4]["tps"] == (None, None)
    assert in_page[NONE4] == dict.fromkeys(METRICS, (None, None))


def test_the_ladder_is_the_same_in_all(ladder: Report) -> None:
    text = markdown.render(ladder)
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| <code>b200-30b-a3b</code>")]
    tables = Tables(page.render(ladder, Album((), ()))).tables
    (table,) = [t for t in tables if t[0][0] == "suite"]
    told = openmetrics.render(ladder)
    assert len(rows) == len(table) - 1 == 4
    for line, shown in zip(rows, table[1:], strict=True):
        assert [line[1], line[2], line[3], line[4]] == shown[1:5]
        assert [line[6], line[7]] == shown[7:9]
        assert line[10].rstrip(" |") == shown[-1]
        best = re.findall(rf'^scaleperf_best_tps{{[^}}]*gpus="{line[1]}"}} (\S+)$', told, re.MULTILINE)
        assert [f"{float(value):,.0f}" for value in best] == ([] if line[3] == "-" else [line[3]])
    kept = re.findall(r'^scaleperf_efficiency_percent{.*gpus="(\d+)"} (\S+)$', told, re.MULTILINE)
    assert {gpus: round(float(value), 1) for gpus, value in kept} == {"128": 98.6, "512": 94.0}


def test_memory_and_retries_are_the_same_in_all(tmp_path: Path) -> None:
    told = build.record(share=98.77, retries=28, baseline=28_400.0, launches=2)
    told["samples"][0]["measurement"] |= {"memory_pct": 98.11, "alloc_retries": 31}
    report, _ = read([build.write(tmp_path, [told])])
    assert "98.4%" in markdown.render(report)
    assert "| 31 |" in markdown.render(report)
    (table,) = [t for t in Tables(page.render(report, Album((), ()))).tables if t[0][-1] == "outcome"]
    assert table[1][6:8] == ["98.4%", "31"]
    text = openmetrics.render(report)
    assert re.findall(r"^scaleperf_memory_percent{.*} (\S+)$", text, re.MULTILINE) == ["98.44"]
    assert re.findall(r"^scaleperf_alloc_retries{.*} (\S+)$", text, re.MULTILINE) == ["31"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (41_062.0, "41,062"), (1_234_567.8, "1,234,568"), (1_000.0, "1,000"), (999.4, "999.4"), (57.313, "57.31"),
        (0.70621, "0.7062"), (0.0, "0.000"), (0.000123, "0.000123"), (-3.5, "-3.500"),
    ],
)  # fmt: skip
def test_numbers_are_written_without_exponents(value: float, text: str) -> None:
    assert figure(value) == text


def test_other_ways_of_writing() -> None:
    assert [change(x) for x in (-0.014, 0.0, -0.0001, 0.2)] == ["-1.4%", "+0.0%", "+0.0%", "+20.0%"]
    assert [hours(x) for x in (0, 76.2, 36_000, 5_529_600)] == ["0", "0.021", "10.0", "1,536"]
    assert (percent(92.74), moment(0), counted(1, "case"), counted(2_000, "case")) == (
        "92.7%",
        "1970-01-01 00:00 UTC",
        "1 case",
        "2,000 cases",
    )


def test_metrics_are_lines_that_gitlab_and_openmetrics_take(ladder: Report) -> None:
    """GitLab drops what follows a ``#`` and splits as a shell: each line must be a name with labels and a number."""
    import shlex  # noqa: PLC0415 - one use

    text = openmetrics.render(ladder)
    lines = text.splitlines()
    assert text.endswith("# EOF\n")
    named: set[str] = set()
    series = []
    for line in lines[:-1]:
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert (kind, name in named) == ("gauge", False)
            named.add(name)
            continue
        if line.startswith("# HELP "):
            continue
        what, value = shlex.split(line.partition("#")[0])
        assert re.fullmatch(r'[a-z_]+({(\w+="[A-Za-z0-9._/:+=-]*",?)+})? [0-9.e+-]+', line), line
        assert what.partition("{")[0] in named
        float(value)
        series.append(what)
    assert len(series) == len(set(series))
    assert json.loads(f"[{lines[-2].rpartition(' ')[2]}]")


def test_hostile_names_stay_inside_their_labels(tmp_path: Path) -> None:
    bad = build.record(baseline=28_400.0) | {"case": 'x"} 1\nevil{a="b" # c', "suite": "a b", "system": "\\"}
    text = openmetrics.render(read([build.write(tmp_path, [bad])])[0])
    assert "\nevil" not in text
    assert 'scaleperf_tps{system="_",suite="a_b",gpus="16",case="x___1_evil_a=_b____c"} 28400' in text
