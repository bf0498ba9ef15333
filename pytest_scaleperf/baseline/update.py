"""Take measurements into a baseline file: never silently to something worse, and each change said."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pytest_scaleperf.baseline.compare import Measured, Shift, shifts, values_of
from pytest_scaleperf.baseline.contents import Contents, Entry, Stored
from pytest_scaleperf.baseline.read import named_by
from pytest_scaleperf.baseline.record import check_entry, edited

CREEP = 0.5
"""The share of a band by which the stored value may become worse without somebody's reason.

Samples inside the band may be added to learn the noise, and a new fingerprint's take the place of the old ones. Were
each only held against the value before it, that value could creep. So it may never be worse by more than half a band
than the best that it was since somebody last accepted something worse.
"""


class Kind(StrEnum):
    """What becomes of a case's entry."""

    NEW = "new"
    ADDED = "added"
    IMPROVED = "improved"
    REPLACED = "replaced"
    ACCEPTED = "accepted"
    REFUSED = "refused"
    KNOWN = "known"

    @property
    def is_change(self) -> bool:
        """True where the file changes."""
        return self not in (Kind.REFUSED, Kind.KNOWN)


@dataclass(frozen=True, slots=True)
class Change:
    """What one case's measurements do: the stored value of each metric before and after, and why."""

    case_id: str
    kind: Kind
    session: str
    samples: int
    shifts: tuple[Shift, ...]
    reason: str = ""


def update(path: Path, many: Sequence[Measured], *, accept: str = "", dry_run: bool = False) -> tuple[Change, ...]:
    """Take measurements into the file of ``<system>/<suite>.yaml``, oldest first, and say what each changed.

    Inside the band they are added to the stored samples; better than it, or of another fingerprint, they take their
    place. What would make the stored value worse is refused, unless ``accept`` gives the reason: it is then kept in
    the entry with the date and the old values. A session that is stored already changes nothing.
    With ``dry_run`` the file is left as it is. Raises BaselineError as ``record_samples`` does.
    """
    ordered = sorted(many, key=lambda measured: (measured.date, measured.session))
    for measured in ordered:
        check_entry(path, measured.case_id, measured.samples)
    if dry_run:
        contents = Contents.of(path)
        return tuple(_take(contents, measured, accept) for measured in ordered)
    with edited(path, *named_by(path)) as contents:
        return tuple(_take(contents, measured, accept) for measured in ordered)


def prune(path: Path, cases: Collection[str], pairs: Collection[str]) -> None:
    """Remove every entry of the file that is none of ``cases``, and every efficiency that is none of ``pairs``.

    Raises BaselineError as ``record_samples`` does.
    """
    with edited(path, *named_by(path)) as contents:
        contents.keep(cases, pairs)


def _take(contents: Contents, new: Measured, accept: str) -> Change:
    stored = contents.stored(new.case_id)
    kind, reason = (Kind.NEW, "") if stored is None else _decide(stored, new)
    if new.lacking:
        kind, reason = Kind.REFUSED, f"it did not say {', '.join(new.lacking)}"
    elif kind is Kind.ACCEPTED and not accept:
        kind = Kind.REFUSED
    before = {} if stored is None else values_of(stored.samples)
    if kind.is_change:
        replaces = kind in (Kind.IMPROVED, Kind.ACCEPTED)
        accepted = accept if kind is Kind.ACCEPTED else ""
        contents.add(Entry(new.case_id, new.fingerprint, new.samples, replaces=replaces, accepted=accepted))
    after = contents.stored(new.case_id)
    shown = values_of(new.samples) if after is None or not kind.is_change else values_of(after.samples)
    return Change(new.case_id, kind, new.session, len(new.samples), shifts(before, shown, new.bands), reason)


def _decide(stored: Stored, new: Measured) -> tuple[Kind, str]:
    """What the measurements would do to an entry; ACCEPTED means that a reason is needed."""
    if any(sample.session == new.session for sample in stored.samples):
        return Kind.KNOWN, "this session is stored already"
    before, found = values_of(stored.samples), values_of(new.samples)
    direct = shifts(before, found, new.bands)
    differences = stored.fingerprint.differences(new.fingerprint)
    better = any(s.is_better for s in direct)
    if worse := [s for s in direct if s.is_worse()]:
        kind, reason = Kind.ACCEPTED, f"worse than the stored value by more than its band: {_named(worse)}"
    elif worse := _crept(stored, new, alone=bool(differences) or better):
        now = ", ".join(f"{s.metric} {s.before:.6g} -> {s.after:.6g}" for s in worse)
        kind, reason = Kind.ACCEPTED, f"the stored value would become worse by more than half the band: {now}"
    elif better:
        kind, reason = Kind.IMPROVED, ""
    elif differences:
        kind, reason = Kind.REPLACED, ", ".join(f"{name} {old} -> {now}" for name, (old, now) in differences.items())
    else:
        return Kind.ADDED, ""
    newest = max(sample.date for sample in stored.samples)
    if new.date < newest:
        return Kind.KNOWN, f"older ({new.date}) than what it would replace ({newest})"
    return kind, reason


def _crept(stored: Stored, new: Measured, *, alone: bool) -> list[Shift]:
    """Metrics that would be worse than they ever were since the entry was last replaced on purpose."""
    after = values_of(new.samples if alone else [*stored.samples, *new.samples])
    return [s for s in shifts(stored.best, after, new.bands) if s.is_worse(CREEP)]


def _named(worse: Sequence[Shift]) -> str:
    return ", ".join(s.metric for s in worse)
