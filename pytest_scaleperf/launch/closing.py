"""Leaving a launcher's block closes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closing(ABC):
    """Something that is used in a ``with`` block, and closed on every way out of it."""

    def __enter__(self) -> Self:
        """Return itself; leaving the block closes it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """As ``close``."""
        self.close()

    @abstractmethod
    def close(self) -> None:
        """End everything; twice is harmless."""
