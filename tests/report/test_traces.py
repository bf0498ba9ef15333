"""What a report shows of traces: words, tables that add up, the picture, and hostile names as text."""

from __future__ import annotations

import base64
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from pytest_scaleperf.model import Metric
from pytest_scaleperf.report import markdown, page, trace_view
from pytest_scaleperf.report.assemble import read
from pytest_scaleperf.report.contents import Report
from pytest_scaleperf.report.escape import lines
from pytest_scaleperf.report.pictures.album import Album
from tests.plugin.conftest import NONE2, Project
from tests.plugin.test_trace import ONLY, make, told
from tests.report import build, hostile
from tests.report.golden import compare
from tests.report.test_markdown import TAGS, Rendered
from tests.report.test_page import Page, settled

NO_PICTURES = Album((), ())
# A record's trace as the plugin wrote it, of two real runs on H200: FSDP2 before, DDP after.
TOLD = json.loads((Path(__file__).parents[1] / "data" / "report" / "trace.json").read_text())
DECIDED = {"decision", "reason", "difference", "explained"}


def passing() -> dict[str, Any]:
    """The same trace where it is inside its band, or near enough."""
    shares = [share | {"decision": "pass"} for share in TOLD["shares"]]
    kept = {name: value for name, value in TOLD.items() if name not in DECIDED}
    return kept | {"decision": "pass", "reason": "", "shares": shares}


def records() -> list[dict[str, Any]]:
    """A regression, a pass, a case whose trace could not be read, and one without any."""
    failed = {"decision": "machine_failed", "reason": "trace: rank1_trace.json.gz: the gzip stream is cut short"}
    return [
        build.record(local=2, decision="regression", reason=f"trace: {TOLD['reason']}") | {"trace": TOLD},
        build.record(local=4, baseline=28_400.0) | {"trace": passing()},
        build.record(local=6, decision="machine_failed", reason=failed["reason"]) | {"trace": failed},
        build.record(local=8, baseline=28_400.0),
    ]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build.write(tmp_path_factory.mktemp("traces") / "run", records())


@pytest.fixture(scope="module")
def report(run_dir: Path) -> Report:
    found, _ = read([run_dir])
    assert found.faults == ()
    return found


@pytest.fixture(scope="module")
def html(report: Report) -> str:
    return page.render(report, NO_PICTURES)


def section(html: str, local: int) -> str:
    """The section of one case."""
    sections = re.findall(r"<article.*?</article>", html, re.DOTALL)
    (found,) = [each for each in sections if re.search(rf"<h2[^>]*>[^<]*-lbs{local}</h2>", each)]
    return str(found)


def test_it_is_as_it_was(html: str, report: Report, run_dir: Path) -> None:
    text = settled(html, run_dir)
    overview = text.partition('<h2 id="traces">')[2].partition("<h2")[0]
    compare("traces-overview.html", overview)
    for name, local in (("regression", 2), ("pass", 4), ("unread", 6)):
        trace = section(text, local).partition("<h3>Trace</h3>")[2].partition("<h3>")[0]
        compare(f"traces-{name}.html", trace)
    compare("traces.md", markdown.render(report).partition("### Traces")[2].partition("<details>")[0])


def test_a_case_without_a_trace_says_nothing_of_one(html: str, tmp_path: Path) -> None:
    assert "<h3>Trace</h3>" not in section(html, 8)
    alone, _ = read([build.write(tmp_path / "run", [build.record()])])
    assert 'id="traces"' not in page.render(alone, NO_PICTURES)
    assert "### Traces" not in markdown.render(alone)


def test_the_phases_and_the_parts_add_up(html: str) -> None:
    found = section(html, 2)
    phases = re.findall(r"<td class=\"number\">([0-9.]+) ms</td><td class=\"fill\">", found)
    assert len(phases) == 5
    assert sum(map(float, phases[:-1])) == pytest.approx(float(phases[-1]), abs=0.3)
    table = found.partition("adds ms</th>")[2].partition("</table>")[0]
    adds = [float(text) for text in re.findall(r">([+-][0-9.]+)</td></tr>", table)]
    assert len(adds) == 12, "ten parts, the others, the sum"
    assert sum(adds[:-1]) == pytest.approx(adds[-1], abs=0.02)
    assert adds[-1] == pytest.approx(118.078)


