"""Damaged, foreign and impossible traces: an error with file and byte, or a clip that is counted and named."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from pytest_scaleperf.model import TraceError
from pytest_scaleperf.trace.analyse import analyse
from pytest_scaleperf.trace.gather import read_trace
from pytest_scaleperf.trace.rank import analyse_rank
from pytest_scaleperf.trace.rules import Rules
from tests.trace.conftest import TRACES
from tests.trace.script import ENGINE, US, Script

GEMM = "gemm"


@pytest.fixture(scope="module")
def real() -> bytes:
    """A real trace's JSON, 8.4 MB in seventeen pieces."""
    return gzip.decompress((TRACES / "sel4-rank0.json.gz").read_bytes())


def refusal(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    return text


def byte_said(text: str) -> int:
    match = re.search(r"at byte (\d+)", text)
    assert match, text
    return int(match[1])


WRONG = {
    "NaN": (rb'"dur": [\d.]+', b'"dur": NaN', 7),
    "Infinity": (rb'"dur": [\d.]+', b'"dur": Infinity', 7),
    "control character": (rb'"cat": "kernel"', b'"cat": "ker\x01el"', 11),
    "unescaped quote": (rb'"cat": "kernel"', b'"cat": "k"rnel"', 10),
    "missing comma": (rb'"ph": "X", "cat": "kernel"', b'"ph": "X"  "cat": "kernel"', 11),
}


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("part", [0.01, 0.5, 0.9])
@pytest.mark.parametrize("zipped", [False, True])
def test_malformed_json_names_its_exact_byte(kind: str, part: float, zipped: bool, real: bytes, tmp_path: Path) -> None:  # noqa: FBT001 - a parameter
    pattern, bad, inside = WRONG[kind]
    found = re.search(pattern, real[round(len(real) * part) :])
    assert found
    at = round(len(real) * part) + found.start()
    data = real[:at] + bad + real[at + len(found[0]) :]
    text = refusal(tmp_path / ("t.json.gz" if zipped else "t.json"), gzip.compress(data, 1) if zipped else data)
    assert byte_said(text) == at + inside
    assert "malformed JSON" in text
    assert ("of the unzipped JSON" in text) == zipped


@pytest.mark.parametrize("part", [0.00001, 0.01, 0.5, 0.999999])
def test_json_that_ends_early(part: float, real: bytes, tmp_path: Path) -> None:
    size = round(len(real) * part)
    text = refusal(tmp_path / "t.json", real[:size])
    assert f"the JSON ends early, after byte {size}" in text
    assert "the job ended while it wrote" in text


@pytest.mark.parametrize("part", [0.001, 0.5, 0.9999])
def test_gzip_cut_short(part: float, tmp_path: Path) -> None:
    whole = (TRACES / "sel4-rank0.json.gz").read_bytes()
    size = round(len(whole) * part)
    assert f"cut short at byte {size} of the file" in refusal(tmp_path / "t.json.gz", whole[:size])


def test_damaged_gzip(tmp_path: Path) -> None:
    whole = bytearray((TRACES / "sel4-rank0.json.gz").read_bytes())
    whole[300_000:300_050] = bytes(50)
    text = refusal(tmp_path / "t.json.gz", bytes(whole))
    assert "damaged gzip in bytes" in text or "malformed JSON" in text or "not UTF-8" in text


def test_wrong_checksum(tmp_path: Path) -> None:
    whole = bytearray((TRACES / "sel4-rank0.json.gz").read_bytes())
    whole[-6] ^= 1
    assert "damaged gzip" in refusal(tmp_path / "t.json.gz", bytes(whole))


def test_padding_and_members_are_gzip_too(tmp_path: Path) -> None:
    text = one_kernel().text()
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(text[:50]) + gzip.compress(text[50:]) + bytes(700))
    assert len(read_trace(path).gpu.start) == 1


