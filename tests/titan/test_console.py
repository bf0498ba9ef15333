"""The console reader: damaged, spliced, coloured and echoed lines; attempts; a growing log; speed and bad input."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_scaleperf.titan.console import Console, Tail
from pytest_scaleperf.titan.lines import rank_in_name
from tests.titan.logs import begin, header, line, message, read

WHOLE = header("13:24") + message(30)


def seen(console: Console) -> list[tuple[int, float | None, float | None, int | None]]:
    return [(s.step, s.loss, s.tps, s.speaker.outer) for s in console.samples]


ONE = [(30, 9.0, 7000.0, 0)]

WHOLE_LINES = {
    "as it is": WHOLE + "\n",
    "without a line feed at the end": WHOLE,
    "Windows line ends": WHOLE + "\r\n",
    "a progress bar before": f"[rank0]:  50%|##| 5/10\r{WHOLE[len('[rank0]:') :]}\n",
    "a progress bar behind": f"{WHOLE}\r100%|####| 10/10\n",
    "a progress bar glued on": f"{WHOLE}100%|####| 10/10\n",
    "NULs in front": "\0" * 300 + WHOLE + "\n",
    "a NUL inside a number, nothing lost": WHOLE.replace("9.00000", "9.00\x00000") + "\n",
    "vertical tab, form feed": WHOLE + "\x0b\x0c\n",
    "Unicode line separators": f"\u2028{WHOLE}\u2028\n",
    "colours between labels": WHOLE.replace("loss:", "\x1b[38;2;180;60;0mloss:").replace("tps:", "\x1b[34mtps:"),
    "character set and title escapes": "\x1b]0;run\x07" + WHOLE.replace("loss:", "\x1b(Bloss:") + "\n",
    "colours that lost ESC": header("13:24") + "[31m" + message(30).replace("tps", "[38;2;54;234;195mtps") + "[39m\n",
    "a container runtime's time stamp": f"2026-08-20T09:13:01.123456789Z stdout F {WHOLE}\n",
    "a compose prefix": f"trainer-1  | {WHOLE}\n",
    "a fork's field in the middle": WHOLE.replace("  memory", "  aux_loss:  0.01000  memory") + "\n",
    "a fork's field at the end": WHOLE + "  lr: 3.00e-04\n",
    "own header inside two numbers": WHOLE.replace("9.00000", "9.0[rank0]:0000").replace("7,000", "7,[rank0]:000"),
    "own header inside the time stamp": WHOLE.replace("13:24", "13[rank0]::24") + "\n",
    "own header inside a label": WHOLE.replace("step:", "st[rank0]:ep:") + "\n",
    "own header before the message": WHOLE.replace("step:", "[rank0]:step:") + "\n",
}


@pytest.mark.parametrize("text", WHOLE_LINES.values(), ids=WHOLE_LINES.keys())
def test_a_whole_record_is_read_whatever_stands_around_it(text: str) -> None:
    console = read(text)
    assert seen(console) == ONE
    assert console.malformed == 0


CUT_LINES = {
    "digits of the loss are gone": WHOLE.replace("9.00000", "9.0[rank0]:"),
    "digits are gone behind NULs": WHOLE.replace("9.00000", "9.00\0\0"),
    "another rank inside tps": WHOLE.replace("7,000", "7[rank1]:,000"),
    "bad UTF-8 inside a number": WHOLE.replace("9.00000", "9.0\udcff000"),
    "thousands that are no thousands": WHOLE.replace("7,000", "7,00"),
    "the end is missing": WHOLE[:-1],
    "the log ends inside tps": WHOLE[: WHOLE.index("7,000") + 3],
}


@pytest.mark.parametrize("text", CUT_LINES.values(), ids=CUT_LINES.keys())
def test_a_cut_record_is_dropped_and_counted(text: str) -> None:
    console = read(line(20, "13:14").encode() + b"\n" + text.encode("utf-8", "surrogateescape"))
    assert seen(console) == [(20, 9.0, 7000.0, 0)]
    assert console.malformed == 1


NO_RECORDS = {
    "a description": header("13:00") + "Starting job: soak: " + message(30),
    "a description's second line": header("13:00") + "Starting job: soak\n[rank0]:" + message(30) + "\n",
    "a description that holds a whole line": header("13:00") + "Starting job: " + WHOLE + "\n",
    "settings in JSON that hold a whole line": f'[rank0]:    "description": "{WHOLE}"\n',
    "somebody's own words": "global_step: 30  loss: 9.0  tps: 7,000  mfu: 42.47%\n",
    "a validation line": header("13:24") + "validate step: 30  loss:  6.9000  memory: 12.00GiB(15.00%)  tps: 9,999\n",
}


@pytest.mark.parametrize("text", NO_RECORDS.values(), ids=NO_RECORDS.keys())
def test_what_is_no_training_line_gives_no_sample(text: str) -> None:
    console = read(text)
    assert console.samples == ()
    assert console.malformed == 0


def test_two_ranks_on_one_line_stay_two() -> None:
    console = read(line(20) + line(20, rank="[rank1]:", tps="7,012") + "\n\n")
    assert seen(console) == [(20, 9.0, 7000.0, 0), (20, 9.0, 7012.0, 1)]


def test_another_rank_inside_a_number_ends_the_first_and_begins_its_own() -> None:
    cut = WHOLE.index("00000")
    console = read(WHOLE[:cut] + line(30, rank="[rank1]:", tps="7,012") + "\n[rank0]:" + WHOLE[cut:] + "\n")
    assert seen(console) == [(30, 9.0, 7012.0, 1)]
    assert console.malformed == 1


@given(st.integers(0, len(WHOLE)))
def test_own_header_injected_anywhere_never_makes_another_number(cut: int) -> None:
    console = read(WHOLE[:cut] + "[rank0]:" + WHOLE[cut:] + "\n")
    numbers = [(s.step, s.loss, s.grad_norm, s.memory_gib, s.tps, s.tflops, s.mfu_pct) for s in console.samples]
    assert numbers in ([(30, 9.0, 1.0, 70.0, 7000.0, 420.0, 42.47)], [])


@given(st.integers(0, len(WHOLE) - 1))
def test_a_line_cut_anywhere_gives_no_number(cut: int) -> None:
    assert read(WHOLE[:cut] + "\n").samples == ()


@given(st.binary(max_size=400))
def test_any_bytes_are_read_without_an_exception(data: bytes) -> None:
    read(data, WHOLE.encode() + data, data + b"\n" + WHOLE.encode())


def test_words_for_numbers_that_are_not_finite() -> None:
    sample = read(line(10, loss="     nan", grad_norm="    inf")).samples[0]
    assert str(sample.loss) == "nan"
    assert sample.grad_norm == float("inf")


def test_minus_zero_memory_is_not_known_and_neither_are_its_retries() -> None:
    sample = read(line(10, memory="-0.00GiB(-0.00%)")).samples[0]
    assert (sample.memory_gib, sample.memory_pct, sample.alloc_retries) == (None, None, None)


def test_srun_labels_and_both_rank_prefixes() -> None:
    console = read(f" 3: {line(10, rank='[rank1]:[rank25]:')}\n12: {line(10, rank='[default7]:')}\n")
    assert [(s.speaker.label, s.speaker.outer, s.speaker.inner) for s in console.samples] == [(3, 1, 25), (12, 7, None)]


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("logs/rank_12/log.txt", 12),
        ("train.rank3.log", 3),
        ("out-rank-7.err", 7),
        ("run/attempt_1/5/stdout.log", 5),
        ("frank3/log.txt", None),
        ("stdout.log", None),
    ],
)
def test_the_rank_in_a_file_name(name: str, rank: int | None) -> None:
    assert rank_in_name(name) == rank


def test_settings_of_every_version() -> None:
    settings = read(
        header("12:40")
        + "torchtitan version: 0.2.2 (0.0.0 means __version__ is not defined correctly).\n"
        + header("12:41")
        + "Building device mesh with parallelism: pp=2, dp_replicate=1, dp_shard=16, cp=1, tp=2, ep=4, etp=1\n"
        + header("12:42")
        + "CUDA capacity: NVIDIA H200 with 139.80GiB memory\n"
        + header("12:43")
        + "Peak FLOPS used for computing MFU: 9.890e+14\n"
        + begin(steps=20)
    ).settings
    assert (settings.version, settings.device, settings.device_memory_gib) == ("0.2.2", "NVIDIA H200", 139.8)
    assert settings.peak_flops == 9.89e14
    assert settings.world_size == 64
    batch = (settings.local_batch, settings.global_batch, settings.accumulation, settings.sequence)
    assert (*batch, settings.total_steps) == (2, 16, 1, 8192, 20)


def test_settings_of_2024() -> None:
    settings = read(
        "2024-06-20 09:12:45,000 - root - INFO - Building 2-D device mesh with ['dp', 'tp'], [4, 2]\n"
        "2024-06-20 09:12:46,000 - root - INFO - GPU capacity: NVIDIA H100 (0) with 95.04GiB memory\n"
        "2024-06-20 09:12:47,000 - root - INFO - Training starts at step 1, with local batch size 8, global batch size "
        "32, sequence length 2048, total steps 10 (warmup 2)\n"
    ).settings
    assert (settings.world_size, settings.device) == (8, "NVIDIA H100")
    assert (settings.global_batch, settings.total_steps) == (32, 10)


def test_retries_are_cumulative_and_begin_again_with_the_process() -> None:
    console = read(
        begin()
        + line(1, "13:04")
        + "\n[rank0]:[titan] 2026-08-20 09:13:10,000 - root - WARNING - 8 CUDA memory allocation retries.\n"
        + line(10, "13:10")
        + "\n"
        + begin(first=11, clock="14:00")
        + line(20, "14:20")
        + "\n[rank0]:[titan] 2026-08-20 09:14:30,000 - root - WARNING - 3 CUDA memory allocation retries.\n"
        + line(30, "14:30")
    )
    assert [sample.alloc_retries for sample in console.samples] == [0, 8, 0, 3]
    assert console.retries == (8, 3)


def test_a_requeued_run_has_two_attempts_and_only_the_last_counts() -> None:
    console = read(begin() + line(1) + "\n" + begin(first=2, clock="15:00") + line(10, "15:10"))
    assert [attempt.first_step for attempt in console.attempts] == [1, 2]
    assert [sample.step for sample in console.last(console.samples)] == [10]


def test_ranks_one_after_the_other_in_a_file_are_one_attempt() -> None:
    rank = begin(rank="") + line(1, "13:04", rank="") + "\n" + line(10, "13:14", rank="") + "\n"
    console = read(rank + rank)
    assert len(console.attempts) == 1
    assert len(console.last(console.samples)) == 4


def test_an_attempt_that_failed_before_its_first_step_counts() -> None:
    failed = "[rank0]:[rank0]: Traceback (most recent call last):\n[rank0]:[rank0]: RuntimeError: no\n"
    console = read(begin() + failed + begin(clock="15:00") + line(1, "15:10"))
    assert len(console.attempts) == 2


def test_a_second_file_that_repeats_the_first_adds_nothing() -> None:
    text = begin() + line(1) + "\n"
    assert len(read(text, text).samples) == 1
    assert len(read(text, begin(rank="[rank1]:") + line(1, rank="[rank1]:")).samples) == 2


def test_a_tail_reports_the_newest_step_in_any_pieces() -> None:
    whole = (begin() + line(1) + "\n" + line(10, "13:14", tps="6,500") + "\n").encode()
    for size in (1, 7, 64, len(whole)):
        tail = Tail()
        for at in range(0, len(whole), size):
            tail.feed(whole[at : at + size])
        assert (tail.started, tail.requested_steps, tail.last_step, tail.last_tps) == (True, 40, 10, 6500.0)


def test_a_tail_waits_for_the_end_of_a_line() -> None:
    tail = Tail()
    tail.feed(line(1).encode())
    assert tail.last_step is None
    tail.feed(b"\n")
    assert tail.last_step == 1


def test_a_tail_goes_back_when_a_run_begins_again() -> None:
    tail = Tail()
    tail.feed((begin() + line(1) + "\n" + line(30, "13:34") + "\n").encode())
    assert tail.last_step == 30
    tail.feed(begin(first=21, clock="15:00").encode())
    assert (tail.last_step, tail.last_tps) == (20, None)
    tail.feed((line(1, "13:05", rank="[rank1]:") + "\n" + line(30, "15:30", tps="5,000") + "\n").encode())
    assert (tail.last_step, tail.last_tps) == (30, 5000.0)


@pytest.mark.parametrize(
    "text",
    [
        "[rank0]:" * 20_000 + "step:",
        header("13:24") * 2_000 + "step:",
        "step: " * 20_000,
        header("13:24") + "step: 1  loss: " + "1" * 100_000,
        "loss " * 50_000 + "not finite",
    ],
    ids=["prefixes", "headers", "labels", "digits", "words"],
)
def test_no_line_takes_for_ever(text: str) -> None:
    begun = time.process_time()
    read(text + "\n")
    assert time.process_time() - begun < 5


def test_a_short_log_is_read_in_far_less_than_a_case_may_cost() -> None:
    text = begin() + "".join(line(step, f"13:{step:02}") + "\n" for step in (1, 10, 20, 30, 40)) + "x\n" * 3
    read(text)
    begun = time.process_time()
    for _ in range(200):
        read(text)
    per_log = (time.process_time() - begun) / 200
    assert per_log < 0.001, f"{1e6 * per_log:.0f} us for a log of 10 lines"
