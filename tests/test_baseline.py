from __future__ import annotations

import dataclasses
import fcntl
import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_scaleperf.baseline import baseline_value, lock, read_baselines, record_sample
from pytest_scaleperf.baseline.schema import SamplePart
from pytest_scaleperf.model import BaselineError, BaselineSample, Fingerprint, Metric

CASES = Path(__file__).parent / "data" / "yaml"
ID = "demo-2gpu-fsdp2-dp1-none-lbs2"
FINGERPRINT = Fingerprint(
    device="cpu",
    driver=None,
    torch="2.13.0+cpu",
    nccl=None,
    torchtitan="0.3.0",
    torchtitan_commit="1e10234",
    config="12345678901e",
    peak_flops=2.25e15,
)
GOOD = """\
suite: demo
system: cpu
fingerprints:
  f1: {device: cpu, driver: ~, torch: 2.13.0+cpu, nccl: ~, torchtitan: 0.3.0, torchtitan_commit: ~, peak_flops: 1e12}
cases:
  demo-2gpu-fsdp2-dp1-none-lbs2:
    fingerprint: f1
    config: 3f2a00000000
    samples:
      - {date: 2026-11-30, session: 20261130-201500-ab12, tps: 1523.1, mfu: 3.21, peak_memory: 1.234}
      - {date: 2026-12-01, session: other, tps: 1e3}
    tolerance: {mfu: 40 %}
    why: "a machine that is shared"
"""


def sample(date: str = "2026-11-30", **values: float) -> BaselineSample:
    return BaselineSample(date, "session", {Metric(name): value for name, value in values.items()})


def record(
    path: Path, new: BaselineSample, fingerprint: Fingerprint = FINGERPRINT, case_id: str = ID, **more: str
) -> None:
    record_sample(path, "demo", "cpu", case_id, fingerprint, new, **more)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cpu" / "demo.yaml"


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


# Reading


def test_a_baseline_file(path: Path) -> None:
    [baseline] = read_baselines(written(path, GOOD)).values()
    assert baseline.case_id == ID
    assert baseline.fingerprint == Fingerprint("cpu", None, "2.13.0+cpu", None, "0.3.0", None, "3f2a00000000", 1e12)
    assert baseline.samples == (
        BaselineSample(
            "2026-11-30",
            "20261130-201500-ab12",
            {Metric.TPS: 1523.1, Metric.MFU: 3.21, Metric.PEAK_MEMORY: 1.234},
        ),
        BaselineSample("2026-12-01", "other", {Metric.TPS: 1000.0}),
    )
    assert baseline.where == f"{path}:6"
    assert baseline.tolerance == {Metric.MFU: 0.4}
    assert baseline.why == "a machine that is shared"


def test_the_value_is_the_median_of_the_samples_that_have_the_metric(path: Path) -> None:
    for tps in (1000, 1010, 3000):
        record(path, sample(tps=tps))
    record(path, sample(mfu=3.0))
    baseline = read_baselines(path)[ID]
    assert baseline_value(baseline, Metric.TPS) == 1010
    assert baseline_value(baseline, Metric.MFU) == 3.0
    assert baseline_value(baseline, Metric.PEAK_MEMORY) is None


def test_no_file_is_no_baseline(path: Path) -> None:
    assert read_baselines(path) == {}


