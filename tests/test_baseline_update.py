"""Measurements taken into a baseline file: what is added, what replaces, what needs somebody's reason."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_scaleperf.baseline import (
    Change,
    Kind,
    Measured,
    MeasuredScaling,
    ScalingChange,
    ScalingSample,
    prune,
    read_baselines,
    read_scaling,
    update,
    update_scaling,
    values_of,
)
from pytest_scaleperf.baseline.contents import Contents
from pytest_scaleperf.baseline.update import CREEP
from pytest_scaleperf.model import BaselineError, BaselineSample, Fingerprint, Metric
from pytest_scaleperf.yamlfile import read, write_atomic

ID = "demo-2gpu-fsdp2-dp1-none-lbs2"
FINGERPRINT = Fingerprint("lab", None, "2.13.0", None, "0.3.0", None, "3f2a00000000", 1e14)
BANDS = {Metric.TPS: 0.03, Metric.PEAK_MEMORY: 0.02}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lab" / "demo.yaml"


def measured(
    session: str, *tps: float, memory: float = 40.0, fingerprint: Fingerprint = FINGERPRINT, date: str = "2026-11-30"
) -> Measured:
    samples = tuple(
        BaselineSample(date, session, {Metric.TPS: value, Metric.PEAK_MEMORY: memory}, number)
        for number, value in enumerate(tps, 1)
    )
    return Measured(ID, fingerprint, samples, BANDS)


def taken(path: Path, new: Measured, accept: str = "") -> Change:
    [change] = update(path, [new], accept=accept)
    return change


def entry(path: Path) -> dict[str, Any]:
    data: Any = read(path, BaselineError).data
    found: dict[str, Any] = data["cases"][ID]
    return found


def tps(path: Path) -> list[float]:
    return [sample["tps"] for sample in entry(path)["samples"]]


def test_a_new_case_is_stored_with_every_launch(path: Path) -> None:
    assert taken(path, measured("a", 1000, 1010)).kind is Kind.NEW
    assert [(s["session"], s.get("sample", 1), s["tps"]) for s in entry(path)["samples"]] == [
        ("a", 1, 1000.0),
        ("a", 2, 1010.0),
    ]


def test_inside_the_band_is_added(path: Path) -> None:
    taken(path, measured("a", 1000))
    change = taken(path, measured("b", 990, 1005))
    assert change.kind is Kind.ADDED
    assert tps(path) == [1000, 990, 1005]
    [shift] = [s for s in change.shifts if s.metric is Metric.TPS]
    assert (shift.before, shift.after) == (1000, 1000)


def test_a_session_that_is_stored_changes_nothing(path: Path) -> None:
    taken(path, measured("a", 1000))
    text = path.read_text()
    path.write_text("# by hand\n" + text)
    change = taken(path, measured("a", 1000))
    assert change.kind is Kind.KNOWN
    assert path.read_text() == "# by hand\n" + text


def test_better_than_the_band_takes_the_place(path: Path) -> None:
    taken(path, measured("a", 1000, 1002))
    assert taken(path, measured("b", 1100)).kind is Kind.IMPROVED
    assert tps(path) == [1100]
    assert entry(path)["replaced"] == {"date": "2026-11-30", "values": {"tps": 1001.0, "peak_memory": 40.0}}


@pytest.mark.parametrize(("speed", "memory", "named"), [(950, 40.0, "tps"), (1000, 41.0, "peak_memory")])
def test_worse_is_refused_without_a_reason_and_kept_with_one(
    path: Path, speed: float, memory: float, named: str
) -> None:
    taken(path, measured("a", 1000))
    before = path.read_text()
    change = taken(path, measured("b", speed, memory=memory))
    assert change.kind is Kind.REFUSED
    assert named in change.reason
    assert path.read_text() == before
    change = taken(path, measured("b", speed, memory=memory, date="2026-12-01"), accept="the new loss: needs it")
    assert change.kind is Kind.ACCEPTED
    assert entry(path)["accepted"] == [
        {
            "date": "2026-12-01",
            "session": "b",
            "values": {"tps": 1000.0, "peak_memory": 40.0},
            "why": "the new loss: needs it",
        }
    ]
    assert tps(path) == [speed]
    assert set(read_baselines(path)) == {ID}


def test_faster_with_more_memory_needs_a_reason_too(path: Path) -> None:
    taken(path, measured("a", 1000))
    assert taken(path, measured("b", 1200, memory=44)).kind is Kind.REFUSED


def test_faster_does_not_cover_memory_that_creeps(path: Path) -> None:
    """Each time it is faster and takes 0.9 % more memory, inside the band of 2 %."""
    speed, memory = 1000.0, 40.0
    taken(path, measured("s0", speed, memory=memory))
    speed, memory = speed * 1.1, memory * 1.009
    assert taken(path, measured("s1", speed, memory=memory)).kind is Kind.IMPROVED
    assert entry(path)["best"] == {"peak_memory": 40.0}
    change = taken(path, measured("s2", speed * 1.1, memory=memory * 1.009))
    assert change.kind is Kind.REFUSED
    assert change.reason.endswith("peak_memory 40 -> 40.7232")


def test_every_accepted_regression_stays_in_the_file(path: Path) -> None:
    taken(path, measured("a", 1000))
    taken(path, measured("b", 950), "first")
    taken(path, measured("c", 900), "second")
    assert [(old["values"]["tps"], old["why"]) for old in entry(path)["accepted"]] == [(1000, "first"), (950, "second")]
    taken(path, measured("d", 1200))  # and also when it is made good again
    assert len(entry(path)["accepted"]) == 2


def test_another_fingerprint_takes_the_place_and_is_named(path: Path) -> None:
    taken(path, measured("a", 1000))
    newer = dataclasses.replace(FINGERPRINT, torch="2.14.1")
    change = taken(path, measured("b", 995, fingerprint=newer))
    assert (change.kind, change.reason) == (Kind.REPLACED, "torch 2.13.0 -> 2.14.1")
    assert entry(path)["replaced"]["differences"] == {"torch": ["2.13.0", "2.14.1"]}
    assert tps(path) == [995]


@pytest.mark.parametrize("speed", [980, 960])
def test_another_fingerprint_does_not_lower_it_silently(path: Path, speed: float) -> None:
    taken(path, measured("a", 1000))
    newer = dataclasses.replace(FINGERPRINT, torch="2.14.1")
    assert taken(path, measured("b", speed, fingerprint=newer)).kind is Kind.REFUSED
    assert taken(path, measured("b", speed, fingerprint=newer), "torch").kind is Kind.ACCEPTED
    assert entry(path)["accepted"][0]["differences"] == {"torch": ["2.13.0", "2.14.1"]}


def test_a_value_cannot_creep_through_the_band(path: Path) -> None:
    """Each night is inside the band of what is stored; together they would lower it by more than half of it."""
    taken(path, measured("a", 1000))
    kinds, value = [], 1000.0
    for night in range(1, 31):
        value *= 0.997
        change = taken(path, measured(f"n{night:02}", value, date=f"2026-12-{night:02}"))
        kinds.append(change.kind)
        if change.kind is Kind.REFUSED:
            break
    assert kinds[-1] is Kind.REFUSED
    assert Kind.ADDED in kinds
    assert values_of(read_baselines(path)[ID].samples)[Metric.TPS] >= 1000 * (1 - 0.03 * CREEP)


def test_a_value_cannot_creep_through_fingerprints_either(path: Path) -> None:
    """A nightly torch: each night's samples take the place of the last night's, a little slower each time."""
    taken(path, measured("a", 1000))
    value = 1000.0
    for night in range(1, 31):
        value *= 0.997
        nightly = dataclasses.replace(FINGERPRINT, torch=f"2.14.0.dev{night}")
        change = taken(path, measured(f"n{night:02}", value, fingerprint=nightly, date=f"2026-12-{night:02}"))
        if change.kind is Kind.REFUSED:
            break
        assert change.kind is Kind.REPLACED
    assert night == 6  # 0.997 ** 5 is 0.985: half a band of 3 %
    assert change.reason == "the stored value would become worse by more than half the band: tps 1000 -> 982.134"
    assert taken(path, measured("n06", value, fingerprint=nightly, date="2026-12-06"), "known").kind is Kind.ACCEPTED
    assert "best" not in entry(path)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(min_value=700, max_value=1300), min_size=1, max_size=8))
def test_without_a_reason_nothing_lowers_the_stored_value_beyond_half_a_band(
    tmp_path_factory: pytest.TempPathFactory, speeds: list[float]
) -> None:
    path = tmp_path_factory.mktemp("any") / "lab" / "demo.yaml"
    best = 0.0
    for number, speed in enumerate(speeds):
        taken(path, measured(f"s{number:02}", speed))
        value = values_of(read_baselines(path)[ID].samples)[Metric.TPS]
        first = read_baselines(path)[ID].samples[0].values[Metric.TPS]
        best = max(best, first)
        assert value >= best * (1 - 0.03 * CREEP) * (1 - 1e-5)  # numbers are kept to six digits


def test_older_measurements_do_not_take_the_place_of_newer_ones(path: Path) -> None:
    taken(path, measured("b", 1000, date="2026-12-02"))
    change = taken(path, measured("a", 1200, date="2026-12-01"))
    assert change.kind is Kind.KNOWN
    assert "older" in change.reason
    assert tps(path) == [1000]


def test_a_launch_that_lacks_a_judged_metric_is_refused(path: Path) -> None:
    whole = measured("a", 1000)
    without = dataclasses.replace(whole, samples=(BaselineSample("2026-11-30", "a", {Metric.TPS: 1000.0}),))
    change = taken(path, without)
    assert change.kind is Kind.REFUSED
    assert "peak_memory" in change.reason
    assert not path.exists()


def test_several_sessions_are_taken_oldest_first(path: Path) -> None:
    changes = update(path, [measured("b", 1200, date="2026-12-02"), measured("a", 1000, date="2026-12-01")])
    assert [change.kind for change in changes] == [Kind.NEW, Kind.IMPROVED]
    assert tps(path) == [1200]


def test_a_dry_run_says_the_same_and_writes_nothing(path: Path) -> None:
    many = [measured("a", 1000), measured("b", 1100)]
    told = update(path, many, dry_run=True)
    assert not path.exists()
    assert update(path, many) == told


def test_many_cases_are_one_write(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes = []

    def counted(target: Path, text: str) -> None:
        writes.append(target)
        write_atomic(target, text)

    monkeypatch.setattr("pytest_scaleperf.baseline.record.write_atomic", counted)
    many = [dataclasses.replace(measured("a", 1000), case_id=f"case-{number}") for number in range(500)]
    update(path, many)
    assert writes == [path]
    assert len(read_baselines(path)) == 500


def test_what_people_wrote_at_a_case_is_kept(path: Path) -> None:
    taken(path, measured("a", 1000))
    text = path.read_text().replace(f"  {ID}:\n", f"  {ID}:\n    tolerance: {{tps: 5 %}}\n    why: a shared machine\n")
    path.write_text(text)
    taken(path, measured("b", 1200))
    assert entry(path)["tolerance"] == {"tps": "5 %"}
    assert entry(path)["why"] == "a shared machine"


def test_prune_removes_what_is_not_named_and_its_fingerprint(path: Path) -> None:
    other = dataclasses.replace(FINGERPRINT, torch="2.14.1")
    gone = dataclasses.replace(measured("a", 1000, fingerprint=other), case_id="demo-8gpu-gone")
    update(path, [measured("a", 1000), gone])
    scaled(path, 0.98, "a")
    prune(path, {ID}, {"p"})
    assert set(read_baselines(path)) == {ID}
    assert set(read_scaling(path)) == {"p"}
    assert "2.14.1" not in path.read_text()
    before = path.stat().st_mtime_ns
    prune(path, {ID}, {"p"})
    assert path.stat().st_mtime_ns == before


def scaled(
    path: Path, value: float, session: str, accept: str = "", fingerprint: Fingerprint = FINGERPRINT, **more: str
) -> ScalingChange:
    sample = ScalingSample(more.get("date", "2026-11-30"), session, value, "u", "l")
    [change] = update_scaling(path, [MeasuredScaling("p", fingerprint, sample, 0.02)], accept=accept)
    return change


def efficiencies(path: Path) -> list[float]:
    return [sample.efficiency for sample in read_scaling(path)["p"].samples]


def test_an_efficiency_is_stored_and_read_back(path: Path) -> None:
    taken(path, measured("a", 1000))
    assert scaled(path, 0.98612345, "a").kind is Kind.NEW
    assert scaled(path, 0.99, "b").kind is Kind.ADDED
    path.write_text(path.read_text() + "    tolerance: 2 %\n    why: by hand\n")
    [stored] = read_scaling(path).values()
    assert efficiencies(path) == [0.986123, 0.99]
    assert stored.efficiency == pytest.approx((0.986123 + 0.99) / 2)
    assert (stored.tolerance, stored.why, stored.fingerprint) == (0.02, "by hand", FINGERPRINT)
    assert stored.where.startswith(f"{path}:")
    taken(path, measured("b", 1001))  # recording a case keeps the efficiencies, and the other way round
    assert scaled(path, 1.05, "c").kind is Kind.IMPROVED
    assert efficiencies(path) == [1.05]
    [stored] = read_scaling(path).values()
    assert (stored.tolerance, stored.why) == (0.02, "by hand")
    assert tps(path) == [1000, 1001]
    assert scaled(path, 1.05, "c").kind is Kind.KNOWN
    assert scaled(path, 1.2, "d", date="2026-11-29").kind is Kind.KNOWN


def test_a_worse_efficiency_needs_a_reason_which_is_kept(path: Path) -> None:
    scaled(path, 0.986, "a")
    assert scaled(path, 0.94, "b").kind is Kind.REFUSED
    assert efficiencies(path) == [0.986]
    assert scaled(path, 0.94, "b", "the new switch").kind is Kind.ACCEPTED
    data: Any = read(path, BaselineError).data
    assert data["scaling"]["p"]["accepted"] == [
        {"date": "2026-11-30", "session": "b", "efficiency": 0.986, "why": "the new switch"}
    ]
    assert efficiencies(path) == [0.94]


@pytest.mark.parametrize("nightly", [False, True])
def test_an_efficiency_cannot_creep_either(path: Path, nightly: bool) -> None:  # noqa: FBT001 - a column of the table
    scaled(path, 1.0, "a")
    kinds, value = [], 1.0
    for night in range(1, 31):
        value *= 0.998
        torch = f"2.14.0.dev{night}" if nightly else FINGERPRINT.torch
        fingerprint = dataclasses.replace(FINGERPRINT, torch=torch)
        kinds.append(scaled(path, value, f"n{night}", fingerprint=fingerprint, date=f"2026-12-{night:02}").kind)
        if kinds[-1] is Kind.REFUSED:
            break
    assert kinds[:-1] == [Kind.REPLACED if nightly else Kind.ADDED] * (len(kinds) - 1)
    assert kinds[-1] is Kind.REFUSED
    assert read_scaling(path)["p"].efficiency >= 1 - 0.02 * CREEP


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf")])
def test_an_efficiency_must_be_a_number_above_0(path: Path, wrong: float) -> None:
    with pytest.raises(BaselineError, match="expected an efficiency more than 0"):
        scaled(path, wrong, "a")
    assert not path.exists()


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("efficiency: 0.98", "efficiency: 0", "samples[0].efficiency: expected a number more than 0"),
        (
            "fingerprint: f1\n    samples:\n      - {date: 2026-11-30, efficiency",
            "fingerprint: f9\n    samples:\n      - {date: 2026-11-30, efficiency",
            "scaling.p.fingerprint: expected one of the fingerprints (f1)",
        ),
        ("upper: u", "uper: u", "did you mean upper?"),
    ],
)
def test_a_fault_in_an_efficiency(path: Path, old: str, new: str, fault: str) -> None:
    scaled(path, 0.98, "a")
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    with pytest.raises(BaselineError) as caught:
        read_scaling(path)
    assert fault in str(caught.value)


def test_contents_of_no_file(path: Path) -> None:
    assert Contents.of(path).stored(ID) is None
