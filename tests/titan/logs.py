"""Lines of healthy runs, for tests that make their own logs."""

from __future__ import annotations

from pytest_scaleperf.titan.console import Console, parse
from pytest_scaleperf.titan.lines import LogText, clean


def header(clock: str, rank: str = "[rank0]:") -> str:
    """``clock`` is minutes and seconds, such as ``13:04``."""
    return f"{rank}[titan] 2026-08-20 09:{clock},000 - root - INFO - "


def message(step: int, **fields: str) -> str:
    """A step line's message in the layout of 0.3.0; any field may be replaced by name."""
    values = {
        "loss": "9.00000",
        "grad_norm": "1.0000",
        "memory": "70.00GiB(88.50%)",
        "tps": "7,000",
        "tflops": "420.00",
        "mfu": "42.47%",
        **fields,
    }
    return f"step: {step:2}  " + "  ".join(f"{name}:  {value}" for name, value in values.items())


def line(step: int, clock: str = "13:04", rank: str = "[rank0]:", **fields: str) -> str:
    """One whole step line without its line feed."""
    return header(clock, rank) + message(step, **fields)


def begin(steps: int = 40, first: int = 1, clock: str = "12:44", rank: str = "[rank0]:") -> str:
    """The last two start-up lines of a run."""
    return (
        f"{header(clock, rank)}Trainer is initialized with local batch size 2, global batch size 16, gradient "
        f"accumulation steps 1, sequence length 8192, total steps {steps} (warmup 2)\n"
        f"{header(clock, rank)}Training starts at step {first}\n"
    )


def read(*texts: str | bytes) -> Console:
    """Parse texts as the files of one run."""
    data = [text.encode() if isinstance(text, str) else text for text in texts]
    return parse([LogText(f"log{number}", clean(text)) for number, text in enumerate(data)])


PARTS = {
    "start": begin() + line(1, "13:04") + "\n" + line(10, "13:14"),
    "step20": line(20, "13:24"),
    "step30": line(30, "13:34"),
    "step40": line(40, "13:44"),
    "end": "\n".join(
        header(clock) + text
        for clock, text in (
            ("13:45", "Sleeping 2 seconds for other ranks to complete"),
            ("13:47", "Training completed"),
            ("13:48", "Process group destroyed"),
        )
    ),
}