def test_every_metric_can_be_stored() -> None:
    assert set(SamplePart.model_fields) - {"date", "session", "sample"} == {metric.value for metric in Metric}


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("suite: demo", "suite: other", "1: suite: expected demo, as the file is named, found `other`"),
        ("system: cpu", "system: b200", "2: system: expected cpu, as the folder is named, found `b200`"),
        ("suite: demo\n", "", "1: suite: expected this key: the suite's name"),
        (
            "driver: ~, ",
            "",
            "4: fingerprints.f1.driver: expected this key: a version as text, or null, found no such key",
        ),
        (
            "torch: 2.13.0+cpu",
            "torch: 2.13",
            "torch: expected a version as text, or null, found `2.13`, which is no text; wr",
        ),
        (
            "torch: 2.13.0+cpu",
            "torch: no",
            "4: fingerprints.f1.torch: expected none, true, false, or the word in quotes",
        ),
        ("peak_flops: 1e12", "peak_flops: 0", "4: fingerprints.f1.peak_flops: expected a number of FLOP/s"),
        ("device: cpu", "devise: x, device: cpu", "4: fingerprints.f1.devise: expected one of the keys device, driver"),
        ("fingerprint: f1", "fingerprint: f2", f"7: cases.{ID}.fingerprint: expected one of the fingerprints (f1)"),
        (
            "config: 3f2a00000000",
            "config: 123456789012",
            'found `123456789012`, which is no text; write "123456789012"',
        ),
        ("config: 3f2a00000000", "config: 12345678e012", "found `12345678e012`, which is no text; write"),
        ("tps: 1523.1", "tps: 7,234", "10: cases.{ID}.samples[0].234: expected a key that is text"),
        ("tps: 1523.1", "tps: '7,234'", "10: cases.{ID}.samples[0].tps: expected a finite number more than 0"),
        ("mfu: 3.21", "mfu: 42.47%", "found `42.47%`; write 42.47"),
        ("mfu: 3.21", "mfu: N/A", "found `N/A`, which is text"),
        ("mfu: 3.21", "mfu: ~", "a metric that was not measured is left out, found `~`"),
        ("mfu: 3.21", "mfu: 0", "a metric that was not measured is left out, found `0`"),
        ("tps: 1523.1", "tps: -1", "10: cases.{ID}.samples[0].tps: expected a finite number more than 0"),
        ("peak_memory: 1.234", "peak_memory: .inf", "samples[0].peak_memory: expected a finite number"),
        ("peak_memory: 1.234", "peak_memory: .nan", "samples[0].peak_memory: expected a finite number"),
        ("peak_memory: 1.234", "peak_memory: 1e999", "found `1e999`, which is too large"),
        (
            "tps: 1523.1",
            "wps: 1523.1",
            "10: cases.{ID}.samples[0].wps: expected one of the keys date, mfu, peak_memory,",
        ),
        ("tps: 1523.1", "wps: 1523.1", "found `wps`; did you mean tps?"),
        (
            ", tps: 1e3",
            "",
            "11: cases.{ID}.samples[1]: expected at least one of tps, mfu, peak_memory, step_time, found",
        ),
        (", tps: 1e3", ", tps: .inf", "11: cases.{ID}.samples[1].tps: expected a finite number"),
        ("date: 2026-11-30", "date: 2026-11-31", "10: cases.{ID}.samples[0].date: expected a date such as 2026-11-30"),
        ("date: 2026-11-30, ", "", "10: cases.{ID}.samples[0].date: expected this key"),
        (
            "    samples:\n",
            "    samples: []\n    samplez:\n",
            "9: cases.{ID}.samples: expected a list of samples, at least one",
        ),
        ("mfu: 40 %", "mfu: 140 %", "12: cases.{ID}.tolerance.mfu: expected a percentage such as 3 %"),
        (
            "why: ",
            "why: x\n    why: ",
            "14: cases.{ID}.why: expected each key once, found `why` again; it is in line 13",
        ),
    ],
)
def test_a_fault_in_a_baseline_file(path: Path, old: str, new: str, fault: str) -> None:
    assert GOOD.count(old) == 1
    text = GOOD.replace(old, new)
    with pytest.raises(BaselineError) as caught:
        read_baselines(written(path, text))
    lines = str(caught.value).splitlines()
    assert all(line.startswith(f"{path}:") for line in lines)
    assert fault.replace("{ID}", ID) in str(caught.value)
    with pytest.raises(BaselineError):  # and it is not written over
        record(path, sample(tps=1))
    assert path.read_text() == text


def test_all_faults_come_at_once(path: Path) -> None:
    text = GOOD.replace("system: cpu", "system: x").replace("tps: 1523.1", "tps: -1").replace("tps: 1e3", "tsp: .inf")
    with pytest.raises(BaselineError) as caught:
        read_baselines(written(path, text))
    assert [line.split(":")[1] for line in str(caught.value).splitlines()] == ["10", "11"]
    text = GOOD.replace("system: cpu", "system: x").replace("f1\n", "f9\n").replace(", tps: 1e3", "")
    with pytest.raises(BaselineError) as caught:
        read_baselines(written(path, text))
    assert [line.split(":")[1] for line in str(caught.value).splitlines()] == ["2", "7", "11"]


def test_case_compare_missing_metric(tmp_path: Path) -> None:
    """A saved baseline that lacks what the run has, and has what the run lacks; names as the case has them."""
    case = CASES / "compare-missing-metric"
    saved: dict[str, Any] = json.loads((case / "baseline.json").read_text())
    current: dict[str, Any] = json.loads((case / "current.json").read_text())
    known = {"tps": Metric.TPS, "mfu": Metric.MFU, "memory_gib": Metric.PEAK_MEMORY}
    path = tmp_path / "cpu" / "demo.yaml"
    for case_id, values in saved.items():
        stored = {known[name]: value for name, value in values.items() if name in known and value is not None}
        record(path, BaselineSample("2026-11-30", "s", stored), case_id=case_id)
    baselines = read_baselines(path)
    assert baselines.get("test_perf[8b-cp2]") is None
    assert set(current) - set(baselines) == {"test_perf[8b-cp2]"}
    baseline = baselines["test_perf[8b]"]
    assert {metric: baseline_value(baseline, metric) for metric in Metric} == {
        Metric.TPS: None,
        Metric.MFU: 42.0,
        Metric.PEAK_MEMORY: 60.0,
        Metric.STEP_TIME: None,
    }
    memory = baseline_value(baseline, Metric.PEAK_MEMORY)
    assert memory is not None
    assert round(100 * (current["test_perf[8b]"]["memory_gib"] / memory - 1), 2) == 0.83


