"""A reduced campaign on a cluster of eight nodes with 64 GPUs each: the search finds the surface's own optimum."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.played.director import FOUND_WITHIN, LARGE, MIDDLE, SMALL, Director
from tests.played.project import Size
from tests.played.surface import DEVICE_GIB, FLOPS_PER_TOKEN, LABEL, SCENARIOS, Point, best, observed, true
from tests.slurm.cluster import Cluster, Shape

SIZE = Size(8, small=4, middle=4, delay={16: 0.03, 128: 0.1, 512: 0.1}, repeats=1, gpus_per_node=64, reduced=True)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("slurm"), Shape(SIZE.nodes, SIZE.gpus_per_node))
    try:
        made.up()
        yield made
    finally:
        made.down()


@pytest.mark.parametrize("scenario", sorted(SCENARIOS))
def test_each_rungs_optimum_is_that_of_the_surface(cluster: Cluster, tmp_path: Path, scenario: str) -> None:
    director = Director(cluster, tmp_path / "team", scenario, SIZE)
    report = director.campaign(kill=False)
    assert director.faults == []
    found = director.optima(report)
    assert [gpus for gpus, _, _ in found] == [SMALL, MIDDLE, LARGE]
    assert all(share <= FOUND_WITHIN for _, _, share in found), found
    launched = [case for case in report.cases if case.now.times]
    assert len(launched) <= len(report.cases) / 2
    summary = (director.project.folder / "reports" / "campaign.md").read_text()
    junit = (director.project.folder / "reports" / "campaign.xml").read_text()
    assert LABEL in summary.splitlines()[0]
    assert f'<testsuite name="{LABEL}' in junit
    assert LABEL in director.played.stages[0].output
    assert ("what was published" in summary) is (scenario == "published")
    assert cluster.left() == []
    assert cluster.processes_of(str(tmp_path)) == []


def test_the_surface_has_the_published_points() -> None:
    published = SCENARIOS["published"]
    for point, tps, mfu, memory in (
        (Point(16, 16, "selective", 18), 28_400, 37.5, 92),
        (Point(128, 128, "selective", 22), 28_000, 37.0, 93),
        (Point(128, 128, "full", 42), 26_300, 34.7, 89),
        (Point(512, 128, "selective", 22), 26_700, 35.3, 94),
    ):
        run = true(published, point)
        assert run.tps == pytest.approx(tps, rel=0.002)
        assert run.tps is not None
        assert 100 * run.tps * FLOPS_PER_TOKEN / 2.25e15 == pytest.approx(mfu, abs=0.1)
        assert 100 * run.memory / DEVICE_GIB == pytest.approx(memory, abs=0.5)


@pytest.mark.parametrize(("scenario", "small", "middle"), [("published", 18, 22), ("other", 14, 18)])
def test_the_scenarios_peak_in_different_places(scenario: str, small: int, middle: int) -> None:
    batches = range(2, 43, 4)
    assert best(SCENARIOS[scenario], [Point(16, 16, "selective", b) for b in batches]).batch == small
    assert best(SCENARIOS[scenario], [Point(128, 128, "selective", b) for b in batches]).batch == middle


def test_what_a_run_shows_depends_on_its_name_alone_and_varies_by_half_a_per_cent() -> None:
    published, point = SCENARIOS["published"], Point(16, 16, "selective", 18)
    exact = true(published, point).tps
    drawn = [observed(published, point, f"1 case {n}").tps for n in range(400)]
    assert drawn[7] == observed(published, point, "1 case 7").tps
    assert exact is not None
    off = [tps / exact - 1 for tps in drawn if tps is not None]
    assert sum(each**2 for each in off) / len(off) == pytest.approx(0.005**2, rel=0.2)
    assert observed(published, Point(16, 16, "none", 10), "1 case 1").tps is None
