"""Texts that a log, a suite or a JUnit file may hold and that must end as text wherever a report shows them."""

from __future__ import annotations

from typing import Any

from tests.report import build

TEXTS = (
    "<script>alert(1)</script>",
    "</td></tr></table><h1>injected</h1>",
    "| cell | cell |",
    "a \\| b",
    "`code` **bold** _it_ ~~gone~~",
    "[link](https://evil.example) ![](https://evil.example/x.png)",
    "www.evil.example https://evil.example @everyone #1 !2 &amp; &lt;b&gt;",
    "$x^2$ :smile: <!-- --> ${{ secrets }}",
    "\x1b[31mred\x1b[0m\x00\x07\u202egnp.exe",
    "{{ 7*7 }} {% raw %} {# x #}",
    "' onmouseover='alert(1)' \"",
    "]]></system-out><![CDATA[",
    "javascript:alert(1)",
    "</style></svg><svg onload=alert(1)>",
    "ünïcödé \N{SNOWMAN} \N{GRINNING FACE}",
)
ALL = " ~ ".join(TEXTS)


def records() -> list[dict[str, Any]]:
    """Cases with such a text in every field that holds text."""
    failure = {"outcome": "error", "reason": ALL, "host": ALL, "consequences": [ALL], "details": {ALL: ALL}}
    broken = build.record(tps=None, outcome="error", failure=failure, reason=ALL, local=2)
    broken |= {"notes": [ALL], "fingerprint": build.fingerprint(device=ALL, torch=ALL)}
    broken["samples"][0] |= {"argv": [ALL, *TEXTS], "folder": f"/runs/{ALL}", "hosts": [ALL]}
    broken["samples"][0]["measurement"]["warnings"] = [ALL]
    skipped = build.skipped("closed", ALL, [ALL], local=4)
    place = {"suite": f"suite {ALL}", "system": ALL}
    named = build.record(local=6, baseline=29_500.0, reason=ALL) | {"case": f"case {ALL}", **place}
    other = build.record(local=8, baseline=29_500.0) | {"case": f"other {ALL}", **place}
    return [broken, skipped, named, other]
