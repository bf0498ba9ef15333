"""One case inside a test: launched behind its gate in the setup, judged in the body, recorded at the end."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from pytest_scaleperf.model import (
    Case,
    Decision,
    Gate,
    GateState,
    LaunchError,
    ScalePerfError,
    Suite,
    Verdict,
)
from pytest_scaleperf.plugin import rehearsing, rounds
from pytest_scaleperf.plugin.live import LiveLine
from pytest_scaleperf.plugin.state import STATE, State
from pytest_scaleperf.report import text, traced

if TYPE_CHECKING:
    from pytest_scaleperf.campaign import CaseRun

CALL = pytest.StashKey[pytest.TestReport]()
"""How the test's own body ended."""


class Regression(pytest.fail.Exception):  # type: ignore[name-defined, misc]  # pytest has it as a value only
    """A case's verdict is not a pass. ``xfail`` of a case must name this class: it can expect only a verdict."""


class ScalePerf:
    """What a test gets: one case that was launched, observed and judged."""

    def __init__(self, run: CaseRun) -> None:
        self.run = run
        self.checked = False

    @property
    def case(self) -> Case:
        """The configuration that ran."""
        return self.run.case

    @property
    def verdict(self) -> Verdict:
        """The judgement, with value, baseline and change of each metric."""
        return self.run.verdict

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
        where = "none" if self.run.baseline is None else self.run.baseline.where
        main = text.failure_text(self.case, self.verdict, where, self.run.folder)
        return "\n".join([main, *traced.failure_lines(self.run.trace)])


@pytest.fixture
def scaleperf(request: pytest.FixtureRequest) -> Iterator[ScalePerf | rehearsing.ScalePerfRehearsal]:
    """One case of a suite, launched and observed; ``check()`` turns its verdict into pass or fail."""
    state = request.config.stash[STATE]
    case = request.param
    if isinstance(case, Suite):
        here = "unknown" if state.system is None else state.system.name
        pytest.skip(f"suite {case.name} is for system {case.system}, this is {here}; say --system {case.system}")
    if state.settings.rehearse:
        return (yield from rehearsing.given(request, state, case, Regression, CALL))
    given, problem = None, ""
    try:
        given = _launch(request, state, case)
    except ScalePerfError as error:
        problem = str(error)
    if given is None:
        pytest.fail(problem, pytrace=False)  # not inside the except block: pytest would show the whole chain
    yield given
    _finish(request, state, given)


def _launch(request: pytest.FixtureRequest, state: State, case: Case) -> ScalePerf:
    campaign, properties = state.campaign(), request.node.user_properties
    live, gate = LiveLine(request.config, f"{len(state.rows) + 1}/{state.cases}"), campaign.gate(case)
    if gate.state is GateState.OPEN and case.search is not None:
        campaign.prepare(case)
        fate = state.searcher().fate(case, live)
        gate = gate if fate.launch else Gate(GateState.NOT_NEEDED, fate.reason)
    if gate.state is not GateState.OPEN:
        campaign.skip(case, gate)
        state.rows.append(text.row(case, Verdict(Decision.SKIPPED, (), gate.reason)))
        properties.extend(text.gate_properties(case, gate))
        _leave(gate)
    tracer = state.tracer(case)
    if tracer is not None:
        tracer.check(case)
    try:
        run = campaign.run(case, gate, live)
    except ScalePerfError as error:
        state.rows.append(text.row(case, Verdict(Decision.MACHINE_FAILED, (), str(error))))
        raise
    state.replayed += run.replayed
    beyond = None if case.search is None else state.searcher().told(run)
    if beyond is not None:
        verdict = dataclasses.replace(run.verdict, decision=Decision.SKIPPED, reason=beyond)
        _record(state, run, verdict)
        properties.extend(text.properties(case, verdict, run.fingerprint, run.samples))
        pytest.skip(beyond)
    run = run if tracer is None else tracer.add(run, live)
    properties.extend(text.properties(case, run.verdict, run.fingerprint, run.samples))
    properties.extend(rehearsing.beside(request.config, state, run))
    if run.trace is not None:
        properties.extend(traced.properties(run.trace, case.gpus))
        state.traces += traced.summary_lines(case.id, run.trace)
    if run.replayed:
        properties.append(("scaleperf.replayed", "not launched: its runs are those of the resumed session"))
    rounds.store(request, run.step_times, run.verdict)
    given = ScalePerf(run)
    if run.verdict.decision is Decision.MACHINE_FAILED:
        _record(state, run, run.verdict)
        raise LaunchError(given.failure_text())
    return given


def _record(state: State, run: CaseRun, verdict: Verdict) -> None:
    """The case's last word: on the disk, and in the table at the end."""
    state.campaign().finish(run, verdict)
    state.rows.append(text.row(run.case, verdict))


def _leave(gate: Gate) -> None:
    """A closed gate is a skip that names the parent; a gate without evidence is an error."""
    if gate.state is GateState.NO_EVIDENCE:
        raise LaunchError(gate.reason)
    pytest.skip(gate.reason)


def _finish(request: pytest.FixtureRequest, state: State, given: ScalePerf) -> None:
    """Write the record once the test's own body has ended: its other assertions count too."""
    report = request.node.stash.get(CALL, None)
    verdict, hidden = given.verdict, False
    if report is None:
        verdict = _spoilt(verdict, "the test did not reach its body")
    elif verdict.decision.is_pass and report.outcome != "passed":
        verdict = _spoilt(verdict, f"the test itself {report.outcome} although the numbers hold")
    elif report.outcome != "passed" and not given.checked:
        verdict = _spoilt(
            verdict, f"the test itself {report.outcome} before it asked for the verdict: {verdict.reason}"
        )
    elif not given.checked:
        verdict = _spoilt(verdict, "the test never called scaleperf.check(): its verdict was not asked for")
    elif report.outcome == "passed" and not verdict.decision.is_pass:
        verdict = _spoilt(verdict, f"the test caught its verdict, which stands: {verdict.reason}")
    # What the test itself made green, or skipped before the verdict was asked for, is no pass.
    hidden = report is not None and report.outcome != "failed" and verdict is not given.verdict
    _record(state, given.run, verdict)
    if hidden:
        pytest.fail(f"{given.case.id}: {verdict.reason}", pytrace=False)


def _spoilt(verdict: Verdict, reason: str) -> Verdict:
    return dataclasses.replace(verdict, decision=Decision.RUN_FAILED, reason=reason)
