"""What the user may add to our lists: names of communication and compute kernels, annotations of phases."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from pytest_scaleperf.model import TraceError


class Phase(StrEnum):
    """Part of a step; ``last_backward`` is the one before the optimiser step, ``other`` has no known launch."""

    FORWARD = "forward"
    BACKWARD = "backward"
    LAST_BACKWARD = "last_backward"
    OPTIMIZER = "optimizer"
    OTHER = "other"

    @property
    def words(self) -> str:
        """The phase as a person reads it."""
        return {"last_backward": "last backward", "optimizer": "optimiser"}.get(self.value, self.value)


PHASES = tuple(Phase)


@dataclass(frozen=True)
class Rules:
    r"""Regular expressions, searched in names; the user's come before ours.

    ``forward``, ``backward`` and ``optimizer`` are names of ``record_function`` annotations. Ours are what
    pytest-scaleperf's entry writes; a pipeline schedule of its own adds its names (DualPipe: ``mlp\(B\)``).

    Raises TraceError for an expression that does not compile.
    """

    communication: tuple[str, ...] = ()
    compute: tuple[str, ...] = ()
    forward: tuple[str, ...] = (r"^scaleperf\.forward$",)
    backward: tuple[str, ...] = (r"^scaleperf\.backward$",)
    optimizer: tuple[str, ...] = (r"^scaleperf\.optimizer$",)

    def __post_init__(self) -> None:
        """Refuse what does not compile."""
        for name in ("communication", "compute", "forward", "backward", "optimizer"):
            for pattern in getattr(self, name):
                try:
                    re.compile(pattern)
                except re.error as error:
                    raise TraceError(
                        f"{name}: expected a regular expression, found {pattern!r} ({error}); "
                        "write \\( for a bracket that stands in the name"
                    ) from error

    def is_communication(self, name: str) -> bool:
        """Whether the user calls this kernel communication."""
        return any(re.search(pattern, name) for pattern in self.communication)

    def is_compute(self, name: str) -> bool:
        """Whether the user calls this kernel compute."""
        return any(re.search(pattern, name) for pattern in self.compute)

    def phase(self, annotation: str) -> Phase | None:
        """The phase that an annotation of this name marks, or None; a backward is not yet known to be the last."""
        for pattern, phase in self._phases:
            if pattern.search(annotation):
                return phase
        return None

    @cached_property
    def _phases(self) -> tuple[tuple[re.Pattern[str], Phase], ...]:
        return tuple(
            (re.compile(pattern), phase)
            for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
            for pattern in getattr(self, phase.value)
        )
