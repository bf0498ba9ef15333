"""The page: golden parts, everything inside it, hostile text as text, and its size with a thousand cases."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from pytest_scaleperf.report import page
from pytest_scaleperf.report.assemble import read
from pytest_scaleperf.report.contents import Report
from pytest_scaleperf.report.escape import lines
from pytest_scaleperf.report.pictures.album import Album, album
from tests.report import build, hostile
from tests.report.golden import compare

VOID = {"meta", "br", "input"}
SVG = re.compile(r"<svg.*?</svg>", re.DOTALL)
NO_PICTURES = Album((), ())


class Page(HTMLParser):
    """Tags, attributes, texts and nesting faults of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.ids: list[str] = []
        self.text: list[str] = []
        self.faults: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.faults += [f"never closed: {tag}" for tag in self._open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.ids += [value or "" for name, value in attrs if name == "id"]

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open[-1] != tag:
            self.faults.append(f"{tag} closed inside {self._open[-3:]}")
        else:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="session")
def html(ladder: Report) -> str:
    return page.render(ladder, album(ladder))


def settled(text: str, run_dir: Path) -> str:
    """Without pictures, style and script, which have tests of their own, and without this machine's paths."""
    text = SVG.sub("<svg/>", text).replace(str(run_dir), "RUN")
    text = re.sub(r"<(style|script)>.*?</\1>", r"<\1/>", text, flags=re.DOTALL)
    return re.sub(r"sha256-[^']*", "sha256-", text)


def test_the_overview_is_as_it_was(html: str, ladder_dir: Path) -> None:
    compare("overview.html", settled(html, ladder_dir).partition("<article")[0])


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("slow", "b200-30b-a3b-16gpu-fsdp16-dp1-selective-lbs22"),
        ("oom", "b200-30b-a3b-16gpu-fsdp16-dp1-none-lbs14"),
        ("skipped", "b200-30b-a3b-128gpu-fsdp128-dp1-selective-lbs22"),
        ("twice", "b200-30b-a3b-512gpu-fsdp128-dp4-selective-lbs20"),
    ],
)
def test_a_cases_section_is_as_it_was(html: str, ladder_dir: Path, name: str, case: str) -> None:
    sections = re.findall(r"<article.*?</article>", settled(html, ladder_dir), re.DOTALL)
    (section,) = [each for each in sections if f'<h2 class="id">{case}</h2>' in each]
    compare(f"case-{name}.html", section + "\n")


def test_everything_is_inside_the_page(html: str) -> None:
    found = Page(html)
    assert found.faults == []
    assert len(found.ids) == len(set(found.ids))
    for tag, name, value in found.attributes:
        assert name not in ("src", "srcset", "data", "action", "background", "poster"), (tag, name, value)
        if name in ("href", "xlink:href"):
            assert value.startswith("#"), (tag, value)
            assert value[1:] in found.ids, value
        assert not name.startswith("on"), (tag, name)
    for address in re.findall(r"url\(([^)]*)\)", html):
        assert address.strip("'\"").startswith("#"), address
    assert not re.findall(r"@import|@font-face", html)
    assert {t for t in found.tags if t in ("script", "link", "iframe", "img", "image", "object", "embed")} == {"script"}
    addresses = set(re.findall(r"https?://[^\"'<> ]+", html))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}  # names, never fetched


def test_the_policy_allows_our_script_alone(html: str) -> None:
    import base64  # noqa: PLC0415 - one use
    import hashlib  # noqa: PLC0415 - one use

    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.replace("&#39;", "'").startswith("default-src 'none'; style-src 'unsafe-inline'; ")
    assert f"script-src 'sha256-{digest}'" in policy.replace("&#39;", "'")


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    run_dir = build.write(tmp_path / "run", hostile.records())
    (run_dir / "sessions" / build.SESSION / "records" / "<img src=x>.json").write_text("{")
    report, _ = read([run_dir])
    text = page.render(report, album(report))
    found = Page(text)
    assert found.faults == []
    assert found.tags.count("script") == 1
    assert "h1" in found.tags
    assert found.tags.count("h1") == 1
    assert not [name for _, name, _ in found.attributes if name.startswith("on")]
    assert not set(text) & {chr(c) for c in range(0x20) if chr(c) not in "\n\t"}
    assert "\u202e" not in text
    shown = "".join(found.text)
    for each in hostile.TEXTS:
        assert lines(each) in shown


def test_the_same_report_makes_the_same_page(ladder: Report, html: str) -> None:
    assert page.render(ladder, album(ladder)) == html


def test_what_could_not_be_read_is_said_first(tmp_path: Path) -> None:
    run_dir = build.write(tmp_path, [build.record()])
    (run_dir / "sessions" / build.SESSION / "records" / "torn.json").write_text("{")
    text = page.render(read([run_dir])[0], NO_PICTURES)
    assert 0 < text.index("torn.json") < text.index("What changed</h2>")


def test_a_cpu_is_named(tmp_path: Path) -> None:
    text = page.render(read([build.write(tmp_path, [build.record(device="cpu")])])[0], NO_PICTURES)
    assert "This measures a CPU, not a GPU" in text
    assert ">GPUs<" not in text


def test_beyond_a_thousand_cases_only_what_changed_is_drawn(tmp_path: Path) -> None:
    records = list(build.many(page.MOST_DRAWN + 40))
    report, _ = read([build.write(tmp_path, records)])
    sections = re.findall(r"<article.*?</article>", page.render(report, NO_PICTURES), re.DOTALL)
    assert len(sections) == len(report.cases) == page.MOST_DRAWN + 40
    drawn = {re.findall(r'<h2 class="id">(.*?)</h2>', each)[0] for each in sections if "<svg" in each}
    assert drawn
    assert drawn == {case.id for case in report.cases if case.now.decision == "regression"}
