"""Text of logs and files made harmless where it ends: control characters written out, Markdown and HTML disarmed."""

from __future__ import annotations

import re

from pytest_scaleperf.printable import printable

_ENTITIES = {ord(c): f"&#{ord(c)};" for c in "&<>\"'|\\`*_[]~#!:@$^{}"}
"""What begins markup, a table cell, a mention, a reference, a formula, an emoji or a link in GitHub's or GitLab's
Markdown. As entities these are text wherever they stand."""
_WWW = re.compile(r"\b(www)\.", re.IGNORECASE)


def plain(text: str, limit: int | None = None) -> str:
    """One line of text: control characters as codes, white space as single blanks, cut at ``limit`` characters."""
    line = " ".join(printable(text).split()).encode("utf-8", "backslashreplace").decode()  # lone surrogates
    return line if limit is None or len(line) <= limit else line[: limit - 1] + "…"


def lines(text: str) -> str:
    """Text with its lines kept: control characters as codes, nothing that UTF-8 cannot hold."""
    return printable(text).encode("utf-8", "backslashreplace").decode()


def markdown(text: str, limit: int | None = None) -> str:
    """One line of text that Markdown shows as it is, in a table cell too."""
    shown = plain(text, limit).translate(_ENTITIES)
    return _WWW.sub(r"\1&#46;", shown)


def code(text: str, limit: int | None = None) -> str:
    """The same in the type of code, where GitHub and GitLab look for no mentions and references either."""
    return f"<code>{markdown(text, limit) or ' '}</code>"