# Writing


def test_what_a_written_file_looks_like(path: Path) -> None:
    record(path, sample(tps=1523.123456789, mfu=3.2, peak_memory=1.234))
    record(path, sample("2026-12-01", tps=1500), why="after the: upgrade")
    record(path, sample(tps=7), case_id="demo-2gpu-a")
    record(path, sample("2026-12-02", tps=2000), dataclasses.replace(FINGERPRINT, torch="2.14.1", driver="570.1"))
    assert (
        path.read_text()
        == f"""\
# Baselines of the suite demo on the system cpu: what `pytest --record-baselines` measured.
# Written by the plugin. Of what is added by hand only `tolerance` and `why` of a case are kept, comments are not.
suite: demo
system: cpu
fingerprints:
  f1:
    device: cpu
    driver: null
    nccl: null
    peak_flops: 2250000000000000.0
    torch: 2.13.0+cpu
    torchtitan: 0.3.0
    torchtitan_commit: "1e10234"
  f2:
    device: cpu
    driver: "570.1"
    nccl: null
    peak_flops: 2250000000000000.0
    torch: 2.14.1
    torchtitan: 0.3.0
    torchtitan_commit: "1e10234"
cases:
  demo-2gpu-a:
    config: 12345678901e
    fingerprint: f1
    samples:
      - {{date: 2026-11-30, session: session, tps: 7.0}}
  {ID}:
    best: {{mfu: 3.2, peak_memory: 1.234}}
    config: 12345678901e
    fingerprint: f2
    replaced:
      date: 2026-12-02
      differences:
        driver: [null, "570.1"]
        torch: [2.13.0+cpu, 2.14.1]
      values: {{mfu: 3.2, peak_memory: 1.234, tps: 1511.56}}
    samples:
      - {{date: 2026-12-02, session: session, tps: 2000.0}}
    why: "after the: upgrade"
"""
    )
    assert [p.name for p in path.parent.iterdir()] == ["demo.yaml"]
    assert read_baselines(path)[ID].fingerprint.torch == "2.14.1"


def test_what_people_wrote_is_kept(path: Path) -> None:
    written(path, "# mine\n" + GOOD)
    same = Fingerprint("cpu", None, "2.13.0+cpu", None, "0.3.0", None, "3f2a00000000", 1e12)
    record(path, sample(tps=1100), same)
    baseline = read_baselines(path)[ID]
    assert [s.values[Metric.TPS] for s in baseline.samples] == [1523.1, 1000.0, 1100.0]
    assert (baseline.tolerance, baseline.why) == ({Metric.MFU: 0.4}, "a machine that is shared")
    assert "mfu: 40 %" in path.read_text()
    record(path, sample(tps=900), dataclasses.replace(same, config="000000000000"))
    baseline = read_baselines(path)[ID]
    assert [s.values[Metric.TPS] for s in baseline.samples] == [900.0]
    assert (baseline.tolerance, baseline.why) == ({Metric.MFU: 0.4}, "a machine that is shared")
    assert 'config: [3f2a00000000, "000000000000"]' in path.read_text()


def test_fingerprints_are_shared_dropped_and_never_renamed(path: Path) -> None:
    other = dataclasses.replace(FINGERPRINT, torch="2.14.1")
    record(path, sample(tps=1), case_id="a")
    record(path, sample(tps=1), other, case_id="b")
    record(path, sample(tps=1), dataclasses.replace(FINGERPRINT, config="another"), case_id="c")
    assert [line for line in path.read_text().splitlines() if line.startswith("  f")] == ["  f1:", "  f2:"]
    record(path, sample(tps=1), other, case_id="a")
    record(path, sample(tps=1), other, case_id="c")
    assert [line for line in path.read_text().splitlines() if line.startswith("  f")] == ["  f2:"]
    record(path, sample(tps=1), FINGERPRINT, case_id="d")
    assert {case_id: b.fingerprint.torch for case_id, b in read_baselines(path).items()} == {
        "a": "2.14.1",
        "b": "2.14.1",
        "c": "2.14.1",
        "d": "2.13.0+cpu",
    }