def test_text_that_is_not_utf8(real: bytes, tmp_path: Path) -> None:
    at = real.index(b'"cat": "kernel"', len(real) // 2)
    text = refusal(tmp_path / "t.json", real[: at + 8] + b"\xff" + real[at + 9 :])
    assert byte_said(text) == at + 8
    assert "not UTF-8" in text


def test_bad_text_in_fields_that_nobody_reads_does_no_harm(tmp_path: Path) -> None:
    """HTA's issue 324: Comms Id beyond int64, and bytes that are no UTF-8, in arguments that we skip."""
    text = one_kernel().text().replace(b'"stream": 7', b'"stream": 7, "Comms Id": 99999999999999999999999, "x": "\xff"')
    path = tmp_path / "t.json"
    path.write_bytes(text)
    assert len(read_trace(path).gpu.start) == 1


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("ts", None, "ts (microseconds) of event 'gemm' is missing"),
        ("dur", None, "dur (microseconds) of event 'gemm' is missing"),
        ("ts", "soon", "ts (microseconds) of event 'gemm' is 'soon', which is no possible value"),
        ("ts", 1e300, "ts (microseconds) of event 'gemm' is '1e+300'"),
        ("ts", 10**40, "is '1000000000000000000000000000000000000000', which is no possible value"),
        ("ts", [1], "is '[1]', which is no possible value"),
        ("args", {"correlation": 10**30}, "correlation of event 'gemm' is '1000000000000000000000000000000'"),
        ("args", {"correlation": "none"}, "correlation of event 'gemm' is 'none'"),
        ("args", {"External id": [3]}, "External id of event 'gemm' is '[3]'"),
        ("args", {"Collective name": "x", "In msg nelems": "many"}, "sizes of a collective that are no numbers"),
        ("args", [1], "an event is not what it should be"),
        ("name", 7, "an event is not what it should be"),
    ],
)
def test_an_impossible_value_names_event_and_byte(field: str, value: Any, said: str, tmp_path: Path) -> None:
    script = one_kernel()
    for index in range(3):
        script.kernel(GEMM, (10 + index) * US, (11 + index) * US, 5)
    bad = script.events[-1]
    bad[field] = value
    data = script.text()
    text = refusal(tmp_path / "t.json", data)
    assert said in text
    assert data[byte_said(text) :].startswith(json.dumps(bad).encode()[:20])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "the file is empty"),
        (b" \n ", "the file is empty"),
        (b'{"schemaVersion": 1}', 'no "traceEvents" in 20 bytes of JSON'),
        (b'{"traceEvents": 5}', "this is not a Kineto trace"),
        (b'{"traceEvents": [1, 2]}', "an event is not what it should be"),
        (b'[{"ph": "X"}, 7]', "an event is not what it should be"),
        (b"<html>", "malformed JSON"),
        (b"[] []", "malformed JSON"),
        (b'{"traceEvents": [], "distributedInfo": {"rank": "first"}}', "distributedInfo is not what Kineto writes"),
        (b'{"traceEvents": [], "distributedInfo": {"pg_config": [5]}}', "distributedInfo is not what Kineto writes"),
    ],
)
def test_what_is_no_trace(data: bytes, said: str, tmp_path: Path) -> None:
    assert said in refusal(tmp_path / "t.json", data)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read: No such file"):
        read_trace(tmp_path / "none.json")


def one_kernel() -> Script:
    script = Script()
    script.kernel(GEMM, 0, 10 * US, 5)
    return script


@pytest.mark.parametrize("layout", [{"indent": 2}, {"separators": (",", ":")}, {}], ids=["kineto", "compact", "json"])
@pytest.mark.parametrize("root", ["object", "array"])
def test_every_way_to_lay_out_the_same_trace(layout: dict[str, Any], root: str, tmp_path: Path) -> None:
    """Large enough for several pieces, with arguments that look like the border between two events."""
    script = Script()
    for index in range(4000):
        event = script.kernel(GEMM, index * US, index * US + 700, index)
        event["args"]["odd"] = [{"a": 1}, {"ph": "X", "cat": "kernel"}, {"name": "}, {"}]
    text = script.text(**layout)
    if root == "array":
        text = json.dumps(script.events, **layout).encode()
    assert len(text) > 1 << 20
    path = tmp_path / "t.json"
    path.write_bytes(text)
    trace = read_trace(path)
    assert len(trace.gpu.start) == 4000
    assert int((trace.gpu.end - trace.gpu.start).sum()) == 4000 * 700
    assert trace.events == len(script.events)


