"""A searched local batch in a session: few launches, a reason for every other case, the peak for the rung above."""

from __future__ import annotations

from typing import Any

import pytest

from tests.plugin.conftest import Project

TPS = {2: 500, 6: 800, 10: 950, 14: 990, 18: 1000, 22: 992, 26: 970, 30: 945, 34: 920, 38: 895}
MEMORY = {batch: 20.0 + 1.5 * batch for batch in TPS}
GOOD = 0.99 * max(TPS.values())
LADDER: list[dict[str, Any]] = [
    {
        "gpus": 2,
        "dp_shard": 2,
        "activation_checkpoint": "selective",
        "local_batch": {"search": {"from": 2, "step": 4, "to": 38}},
    },
    {
        "gpus": 4,
        "requires": {"gpus": 2, "same": ["activation_checkpoint"]},
        "dp_shard": 4,
        "activation_checkpoint": "selective",
        "local_batch": {"around": "peak", "offsets": [0, 4]},
    },
]


def small(batch: int) -> str:
    return f"demo-2gpu-fsdp2-dp1-selective-lbs{batch}"


def large(batch: int) -> str:
    return f"demo-4gpu-fsdp4-dp1-selective-lbs{batch}"


def surface(beyond: int = 1000, **more: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """A speed and a memory for each batch; from ``beyond`` on there is none to be had."""
    told: dict[str, dict[str, Any]] = {
        f"*-lbs{batch}": {"tps": TPS[batch], "memory": MEMORY[batch]}
        | ({"fault": "oom", "at": 1} if batch >= beyond else {})
        for batch in TPS
    }
    return told | more


@pytest.fixture
def searched(bare: Project) -> Project:
    """A project whose lower rung is searched, and whose upper lies around the peak found there."""
    bare.suite(ladder=LADDER)
    bare.scenario(surface())
    return bare


def launched(project: Project, rung: str = "") -> list[str]:
    return sorted(name for name, record in project.records().items() if record["samples"] and rung in name)


def peak(project: Project) -> int:
    """The fastest batch that was run on the lower rung."""
    return max((batch for batch in TPS if small(batch) in launched(project)), key=lambda batch: TPS[batch])


def around(batch: int) -> list[str]:
    return sorted([large(batch), large(batch + 4)])


def test_a_search_launches_at_most_half_and_finds_the_peak(searched: Project) -> None:
    done = searched.run("--record-baselines")
    assert done.returncode == 0, done.out
    ran = launched(searched, "2gpu")
    assert TPS[peak(searched)] >= GOOD
    assert len(ran) <= len(TPS) // 2
    skipped = {batch for batch in TPS if small(batch) not in ran}
    assert all("not needed" in done.message(small(batch)) for batch in skipped)
    assert set(done.kinds().values()) == {"skipped"}  # recorded, or not needed
    assert f"found the peak at {peak(searched)} after {len(ran)} runs" in done.out


def test_the_rung_above_runs_around_the_peak_that_was_found(searched: Project) -> None:
    done = searched.run("--record-baselines")
    assert launched(searched, "4gpu") == around(peak(searched))
    assert small(peak(searched)) in done.message(large(2))


def test_the_peak_is_taken_from_the_records_of_an_earlier_session(searched: Project) -> None:
    searched.run("--record-baselines", gpus=2)
    assert not launched(searched, "4gpu")
    searched.run("--record-baselines", "-k", "4gpu")
    assert launched(searched, "4gpu") == around(peak(searched))


def test_without_a_peak_below_the_rung_above_is_an_error_that_names_the_command(searched: Project) -> None:
    done = searched.run("--record-baselines", "-k", "4gpu")
    assert done.returncode == 1
    assert set(done.kinds().values()) == {"error"}
    assert "--gpus 2" in done.message(large(2))


def test_once_stored_the_same_cases_are_judged_and_nothing_is_searched(searched: Project) -> None:
    searched.run("--record-baselines", gpus=2)
    first = launched(searched)
    done = searched.run(gpus=2)
    passed = sorted(name for name, kind in done.kinds().items() if kind == "passed")
    assert (done.returncode, passed) == (0, first), done.out
    slow = small(peak(searched))
    searched.scenario(surface() | {slow: {"tps": 900}})
    again = searched.run(gpus=2)
    assert (again.returncode, again.kind(slow)) == (1, "failed")


def test_a_case_that_was_selected_by_itself_runs(searched: Project) -> None:
    searched.run("--record-baselines", "-k", small(34) + "]")
    assert launched(searched) == [small(34)]


def test_rehearsals_find_the_edge_and_spare_the_runs_beyond_it(searched: Project) -> None:
    searched.suite(ladder=LADDER, rehearse={"executable": True})
    searched.scenario(surface(beyond=26))
    done = searched.run("--record-baselines", gpus=2)
    assert done.returncode == 0, done.out
    ran = launched(searched, "2gpu")
    assert TPS[peak(searched)] >= GOOD
    assert not {small(batch) for batch in (26, 30, 34, 38)} & set(ran)
    assert all("beyond the OOM edge 22" in done.message(small(batch)) for batch in (30, 38))


def test_a_rehearsed_oom_closes_the_gate_of_the_real_case(searched: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = [{"gpus": 2, "dp_shard": 2, "activation_checkpoint": "selective", "local_batch": [22, 26]}]
    searched.suite(ladder=plain, rehearse={"executable": True})
    searched.scenario(surface(beyond=26))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    searched.run_raw("--rehearse")
    done = searched.run("--record-baselines")
    assert launched(searched) == [small(22)]
    assert done.kind(small(26)) == "skipped"
    assert "OOM in rehearsal" in done.message(small(26))
    searched.suite(ladder=plain, rehearse={"executable": True, "closes_gate": False})
    assert searched.run("--record-baselines").kind(small(26)) == "failed"


def test_a_run_that_shows_the_edge_is_a_skip_that_says_so_and_a_stored_case_that_does_is_a_failure(
    searched: Project,
) -> None:
    searched.scenario(surface(beyond=22))
    done = searched.run("--record-baselines", gpus=2)
    shown = [name for name in launched(searched, "2gpu") if searched.records()[name]["samples"][0]["outcome"] == "oom"]
    assert (done.returncode, bool(shown)) == (0, True), done.out
    assert "out of memory: it shows the OOM edge" in done.message(shown[0])
    searched.scenario(surface(beyond=2))
    again = searched.run(gpus=2)
    assert again.returncode == 1
    assert "failed" in again.kinds().values()


def test_a_case_that_was_not_needed_closes_the_gate_of_a_later_session_by_its_name(searched: Project) -> None:
    above = [LADDER[0], {"gpus": 4, "requires": {"gpus": 2, "same": ["activation_checkpoint", "local_batch"]}}]
    above[1] |= {"dp_shard": 4, "activation_checkpoint": "selective", "local_batch": [2, 14, 18, 22, 38]}
    searched.suite(ladder=above)
    searched.run("--record-baselines", gpus=2)
    ran = launched(searched, "2gpu")
    done = searched.run("--record-baselines", "-k", "4gpu")
    assert done.returncode == 0, done.out
    for batch in (2, 14, 18, 22, 38):
        if small(batch) in ran:
            assert "recorded" in done.message(large(batch))
        else:
            assert f"closed by its parent: {small(batch)} (skipped" in done.message(large(batch))
