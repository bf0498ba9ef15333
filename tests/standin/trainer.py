"""Stand-in trainer: a real process that behaves as torchtitan does towards its launcher, without training.

It writes torchtitan's console lines and real TensorBoard event files, and can be told, per case and per
attempt, to be slow, to run out of memory, to hang, crash, print NaN, leave out a metric or end early. What it
prints is SIMULATED and says so. Where the profiler is asked for, the files in the folder ``traces`` are copied to where
torchtitan would write its traces. Told by the JSON file named in SCALEPERF_STANDIN:
``{"<pattern of case ids>": {"tps": 1000, "memory": 40.0, "fault": "oom"}}``; lists are read by attempt number.
"""

from __future__ import annotations

import fnmatch
import json
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

FLOPS_PER_TOKEN = 2.0e10
OOM_LINE = (
    "[rank0]:[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total "
    "capacity of 79.10 GiB of which 1.68 GiB is free."
)


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli), bit by bit: the records are a few dozen bytes."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> bytes:
    """The record format's masked checksum."""
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def varint(value: int) -> bytes:
    """Protocol buffers' variable-length integer."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, wire: int, payload: bytes) -> bytes:
    """One protocol buffers field; wire type 2 is length-delimited."""
    body = varint(len(payload)) + payload if wire == 2 else payload
    return varint(number << 3 | wire) + body


def record(event: bytes) -> bytes:
    """One record of an event file: length, its checksum, the event, its checksum."""
    length = struct.pack("<Q", len(event))
    return length + masked(length) + event + masked(event)


class EventFile:
    """A TensorBoard event file of scalars."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"events.out.tfevents.{int(time.time())}.standin.{os.getpid()}.0").open("wb")
        self._file.write(record(field(1, 1, struct.pack("<d", time.time())) + field(3, 2, b"brain.Event:2")))

    def scalar(self, step: int, tag: str, value: float) -> None:
        """Append one scalar."""
        summary = field(1, 2, field(1, 2, tag.encode()) + field(2, 5, struct.pack("<f", value)))
        event = field(1, 1, struct.pack("<d", time.time())) + field(2, 0, varint(step)) + field(5, 2, summary)
        self._file.write(record(event))
        self._file.flush()


def option(argv: list[str], name: str) -> str:
    """Value of ``--name value`` or ``--name=value``."""
    for i, word in enumerate(argv):
        if word == name:
            return argv[i + 1]
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    raise SystemExit(f"stand-in trainer: {name} is not among {argv}")


def behaviour(case_id: str, attempt: int) -> dict[str, Any]:
    """What this case does in this attempt; the last pattern that matches wins."""
    told: dict[str, Any] = {"tps": 1000.0, "memory": 40.0, "delay": 0.0}
    for pattern, values in json.loads(Path(os.environ["SCALEPERF_STANDIN"]).read_text()).items():
        if fnmatch.fnmatch(case_id, pattern):
            told |= values
    return {k: v[min(attempt, len(v)) - 1] if isinstance(v, list) else v for k, v in told.items()}


def say(text: str) -> None:
    """One line as torchtitan's logger writes it."""
    print(f"[rank0]:[titan] 2026-01-01 00:00:00,000 - root - INFO - {text}", flush=True)


