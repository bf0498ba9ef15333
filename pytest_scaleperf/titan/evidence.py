"""Every line of a log that says something went wrong: what it proves, who said it and where."""

from __future__ import annotations

import bisect
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_scaleperf.model import GIB, Outcome
from pytest_scaleperf.titan.finding import Finding, outcome_of_signal, shorten
from pytest_scaleperf.titan.lines import (
    HEADER,
    PREFIXES,
    SOME_PREFIXES,
    TIMESTAMP,
    LogText,
    Speaker,
    clock_before,
    line_bounds,
    positions,
    split_prefix,
)
from pytest_scaleperf.titan.rules import RULES, Rule, Weight
from pytest_scaleperf.titan.torchrun import exits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_TITAN_HEADER = re.compile(HEADER)
_QUIET_LEVELS = frozenset({"DEBUG", "INFO", "WARNING"})
_WARNING = re.compile(r"\[?[WI]\d{3,4} \d\d:|[^\n]{0,300}?\b\w*Warning: ")
_NCCL_INFO = re.compile(r"[^\n]{0,200}?\bNCCL INFO\b")
# Source lines of a traceback and echoed settings: they quote, they do not report.
_QUOTE = re.compile(
    r"\s*\"[^\"]+\":|\s+(?:File \"|raise\b|except\b|return\b|assert\b|if\b|elif\b|logg|print|warn|self\.)"
)
_EXCEPTION = re.compile(
    # Two blanks: torchrun's report repeats a rank's traceback so.
    rf"(?:(?:^|\r)(?:\s*\d+: )?(?:[ ]{{2}}|{PREFIXES})|{SOME_PREFIXES})(?P<cls>(?:[A-Za-z_]\w*\.)*[A-Z]\w*"
    r"(?:Error|Exception|Exhausted|Failure|Exit|OutOfResources|Unsupported|Timeout))(?::(?= |$)|(?=\s*$))",
    re.MULTILINE,
)
_NOT_THE_MATTER = frozenset({"ChildFailedError", "SignalException"})
_SYSLOG_HOST = re.compile(r"(?:\w{3} +\d+ [\d:]{8}|\d{4}-\d\d-\d\dT\S+) (?P<host>[\w.-]+) kernel:")
_NCCL_HOST = re.compile(r"(?P<host>[\w.-]+):\d+:\d+ \[\d+\] ")
# Before torch 2.3; ``[PG ID 2 ... Rank 1]`` of later versions counts within one process group.
_NCCL_RANK = re.compile(r"\[Rank (\d+)\]")
_GIB_PER = {"bytes": 1 / GIB, "KiB": 2**-20, "MiB": 2**-10, "GiB": 1.0, "TiB": 1024.0}
_SIGNALS = {
    "Killed": 9,
    "Segmentation fault": 11,
    "Bus error": 7,
    "Aborted": 6,
    "Terminated": 15,
    "SIGTERM": 15,
    "SIGINT": 2,
    "SIGHUP": 1,
    "SIGQUIT": 3,
}


# One message of a line that holds several: it begins at the line, after a progress bar's return, at a prefix or header.
_PIECE = re.compile(rf"\r|{PREFIXES}(?:\[titan\] )?{TIMESTAMP} - |{SOME_PREFIXES}")
_LONGEST_MESSAGE = 8192


def find(texts: Sequence[LogText], since: Sequence[int]) -> list[Finding]:
    """All findings from position ``since[file]`` on, in the order in which they were written.

    Within a file that is the order of its lines; across files the nearest time stamp before the line decides.
    """
    found: list[Finding] = []
    for file, log in enumerate(texts):
        by_place: dict[int, Finding] = {}
        for finding in _in_file(log, file, since[file]):
            if finding.position not in by_place or _says_more(finding, by_place[finding.position]):
                by_place[finding.position] = finding
        found += sorted(by_place.values(), key=lambda f: f.position)
    return _by_clock(found, texts) if len(texts) > 1 else found


def _by_clock(found: list[Finding], texts: Sequence[LogText]) -> list[Finding]:
    """Findings of several files in the order of their clocks, without changing the order within a file."""
    newest = dict.fromkeys(range(len(texts)), "")
    keyed = []
    for finding in found:
        file = finding.speaker.file
        newest[file] = max(newest[file], clock_before(texts[file].text, finding.position) or "")
        keyed.append((newest[file] or "~", finding.place, finding))
    return [finding for _, _, finding in sorted(keyed, key=lambda item: item[:2])]


def _says_more(finding: Finding, than: Finding) -> bool:
    """Of two findings on one line: a named class over a mere error, then the heavier."""
    return (finding.outcome is not Outcome.ERROR, finding.weight) > (than.outcome is not Outcome.ERROR, than.weight)


def _in_file(log: LogText, file: int, since: int) -> Iterator[Finding]:
    lowered = log.text.encode("ascii", "replace").lower().decode("ascii")
    pieces = _Pieces(log.text)
    seen: set[tuple[int, int]] = set()
    for number, rule in enumerate(RULES):
        for needle in rule.needles:
            for at in positions(lowered, needle, since):
                start, end = pieces.around(at)
                if (number, start) not in seen:
                    seen.add((number, start))
                    yield from _by_rule(rule, log, file, log.text[start:end], start)
    yield from _exceptions(log, file, since, pieces)
    yield from exits(log, file, since)


