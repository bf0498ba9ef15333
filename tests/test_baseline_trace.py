"""Traces in a baseline file: an entry of their own within the case's, which survives whatever else is recorded."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from pytest_scaleperf.baseline import TraceSample, prune, read_baselines, read_traces, record_sample, record_trace
from pytest_scaleperf.model import BaselineError, BaselineSample, Metric
from tests.test_baseline import FINGERPRINT, GOOD, ID

TRACED = dataclasses.replace(FINGERPRINT, config="feedfeedfeed")
COUNTS = {"calls all_gather [default_pg x 2]": 38, "bytes all_gather [default_pg x 2]": 43_613_708_288}
SHARE = "last_backward.exposed_communication_pct"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "cpu" / "demo.yaml"
    record_sample(path, "demo", "cpu", ID, FINGERPRINT, BaselineSample("2026-11-30", "a", {Metric.TPS: 1000.0}))
    return path


def traced(session: str, share: float) -> TraceSample:
    return TraceSample("2026-11-30", session, {SHARE: share, "idle_pct": 0.0})


def test_a_trace_is_read_back_beside_the_cases_own_samples(path: Path) -> None:
    assert read_traces(path) == {}
    record_trace(path, ID, TRACED, traced("a", 1.51234567), COUNTS)
    record_trace(path, ID, TRACED, traced("b", 1.6), COUNTS)
    [stored] = read_traces(path).values()
    assert stored.fingerprint == TRACED
    assert stored.counts == COUNTS
    assert [s.shares[SHARE] for s in stored.samples] == [1.51235, 1.6]
    assert stored.shares == {"idle_pct": 0.0, SHARE: pytest.approx(1.556175)}
    assert path.read_text().splitlines()[int(stored.where.rpartition(":")[2]) - 1].strip() == "trace:"
    assert read_baselines(path)[ID].fingerprint == FINGERPRINT
    assert path.read_text().count("torch: 2.13.0+cpu") == 1, "the two share what they have in common"


def test_another_fingerprint_or_a_better_trace_takes_the_place(path: Path) -> None:
    record_trace(path, ID, TRACED, traced("a", 1.5), COUNTS)
    record_trace(path, ID, TRACED, traced("b", 0.5), {}, replaces=True)
    [stored] = read_traces(path).values()
    assert ([s.session for s in stored.samples], stored.counts) == (["b"], {})
    newer = dataclasses.replace(TRACED, torch="2.14.1")
    record_trace(path, ID, newer, traced("c", 0.6), COUNTS)
    [stored] = read_traces(path).values()
    assert ([s.session for s in stored.samples], stored.fingerprint) == (["c"], newer)
    assert read_baselines(path)[ID].fingerprint == FINGERPRINT


def test_it_survives_new_samples_of_the_case_and_goes_with_it(path: Path) -> None:
    record_trace(path, ID, TRACED, traced("a", 1.5), COUNTS)
    text = path.read_text().replace("    trace:\n", "    trace:\n      tolerance: 4 %\n      why: a noisy fabric\n")
    path.write_text(text)
    newer = dataclasses.replace(FINGERPRINT, torch="2.14.1")
    record_sample(path, "demo", "cpu", ID, newer, BaselineSample("2026-12-01", "b", {Metric.TPS: 1000.0}))
    [stored] = read_traces(path).values()
    assert (stored.fingerprint, stored.tolerance, stored.why) == (TRACED, 0.04, "a noisy fabric")
    prune(path, [], [])
    assert read_traces(path) == {}


@pytest.mark.parametrize("share", [float("nan"), -0.1, 100.5])
def test_what_is_no_share_is_not_recorded(path: Path, share: float) -> None:
    before = path.read_text()
    with pytest.raises(BaselineError, match="trace: expected shares from 0 to 100 % and counts, found last_backward"):
        record_trace(path, ID, TRACED, traced("a", share), COUNTS)
    assert path.read_text() == before


def test_a_trace_needs_the_cases_entry(path: Path) -> None:
    with pytest.raises(BaselineError, match="expected an entry of the case before that of its trace"):
        record_trace(path, "demo-other", TRACED, traced("a", 1.5), COUNTS)
    with pytest.raises(BaselineError, match="found nothing at all"):
        record_trace(path, ID, TRACED, TraceSample("2026-11-30", "a", {}), {})


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        ("{fingerprint: f9, config: a, counts: {}, samples: [%s]}", "trace.fingerprint: expected one of the fingerp"),
        ("{fingerprint: f1, config: a, samples: [%s]}", "trace.counts: expected this key"),
        ("{fingerprint: f1, config: a, counts: {x: 1.5}, samples: [%s]}", "trace.counts.x: expected"),
        ("{fingerprint: f1, config: a, counts: {}, samples: []}", "trace.samples: expected a list of samples"),
        ("{fingerprint: f1, config: a, counts: {}, samples: [{date: 2026-11-30, session: a, shares: {idle_pct: 101}}]}",
         "shares.idle_pct: expected a mapping from names to per cent of the step, 0 to 100, found `101`"),
    ],
)  # fmt: skip
def test_faults_of_the_entry_are_named(path: Path, entry: str, fault: str) -> None:
    sample = "{date: 2026-11-30, session: a, shares: {}}"
    path.write_text(GOOD + "    trace: " + entry.replace("%s", sample) + "\n")
    with pytest.raises(BaselineError) as caught:
        read_traces(path)
    assert fault in str(caught.value)


def test_no_file_holds_no_traces(tmp_path: Path) -> None:
    assert read_traces(tmp_path / "cpu/none.yaml") == {}
