"""The findings that count: of the last attempt, not survived, each with the rank that spoke."""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pytest_scaleperf.model import Outcome
from pytest_scaleperf.titan.evidence import find
from pytest_scaleperf.titan.lines import clock_before, line_number
from pytest_scaleperf.titan.rules import Weight
from pytest_scaleperf.titan.torchrun import Worker, workers
from pytest_scaleperf.titan.weigh import with_rank

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_scaleperf.titan.console import Console
    from pytest_scaleperf.titan.finding import Finding
    from pytest_scaleperf.titan.samples import Sample

USAGE_EXIT = 2
"""argparse and tyro end with it."""
_STEPS_THAT_PROVE_LIFE = 2
_SECONDS_THAT_PROVE_LIFE = 2.0
_SHORT = 160

# Exceptions that, before training begins, mean that the run was asked for something it cannot do.
_STARTUP_CONFIG = frozenset(
    {
        "AssertionError",
        "ValueError",
        "KeyError",
        "NotImplementedError",
        "ModuleNotFoundError",
        "ImportError",
        "FileNotFoundError",
        "ValidationError",
    }
)
_CONFIG_WORDS = re.compile(
    r"unexpected keyword argument|required (?:positional|keyword-only) argument|\bmesh\b|world[ _]size|\bdegree\b"
    r"|divisib|not support|unsupported|must be|should be|has no attribute '\w*(?:flavor|config|model)",
    re.IGNORECASE,
)
_INSTALLATION = re.compile(r"\.so\b|undefined symbol|DLL load failed")


@dataclass(frozen=True, slots=True)
class Scene:
    """What is weighed: findings in order, those from which the run recovered, and torchrun's reports.

    ``startup`` is True where the last attempt had not begun to train, ``single_node`` where no srun label tells of
    more nodes than one.
    """

    findings: tuple[Finding, ...]
    recovered: tuple[str, ...]
    workers: tuple[Worker, ...]
    startup: bool
    single_node: bool

    @property
    def root(self) -> Worker | None:
        """The failure that torchrun saw first."""
        return self.workers[0] if self.workers and self.workers[0].root else None


def set_scene(console: Console, *, started: bool) -> Scene:
    """Find what counts. ``started``: some step of the last attempt was logged, on the console or elsewhere."""
    last = console.last_attempt
    several = len(console.attempts) > 1
    since = [(last.begins(file) or 0) if last and several else 0 for file in range(len(console.texts))]
    reports = workers(console.texts, since)
    startup = not started and (last is None or last.first_step is None)
    lives = [_Life() for _ in console.texts]
    for sample in console.last(console.samples):
        lives[sample.speaker.file].add(sample)
    kept: list[Finding] = []
    recovered: list[str] = []
    for finding in find(console.texts, since):
        if several and _of_a_former_attempt(finding, console):
            continue
        if lives[finding.speaker.file].went_on_after(finding):
            recovered.append(f"recovered from: {finding.reason[:_SHORT]} (line {line_of(finding, console)})")
        else:
            kept.append(_as_config(finding) if startup else finding)
    ranks = _Ranks.of(console, kept, reports)
    named = tuple(with_rank(finding, ranks.rank(finding)) for finding in kept)
    return Scene(named, tuple(dict.fromkeys(recovered)), reports, startup, ranks.single_node)


def line_of(finding: Finding, console: Console) -> int:
    """Number of a finding's line in its file."""
    return line_number(console.texts[finding.speaker.file].text, finding.position)


