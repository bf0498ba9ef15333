"""Look back over a case's earlier sessions, and say beside its verdict where the level of its nights changed."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_scaleperf import history, records
from pytest_scaleperf.history import Night
from pytest_scaleperf.model import Baseline, Case, Fingerprint, Metric, Verdict


@dataclass(slots=True)
class Lookback:
    """The sessions under a run directory before this one. That the extra is missing is said once a session."""

    run_dir: Path
    session: str
    _told: bool = False

    def add(self, verdict: Verdict, case: Case, fingerprint: Fingerprint, stored: Baseline | None) -> Verdict:
        """The verdict with the changes in its judged metrics' history; the decision stays as it is.

        A night is a session's mean, from its record or the stored baseline; one of another fingerprint counts where
        the suite's ``compare_across`` lets it differ.
        """
        today = time.strftime("%Y-%m-%d")
        past = self._nights(case, fingerprint, stored)
        notes, changes = list(verdict.notes), list(verdict.changes)
        for judged in verdict.metrics:
            if judged.tolerance is None or judged.value is None:
                continue
            nights = [*past.get(judged.metric, ()), Night(today, self.session, judged.value)]
            if len(nights) < history.FEWEST:
                continue
            if not history.available():
                self._tell(notes, len(nights))
                break
            found = history.changes(judged.metric, nights)
            changes += found
            notes += filter(None, [history.sentence(found)])
        return dataclasses.replace(verdict, notes=tuple(notes), changes=tuple(changes))

    def _tell(self, notes: list[str], nights: int) -> None:
        if not self._told:
            notes.append(f"history: {nights} nights, not looked at for changes that creep: {history.EXTRA}")
            self._told = True

    def _nights(self, case: Case, fingerprint: Fingerprint, stored: Baseline | None) -> Mapping[Metric, list[Night]]:
        """The nights before this session, oldest first."""
        across = case.suite.compare_across
        values: dict[tuple[str, str], Mapping[Metric, float]] = {}
        if stored is not None and _comparable(stored.fingerprint, fingerprint, across):
            values |= _recorded(stored)
        for found, record in records.earlier(self.run_dir, case.id):
            if len(values) >= 2 * history.NIGHTS:
                break
            if _comparable(found.fingerprint, fingerprint, across):
                day = time.strftime("%Y-%m-%d", time.localtime(found.finished))
                values[(day, str(record["session"]))] = _measured(record)
        values = {key: metrics for key, metrics in values.items() if key[1] != self.session}
        return {
            metric: [Night(*key, values[key][metric]) for key in sorted(values) if metric in values[key]]
            for metric in Metric
        }


def _comparable(one: Fingerprint, other: Fingerprint, across: Iterable[str]) -> bool:
    return not set(one.differences(other)).difference(across)


def _recorded(stored: Baseline) -> dict[tuple[str, str], Mapping[Metric, float]]:
    """The mean of each session's recorded launches."""
    sessions: dict[tuple[str, str], dict[Metric, list[float]]] = {}
    for sample in stored.samples:
        for metric, value in sample.values.items():
            sessions.setdefault((sample.date, sample.session), {}).setdefault(metric, []).append(value)
    return {
        key: {metric: statistics.fmean(found) for metric, found in metrics.items()} for key, metrics in sessions.items()
    }


def _measured(record: Mapping[str, Any]) -> Mapping[Metric, float]:
    """What a record says of each metric; a metric that this version does not know is passed over."""
    known = {metric.value for metric in Metric}
    return {
        Metric(found["metric"]): float(found["value"])
        for found in record["metrics"]
        if found["metric"] in known and found["value"] is not None
    }