def test_what_stands_after_the_events_counts(tmp_path: Path) -> None:
    """A writer that sorts its keys puts traceEvents last but one; a long footer may follow with events' keys in it."""
    script = one_kernel()
    data = {"traceEvents": script.events, "zz": [{"ph": "X", "name": "no event"}] * 40_000, **script.header}
    path = tmp_path / "t.json"
    path.write_bytes(json.dumps(data).encode())
    trace = read_trace(path)
    assert (trace.events, trace.rank, trace.device) == (len(script.events), 0, "NVIDIA H200")


def test_an_event_longer_than_a_piece(tmp_path: Path) -> None:
    script = one_kernel()
    script.operator("aten::long", 0, 5, note="x" * 2_000_000)
    script.kernel(GEMM, 20 * US, 30 * US, 5)
    assert len(read_trace(script.write(tmp_path / "t.json")).gpu.start) == 2


def test_numbers_may_be_text(tmp_path: Path) -> None:
    """PyTorch's Python exporter writes a kernel's arguments as strings."""
    script = one_kernel()
    event = script.events[-1]
    event["args"] = {key: str(value) for key, value in event["args"].items()}
    (step,) = analyse_rank(script.write(tmp_path / "t.json"), Rules()).steps
    assert step.split.compute == 10 * US


def test_negative_durations_are_counted_and_named(tmp_path: Path) -> None:
    script = one_kernel()
    script.kernel("odd", 30 * US, 20 * US, 5)
    script.kernel("odder", 30 * US, 20 * US, 5)
    (clip,) = analyse_rank(script.write(tmp_path / "t.json"), Rules()).clips
    assert (clip.reason, clip.count, clip.first) == ("a negative duration, taken as 0", 2, "odd")


def test_overflowing_durations_are_cut_at_the_next_start(tmp_path: Path) -> None:
    """ROCm writes durations of seconds now and then; one stream runs one kernel at a time."""
    script = Script()
    script.kernel(GEMM, 0, 4_000_000 * US, 5)
    script.kernel(GEMM, 10 * US, 12 * US, 5)
    script.kernel("endless", 50 * US, 2**63, 5, stream=8)
    script.kernel("more than endless", 60 * US, 60 * US, 5, stream=9)["dur"] = 10**40
    script.kernel(GEMM, 60 * US, 90 * US, 5)
    report = analyse_rank(script.write(tmp_path / "t.json"), Rules())
    (clip,) = report.clips
    assert (clip.count, clip.first) == (3, GEMM)
    assert report.steps[0].split.total == 90 * US
    assert report.steps[0].split.compute == (12 + 40) * US


def test_a_dependent_launch_is_no_overflow(tmp_path: Path) -> None:
    """A kernel's prologue may start a few microseconds before the one ahead of it ends."""
    script = one_kernel()
    script.kernel(GEMM, 7 * US, 20 * US, 5)
    assert analyse_rank(script.write(tmp_path / "t.json"), Rules()).clips == ()


def test_coarse_timestamps_are_said(tmp_path: Path) -> None:
    """Without a base time a microsecond since 1970 leaves steps of a quarter of one."""
    script = Script()
    script.kernel(GEMM, 1_700_000_000_000_000 * US, 1_700_000_000_000_010 * US, 1_700_000_000_000_000 * US)
    (note,) = [n for n in analyse_rank(script.write(tmp_path / "t.json"), Rules()).notes if "apart" in n]
    assert "250 ns apart" in note


def test_several_devices_are_said(tmp_path: Path) -> None:
    script = one_kernel()
    script.kernel(GEMM, 0, 10 * US, 5)["pid"] = 3
    notes = analyse_rank(script.write(tmp_path / "t.json"), Rules()).notes
    assert any("several devices in one trace are taken as one GPU (1: 1 events, 3: 1 events)" in note for note in notes)