@dataclass(slots=True)
class _Life:
    """The printed steps of one file, in file order, to tell whether training went on after a line."""

    positions: list[int] = field(default_factory=list)
    highest: list[int] = field(default_factory=list)
    newest: list[str] = field(default_factory=list)
    steps: dict[int, str] = field(default_factory=dict)

    def add(self, sample: Sample) -> None:
        """Take the next sample of the file."""
        self.positions.append(sample.position)
        self.highest.append(max(sample.step, self.highest[-1] if self.highest else 0))
        self.newest.append(max(sample.time, self.newest[-1] if self.newest else ""))
        self.steps.setdefault(sample.step, sample.time)

    def went_on_after(self, finding: Finding) -> bool:
        """Whether at least two further steps came, the later one well after this line.

        Fewer prove nothing: torchrun copies each rank's stdout and stderr every 0.1 s, so that a step may stand
        behind an error that came after it, and more than one where steps are fast. A loss that was not finite stays
        what it is, however long the run went on.
        """
        if finding.outcome is Outcome.NAN_LOSS:
            return False
        number = bisect.bisect_left(self.positions, finding.position)
        before = self.highest[number - 1] if number else 0
        times = sorted(time for step, time in self.steps.items() if step > before)
        if len(times) < _STEPS_THAT_PROVE_LIFE:
            return False
        since = self.newest[number - 1] if number else times[0]
        return _seconds(times[-1]) - _seconds(since) >= _SECONDS_THAT_PROVE_LIFE


def _seconds(time: str) -> float:
    return datetime.fromisoformat(time[: len("YYYY-MM-DD HH:MM:SS.mmm")]).replace(tzinfo=UTC).timestamp()


def _of_a_former_attempt(finding: Finding, console: Console) -> bool:
    """Whether a file without start-up lines of its own (stderr) has this from before the last attempt."""
    last = console.last_attempt
    if last is None or last.begins(finding.speaker.file) is not None:
        return False
    clock = clock_before(console.texts[finding.speaker.file].text, finding.position)
    return clock is not None and clock < last.time[len("YYYY-") :]


def _as_config(finding: Finding) -> Finding:
    """Before training begins, an assertion, a value or an import that fails is the configuration's fault."""
    if finding.weight is Weight.EXIT and finding.exit_code == USAGE_EXIT:
        return replace(finding, outcome=Outcome.CONFIG_ERROR)
    if finding.exception is None or finding.weight is not Weight.CRASH or _INSTALLATION.search(finding.reason):
        return finding
    if finding.exception in _STARTUP_CONFIG or _CONFIG_WORDS.search(finding.reason):
        return replace(finding, outcome=Outcome.CONFIG_ERROR, weight=Weight.CAUSE)
    return finding


@dataclass(frozen=True, slots=True)
class _Ranks:
    """Who is who in this run: one node or several, started by torchrun or by srun, and torchrun's reports."""

    reports: tuple[Worker, ...]
    single_node: bool
    torchrun: bool
    prefixes_are_global: bool

    @classmethod
    def of(cls, console: Console, findings: Sequence[Finding], reports: tuple[Worker, ...]) -> _Ranks:
        """Told by the prefixes of step lines, which PyTorch itself never puts there, and by srun's labels."""
        trained = [sample.speaker for sample in console.samples]
        everybody = [*trained, *(finding.speaker for finding in findings)]
        return cls(
            reports=reports,
            single_node=len({who.label for who in everybody} - {None}) <= 1,
            torchrun=bool(reports) or any(who.outer is not None for who in trained),
            prefixes_are_global=bool(trained) and all(who.outer is None for who in trained),
        )

    def rank(self, finding: Finding) -> int | None:
        """Global rank of whoever wrote a line, or None where only its local rank is known.

        PyTorch's own prefix (the inner one) is global, torchrun's is local: on several nodes its report translates.
        """
        who = finding.speaker
        if who.inner is not None or finding.rank is not None:
            return who.inner if who.inner is not None else finding.rank
        reported = {w.rank for w in self.reports if self._is_of(w, finding)}
        if len(reported) == 1:
            return reported.pop()
        if who.outer is None:
            # Without torchrun srun starts the ranks, and a task is a rank; with it a task is a node.
            return None if self.torchrun else finding.details.get("task", who.label)
        known = self.single_node or self.prefixes_are_global or re.match(r"\[[EFW]\d", finding.reason)
        return who.outer if known else None

    def _is_of(self, worker: Worker, finding: Finding) -> bool:
        who = finding.speaker
        if "pid" in finding.details:
            return bool(worker.pid == finding.details["pid"])
        if who.outer is None:
            return worker.tells(*finding.place)
        return (worker.local_rank, worker.file, worker.label) == (who.outer, who.file, who.label)
