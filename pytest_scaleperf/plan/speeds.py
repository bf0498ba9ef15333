"""The speeds that are known of a suite's cases: said on the command line, else recorded, else in the baselines."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_scaleperf.baseline import baseline_value, read_baselines
from pytest_scaleperf.model import Metric, ScalePerfError, Suite
from pytest_scaleperf.plan.past import Past


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens/s per GPU of a case, its standard error as a fraction, and where it is from."""

    tps: float
    spread: float
    source: str


def known_speeds(suite: Suite, past: Past, baselines: Path, given: Mapping[str, float]) -> dict[str, Speed]:
    """What is known, by case id.

    Raises BaselineError where the suite's baseline file cannot be read.
    """
    stored = read_baselines(baselines / suite.system / f"{suite.name}.yaml")
    found: dict[str, Speed] = {}
    for case in suite.cases():
        record = next((r for r in past.by_case.get(case.id, ()) if r.tps is not None), None)
        baseline = stored.get(case.id)
        value = None if baseline is None else baseline_value(baseline, Metric.TPS)
        if case.id in given:
            found[case.id] = Speed(given[case.id], 0.0, "--tps")
        elif record is not None and record.tps is not None:
            found[case.id] = Speed(record.tps, record.spread, f"session {record.session}")
        elif value is not None:
            found[case.id] = Speed(value, 0.0, "baseline")
    return found


def given_by_suite(texts: Sequence[str], suites: Sequence[Suite]) -> dict[str, dict[str, float]]:
    """What ``--tps PATTERN=VALUE`` says: for every suite's name, tokens/s per GPU by case id.

    Raises ScalePerfError where a text is no such thing, or where its pattern does not name exactly one case.
    """
    found: dict[str, dict[str, float]] = {suite.name: {} for suite in suites}
    for text in texts:
        pattern, _, value = text.rpartition("=")
        named = [case for suite in suites for case in suite.cases() if fnmatch.fnmatchcase(case.id, pattern)]
        if len(named) != 1:
            listed = ", ".join(case.id for case in named[:3]) or "none"
            raise ScalePerfError(f"--tps {text}: expected PATTERN=VALUE whose pattern is one case's id, found {listed}")
        found[named[0].suite.name][named[0].id] = _number(value, text)
    return found


def _number(value: str, text: str) -> float:
    try:
        number = float(value.replace(",", ""))
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise ScalePerfError(f"--tps {text}: expected tokens/s per GPU after the =, more than 0, found {value!r}")
    return number
