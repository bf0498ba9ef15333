"""Markdown: golden text, small at any number of cases, and hostile text stays text in a real Markdown parser."""

from __future__ import annotations

import itertools
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from pytest_scaleperf.report.assemble import read
from pytest_scaleperf.report.contents import Report
from pytest_scaleperf.report.escape import code, markdown, plain
from pytest_scaleperf.report.markdown import MOST_BYTES, render
from tests.report import build, hostile
from tests.report.golden import compare

TAGS = {"h2", "h3", "p", "table", "thead", "tbody", "tr", "th", "td", "code", "strong", "ul", "li"}
TAGS |= {"details", "summary"}


class Rendered(HTMLParser):
    """Tags, attributes and texts of what a Markdown parser made."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.codes: list[str] = []
        self._in_code = False
        self.feed(MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(text))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag == "code":
            self._in_code = True
            self.codes.append("")

    def handle_endtag(self, tag: str) -> None:
        self._in_code = self._in_code and tag != "code"

    def handle_data(self, data: str) -> None:
        if self._in_code:
            self.codes[-1] += data


def test_the_whole_text_is_as_it_was(ladder: Report) -> None:
    compare("ladder.md", render(ladder))


def test_a_quiet_night_says_so(tmp_path: Path) -> None:
    report, _ = read([build.write(tmp_path, [build.record(baseline=28_400.0)])])
    text = render(report)
    assert text.startswith("## scaleperf: 0 of 1 case red\n")
    assert "Nothing: every judged case is inside its band." in text


def test_a_cpu_is_named(tmp_path: Path) -> None:
    text = render(read([build.write(tmp_path, [build.record(device="cpu")])])[0])
    assert "This measures a CPU, not a GPU" in text
    assert "GPU-hours" not in text.partition("<details>")[0]


def test_a_recording_session_says_that_nothing_was_judged(tmp_path: Path) -> None:
    text = render(read([build.write(tmp_path, [build.record(decision="recorded")])])[0])
    assert "No case was judged.\n\n1 case measured and not judged" in text


@pytest.mark.parametrize("text", [*hostile.TEXTS, hostile.ALL])
def test_text_of_others_stays_text(text: str) -> None:
    table = f"| a | b |\n|---|---|\n| {code(text)} | {markdown(text)} |\n"
    found = Rendered(f"{table}\n- {code(text)}: {markdown(text)}\n")
    assert found.tags <= {"table", "thead", "tbody", "tr", "th", "td", "ul", "li", "code"}
    assert found.codes == [plain(text), plain(text)]
    assert "\x1b" not in code(text)


def test_a_hostile_report_is_still_only_ours(tmp_path: Path) -> None:
    bad = build.write(tmp_path, hostile.records()) / "sessions" / build.SESSION / "records" / "<img src=x>.json"
    bad.write_text("{")
    found = Rendered(render(read([tmp_path])[0]))
    assert found.tags <= TAGS
    assert found.attributes <= {"style"}  # the parser's own, for the side of a column
    assert any(plain(hostile.ALL)[:100] in text for text in found.codes)


def test_every_row_has_its_cells(ladder: Report) -> None:
    lines = render(ladder).splitlines()
    for _, group in itertools.groupby(lines, key=lambda line: line.startswith("|")):
        rows = [line for line in group if line.startswith("|")]
        assert len({row.count("|") for row in rows}) <= 1, rows[:2]


def night(kind: str) -> list[dict[str, Any]]:
    long = "a reason of the log that is very long & full of <signs> | and _marks_ " * 20
    parents = [f"b200-30b-a3b-16gpu-fsdp16-dp1-none-lbs{n}" for n in range(40)]
    found = []
    for number in range(2_000):
        case: dict[str, Any] = {"local": number + 1, "gpus": (16, 128)[number % 2], "dp_shard": 16, "mode": "selective"}
        match kind:
            case "passed":
                found.append(build.record(**case, baseline=28_400.0))
            case "slow":
                found.append(build.record(**case, baseline=40_000.0, reason=long))
            case "failed":
                found.append(build.oom(**case, reason=long))
            case "closed":
                parent = f"b200-30b-a3b-16gpu-fsdp16-dp1-none-lbs{number}"
                found.append(build.skipped("closed", f"closed by its parent: {parent} (oom)", [parent], **case))
            case "no-evidence":
                found.append(build.skipped("no_evidence", long, parents[number % 30 :], **case))
            case "notes":
                found.append(build.record(**case, baseline=28_400.0) | {"notes": [f"{number}: {long}"] * 3})
            case "suites":
                found.append(build.record(**case, suite=f"a-suite-with-a-long-name-{number}", baseline=28_400.0))
    return found


@pytest.mark.parametrize("kind", ["passed", "slow", "failed", "closed", "no-evidence", "notes", "suites"])
def test_two_thousand_cases_fit_into_a_comment(tmp_path: Path, kind: str) -> None:
    records = night(kind)
    run_dir = build.write(tmp_path, records)
    (run_dir / "sessions" / build.SESSION / "records" / "bad.json").write_text(json.dumps({"x": "y" * 10_000}))
    text = render(read([run_dir])[0])
    assert len(text.encode()) < MOST_BYTES
    assert "2,000 case" in text.splitlines()[0]
    assert "bad.json" in text
    assert "more: see the HTML report" in text
    assert text.count("<details>") == text.count("</details>")
    assert Rendered(text).tags <= TAGS


def test_notes_that_cases_share_are_said_once(tmp_path: Path) -> None:
    note = "differs from the baseline's run: torch is 2.15.0, the baseline's 2.14.1"
    told = [build.record(local=local, baseline=28_400.0) | {"notes": [note]} for local in (2, 4, 6)]
    text = render(read([build.write(tmp_path, told)])[0])
    assert text.count("torch is 2.15.0") == 1
    assert "| 3 | differs from the baseline&#39;s run" in text


def test_a_thousand_unreadable_files_are_counted(tmp_path: Path) -> None:
    run_dir = build.write(tmp_path, [build.record()])
    for number in range(1_000):
        (run_dir / "sessions" / build.SESSION / "records" / f"{'b' * 150}{number}.json").write_text("{")
    text = render(read([run_dir])[0])
    assert len(text.encode()) < MOST_BYTES
    assert "more: see the HTML report" in text