def test_an_equal_fingerprint_of_another_name_replaces_nothing(path: Path) -> None:
    line = next(line for line in GOOD.splitlines() if line.startswith("  f1:"))
    twice = GOOD.replace(line, f"{line}\n{line.replace('f1:', 'f2:')}").replace("fingerprint: f1", "fingerprint: f2")
    stored = read_baselines(written(path, twice))[ID].fingerprint
    record(path, sample(tps=1100), stored)
    assert len(read_baselines(path)[ID].samples) == 3
    assert "replaced" not in path.read_text()


VALUES = st.dictionaries(
    st.sampled_from(Metric), st.floats(min_value=1e-6, max_value=1e18, allow_subnormal=False), min_size=1
)
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1, max_size=20)


@settings(deadline=None)
@given(TEXTS, st.lists(VALUES, min_size=1, max_size=3), TEXTS, TEXTS)
def test_what_is_recorded_is_read_back_to_six_digits(
    tmp_path_factory: pytest.TempPathFactory, case_id: str, values: list[dict[Metric, float]], torch: str, why: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "cpu" / "demo.yaml"
    path.unlink(missing_ok=True)
    fingerprint = dataclasses.replace(FINGERPRINT, torch=torch)
    for measured in values:
        record(path, BaselineSample("2026-11-30", "s", measured), fingerprint, case_id, why=why)
    [baseline] = read_baselines(path).values()
    assert (baseline.case_id, baseline.fingerprint, baseline.why) == (case_id, fingerprint, why)
    for stored, measured in zip(baseline.samples, values, strict=True):
        assert stored.values == {metric: pytest.approx(value, rel=5e-6) for metric, value in measured.items()}
        assert all(float(f"{value:.6g}") == value for value in stored.values.values())


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf")])
def test_a_sample_that_is_no_measurement_is_refused(path: Path, value: float) -> None:
    with pytest.raises(BaselineError, match=rf"{ID}: expected a finite number more than 0; .* found tps {value}"):
        record(path, sample(tps=value, mfu=1))
    assert not path.exists()


def test_a_sample_without_values_is_refused(path: Path) -> None:
    with pytest.raises(BaselineError, match="found no metric at all"):
        record(path, sample())


def test_a_file_of_another_name_is_refused(path: Path) -> None:
    with pytest.raises(BaselineError, match=r"expected <system>/<suite>\.yaml, found it for suite demo of system b200"):
        record_sample(path, "demo", "b200", ID, FINGERPRINT, sample(tps=1))


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "cpu").write_text("a file, no folder")
    with pytest.raises(BaselineError, match="expected a file that can be written, found: File exists"):
        record(tmp_path / "cpu" / "demo.yaml", sample(tps=1))


# Two sessions


def _record_many(path: Path, worker: int, count: int) -> None:
    for number in range(count):
        record(path, BaselineSample("2026-11-30", f"w{worker}-{number}", {Metric.TPS: 1.0 + number}))


def test_sessions_that_record_at_once_lose_nothing(path: Path) -> None:
    fork = multiprocessing.get_context("spawn")
    workers = [fork.Process(target=_record_many, args=(path, worker, 15)) for worker in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    sessions = [s.session for s in read_baselines(path)[ID].samples]
    assert sorted(sessions) == sorted(f"w{worker}-{number}" for worker in range(3) for number in range(15))
    assert [p.name for p in path.parent.iterdir()] == ["demo.yaml"]


def test_a_lock_that_is_held_is_waited_for_and_then_said(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "LOCK_SECONDS", 0.1)
    path.parent.mkdir()
    held = os.open(path.with_name(".demo.yaml.lock"), os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.raises(BaselineError, match=r"demo\.yaml\.lock: expected the lock within .* held by another session"):
        record(path, sample(tps=1))
    os.close(held)
    record(path, sample(tps=1))  # a lock file that a killed session left behind is no lock
    assert [p.name for p in path.parent.iterdir()] == ["demo.yaml"]


def test_a_lock_file_that_is_removed_before_it_is_locked_is_no_lock(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.parent.mkdir()
    file = path.with_name(".demo.yaml.lock")
    try_lock, tries = lock._try_lock, list[int]()

    def after_the_holder_removed_it(handle: int, lock_file: Path) -> bool:
        if not tries:
            lock_file.unlink()
        tries.append(handle)
        return try_lock(handle, lock_file)

    monkeypatch.setattr(lock, "_try_lock", after_the_holder_removed_it)
    with lock.locked(path):
        other = os.open(file, os.O_RDWR | os.O_CREAT)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(other)
    assert len(tries) == 2
    assert not file.exists()