def test_the_short_table_adds_up_too(report: Report) -> None:
    table = markdown.render(report).partition("adds ms")[2].partition("\n\n")[0]
    adds = [float(text) for text in re.findall(r"\| \**([+-][0-9.]+)\** \|$", table, re.MULTILINE)]
    assert len(adds) == 8
    assert sum(adds[:-1]) == pytest.approx(adds[-1], abs=0.01)


def test_a_trace_that_was_not_read_says_why_and_nothing_else(html: str, report: Report) -> None:
    found = section(html, 6).partition("<h3>Trace</h3>")[2].partition("<h3>")[0]
    assert "the gzip stream is cut short" in found
    assert "<table" not in found
    assert "cut short" in markdown.render(report).partition("### Traces")[2]


def test_the_traced_run_counts_among_the_gpu_hours(report: Report) -> None:
    spent = {case.now.batch.local: case.now.gpu_seconds for case in report.cases if case.now.batch is not None}
    assert spent[4] == pytest.approx(16 * (300 + TOLD["run"]["seconds"]))
    assert spent[8] == pytest.approx(16 * 300)


def test_an_older_record_shows_its_words_and_lines(tmp_path: Path) -> None:
    new = {"step", "phases", "collectives", "rank", "explained"}
    shares = [{name: value for name, value in share.items() if name != "title"} for share in TOLD["shares"]]
    old = {name: value for name, value in TOLD.items() if name not in new} | {"shares": shares}
    report, _ = read([build.write(tmp_path / "run", [build.record(local=2) | {"trace": old}])])
    assert report.faults == ()
    found = section(page.render(report, NO_PICTURES), 2)
    assert "backward: 11.6 ms of all_reduce exposed" in found
    assert "310 others" in found
    assert "against the trace of" in markdown.render(report)


@pytest.mark.parametrize(
    "trace", [7, [], {"decision": "pass"}, {"decision": "maybe", "reason": ""}, TOLD | {"phases": 1}]
)
def test_a_trace_of_another_form_is_named_and_its_record_still_counts(tmp_path: Path, trace: object) -> None:
    report, _ = read([build.write(tmp_path / "run", [build.record(local=2) | {"trace": trace}])])
    (fault,) = report.faults
    assert "its trace is left out" in fault.why
    assert [case.now.value(Metric.TPS) for case in report.cases] == [28_400.0]
    assert "its trace is left out" in page.render(report, NO_PICTURES)


def spoiled(value: Any, name: str = "") -> Any:
    """The same value with every text that is no verdict replaced by a hostile one."""
    if isinstance(value, dict):
        return {key: spoiled(inside, key) for key, inside in value.items()}
    if isinstance(value, list):
        return [spoiled(inside, name) for inside in value]
    if name == "words":
        return value + hostile.ALL
    return hostile.ALL if isinstance(value, str) and name != "decision" else value


@pytest.mark.parametrize("left_out", [(), ("explained",), ("explained", "step", "phases")])
def test_hostile_names_stay_text(tmp_path: Path, left_out: tuple[str, ...]) -> None:
    bad = {name: value for name, value in spoiled(TOLD).items() if name not in left_out}
    report, _ = read([build.write(tmp_path / "run", [build.record(local=2) | {"trace": bad}])])
    assert report.faults == ()
    text = page.render(report, NO_PICTURES)
    found = Page(text)
    assert found.faults == []
    assert found.tags.count("script") == found.tags.count("h1") == 1
    assert not [name for _, name, _ in found.attributes if name.startswith("on")]
    assert not set(text) & {chr(c) for c in range(0x20) if chr(c) not in "\n\t"}
    assert "\u202e" not in text
    shown = "".join(found.text)
    assert all(lines(each) in shown for each in hostile.TEXTS)
    short = markdown.render(report)
    rendered = Rendered(short)
    assert rendered.tags <= TAGS
    assert rendered.attributes <= {"style"}
    assert "\x1b" not in short


SVG = '<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'


def drawn(html: str) -> list[str]:
    return [base64.b64decode(each).decode() for each in re.findall(r'src="data:image/svg\+xml;base64,([^"]*)"', html)]


