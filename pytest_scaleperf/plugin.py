"""Options, hooks, fixtures and terminal lines: the only room that imports pytest."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import signal
import time
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from pytest_scaleperf.model import (
    Case,
    Decision,
    Gate,
    GateState,
    LaunchError,
    Progress,
    ScalePerfError,
    Settings,
    Suite,
    System,
    Verdict,
)
from pytest_scaleperf.report import text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pytest_scaleperf.campaign import Campaign, CaseRun

DEFAULT_EVIDENCE_HOURS = 24.0
_LAUNCHERS = ("auto", "local")
_PLAIN_LINE_SECONDS = 30.0
"""How often a running case says where it is when the output is no terminal."""


class Regression(pytest.fail.Exception):
    """A case's verdict is not a pass. ``xfail`` of a case must name this class: it can expect only a verdict."""


class ScalePerf:
    """What a test gets: one case that was launched, observed and judged."""

    def __init__(self, run: CaseRun) -> None:
        self.run = run
        self.verdict: Verdict = run.verdict
        self.checked = False

    @property
    def case(self) -> Case:
        """The configuration that ran."""
        return self.run.case

    def check(self) -> None:
        """Fail unless every judged metric holds against the baseline.

        Raises Regression with value, baseline, change and the next command.
        """
        self.checked = True
        if self.verdict.decision is Decision.RECORDED:
            pytest.skip(self.verdict.reason)
        if not self.verdict.decision.is_pass:
            raise Regression(self.failure_text(), pytrace=False)

    def failure_text(self) -> str:
        """Expected, found, where, and the next command."""
        run = self.run
        where = "none" if run.baseline is None else run.baseline.where
        return text.failure_text(run.case, self.verdict, where, run.folder)


class _Session:
    """The state of one pytest session: settings, the loaded suites, and the campaign once something runs."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.settings = _settings(config)
        self.system: System | None = None
        self.suites: dict[Path, tuple[Suite, ...]] = {}
        self.cases = 0
        self.rows: list[text.Row] = []
        self.replayed = 0
        self.launched = 0
        self.folder: Path | None = None
        self._campaign: Campaign | None = None
        self._signals: dict[int, Any] = {}

    @property
    def measured(self) -> int:
        """Cases that were launched, or taken from the session that is resumed."""
        return self.replayed + (self.launched if self._campaign is None else self._campaign.launched)

    def campaign(self) -> Campaign:
        if self._campaign is None:
            # Rooms below import what only a running session needs; collecting 10,000 cases must not pay for it.
            from pytest_scaleperf import campaign as room  # noqa: PLC0415
            from pytest_scaleperf.launch.local import LocalLauncher  # noqa: PLC0415
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
            self._campaign = room.Campaign(settings, system, folder, LocalLauncher())
        return self._campaign

    def load(self, folder: Path) -> tuple[Suite, ...]:
        """The suites of a folder, and with the first of them the system of this session."""
        if folder not in self.suites:
            from pytest_scaleperf.suite import load_suites  # noqa: PLC0415 - pydantic and yaml, only with suites
            from pytest_scaleperf.system import choose_system  # noqa: PLC0415

            if self.system is None:
                self.system = choose_system(self.settings.baselines, self.settings.system)
            self.suites[folder] = load_suites(folder)
        return self.suites[folder]

    def arm(self) -> None:
        """Let SIGTERM and SIGHUP end the session in order, so that cases are ended and reports are written."""
        for number in (signal.SIGTERM, signal.SIGHUP):
            with contextlib.suppress(ValueError):  # not the main thread: whoever runs us there handles signals
                self._signals[number] = signal.signal(number, _end_session)

    def close(self) -> None:
        for number, handler in self._signals.items():
            signal.signal(number, handler)
        self._signals.clear()
        if self._campaign is not None:
            self.launched = self._campaign.launched
            self._campaign.close()
            self._campaign = None


_SESSION = pytest.StashKey[_Session]()
_CALL = pytest.StashKey[pytest.TestReport]()


def _end_session(number: int, _frame: FrameType | None) -> None:
    pytest.exit(f"ended by {signal.Signals(number).name}", returncode=128 + number)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options; nothing is read or run here."""
    group = parser.getgroup("scaleperf", "performance of torchtitan at scale")
    group.addoption("--gpus", type=_gpus, metavar="N", help="GPUs of this session; larger rungs are skipped")
    group.addoption("--system", default="auto", metavar="NAME", help="auto, or a folder of the baselines (auto)")
    group.addoption("--launcher", default="auto", choices=_LAUNCHERS, help="how jobs are started (auto)")
    group.addoption("--run-dir", metavar="PATH", help="folder for runs and records (ini scaleperf_run_dir)")
    group.addoption(
        "--record-baselines", action="store_true", help="store what is measured where no baseline is; those cases skip"
    )
    group.addoption(
        "--evidence-max-age",
        type=_hours,
        default=DEFAULT_EVIDENCE_HOURS,
        metavar="HOURS",
        help=f"how old a record may be that opens a gate ({DEFAULT_EVIDENCE_HOURS:g})",
    )
    group.addoption(
        "--resume", nargs="?", const="latest", metavar="SESSION", help="go on with an interrupted session (latest)"
    )
    parser.addini("scaleperf_suites", "folders with suite files (the test file's own folder)", type="paths", default=[])
    parser.addini("scaleperf_baselines", "folder with baselines and system files (baselines)", default="baselines")
    parser.addini("scaleperf_run_dir", "folder for runs and records (.scaleperf)", default=".scaleperf")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse what cannot work, and keep the session's state in the stash."""
    if config.getoption("gpus") is not None and config.getoption("numprocesses", None):
        raise pytest.UsageError(_XDIST_REFUSED)
    config.stash[_SESSION] = _Session(config)


