"""The gate of a case, decided from this session's verdicts and from stored evidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import pytest

from pytest_scaleperf.campaign.gate import decide
from pytest_scaleperf.model import Case, Decision, Evidence, Fingerprint, GateState

HERE = Fingerprint("lab", None, None, None, None, None, "abc", None)


@dataclass(frozen=True)
class Named:
    """All that the gate reads of a case."""

    id: str


CHILD, A, B = (cast("Case", Named(name)) for name in ("child", "a", "b"))


def stored(**decisions: Decision) -> object:
    def look_up(case: Case) -> Evidence | None:
        decision = decisions.get(case.id)
        return None if decision is None else Evidence(case.id, decision, HERE, 1.0, f"records/{case.id}.json")

    return look_up


@pytest.mark.parametrize(
    ("here", "kept", "state"),
    [
        ({"a": Decision.PASS}, {}, GateState.OPEN),
        ({"a": Decision.IMPROVEMENT}, {}, GateState.OPEN),
        ({"a": Decision.RECORDED}, {}, GateState.OPEN),
        ({"a": Decision.REGRESSION, "b": Decision.PASS}, {}, GateState.OPEN),
        ({"a": Decision.REGRESSION, "b": Decision.RUN_FAILED}, {}, GateState.CLOSED),
        ({"a": Decision.MACHINE_FAILED, "b": Decision.INCONCLUSIVE}, {}, GateState.CLOSED),
        ({"a": Decision.SKIPPED, "b": Decision.NO_BASELINE}, {}, GateState.CLOSED),
        ({}, {"a": Decision.PASS}, GateState.OPEN),
        ({}, {"a": Decision.REGRESSION, "b": Decision.REGRESSION}, GateState.CLOSED),
        ({"a": Decision.REGRESSION}, {"a": Decision.PASS, "b": Decision.REGRESSION}, GateState.CLOSED),
        ({}, {}, GateState.NO_EVIDENCE),
        ({"a": Decision.REGRESSION}, {}, GateState.NO_EVIDENCE),
    ],
)
def test_gate(here: dict[str, Decision], kept: dict[str, Decision], state: GateState) -> None:
    gate = decide(CHILD, [A, B], here, stored(**kept), "pytest --gpus 2")  # type: ignore[arg-type]
    assert gate.state is state
    if state is GateState.NO_EVIDENCE:
        assert "pytest --gpus 2" in gate.reason
        assert "b" in gate.parents
    if state is GateState.CLOSED:
        assert "a" in gate.reason
        assert gate.parents == ("a", "b")


def test_the_lowest_rung_is_open() -> None:
    assert decide(CHILD, [], {}, stored(), "pytest").state is GateState.OPEN  # type: ignore[arg-type]
