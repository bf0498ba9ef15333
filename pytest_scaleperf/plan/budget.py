"""What a token budget costs at a speed: time and GPU-hours, pure."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from pytest_scaleperf.model import ScalePerfError

_SCALES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
_COUNT = re.compile(r"(\d+(?:\.\d+)?(?:e\d+)?)([KMBGT]?)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Budget:
    """Training a number of tokens on ``gpus`` GPUs at ``tps`` tokens/s per GPU, without interruptions."""

    tokens: float
    gpus: int
    tps: float

    @property
    def seconds(self) -> float:
        """Wall time."""
        return self.tokens / (self.gpus * self.tps)

    @property
    def days(self) -> float:
        """Wall time in days."""
        return self.seconds / 86_400

    @property
    def gpu_hours(self) -> float:
        """GPU-hours; they depend on the speed per GPU alone."""
        return self.gpus * self.seconds / 3_600


def count(text: str, what: str) -> float:
    """A count as people write it: ``20T``, ``30.5B``, ``1e12``.

    Raises ScalePerfError that names ``what`` where it is none.
    """
    found = _COUNT.fullmatch(text.strip())
    value = float(found[1]) * _SCALES[found[2].upper()] if found else 0.0
    if not 0 < value < math.inf:
        raise ScalePerfError(f"{what}: expected a number more than 0, such as 20T or 30.5B, found {text!r}")
    return value
