"""Published values judge where nothing else is stored, end no search, and give way to what is recorded."""

from __future__ import annotations

from tests.plugin.conftest import FULL2, FULL4, NONE2, NONE4, Project
from tests.plugin.test_search import LADDER, peak, small, surface

TEXT = """\
suite: demo
system: lab
source: somebody
date: 2026-11-30
cases:
{cases}
{scaling}
"""


def publish(project: Project, cases: dict[str, float], scaling: dict[str, float] | None = None) -> None:
    folder = project.path / "baselines" / "lab" / "published"
    folder.mkdir(exist_ok=True)
    rows = "\n".join(
        f"  {name}: {{gpus: {4 if '-4gpu-' in name else 2}, tps: {tps}, mfu: {tps / 50}, memory_pct: 50, "
        "tolerance: {tps: 3 %, mfu: 3 %}}"
        for name, tps in cases.items()
    )
    pairs = "\n".join(f"  {name}: {{efficiency: {value}, tolerance: 2 %}}" for name, value in (scaling or {}).items())
    (folder / "demo.yaml").write_text(
        TEXT.format(cases=rows, scaling=f"scaling:\n{pairs}" if pairs else "").rstrip() + "\n"
    )


def test_a_case_without_a_baseline_is_judged_against_what_was_published(bare: Project) -> None:
    bare.scenario({"*": {"tps": 1000}, FULL2: {"tps": 900}})
    publish(bare, {NONE2: 1000, FULL2: 1000})
    done = bare.run(gpus=2)
    assert (done.kind(NONE2), done.kind(FULL2)) == ("passed", "failed"), done.out
    assert "against 1000 (-10.0%" in done.message(FULL2)
    assert "judged against what was published, not against a run here: somebody" in done.out


def test_what_was_published_is_no_baseline_of_a_case_that_it_does_not_name(bare: Project) -> None:
    publish(bare, {NONE2: 1000})
    done = bare.run(gpus=2)
    assert done.kind(FULL2) == "failed"
    assert "no baseline is stored" in done.message(FULL2)


def test_recording_goes_beside_what_was_published_and_then_counts(bare: Project) -> None:
    bare.scenario({"*": {"tps": 800}})
    publish(bare, {NONE2: 1000, FULL2: 1000})
    recorded = bare.run("--record-baselines", gpus=2)
    assert "recorded" in recorded.message(NONE2), recorded.out
    assert bare.run(gpus=2).kind(NONE2) == "passed"


def test_a_published_value_does_not_end_a_search(bare: Project) -> None:
    bare.suite(ladder=LADDER)
    bare.scenario(surface())
    publish(bare, {small(2): 500})
    done = bare.run("--record-baselines", gpus=2)
    assert f"found the peak at {peak(bare)}" in done.out


def test_a_published_efficiency_is_asserted_where_none_is_stored(bare: Project) -> None:
    bare.suite(scaling={"tolerance": "3 %"})
    (bare.path / "suites" / "test_scaling.py").write_text(
        "def test_scaling(scaleperf_scaling):\n    scaleperf_scaling.check()\n"
    )
    bare.scenario({"*-2gpu-*": {"tps": 1000}, NONE4: {"tps": 980}, FULL4: {"tps": 900}})
    everything = {NONE2: 1000.0, FULL2: 1000.0, NONE4: 980.0, FULL4: 900.0}
    publish(bare, everything, {"demo-2to4gpu-none": 0.986, "demo-2to4gpu-full": 0.986})
    done = bare.run()
    assert done.kind("demo-2to4gpu-none") == "passed", done.out
    assert done.kind("demo-2to4gpu-full") == "failed"
    assert "efficiency 0.9000 against 0.9860" in done.message("demo-2to4gpu-full")