def at(folder: Path, picture: str) -> str:
    """The page of a record that names this picture."""
    trace = passing() | {"picture": picture}
    report, _ = read([build.write(folder, [build.record(local=2) | {"trace": trace}])])
    return page.render(report, NO_PICTURES)


def test_the_picture_is_inside_as_an_image_in_which_nothing_runs(tmp_path: Path) -> None:
    (tmp_path / "step.svg").write_text(SVG)
    html = at(tmp_path / "run", str(tmp_path / "step.svg"))
    assert drawn(html) == [SVG]
    found = Page(html)
    assert found.tags.count("script") == 1
    assert [(tag, name) for tag, name, _ in found.attributes if name == "src"] == [("img", "src")]
    assert "img-src data:;" in html


def test_the_picture_is_found_where_the_session_was_copied_to(tmp_path: Path) -> None:
    inside = Path("cases/a/2/step.svg")
    html = at(tmp_path / "run", f"/shared/gone/sessions/{build.SESSION}/{inside}")
    assert drawn(html) == []
    assert "picture: <code>/shared/gone/" in html
    target = tmp_path / "run" / "sessions" / build.SESSION / inside
    target.parent.mkdir(parents=True)
    target.write_text(SVG)
    shutil.move(tmp_path / "run", tmp_path / "moved")
    assert drawn(page.render(read([tmp_path / "moved"])[0], NO_PICTURES)) == [SVG]


@pytest.mark.parametrize("kind", ["no svg", "text", "huge", "folder", "nul", "long", "up"])
def test_what_is_no_picture_of_ours_stays_outside(tmp_path: Path, kind: str) -> None:
    target = tmp_path / ("secret.txt" if kind == "text" else "step.svg")
    if kind == "folder":
        target.mkdir()
    else:
        target.write_text({"no svg": "root:x:0:0", "huge": SVG + " " * 2_000_000}.get(kind, SVG))
    session = f"/x/{build.SESSION}"
    names = {"nul": "a\0.svg", "long": f"/{'a' * 5000}.svg", "up": f"{session}/../../../../step.svg"}
    html = at(tmp_path / "run", names.get(kind, str(target)))
    assert drawn(html) == []
    assert "picture: <code>" in html


def test_a_thousand_traces_stay_small(tmp_path: Path) -> None:
    many = [record | {"trace": passing() if number % 40 else TOLD} for number, record in enumerate(build.many(1_000))]
    report, _ = read([build.write(tmp_path / "run", many)])
    assert len(page.render(report, NO_PICTURES)) < 10_000_000
    text = markdown.render(report)
    assert len(text.encode()) < markdown.MOST_BYTES
    assert "more: see the HTML report" in text.partition("### Traces")[2].partition("###")[0]


def test_what_the_plugin_records_is_shown(project: Project, tmp_path: Path) -> None:
    told(project, make(tmp_path / "before"))
    project.run("--with-trace", "--record-baselines", *ONLY)
    assert project.run("--with-trace", *ONLY).kind(NONE2) == "passed"
    told(project, make(tmp_path / "after", exposed=90))
    assert project.run("--with-trace", *ONLY).kind(NONE2) == "failed"
    kept = project.records()[NONE2]["trace"]
    assert set(TOLD) == set(kept)
    for part in ("phases", "collectives", "shares"):
        assert set(TOLD[part][0]) == set(kept[part][0]), part
    assert set(TOLD["explained"]["parts"][0]) == set(kept["explained"]["parts"][0])
    report, _ = read([project.run_dir])
    assert report.faults == ()
    (case,) = report.cases
    trace = case.now.trace
    assert trace is not None
    assert trace.step is not None
    assert trace.step.total == pytest.approx(1_000_000), "a step of 1,000 us"
    assert [phase.title for phase in trace.phases] == ["forward", "last backward"]
    assert trace.explained is not None
    assert sum(part.change for part in trace.explained.parts) + trace.explained.others.change == pytest.approx(
        trace.explained.change
    )
    html = page.render(report, NO_PICTURES)
    assert len(drawn(html)) == 1
    assert "reduce_scatter exposed" in html
    assert trace_view.is_news(case.now)
