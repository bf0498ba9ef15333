"""What torchrun itself reports of ranks that failed: rank, host and exit code, and who was first."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_scaleperf.model import Outcome
from pytest_scaleperf.titan.finding import Finding, outcome_of_signal, shorten, signal_of
from pytest_scaleperf.titan.lines import LogText, Speaker, line_bounds, split_prefix
from pytest_scaleperf.titan.rules import Weight

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Under ``srun --label`` each line of the report has its label.
_NEXT = r"\n(?:\s*\d+: )?\s*"
_WORKER = re.compile(
    rf"(?:time\s+: (?P<time>\S+){_NEXT})?host\s+: (?P<host>\S+)\n(?:\s*(?P<label>\d+): )?\s*"
    rf"rank\s+: (?P<rank>\d+) \(local_rank: (?P<local>\d+)\){_NEXT}"
    r"exitcode\s*: (?P<code>-?\d+) \(pid: (?P<pid>\d+)\)"
)
_FAILED = re.compile(r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<local>\d+) \(pid: (?P<pid>\d+)\)")
_END_OF_PART = re.compile(r"\n(?:\s*\d+: )?(?:={20,}|-{20,}|\[\d+\]:)")
_ROOT = "Root Cause (first observed failure)"


@dataclass(frozen=True, slots=True)
class Worker:
    """One rank in a report of failures; ``root`` for the one that torchrun on its node saw first."""

    rank: int
    local_rank: int
    host: str
    exit_code: int
    pid: int
    root: bool
    time: str
    file: int
    label: int | None
    position: int
    end: int

    def tells(self, file: int, position: int) -> bool:
        """Whether a position lies in this rank's part of the report, where its traceback is repeated."""
        return file == self.file and self.position <= position < self.end


def workers(texts: Sequence[LogText], since: Sequence[int]) -> tuple[Worker, ...]:
    """Every rank that the reports name, the first root cause first."""
    found = [
        worker
        for file, log in enumerate(texts)
        if _ROOT in log.text
        for worker in _in_file(log.text, file, since[file])
    ]
    return tuple(sorted(found, key=lambda w: (not w.root, w.time, w.file, w.position)))


def _in_file(text: str, file: int, since: int) -> Iterator[Worker]:
    for match in _WORKER.finditer(text, since):
        at = match.start()
        end = _END_OF_PART.search(text, match.end())
        yield Worker(
            rank=int(match["rank"]),
            local_rank=int(match["local"]),
            host=match["host"],
            exit_code=int(match["code"]),
            pid=int(match["pid"]),
            root=text.rfind(_ROOT, since, at) > text.rfind("Failures:", since, at),
            time=match["time"] or "",
            file=file,
            label=int(match["label"]) if match["label"] else None,
            position=at,
            end=end.start() if end else len(text),
        )


def exits(log: LogText, file: int, since: int) -> Iterator[Finding]:
    """The line in which torchrun says that a process failed, and the root causes of its reports."""
    for found in _FAILED.finditer(log.text, since):
        start, end = line_bounds(log.text, found.start())
        who, message = split_prefix(log.text[start:end], file)
        who = replace(who, outer=int(found["local"]))
        yield _exit(int(found["code"]), int(found["pid"]), shorten(message), who, start)
    if _ROOT in log.text:
        for worker in _in_file(log.text, file, since):
            if worker.root:
                who = Speaker(file=file, outer=worker.local_rank)
                reason = f"torchrun: rank {worker.rank} failed first, exit code {worker.exit_code}"
                found_exit = _exit(worker.exit_code, worker.pid, reason, who, worker.position)
                yield replace(found_exit, rank=worker.rank, host=worker.host)


def _exit(code: int, pid: int, reason: str, who: Speaker, position: int) -> Finding:
    signal = signal_of(code)
    return Finding(
        outcome=outcome_of_signal(signal) if signal else Outcome.ERROR,
        weight=Weight.EXIT,
        reason=reason,
        speaker=who,
        position=position,
        signal=signal,
        exit_code=code,
        details={"pid": pid},
    )