_XDIST_REFUSED = (
    "scaleperf cases cannot run under pytest-xdist: each worker would know only its own verdicts, so gates would "
    "close wrongly, and workers would share the GPUs that are measured. Leave out -n"
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give every test that asks for ``scaleperf`` the cases of its suites, lowest rung first."""
    if "scaleperf" not in metafunc.fixturenames:
        return
    if hasattr(metafunc.config, "workerinput"):
        raise pytest.Collector.CollectError(_XDIST_REFUSED)
    session = metafunc.config.stash[_SESSION]
    folders = metafunc.config.getini("scaleperf_suites") or [Path(metafunc.module.__file__).parent]
    try:
        suites = [suite for folder in folders for suite in session.load(folder)]
        params = _params(suites, session.system, folders)
    except ScalePerfError as error:
        raise pytest.Collector.CollectError(str(error)) from None
    metafunc.parametrize("scaleperf", [p for p, _ in params], ids=[i for _, i in params], indirect=True)


def _params(suites: Sequence[Suite], system: System | None, folders: Sequence[Path]) -> list[tuple[Case | Suite, str]]:
    """Cases of the suites of this system; a suite of another system is one skip that says so."""
    names = [suite.name for suite in suites]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ScalePerfError(f"suite names must differ, found twice: {', '.join(twice)}")
    mine = [suite for suite in suites if system is not None and suite.system == system.name]
    if not mine:
        name = "?" if system is None else system.name
        others = ", ".join(f"{suite.name} ({suite.system})" for suite in suites) or "none at all"
        where = ", ".join(str(folder) for folder in folders)
        raise ScalePerfError(
            f"no suite for system {name} in {where}: expected at least one, found {others}; say --system NAME"
        )
    cases = sorted((case for suite in mine for case in suite.cases()), key=lambda case: case.gpus)
    foreign = [suite for suite in suites if suite not in mine]
    return [(case, case.id) for case in cases] + [(suite, suite.name) for suite in foreign]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order by rung, and refuse an xfail that could hide an error of the machine."""
    for item in items:
        if "scaleperf" not in getattr(item, "fixturenames", ()):
            continue
        for mark in item.iter_markers("xfail"):
            raises = mark.kwargs.get("raises")
            if not (isinstance(raises, type) and issubclass(raises, Regression)):
                raise pytest.UsageError(
                    f"{item.nodeid}: xfail of a case can expect only its verdict; write "
                    "@pytest.mark.xfail(raises=pytest_scaleperf.plugin.Regression, reason=...)"
                )
    items.sort(key=_rung)
    config.stash[_SESSION].cases = sum(1 for item in items if _rung(item))


def _rung(item: pytest.Item) -> int:
    callspec = getattr(item, "callspec", None)
    param = None if callspec is None else callspec.params.get("scaleperf")
    return param.gpus if isinstance(param, Case) else 0


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """Say what will be measured, and on what."""
    session = config.stash[_SESSION]
    if not session.cases or session.system is None:
        return []
    return text.header(session.system, session.settings.gpus, session.cases)


def pytest_runtestloop(session: pytest.Session) -> None:
    """Before the first case: the number of GPUs must have been said."""
    state = session.config.stash[_SESSION]
    if not state.cases or session.config.option.collectonly:
        return
    if state.settings.gpus is None:
        raise pytest.UsageError("say how many GPUs this session has: --gpus N (larger rungs are skipped)")
    state.arm()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep how the test's own body ended; the case's record needs it."""
    report = yield
    if report.when == "call":
        item.stash[_CALL] = report
    return report


@pytest.fixture
def scaleperf(request: pytest.FixtureRequest) -> Iterator[ScalePerf]:
    """One case, launched behind its gate, observed and judged; ``check()`` turns the verdict into pass or fail."""
    state = request.config.stash[_SESSION]
    case = request.param
    if isinstance(case, Suite):
        system = state.system
        pytest.skip(f"suite {case.name} is for system {case.system}; this is {system.name if system else 'unknown'}")
    try:
        given = _run(request, state, case)
    except ScalePerfError as error:
        pytest.fail(str(error), pytrace=False)
    yield given
    _finish(request, state, given)


def _run(request: pytest.FixtureRequest, state: _Session, case: Case) -> ScalePerf:
    campaign, properties = state.campaign(), request.node.user_properties
    gate = campaign.gate(case)
    if gate.state is not GateState.OPEN:
        campaign.skip(case, gate)
        state.rows.append(text.row(case, Verdict(Decision.SKIPPED, (), gate.reason)))
        properties.extend(text.gate_properties(case, gate))
        _leave(gate)
    run = campaign.run(case, gate, _Reporter(request.config, state))
    state.replayed += run.replayed
    properties.extend(text.properties(case, run.verdict, run.fingerprint, run.samples))
    given = ScalePerf(run)
    if run.verdict.decision is Decision.MACHINE_FAILED:
        campaign.finish(run, run.verdict)
        state.rows.append(text.row(case, run.verdict))
        raise LaunchError(given.failure_text())
    return given


def _leave(gate: Gate) -> None:
    """A closed gate is a skip that names the parent; a gate without evidence is an error."""
    if gate.state is GateState.NO_EVIDENCE:
        raise LaunchError(gate.reason)
    pytest.skip(gate.reason)


def _finish(request: pytest.FixtureRequest, state: _Session, given: ScalePerf) -> None:
    """Write the record once the test's own body has ended: its other assertions count too."""
    verdict = given.verdict
    report = request.node.stash.get(_CALL, None)
    if report is None:
        verdict = dataclasses.replace(verdict, decision=Decision.RUN_FAILED, reason="the test did not reach its body")
    elif verdict.decision.is_pass and report.outcome != "passed":
        reason = f"the test itself {report.outcome} although the numbers hold"
        verdict = dataclasses.replace(verdict, decision=Decision.RUN_FAILED, reason=reason)
    elif not given.checked and report.outcome == "passed":
        reason = "the test never called scaleperf.check(): its verdict was not asked for"
        verdict = dataclasses.replace(verdict, decision=Decision.RUN_FAILED, reason=reason)
    state.campaign().finish(given.run, verdict)
    state.rows.append(text.row(given.case, verdict))
    if not given.checked and report is not None and report.outcome == "passed":
        pytest.fail(f"{given.case.id}: {verdict.reason}", pytrace=False)


class _Reporter:
    """Shows a running case: one line that is written over on a terminal, plain lines elsewhere."""

    def __init__(self, config: pytest.Config, state: _Session) -> None:
        self._config = config
        self._position = f"{len(state.rows) + 1}/{state.cases}"
        self._live = config.get_terminal_writer().isatty()
        self._due = time.monotonic() + (0.0 if self._live else _PLAIN_LINE_SECONDS)

    def __call__(self, now: Progress) -> None:
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + (0.0 if self._live else _PLAIN_LINE_SECONDS)
        line = text.progress_line(self._position, now)
        capture = self._config.pluginmanager.getplugin("capturemanager")
        with contextlib.nullcontext() if capture is None else capture.global_and_fixture_disabled():
            writer = self._config.get_terminal_writer()
            if self._live:
                writer.write(f"\r{line[: writer.fullwidth - 1].ljust(writer.fullwidth - 1)}")
            else:
                writer.line()
                writer.write(line)
                writer.line()
            writer.flush()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """End what still runs; a session of cases that measured nothing at all is not green."""
    state = session.config.stash[_SESSION]
    state.close()
    hollow = state.cases and not state.measured and not session.config.option.collectonly
    if hollow and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


def pytest_unconfigure(config: pytest.Config) -> None:
    """The last way out."""
    state = config.stash.get(_SESSION, None)
    if state is not None:
        state.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The table of verdicts, and where everything is."""
    state = config.stash[_SESSION]
    if not state.rows:
        return
    terminalreporter.section("scaleperf")
    for line in text.table(state.rows, verbose=config.get_verbosity() > 0):
        terminalreporter.write_line(line)
    if state.folder is not None:
        terminalreporter.write_line(f"records, logs and scripts: {state.folder}")
    if not state.measured:
        terminalreporter.write_line("NOTHING WAS MEASURED: every case was skipped or stopped before its launch")


def _settings(config: pytest.Config) -> Settings:
    """Read options and ini once; paths in the ini are relative to the root directory."""
    root = config.rootpath
    run_dir = config.getoption("run_dir")
    return Settings(
        gpus=config.getoption("gpus"),
        system=config.getoption("system"),
        launcher=config.getoption("launcher"),
        run_dir=config.invocation_params.dir / run_dir if run_dir else root / config.getini("scaleperf_run_dir"),
        baselines=root / config.getini("scaleperf_baselines"),
        record_baselines=config.getoption("record_baselines"),
        evidence_max_age=config.getoption("evidence_max_age") * 3600.0,
        resume=config.getoption("resume"),
    )


def _gpus(value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise pytest.UsageError(f"--gpus: expected a whole number of GPUs, at least 1, found {value!r}")
    return int(value)


def _hours(value: str) -> float:
    try:
        hours = float(value)
    except ValueError:
        hours = math.nan
    if not (math.isfinite(hours) and hours > 0):
        raise pytest.UsageError(f"--evidence-max-age: expected hours above 0, found {value!r}")
    return hours
