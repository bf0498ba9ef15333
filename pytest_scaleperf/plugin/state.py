"""The state of one pytest session: settings, loaded suites, and the campaign once something runs."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import signal
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import pytest

from pytest_scaleperf.model import Case, LaunchError, ScalePerfError, Suite, System
from pytest_scaleperf.plugin import options
from pytest_scaleperf.report.text import Row

if TYPE_CHECKING:
    from pytest_scaleperf.campaign import Campaign
    from pytest_scaleperf.campaign.searching import Searcher
    from pytest_scaleperf.campaign.tracing import Tracer


class State:
    """One session's state, kept in the stash of its config."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.settings = options.read(config)
        self.system: System | None = None
        self.selected: list[Case] = []
        self.foreign = 0
        self.pairs = 0
        self.rows: list[Row] = []
        self.replayed = 0
        self.folder: Path | None = None
        self.problem: str | None = None
        self._suites: dict[Path, tuple[Suite, ...]] = {}
        self._campaign: Campaign | None = None
        self._closed = False
        self._tracer: Tracer | None = None
        self._searcher: Searcher | None = None
        self.traces: list[str] = []
        self._signals: dict[int, Any] = {}
        self._collector_paused = False

    @property
    def cases(self) -> int:
        """How many cases were selected."""
        return len(self.selected)

    @property
    def measured(self) -> int:
        """Cases that were launched, or taken from the session that is resumed."""
        return self.replayed + (0 if self._campaign is None else self._campaign.launched)

    def campaign(self) -> Campaign:
        """The campaign, begun with the first case; its folder is made then."""
        if self._campaign is None:
            # Rooms below import what only a running session needs; collecting 10,000 cases must not pay for it.
            from pytest_scaleperf.campaign import Campaign  # noqa: PLC0415
            from pytest_scaleperf.plugin import launchers  # noqa: PLC0415
            from pytest_scaleperf.records import SessionFolder  # noqa: PLC0415

            settings, system = self.settings, self.system
            if system is None:
                raise LaunchError("no system was chosen: no suite was collected")
            about = {"arguments": list(self.config.invocation_params.args), "system": system.name}
            if settings.resume is None:
                folder = SessionFolder.create(settings.run_dir, about)
            else:
                folder = SessionFolder.resume(settings.run_dir, settings.resume)
            self.folder = folder.path
            chosen = launchers.choose(settings, system, folder.path)
            self._campaign = Campaign(settings, system, folder, chosen.launcher, tuple(self.selected), chosen.capacity)
            if self._wants_preflight(system):
                self._campaign.check_first(chosen.place)
        return self._campaign

    def _wants_preflight(self, system: System) -> bool:
        stated = system.preflight is not None and system.preflight.always
        return not self.settings.rehearse and (stated if self.settings.preflight is None else self.settings.preflight)

    @property
    def lost(self) -> list[str]:
        """The nodes that failed in this session, a line each."""
        return [] if self._campaign is None else self._campaign.lost

    @property
    def preflight(self) -> list[str]:
        """What the pre-flight found, a line each."""
        return [] if self._campaign is None else self._campaign.checked

    def count_gpus(self) -> None:
        """Where nobody said how many GPUs this session has: those of the allocation that it runs in.

        Raises LaunchError where the allocation cannot be read.
        """
        if self.settings.gpus is None and self.system is not None and not self.settings.rehearse:
            from pytest_scaleperf.launch.slurm import where  # noqa: PLC0415 - only with cases

            job = None if self.settings.launcher == "local" else where.allocation()
            if job is not None:
                self.settings = dataclasses.replace(self.settings, gpus=where.gpus(job, self.system.gpus_per_node))

    def tracer(self, case: Case) -> Tracer | None:
        """What traces the case, or None where it is not to be traced."""
        if not (self.settings.trace or case.suite.trace.always):
            return None
        if self._tracer is None:
            from pytest_scaleperf.campaign.tracing import Tracer  # noqa: PLC0415 - numpy, and only with a trace

            self._tracer = Tracer(self.campaign())
        return self._tracer

    def searcher(self) -> Searcher:
        """What decides which candidates of a searched batch are launched."""
        if self._searcher is None:
            from pytest_scaleperf.campaign.searching import Searcher  # noqa: PLC0415 - only with a search

            self._searcher = Searcher(self.campaign())
        return self._searcher

    @property
    def searched(self) -> list[str]:
        """What the searches found, a sentence a line."""
        return [] if self._searcher is None else self._searcher.summary()

    def suites(self, folder: Path) -> tuple[Suite, ...]:
        """The suites of a folder; with the first of them the system of this session is chosen.

        Raises SuiteError with every fault of every file.
        """
        if folder not in self._suites:
            from pytest_scaleperf.system import choose_system  # noqa: PLC0415 - only with suites

            if self.system is None:
                self.system = choose_system(self.settings.baselines, self.settings.system)
            self._suites[folder] = _load(folder)
        return self._suites[folder]

    def pause_collector(self) -> None:
        """Stop the cyclic garbage collector while pytest makes thousands of items that all live on.

        Measured at 10,000 cases: 0.23 s of 1.5 s went into passes that found nothing.
        """
        if gc.isenabled():
            self._collector_paused = True
            gc.disable()

    def resume_collector(self) -> None:
        """Undo ``pause_collector``."""
        if self._collector_paused:
            gc.enable()
            self._collector_paused = False

    def arm(self) -> None:
        """Let SIGTERM and SIGHUP end the session in order, so that jobs are ended and reports are written."""
        # What was collected lives to the end: at 2,000 cases a seventh of the time went into looking through it.
        gc.freeze()
        for number in (signal.SIGTERM, signal.SIGHUP):
            with contextlib.suppress(ValueError):  # not the main thread: whoever runs us there handles signals
                self._signals[number] = signal.signal(number, _end_session)

    def close(self) -> None:
        """End whatever still runs; may be called again."""
        self.resume_collector()
        gc.unfreeze()
        for number, handler in self._signals.items():
            signal.signal(number, handler)
        self._signals.clear()
        if self._campaign is not None and not self._closed:
            self._closed = True
            try:
                self._campaign.close()
            except ScalePerfError as error:  # a process that even SIGKILL does not end
                self.problem = str(error)


STATE = pytest.StashKey[State]()


def _load(folder: Path) -> tuple[Suite, ...]:
    """Every suite file of a folder, each with a dialect that exists."""
    from pytest_scaleperf.suite import load_suites  # noqa: PLC0415 - pydantic and yaml, only with suites
    from pytest_scaleperf.titan.dialect import load_dialect  # noqa: PLC0415

    suites = load_suites(folder)
    for suite in suites:
        load_dialect(suite.trainer.dialect, relative_to=suite.path.parent)
    return suites


def _end_session(number: int, _frame: FrameType | None) -> None:
    pytest.exit(f"ended by {signal.Signals(number).name}", returncode=128 + number)
