"""The pytest plugin's hooks; its options, state and fixture are beside them. Only this room imports pytest."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

from pytest_scaleperf.model import Case, ScalePerfError, Suite, SuiteError, System
from pytest_scaleperf.plugin import options, rehearsing, scaling
from pytest_scaleperf.plugin.case import CALL, Regression, ScalePerf, scaleperf
from pytest_scaleperf.plugin.scaling import ScalePerfScaling, scaleperf_scaling
from pytest_scaleperf.plugin.state import STATE, State
from pytest_scaleperf.report import rehearsed_text, text

__all__ = ["Regression", "ScalePerf", "ScalePerfScaling", "scaleperf", "scaleperf_scaling"]

_XDIST_REFUSED = (
    "scaleperf cases cannot run under pytest-xdist: each worker would know only its own verdicts, so gates would "
    "close wrongly, and workers would share the GPUs that are measured. Leave out -n"
)


_RERUNS_REFUSED = (
    "a case cannot be rerun until it is green: a further launch is a further sample, judged with the earlier ones; "
    "leave out --reruns and flaky marks, and say measure: {max_samples: N} in the suite"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options; nothing is read or run here."""
    options.add(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Refuse what cannot work, and keep the session's state in the stash."""
    if config.getoption("gpus") is not None and config.getoption("numprocesses", None):
        raise pytest.UsageError(_XDIST_REFUSED)
    config.stash[STATE] = State(config)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give every test that asks for ``scaleperf`` the cases of its suites, lowest rung first; pairs of rungs alike."""
    asked = [name for name in ("scaleperf", scaling.FIXTURE) if name in metafunc.fixturenames]
    if not asked:
        return
    if hasattr(metafunc.config, "workerinput"):
        raise pytest.Collector.CollectError(_XDIST_REFUSED)
    if len(asked) > 1:
        raise pytest.Collector.CollectError(f"{metafunc.function.__name__}: expected one of {' and '.join(asked)}")
    state = metafunc.config.stash[STATE]
    folders = metafunc.config.getini("scaleperf_suites") or [Path(metafunc.module.__file__).parent]
    try:
        suites = [suite for folder in folders for suite in state.suites(folder)]
        params = _params(suites, state.system, folders)
        if asked == [scaling.FIXTURE]:
            pairs = scaling.params(suites, state.system)
            metafunc.parametrize(scaling.FIXTURE, pairs, ids=scaling.ids(pairs), indirect=True)
            return
    except ScalePerfError as error:
        raise pytest.Collector.CollectError(str(error)) from None
    state.pause_collector()
    metafunc.parametrize(
        "scaleperf", params, ids=[p.id if isinstance(p, Case) else p.name for p in params], indirect=True
    )


def _params(suites: Sequence[Suite], system: System | None, folders: Sequence[Path]) -> list[Case | Suite]:
    """Cases of this system's suites; a suite of another system stands for itself, as one skip that says so."""
    names = [suite.name for suite in suites]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SuiteError(f"suite names must differ, found twice: {', '.join(twice)}")
    mine = [suite for suite in suites if system is not None and suite.system == system.name]
    if not mine:
        here = "unknown" if system is None else system.name
        others = ", ".join(f"{suite.name} (system {suite.system})" for suite in suites) or "no suite file"
        where = ", ".join(str(folder) for folder in folders)
        raise SuiteError(f"no suite for system {here} in {where}: found {others}; say --system NAME")
    cases = sorted((case for suite in mine for case in suite.cases()), key=lambda case: case.gpus)
    return [*cases, *(suite for suite in suites if suite not in mine)]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order by rung, its scaling last, and refuse an xfail that could hide an error of the machine."""
    ours = [item for item in items if _gpus_of(item) or scaling.gpus_of(item)]
    for item in ours:
        _refuse_marks(item)
    if ours:
        items.sort(key=lambda item: (max(_gpus_of(item), scaling.gpus_of(item)), scaling.gpus_of(item)))


def _refuse_marks(item: pytest.Item) -> None:
    """No mark may hide an error of the machine, keep a case from its launch, or replace a sample by a later one."""
    for mark in item.iter_markers("xfail"):
        raises = mark.kwargs.get("raises")
        if mark.kwargs.get("run") is False or not (isinstance(raises, type) and issubclass(raises, Regression)):
            raise pytest.UsageError(
                f"{item.nodeid}: xfail of a case can expect only its verdict, and the case has to run; write "
                "@pytest.mark.xfail(raises=pytest_scaleperf.plugin.Regression, reason=...)"
            )
    if item.get_closest_marker("flaky") is not None:
        raise pytest.UsageError(f"{item.nodeid}: {_RERUNS_REFUSED}")


def _case_of(item: pytest.Item) -> Case | None:
    """An item's case, where it has one."""
    callspec = getattr(item, "callspec", None)
    param = None if callspec is None else callspec.params.get("scaleperf")
    return param if isinstance(param, Case) else None


def _gpus_of(item: pytest.Item) -> int:
    """GPU count of an item's case; 0 where it has none."""
    case = _case_of(item)
    return 0 if case is None else case.gpus


def _is_foreign(item: pytest.Item) -> bool:
    """Whether an item stands for a suite of another system."""
    callspec = getattr(item, "callspec", None)
    return callspec is not None and isinstance(callspec.params.get("scaleperf"), Suite)


@pytest.hookimpl(tryfirst=True)  # before the terminal asks for the lines below
def pytest_collection_finish(session: pytest.Session) -> None:
    """Count what was selected."""
    state = session.config.stash[STATE]
    state.resume_collector()
    try:
        state.count_gpus()
    except ScalePerfError as error:
        raise pytest.UsageError(str(error)) from None
    state.selected = [case for item in session.items if (case := _case_of(item)) is not None]
    state.pairs = sum(1 for item in session.items if scaling.gpus_of(item))
    state.foreign = sum(1 for item in session.items if _is_foreign(item))


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """Say what will be measured, and on what."""
    state = config.stash[STATE]
    if not state.cases or state.system is None:
        return []
    if state.settings.rehearse:
        return rehearsed_text.header(state.system, state.selected)
    lines = text.header(state.system, state.settings.gpus, state.cases)
    if config.option.collectonly:
        from pytest_scaleperf.plan.brief import brief  # noqa: PLC0415 - only here

        lines += [f"scaleperf: {line}" for line in brief(state.selected, state.settings.gpus)]
    if config.getoption("trace", False):
        lines.append("scaleperf: --trace is pytest's own debugger; to trace the cases' steps, say --with-trace")
    return lines


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Before the first case: the number of GPUs must have been said."""
    state = session.config.stash[STATE]
    if not state.cases or session.config.option.collectonly:
        return
    if state.settings.rehearse:
        rehearsing.refuse_options(session.config)
    elif state.settings.gpus is None:
        raise pytest.UsageError(
            "say how many GPUs this session has: --gpus N (larger rungs are skipped). In a Slurm allocation its size "
            "is taken; this is none"
        )
    if session.config.option.setuponly:
        raise pytest.UsageError("--setup-only would launch cases and judge none; to see them, say --collect-only")
    if session.config.getoption("reruns", None):
        raise pytest.UsageError(_RERUNS_REFUSED)
    state.arm()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep how the test's own body ended, and let no xfail of any origin hide more than a verdict."""
    report = yield
    ours = _gpus_of(item) or scaling.gpus_of(item)
    if ours and hasattr(report, "wasxfail") and report.skipped and not _is_verdict(call):
        report.outcome = "failed"
        report.longrepr = (
            f"xfail can expect only a verdict, found: {'' if call.excinfo is None else call.excinfo.value}"
        )
        del report.wasxfail
    if report.when == "call":
        item.stash[CALL] = report
    return report


def _is_verdict(call: pytest.CallInfo[None]) -> bool:
    return call.excinfo is not None and isinstance(call.excinfo.value, Regression)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """End what still runs; a session of cases that measured nothing at all is not green."""
    state = session.config.stash[STATE]
    ended = rehearsing.close(session.config)
    state.close()
    measured = state.measured if state.cases else scaling.compared(session.config)
    measured = rehearsing.known(session.config) if state.settings.rehearse else measured
    hollow = (state.cases or state.pairs or state.foreign) and not measured and not session.config.option.collectonly
    if exitstatus == pytest.ExitCode.OK and (state.problem is not None or not ended):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    elif exitstatus == pytest.ExitCode.OK and hollow:
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


def pytest_unconfigure(config: pytest.Config) -> None:
    """The last way out."""
    rehearsing.close(config)
    state = config.stash.get(STATE, None)
    if state is not None:
        state.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The table of verdicts, and where everything is."""
    state = config.stash[STATE]
    efficiencies = scaling.summary(config) + rehearsing.summary(config)
    if not state.rows and not efficiencies:
        return
    terminalreporter.section("scaleperf")
    table = text.table(state.rows, verbose=config.get_verbosity() > 0) if state.rows else []
    for line in (*table, *state.preflight, *state.lost, *state.searched, *efficiencies, *state.traces):
        terminalreporter.write_line(line)
    if state.folder is not None and not state.settings.rehearse:
        terminalreporter.write_line(f"records, logs and scripts: {state.folder}")
    if state.replayed:
        terminalreporter.write_line(
            f"{state.replayed} of {state.cases} cases were not launched: their runs are those of the resumed session"
        )
    if state.problem is not None:
        terminalreporter.write_line(f"at the end of the session: {state.problem}")
    if state.cases and not state.measured and not state.settings.rehearse:
        terminalreporter.write_line("NOTHING WAS MEASURED: every case was skipped or stopped before its launch")