def fail(told: dict[str, Any]) -> None:
    """End as the fault says, at the step it is told for."""
    match told["fault"]:
        case "oom":
            print(OOM_LINE, flush=True)
            sys.exit(1)
        case "noise":  # bytes of a file, as the last words of a run that fails
            sys.stdout.buffer.write(b"[rank0]:[rank0]: RuntimeError: " + Path(told["bytes"]).read_bytes() + b"\n")
            sys.stdout.buffer.flush()
            sys.exit(1)
        case "crash":
            print("[rank0]:[rank0]: RuntimeError: shape '[2, 8]' is invalid for input of size 8", flush=True)
            sys.exit(1)
        case "node_failure":
            cut = "*** STEP 7.0 ON node7 CANCELLED AT 2026-01-01T00:00:00 DUE TO NODE FAILURE, SEE SLURMCTLD LOG ***"
            print(f"slurmstepd: error: {cut}", flush=True)
            sys.exit(1)
        case "early":
            sys.exit(0)
        case "hang":
            time.sleep(3600)
        case "child":
            subprocess.Popen(  # a helper process that outlives its parent and ignores SIGTERM
                [sys.executable, "-c", "import signal,time; signal.signal(15, signal.SIG_IGN); time.sleep(3600)"],
                start_new_session=True,
            )
            time.sleep(3600)
        case "sigkill":
            os.kill(os.getpid(), signal.SIGKILL)


def write_traces(argv: list[str], run_dir: Path, told: dict[str, Any]) -> None:
    """Put the traces that were told where torchtitan writes them at the step of ``profile_freq``."""
    if "--profiler.enable_profiling" not in argv or "traces" not in told:
        return
    import shutil  # noqa: PLC0415 - 10 ms of a start that takes 40

    freq = int(option(argv, "--profiler.profile_freq"))
    steps, active, warmup = (
        int(option(argv, name))
        for name in ("--training.steps", "--profiler.profiler_active", "--profiler.profiler_warmup")
    )
    if freq > steps or freq < active + warmup:
        raise SystemExit(f"stand-in trainer: {freq=} {steps=} {active=} {warmup=}: nothing would be recorded")
    shutil.copytree(told["traces"], run_dir / "profiling" / "traces" / f"iteration_{freq}")


def main() -> None:
    """Print the steps that the flags ask for."""
    argv, run_dir = sys.argv[1:], Path(os.environ["SCALEPERF_RUN_DIR"])
    steps, log_freq = int(option(argv, "--training.steps")), int(option(argv, "--metrics.log_freq"))
    told = behaviour(run_dir.parent.name, int(run_dir.name))
    if os.environ.get("SLURM_NODEID", "0") != "0":  # of several nodes the first speaks, the others are busy as long
        time.sleep(told["delay"] * (1 + steps // log_freq))
        return
    say("SIMULATED by the stand-in trainer: no training takes place")
    if "total_steps" in told:
        say(f"Trainer is initialized with local batch size 2, global batch size 4, total steps {told['total_steps']}")
    say("Training starts at step 1")
    events = EventFile(run_dir / "titan" / "tb" / "20260101-0000" / "rank_0")
    for step in range(1, steps + 1):
        if told.get("fault") and step == told.get("at", 5):
            fail(told)
        if step != 1 and step % log_freq:
            continue
        time.sleep(told["delay"])
        tps = (
            told["tps"] / 50 if step == 1 else told["tps"] * (1 + told.get("wobble", 0.0) * (-1) ** (step // log_freq))
        )
        if step <= told.get("slow_until", 0):
            tps *= 0.7
        tflops, loss = tps * FLOPS_PER_TOKEN / 1e12, float("nan") if told.get("nan") else 8.0 - 0.01 * step
        retries = float(told.get("retries", 0) * (step - 1))
        scalars = {"memory/max_reserved(GiB)": told["memory"], "tflops": tflops, "memory/num_alloc_retries": retries}
        if not told.get("no_tps"):
            scalars["throughput(tps)"] = tps
        if not told.get("no_events"):
            for tag, value in scalars.items():
                events.scalar(step, tag, value)
        shown = "" if told.get("no_tps") else f"  tps: {tps:,.0f}  tflops: {tflops:,.2f}  mfu: N/A"
        say(f"step: {step:2}  loss: {loss:8.5f}  grad_norm:  1.0000  memory: {told['memory']:5.2f}GiB(50.00%){shown}")
    write_traces(argv, run_dir, told)
    say("Training completed")


if __name__ == "__main__":
    main()
