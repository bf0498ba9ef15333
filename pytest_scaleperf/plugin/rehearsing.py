"""A case inside a test of a rehearsing session: one process for one rank, judged by whether it runs and fits."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NoReturn

import pytest

from pytest_scaleperf.model import Case, LaunchError, Metric, ScalePerfError
from pytest_scaleperf.plugin.live import LiveLine
from pytest_scaleperf.plugin.state import STATE, State
from pytest_scaleperf.report import rehearsed_text

if TYPE_CHECKING:
    from pytest_scaleperf.campaign import CaseRun
    from pytest_scaleperf.campaign.rehearsal import Rehearser
    from pytest_scaleperf.rehearsed import Rehearsal

_REHEARSER = pytest.StashKey["Rehearser"]()
_FOUND = pytest.StashKey[list["Rehearsal"]]()
_PROBLEM = pytest.StashKey[str]()
_WERE_ANY = pytest.StashKey[bool]()
_MEANINGLESS = {
    "record_baselines": "--record-baselines: a rehearsal measures no speed that could be a baseline",
    "with_trace": "--with-trace: a rehearsal has no communication that a trace could show",
    "preflight": "--preflight: a rehearsal uses no links; `scaleperf preflight` probes alone",
    "repeats": "--repeats: a rehearsal has no verdict that another sample could decide",
}


class ScalePerfRehearsal:
    """What a test gets in the place of ``ScalePerf``: a case that was rehearsed, and nothing that was measured."""

    def __init__(self, case: Case, found: Rehearsal, failure: type[BaseException]) -> None:
        self.case = case
        self.rehearsal = found
        self.checked = False
        self._failure = failure

    def check(self) -> None:
        """Fail unless the configuration is valid and fits.

        Raises Regression with what was found and the next command.
        """
        self.checked = True
        if not self.rehearsal.is_well:
            raise self._failure(rehearsed_text.failure_text(self.case, self.rehearsal), False)  # pytrace

    @property
    def run(self) -> NoReturn:
        """There is none: a test that looks at numbers goes no further here, once the case is known to fit."""
        self.check()
        pytest.skip(f"{self.case.id} fits; this test looks at the numbers of a real run, which a rehearsal has not")

    verdict = run


def given(
    request: pytest.FixtureRequest,
    state: State,
    case: Case,
    failure: type[BaseException],
    call: pytest.StashKey[pytest.TestReport],
) -> Iterator[ScalePerfRehearsal]:
    """The case, rehearsed. A skip where it cannot be, an error where the machine failed."""
    problem = ""
    try:
        found = _rehearse(request, state, case)
    except ScalePerfError as error:
        problem = str(error)
    if problem:
        pytest.fail(problem, pytrace=False)  # not inside the except block: pytest would show the whole chain
    if found.fit == "not_rehearsable":
        pytest.skip(f"cannot be rehearsed: {found.reason}")
    answer = ScalePerfRehearsal(case, found, failure)
    yield answer
    report = request.node.stash.get(call, None)
    if report is not None and report.outcome == "passed" and not (answer.checked and found.is_well):
        why = "caught its verdict" if answer.checked else "never called scaleperf.check()"
        pytest.fail(f"{case.id}: the test {why}: {found.fit}: {found.reason}", pytrace=False)


def _rehearse(request: pytest.FixtureRequest, state: State, case: Case) -> Rehearsal:
    config, rows = request.config, request.config.stash.setdefault(_FOUND, [])
    rehearser = config.stash.get(_REHEARSER, None) or _begun(config, state)
    found = rehearser.result(case, LiveLine(config, f"{len(rows) + 1}/{state.cases}"))
    rows.append(found)
    request.node.user_properties.extend(rehearsed_text.properties(found))
    if found.fit == "machine_failed":
        raise LaunchError(rehearsed_text.failure_text(case, found))
    return found


def _begun(config: pytest.Config, state: State) -> Rehearser:
    """Begin with all selected cases, as many side by side as there are devices (``--gpus`` of them at most)."""
    from pytest_scaleperf.campaign.rehearsal import Rehearser  # noqa: PLC0415 - only a running session needs it
    from pytest_scaleperf.launch.devices import slots  # noqa: PLC0415
    from pytest_scaleperf.launch.local import LocalLauncher  # noqa: PLC0415

    campaign = state.campaign()
    devices = slots(campaign.system.device, os.environ)
    used = min(devices, state.settings.gpus or devices)
    rehearser = Rehearser(campaign, LocalLauncher(slots=used), devices=used)
    config.stash[_REHEARSER] = rehearser
    rehearser.take_up(state.selected)
    return rehearser


def beside(config: pytest.Config, state: State, run: CaseRun) -> Iterable[tuple[str, str]]:
    """What a fresh rehearsal of a case that was really launched says beside it, as JUnit properties."""
    from pytest_scaleperf.campaign.rehearsed_before import fresh  # noqa: PLC0415 - only a running session needs it
    from pytest_scaleperf.records import has_rehearsals  # noqa: PLC0415

    settings = state.settings
    if _WERE_ANY not in config.stash:
        config.stash[_WERE_ANY] = has_rehearsals(settings.run_dir)
    found = fresh(settings, run.case.id, run.fingerprint) if config.stash[_WERE_ANY] else None
    tps = next((metric.value for metric in run.verdict.metrics if metric.metric is Metric.TPS), None)
    return () if found is None else rehearsed_text.beside(found, tps)


def refuse_options(config: pytest.Config) -> None:
    """A rehearsing session has no use for options that ask for measurements.

    Raises UsageError.
    """
    for name, why in _MEANINGLESS.items():
        if config.getoption(name, None):
            raise pytest.UsageError(f"--rehearse with {why}")


def known(config: pytest.Config) -> int:
    """Cases of which a rehearsal said something."""
    return sum(1 for found in config.stash.get(_FOUND, []) if found.fit.is_known)


def summary(config: pytest.Config) -> list[str]:
    """The table of rehearsals; empty where there was none."""
    found = config.stash.get(_FOUND, [])
    if not found:
        return []
    lines = rehearsed_text.table(found, verbose=config.get_verbosity() > 0)
    folder, problem = config.stash[STATE].folder, config.stash.get(_PROBLEM, None)
    lines += [f"rehearsals, logs and scripts: {folder}"] if folder is not None else []
    return lines if problem is None else [*lines, f"at the end of the session: {problem}"]


def close(config: pytest.Config) -> bool:
    """End what still runs; False where something cannot be ended."""
    rehearser = config.stash.get(_REHEARSER, None)
    if rehearser is not None:
        del config.stash[_REHEARSER]
        try:
            rehearser.close()
        except ScalePerfError as error:  # a process that even SIGKILL does not end
            config.stash[_PROBLEM] = str(error)
    return _PROBLEM not in config.stash
