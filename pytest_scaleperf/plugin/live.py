"""A running case on the screen: one line that is written over on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import time

import pytest

from pytest_scaleperf.model import Progress
from pytest_scaleperf.report import text

PLAIN_LINE_SECONDS = 30.0
"""How often a running case says where it is when the output is no terminal."""


class LiveLine:
    """Callable that shows where a case is; ``position`` is "i/n"."""

    def __init__(self, config: pytest.Config, position: str) -> None:
        self._config = config
        self._position = position
        reporter = config.pluginmanager.getplugin("terminalreporter")
        self._live = reporter is not None and reporter.isatty
        self._every = 0.0 if self._live else PLAIN_LINE_SECONDS
        self._due = time.monotonic() + self._every

    def __call__(self, now: Progress) -> None:
        """Show it, where it is time to."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + self._every
        capture = self._config.pluginmanager.getplugin("capturemanager")
        with contextlib.nullcontext() if capture is None else capture.global_and_fixture_disabled():
            self._write(text.progress_line(self._position, now))

    def _write(self, line: str) -> None:
        writer = self._config.get_terminal_writer()
        if self._live:
            width = writer.fullwidth - 1
            writer.write(f"\r{line[:width].ljust(width)}", flush=True)
        else:
            writer.line()
            writer.line(line)
            writer.flush()
