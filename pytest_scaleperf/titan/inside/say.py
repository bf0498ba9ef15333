"""What the entry says on the job's log, and how it refuses: lines that begin with ``[scaleperf]``."""

from __future__ import annotations

import sys
from typing import NoReturn


def say(text: str) -> None:
    """Print one line at once; under torchrun the rank's prefix is put before it."""
    sys.stdout.write(f"[scaleperf] {text}\n")
    sys.stdout.flush()


def refuse(text: str) -> NoReturn:
    """End this rank with exit code 2 and one line: a user's mistake shows no traceback."""
    sys.stderr.write(f"[scaleperf] {text}\n")
    sys.stderr.flush()
    raise SystemExit(2)