def test_no_gpu_events_of_a_gpu_job(tmp_path: Path) -> None:
    script = Script()
    script.step(1, 0, 100)
    script.operator("aten::mm", 0, 50)
    script.launch(10)
    with pytest.raises(TraceError, match=r"no GPU events among 3 \(1 launches, NVIDIA H200\): expected kernels"):
        analyse_rank(script.write(tmp_path / "t.json"), Rules())


def test_nothing_at_all(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="neither GPU events nor operators among 0 events"):
        analyse_rank(Script(device=None).write(tmp_path / "t.json"), Rules())


def steps(script: Script, *numbers: int) -> Script:
    for place, number in enumerate(numbers):
        at = place * 1000 * US
        script.step(number, at, at + 990 * US)
        script.evaluate(at + 300 * US, at + 400 * US, ENGINE)
        script.kernel(GEMM, at + 10 * US, at + 500 * US, at + 5)
    return script


@pytest.mark.parametrize("numbers", [(1, 3), (2, 1), (5, 5)])
def test_mixed_steps_in_one_file(numbers: tuple[int, int], tmp_path: Path) -> None:
    path = steps(Script(), *numbers).write(tmp_path / "t.json")
    with pytest.raises(TraceError, match=rf"mixed steps: after step {numbers[0]} .* found step {numbers[1]}"):
        analyse_rank(path, Rules())


def test_overlapping_steps_in_one_file(tmp_path: Path) -> None:
    script = steps(Script(), 1)
    script.step(2, 500 * US, 900 * US)
    with pytest.raises(TraceError, match="mixed steps"):
        analyse_rank(script.write(tmp_path / "t.json"), Rules())


def test_gpu_steps_out_of_order(tmp_path: Path) -> None:
    script = Script()
    script.step(1, 0, 100)
    script.step(2, 100, 200)
    script.kernel(GEMM, 90 * US, 95 * US, 10)
    script.kernel(GEMM, 50 * US, 60 * US, 110)
    with pytest.raises(TraceError, match="the GPU starts them at"):
        analyse_rank(script.write(tmp_path / "t.json"), Rules())


def test_ranks_of_different_steps(tmp_path: Path) -> None:
    first = steps(Script(0, 2), 1, 2).write(tmp_path / "a.json")
    second = steps(Script(1, 2), 2, 3).write(tmp_path / "b.json")
    with pytest.raises(TraceError, match=r"not of one run: .*a.json has steps 1, 2, .*b.json has 2, 3"):
        analyse([first, second])


def test_a_rank_twice(tmp_path: Path) -> None:
    paths = [steps(Script(1, 2), 1, 2).write(tmp_path / name) for name in ("a.json", "b.json")]
    with pytest.raises(TraceError, match=r"rank 1 is there twice: .*a.json and .*b.json"):
        analyse(paths)


def test_a_rank_missing_is_an_error_where_its_count_is_known(tmp_path: Path) -> None:
    path = steps(Script(1, 4), 1, 2).write(tmp_path / "a.json")
    assert "1 of 4 ranks read (missing: 0, 2, 3)" in analyse([path]).notes[0]
    with pytest.raises(TraceError, match=r"expected the traces of 4 ranks, found 1 of 4 ranks read"):
        analyse([path], expected_ranks=4)


def test_ranks_that_nobody_recorded(tmp_path: Path) -> None:
    """The file's name says it, or else the order; a mixture is refused."""
    script = steps(Script(), 1, 2)
    del script.header["distributedInfo"]
    named = [script.write(tmp_path / f"rank{rank}_trace.json") for rank in (3, 1)]
    assert [rank.rank for rank in analyse(named).ranks] == [1, 3]
    other = [script.write(tmp_path / name) for name in ("x.json", "y.json")]
    report = analyse(other)
    assert [rank.rank for rank in report.ranks] == [0, 1]
    assert "numbered in the order given" in report.ranks[0].notes[-1]
    with pytest.raises(TraceError, match="does not say its rank"):
        analyse([named[0], other[0]])


