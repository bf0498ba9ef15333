"""torchtitan's console output to records: samples, settings, attempts; never a number that was cut in two."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_scaleperf.titan import samples as step_lines
from pytest_scaleperf.titan import settings as start_lines
from pytest_scaleperf.titan.attempts import START_LINES, Attempt, Start, attempts
from pytest_scaleperf.titan.lines import HEADER, PREFIXES, LogText, Speaker, clean, line_bounds, positions, speaker
from pytest_scaleperf.titan.samples import SAMPLE_LINE, VALIDATION_LINE, Sample, sortable
from pytest_scaleperf.titan.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

_RECORD_START = re.compile(rf"(?P<ranks>{PREFIXES}){HEADER}")
_RECORD_AT_LINE_START = re.compile(rf"\s*(?:\d+: )?(?P<ranks>{PREFIXES}){HEADER}")
_LINE_START = re.compile(rf"\s*(?:(\d+): )?({PREFIXES})")
# Every message that is read beside the step lines; one pass over the text finds them all.
_MARKS = re.compile(
    r" - (?=torchtitan version|Starting job:|Building |Trainer is init|Training (?:starts|completed)|Peak |Pipeline Par"
    r"|Ran out of data|\d+ \w+ memory alloc|\w+ capacity: )"
)
_RETRIES = re.compile(r"(\d+) \w+ memory allocation retries")
_FIRST_STEP = re.compile(r"Training starts at step (\d+)")
# What may stand between a header and its message: colours that lost their ESC, a header injected right there.
_LEAD = re.compile(r"(?:\[(?:\d{1,3};?)+m|\[[A-Za-z_]+\d+\]:|\x00)+")
# Lines that repeat what a person wrote: nothing behind their beginning is a record.
_ECHO = re.compile(r"Starting job:|Running with |Building .+with \{")
_ECHO_LINE = re.compile(rf"\s*(?:\d+: )?{PREFIXES}\s*\"[^\"]+\":")


@dataclass(frozen=True, slots=True)
class Console:
    """All records of a run's log files, of every attempt, in file order.

    ``completed`` and ``out_of_data`` are (file, position) of ``Training completed`` and ``Ran out of data``.
    ``retries`` are the printed cumulative counts. ``malformed`` counts step lines that were not whole.
    """

    texts: tuple[LogText, ...]
    samples: tuple[Sample, ...]
    validation: tuple[Sample, ...]
    settings: Settings
    attempts: tuple[Attempt, ...]
    completed: tuple[tuple[int, int], ...]
    out_of_data: tuple[tuple[int, int], ...]
    retries: tuple[int, ...]
    malformed: int

    @property
    def last_attempt(self) -> Attempt | None:
        """The attempt that counts, or None where no line says that a run began."""
        return self.attempts[-1] if self.attempts else None

    def last(self, samples: Sequence[Sample]) -> tuple[Sample, ...]:
        """Those of the last attempt, in file order."""
        last = self.last_attempt
        return tuple(s for s in samples if last is None or s.time >= last.time)


@dataclass(frozen=True, slots=True)
class Count:
    """One ``N CUDA memory allocation retries`` line."""

    time: str
    value: int
    speaker: Speaker
    position: int


def parse(texts: Sequence[LogText]) -> Console:
    """Read the output of one run: one file of all ranks, or one per node or rank."""
    readers = [_Reader(log, index) for index, log in enumerate(texts)]
    settings = Settings()
    for reader in readers:
        settings = reader.read(settings)
    samples = _once([sample for reader in readers for sample in reader.samples], len(texts))
    starts = [start for reader in readers for start in reader.starts]
    counts = [count for reader in readers for count in reader.counts]
    found = attempts(starts, [sample.time for sample in samples], texts) if starts else ()
    return Console(
        texts=tuple(texts),
        samples=_with_retries(samples, counts, [a.time for a in found]) if counts else samples,
        validation=_once([sample for reader in readers for sample in reader.validation], len(texts)),
        settings=settings,
        attempts=found,
        completed=tuple(mark for reader in readers for mark in reader.completed),
        out_of_data=tuple(mark for reader in readers for mark in reader.out_of_data),
        retries=tuple(count.value for count in counts),
        malformed=sum(reader.malformed for reader in readers),
    )


def _once(samples: list[Sample], files: int) -> tuple[Sample, ...]:
    """Drop what a second file repeats (a scheduler's file and ours of the same output)."""
    if files == 1:
        return tuple(samples)
    seen: dict[tuple[object, ...], int] = {}
    kept = []
    for sample in samples:
        where = sample.speaker
        key = (sample.time, sample.step, sample.tps, str(sample.loss), sample.memory_gib, where.outer)
        if seen.setdefault(key, where.file) == where.file:
            kept.append(sample)
    return tuple(kept)


class _Reader:
    """Finds the records of one file. Jumps from one literal to the next: most lines are never looked at."""

    def __init__(self, log: LogText, index: int) -> None:
        self.log = log
        self.text = log.text
        self.index = index
        self.samples: list[Sample] = []
        self.validation: list[Sample] = []
        self.counts: list[Count] = []
        self.starts: list[Start] = []
        self.completed: list[tuple[int, int]] = []
        self.out_of_data: list[tuple[int, int]] = []
        self.malformed = 0
        self._speakers: dict[tuple[str | None, str], Speaker] = {}

    def read(self, settings: Settings) -> Settings:
        """Fill the lists; return the settings with what this file adds."""
        self._read_samples()
        for mark in _MARKS.finditer(self.text):
            at = mark.end()
            start, end = line_bounds(self.text, at)
            record = self._record_of(start, at)
            if record:
                message = self.text[at:end].rstrip("\r \x00")
                self._take(message, sortable(record["time"]), self._speaker(record, start), at)
                settings = start_lines.add(settings, message)
        return settings

    def _take(self, message: str, time: str, who: Speaker, at: int) -> None:
        if message.startswith("Training completed"):
            self.completed.append((self.index, at))
        elif message.startswith("Ran out of data"):
            self.out_of_data.append((self.index, at))
        elif count := _RETRIES.match(message):
            self.counts.append(Count(time, int(count.group(1)), who, at))
        else:
            kind = next((kind for kind, line in enumerate(START_LINES) if message.startswith(line)), None)
            if kind is not None:
                step = _FIRST_STEP.match(message)
                self.starts.append(Start(time, kind, int(step.group(1)) if step else None, who, at))

    def _record_of(self, start: int, at: int) -> re.Match[str] | None:
        """The header that ends at ``at``, in the line that begins at ``start``; None where an echo holds it."""
        first = _RECORD_AT_LINE_START.match(self.text, start)
        if first and first.end() == at:
            return first
        records = list(_RECORD_START.finditer(self.text, start, at))
        if not records or records[-1].end() != at:
            return None
        return None if len(records) > 1 and _ECHO.match(self.text, records[0].end()) else records[-1]

    def _read_samples(self) -> None:
        text, at = self.text, self.text.find("step:")
        while at >= 0:
            start = text.rfind("\n", 0, at) + 1
            for pattern, found_samples in ((SAMPLE_LINE, self.samples), (VALIDATION_LINE, self.validation)):
                found = pattern.match(text, start)
                if found:
                    who = self._who(found["label"], found["ranks"])
                    found_samples.append(step_lines.build(found.groupdict(), found["time"], who, start))
                    end = found.end()
                    break
            else:
                _, end = line_bounds(text, at)
                self._dissect(start, end)
            at = text.find("step:", end)
        if text.count("mfu:") > len(self.samples):
            self._read_cut_labels()

    def _read_cut_labels(self) -> None:
        """Lines in which the word ``step:`` itself was cut."""
        for at in positions(self.text, "mfu:"):
            start, end = line_bounds(self.text, at)
            if self.text.find("step:", start, end) < 0:
                self._rejoin(start, end)

    def _dissect(self, start: int, end: int) -> None:
        """A line that is not one whole record: progress bars, several records, a header inside a number."""
        if _ECHO_LINE.match(self.text, start, end):
            return
        records = list(_RECORD_START.finditer(self.text, start, end))
        if not records:
            self._rejoin(start, end)
        if len(records) > 1 and _ECHO.match(self.text, records[0].end()):
            return
        for number, record in enumerate(records):
            last = number + 1 == len(records)
            stop = end if last else records[number + 1].start()
            message = self.text[record.end() : stop].split("\r", 1)[0]
            self._record(message, record, self._speaker(record, start), whole=last and end < len(self.text))

    def _record(self, message: str, record: re.Match[str], who: Speaker, *, whole: bool) -> None:
        lead = _LEAD.match(message)
        plain = message[lead.end() :] if lead else message
        if plain.startswith("step:"):
            kept, fields = self.samples, step_lines.training_fields(message, who)
        elif plain.startswith("validate step:"):
            kept, fields = self.validation, step_lines.validation_fields(plain) if whole else None
        else:
            return
        if fields is None:
            self.malformed += 1
        else:
            kept.append(step_lines.build(fields, record["time"], who, record.start()))

    def _rejoin(self, start: int, end: int) -> None:
        """A line without a whole header: its own rank's prefix may have cut it."""
        line = self.text[start:end]
        first = _LINE_START.match(line)
        label, ranks = first.groups() if first else (None, "")
        if "loss:" not in line or "mfu:" not in line or "]:" not in line[first.end() if first else 0 :]:
            return
        who = self._who(label, ranks)
        found = step_lines.rejoined_line(line, who)
        if found is None:
            self.malformed += 1
        else:
            self.samples.append(step_lines.build(found.groupdict(), found["time"], who, start))

    def _speaker(self, record: re.Match[str], line_start: int) -> Speaker:
        """A record in the middle of a line without a prefix of its own belongs to the line's rank."""
        first = _LINE_START.match(self.text, line_start, record.start())
        label, ranks = first.groups() if first else (None, "")
        return self._who(label, record["ranks"] or ranks)

    def _who(self, label: str | None, ranks: str) -> Speaker:
        found = self._speakers.get((label, ranks))
        if found is None:
            found = self._speakers[label, ranks] = speaker(label, ranks, self.index, self.log.rank)
        return found


def _with_retries(samples: tuple[Sample, ...], counts: list[Count], begins: list[str]) -> tuple[Sample, ...]:
    """Give each sample its cumulative count: torchtitan warns right before the line, in the same attempt."""
    by_rank: dict[Speaker, list[Count]] = {}
    for count in counts:
        by_rank.setdefault(count.speaker, []).append(count)
    done = []
    for sample in samples:
        since = max((time for time in begins if time <= sample.time), default="")
        mine = [c.value for c in by_rank.get(sample.speaker, ()) if c.time >= since and c.position <= sample.position]
        done.append(replace(sample, alloc_retries=max(mine)) if mine else sample)
    return tuple(done)


class Tail:
    """Follows a growing log: feed it what was appended and ask for the newest step.

    ``last_step`` and ``last_tps`` (tokens/s per GPU) are of the newest step that any rank printed in the current
    attempt; ``started`` is True once training began; ``requested_steps`` is what the log says. None: not yet.
    """

    _LONGEST_LINE = 1 << 20

    def __init__(self) -> None:
        self.last_step: int | None = None
        self.last_tps: float | None = None
        self.started = False
        self.requested_steps: int | None = None
        self._rest = b""
        self._newest = ""

    def feed(self, data: bytes) -> None:
        """Take appended bytes; a line counts once its end has arrived."""
        data = self._rest + data
        cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        self._rest = data[cut:] if len(data) - cut < self._LONGEST_LINE else b""
        if cut:
            self._take(LogText("", clean(data[:cut])))

    def _take(self, log: LogText) -> None:
        reader = _Reader(log, 0)
        settings = reader.read(Settings())
        self.requested_steps = settings.total_steps or self.requested_steps
        records: list[Start | Sample] = [*reader.starts, *reader.samples]
        for record in sorted(records, key=lambda r: r.position):
            if isinstance(record, Sample):
                self.started = True
                self._newest = max(self._newest, record.time)
                if self.last_step is None or record.step >= self.last_step:
                    self.last_step, self.last_tps = record.step, record.tps
            elif record.step is not None:
                self.started = True
                if self._newest and record.time > self._newest:
                    self.last_step, self.last_tps, self._newest = record.step - 1, None, ""
