"""Real TensorBoard event files, for tests."""

from __future__ import annotations

from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

TAGS = {
    "tps": "throughput(tps)",
    "tflops": "tflops",
    "mfu": "mfu(%)",
    "gib": "memory/max_reserved(GiB)",
    "pct": "memory/max_reserved(%)",
    "retries": "memory/num_alloc_retries",
    "loss": "loss_metrics/global_avg_loss",
}


def write(folder: Path, steps: dict[int, dict[str, float]], *, started: float = 1000.0) -> Path:
    """One event file: step -> name (a key of TAGS, or a tag) -> value; one second from step to step."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"events.out.tfevents.{int(started)}.host.1.0"
    with path.open("wb") as file:
        records = RecordWriter(file)
        records.write(Event(wall_time=started, file_version="brain.Event:2").SerializeToString())
        for number, (step, values) in enumerate(steps.items()):
            for name, value in values.items():
                summary = Summary(value=[Summary.Value(tag=TAGS.get(name, name), simple_value=value)])
                event = Event(wall_time=started + 1 + number, step=step, summary=summary)
                records.write(event.SerializeToString())
        records.flush()
    return path


def speed(tps: float, gib: float = 10.0, **more: float) -> dict[str, float]:
    return {"tps": tps, "tflops": tps / 100, "gib": gib, "pct": gib, "retries": 0.0, **more}