class _Pieces:
    """The messages of a text: its lines, but for lines into which several messages were written."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._line = (0, -1)
        self._bounds: list[int] = []

    def around(self, at: int) -> tuple[int, int]:
        """Bounds of the message that holds ``at``. A very long one is cut, so that no line can take for ever."""
        if not self._line[0] <= at <= self._line[1]:
            self._line = start, end = line_bounds(self._text, at)
            inner = [m.end() if m.group() == "\r" else m.start() for m in _PIECE.finditer(self._text, start, end)]
            chunks = range(start, end, _LONGEST_MESSAGE) if end - start > _LONGEST_MESSAGE else (start,)
            self._bounds = sorted({*inner, *chunks, end})
        number = bisect.bisect_right(self._bounds, at)
        if number == len(self._bounds):
            return at, at
        return self._bounds[number - 1], self._bounds[number]


def _by_rule(rule: Rule, log: LogText, file: int, piece: str, start: int) -> Iterator[Finding]:
    who, message = split_prefix(piece, file, log.rank)
    if _only_quoted(message) or (not rule.even_warnings and _WARNING.match(message)):
        return
    found = rule.search(message)
    if found:
        yield _finding(rule, found, message, _labelled(who, log.text, start), start)


def _labelled(who: Speaker, text: str, start: int) -> Speaker:
    """The speaker with the label of its line, where the message stands in the middle of one."""
    line, _ = line_bounds(text, start)
    if line == start:
        return who
    first, _ = split_prefix(text[line:start], who.file)
    return replace(who, label=first.label, outer=first.outer if who.outer is None else who.outer)


def _only_quoted(message: str) -> bool:
    header = _TITAN_HEADER.search(message)
    if header:
        return header["level"] in _QUIET_LEVELS
    return _QUOTE.match(message) is not None or _NCCL_INFO.match(message) is not None


def _finding(rule: Rule, found: re.Match[str], message: str, who: Speaker, start: int) -> Finding:
    groups = {name: value for name, value in found.groupdict().items() if value}
    rank = groups.get("rank") or (_NCCL_RANK.search(message) or [None, None])[1]
    host = groups.get("host") or _host(message)
    signal = _signal(groups.get("signal"))
    outcome = rule.outcome
    if rule.weight is Weight.EXIT and outcome is Outcome.ERROR and signal is not None:
        outcome = outcome_of_signal(signal)
    return Finding(
        outcome=outcome,
        weight=rule.weight,
        reason=shorten(message),
        speaker=who,
        position=start,
        rank=int(rank) if rank else None,
        host=host,
        step=int(groups["step"]) if "step" in groups else None,
        signal=signal,
        exit_code=int(groups["exit"]) if "exit" in groups else None,
        requested_gib=_requested(groups.get("size"), groups.get("bytes")),
        details=_details(rule.outcome, groups),
    )


def _details(outcome: Outcome, groups: dict[str, str]) -> dict[str, Any]:
    details: dict[str, Any] = {}
    if outcome in (Outcome.PREEMPTED, Outcome.CANCELLED, Outcome.TIME_LIMIT):
        words = {"preemption": "preemption", "preempted": "preemption"}
        why = groups.get("why", "unspecified").lower()
        details["reason"] = words.get(why, why)
    elif outcome is Outcome.NODE_FAILURE and "why" in groups:
        details["xid"] = int(groups["why"])
    elif outcome is Outcome.NCCL_TIMEOUT:
        details |= {name: value for name, value in groups.items() if name == "collective"}
        details |= {name: int(value) for name, value in groups.items() if name in ("sequence", "timeout_ms")}
    if "task" in groups:
        details["task"] = int(groups["task"])
    return details


def _host(message: str) -> str | None:
    found = _SYSLOG_HOST.search(message) or _NCCL_HOST.match(message)
    return found["host"] if found else None


def _signal(text: str | None) -> int | None:
    if text is None:
        return None
    return int(text) if text.isdigit() else _SIGNALS.get(text)


def _requested(size: str | None, count: str | None) -> float | None:
    if count:
        return int(count) / GIB
    if not size:
        return None
    number, unit = size.split()
    return float(number) * _GIB_PER[unit]


def _exceptions(log: LogText, file: int, since: int, pieces: _Pieces) -> Iterator[Finding]:
    for found in _EXCEPTION.finditer(log.text, since):
        name = found["cls"].rsplit(".", 1)[-1]
        if name in _NOT_THE_MATTER:
            continue
        start, end = pieces.around(found.start("cls"))
        who, message = split_prefix(log.text[start:end], file, log.rank)
        who = _labelled(who, log.text, start)
        reason = shorten(message)
        frame = _frame_above(log.text, line_bounds(log.text, start)[0], who)
        if frame and reason.rstrip(":") == found["cls"]:
            reason = f"{reason.rstrip(':')}: {frame}"
        yield Finding(
            outcome=Outcome.ERROR,
            weight=Weight.CRASH,
            reason=reason,
            speaker=who,
            position=start,
            exception=name,
            details={"frame": frame} if frame else {},
        )


def _frame_above(text: str, start: int, who: Speaker, lines: int = 60) -> str | None:
    """The innermost source line of the same rank's traceback above an exception: ``assert x (file.py:181)``."""
    source = None
    for _ in range(lines):
        if start == 0:
            return None
        start, end = line_bounds(text, start - 1)
        speaker_above, line = split_prefix(text[start:end], who.file)
        if (speaker_above.label, speaker_above.outer, speaker_above.inner) != (who.label, who.outer, who.inner):
            continue
        found = re.match(r'\s+File "([^"]+)", line (\d+)', line)
        if found:
            place = f"{found.group(1).rsplit('/', 1)[-1]}:{found.group(2)}"
            return f"{source} ({place})" if source else place
        if line.strip(" ^~"):
            source = line.strip() if source is None else source
        if line.startswith("Traceback"):
            return None
    return None