def test_a_fault_in_another_process_arrives_whole(tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_bytes(b"{}" + b" " * (9 << 20))
    with pytest.raises(TraceError, match=r'bad.json: no "traceEvents"'):
        analyse([TRACES / "sel4-rank0.json.gz", bad], processes=2)


def test_steps_that_launched_nothing_at_all(tmp_path: Path) -> None:
    """A profiler that recorded GPU events only of the time before its steps."""
    script = Script()
    script.step(1, 1000 * US, 2000 * US)
    script.kernel(GEMM, 0, 5 * US, 10)
    with pytest.raises(TraceError, match=r"none of the 1 GPU events was launched within a step \(1 to 1\)"):
        analyse_rank(script.write(tmp_path / "t.json"), Rules())


@pytest.mark.parametrize("device", ["NVIDIA H200", None])
def test_a_trace_that_lasts_no_time(device: str | None, tmp_path: Path) -> None:
    script = Script(device=device)
    script.kernel(GEMM, 5, 5, 1) if device else script.operator("aten::mm", 5, 5)
    with pytest.raises(TraceError, match="the whole trace lasts 0 ns"):
        analyse_rank(script.write(tmp_path / "t.json"), Rules())


def test_a_cpu_step_that_lasts_no_time(tmp_path: Path) -> None:
    script = Script(device=None)
    script.step(4, 5, 5)
    script.operator("aten::mm", 0, 10)
    with pytest.raises(TraceError, match="step 4 lasts 0 ns"):
        analyse_rank(script.write(tmp_path / "t.json"), Rules())


def test_operators_none_of_which_computes(tmp_path: Path) -> None:
    script = Script(device=None)
    script.operator("PythonSubclass", 0, 10)
    with pytest.raises(TraceError, match="nothing to analyse"):
        analyse_rank(script.write(tmp_path / "t.json"), Rules())


NESTED = {
    "events": b'{"traceEvents":[%s]}',
    "list": b"[%s]",
    "args": b'{"traceEvents":[{"ph":"X","cat":"kernel","name":"k","ts":1,"dur":1,"args":{"x":%s}}]}',
    "header": b'{"deviceProperties":%s,"traceEvents":[]}',
    "no end": b"%.200000s",
}


@pytest.mark.parametrize("kind", NESTED)
def test_what_is_nested_too_deep_is_an_error(kind: str, tmp_path: Path) -> None:
    deep = b"[" * 100_000 + b"]" * 100_000 if kind != "no end" else b"[" * 200_000
    assert "nested too deep" in refusal(tmp_path / "t.json", NESTED[kind] % deep)


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ({"rank": 0, "world_size": 10**12}, "1000000000000 ranks"),
        ({"rank": 10**30, "world_size": 2}, "rank 1000000000000000000000000000000 of 2"),
        ({"rank": 10**30}, "rank 1000000000000000000000000000000"),
        ({"rank": 2, "world_size": 2}, "rank 2 of 2"),
        ({"rank": -5, "world_size": 2}, "rank -5 of 2"),
        ({"rank": 0, "world_size": 0}, "rank 0 of 0"),
        ({"rank": 0, "world_size": -1}, "rank 0 of -1"),
    ],
)
def test_impossible_ranks_are_an_error_and_take_no_memory(said: dict[str, Any], named: str, tmp_path: Path) -> None:
    event = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "ts": 1.0, "dur": 2.0, "args": {"stream": 7}}
    text = refusal(tmp_path / "t.json", json.dumps({"distributedInfo": said, "traceEvents": [event]}).encode())
    assert named in text


def test_very_many_missing_ranks_are_counted_not_listed(tmp_path: Path) -> None:
    script = Script(0, 2)
    script.kernel(GEMM, 0, 10 * US)
    script.write(tmp_path / "rank0.json")
    with pytest.raises(TraceError, match=r"1 of 1000000000000 ranks read \(missing: 1, 2, 3, 4, 5, 6, …\)"):
        analyse([tmp_path / "rank0.json"], expected_ranks=10**12)
