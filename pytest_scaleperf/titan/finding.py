"""The value that every reader of failures hands on: one line that says something went wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_scaleperf.model import Outcome

if TYPE_CHECKING:
    from pytest_scaleperf.titan.lines import Speaker
    from pytest_scaleperf.titan.rules import Weight

_LONGEST_REASON = 600
_SIGKILL = 9
_ASKS_TO_END = frozenset({1, 2, 15})
_SHELL_SIGNALS = range(129, 129 + 64)
_SHELL_BASE = 128


@dataclass(frozen=True, slots=True)
class Finding:
    """One line that says something went wrong. ``rank`` is global where that is known; ``host`` as it stands there."""

    outcome: Outcome
    weight: Weight
    reason: str
    speaker: Speaker
    position: int
    rank: int | None = None
    host: str | None = None
    step: int | None = None
    signal: int | None = None
    exit_code: int | None = None
    requested_gib: float | None = None
    exception: str | None = None
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def place(self) -> tuple[int, int]:
        """(file, position)."""
        return self.speaker.file, self.position


def shorten(message: str) -> str:
    """One line, stripped of its ends, at most 600 characters."""
    text = message.replace("\x00", "").strip().strip("│ ")
    return text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 1] + "…"


def signal_of(exit_code: int | None) -> int | None:
    """The signal behind an exit code (negative, or 128 + n as shells say it), or None."""
    if exit_code is None:
        return None
    if exit_code < 0:
        return -exit_code
    return exit_code - _SHELL_BASE if exit_code in _SHELL_SIGNALS else None


def outcome_of_signal(signal: int) -> Outcome:
    """SIGKILL has an unknown sender; SIGTERM, SIGINT and SIGHUP ask to end; the others are crashes."""
    if signal == _SIGKILL:
        return Outcome.KILLED
    return Outcome.INTERRUPTED if signal in _ASKS_TO_END else Outcome.ERROR
