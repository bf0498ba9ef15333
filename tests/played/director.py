"""The play: three nights of a campaign, what happens in them, and whether the reports say so."""

from __future__ import annotations

import html
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pytest_scaleperf.baseline import read_baselines
from pytest_scaleperf.model import Case, Decision, Metric, Outcome
from pytest_scaleperf.report.assemble import read
from pytest_scaleperf.report.contents import Report
from pytest_scaleperf.report.views import configuration, ladder
from pytest_scaleperf.suite import load_suite
from tests.played.project import SUITE, Project, Size
from tests.played.stages import Played, Stage
from tests.played.surface import LABEL, SCENARIOS, Point, best, true
from tests.slurm.cluster import Cluster

SMALL, MIDDLE, LARGE = 16, 128, 512
FOUND_WITHIN = 0.01
SLOW, SLOWER = 0.93, 0.97
_ASSERTED = "16to128gpu-selective or 16to512gpu-fsdp128-selective"
_ONE, _TWO = f"{SUITE}-8gpu", f"{SUITE}-{SMALL}gpu"
_TITLE = f"{LABEL}: no GPU, a model of speed and memory"


class Director:
    """Plays the nights of one scenario on a cluster that is up."""

    def __init__(self, cluster: Cluster, folder: Path, scenario: str, size: Size) -> None:
        self.cluster = cluster
        self.scenario = SCENARIOS[scenario]
        self.size = size
        self.project = Project(folder, scenario, size)
        self.played = Played(cluster, self.project)
        self.faults: list[str] = []
        self._began = time.time()

    def play(self) -> list[str]:
        """All three nights; what was not as expected."""
        self.campaign()
        self.slow_node()
        self.regression()
        return self.faults

    def campaign(self, *, kill: bool = True) -> Report:
        """The first night: search, record, and assert what was published; with ``kill`` a node dies at 128 GPUs."""
        record, killed = ("--record-baselines", "--repeats", str(self.size.repeats)), self.played.kill_a_node_of(MIDDLE)
        stages = [
            self._stage("stage-16", "suites/test_throughput.py", "-k", f"{_ONE} or {_TWO}", *record, gpus=SMALL),
            self._stage("stage-128", "suites/test_throughput.py", "-k", f"{SUITE}-{MIDDLE}gpu", *record,
                        gpus=MIDDLE, meanwhile=killed if kill else lambda: True),
            self._stage("stage-512", "suites/test_throughput.py", "-k", f"{SUITE}-{LARGE}gpu", *record, gpus=LARGE),
        ]  # fmt: skip
        others = f"not ({_ASSERTED})" if self._published else ""
        stages.append(self._stage("scaling-recorded", "suites/test_scaling.py", "-k", others, *record, gpus=LARGE))
        if self._published:
            stages.append(self._stage("scaling", "suites/test_scaling.py", "-k", _ASSERTED, gpus=LARGE))
        report = self._report("campaign", "the campaign", stages)
        self._expect(not report.is_red, "the campaign's report has nothing red")
        self._expect(_lost(report, MIDDLE) is kill, "a node died at 128 GPUs")
        self._expect(
            not kill or "was given nothing more: it lost" in stages[1].output, "the session names the node that it lost"
        )
        for gpus, case_id, share in self.optima(report):
            self._expect(share <= FOUND_WITHIN, f"the optimum at {gpus} GPUs is found: {case_id} is {share:.1%} below")
        if self._published:
            passed = [s for s in report.scalings if s.decision is Decision.PASS]
            self._expect(len(passed) == _ASSERTED.count("gpu-"), "both published efficiencies hold")
        return report

    def slow_node(self) -> Report:
        """The second night: every rung is judged, one node of 512 GPUs is slow."""
        slow = self.cluster.nodes[len(self.cluster.nodes) // 2]
        self._dawn(2, slow={slow: SLOW})
        stages = self._night("slow-node")
        stages.append(self._stage("slow-node-rehearsed", "suites/test_throughput.py", "--rehearse", "-k",
                                  " or ".join(self._stored(LARGE)), gpus=1))  # fmt: skip
        stages.append(self._stage("slow-node-probed", "suites/test_throughput.py", "--preflight", "-k",
                                  self._stored(SMALL)[0], gpus=LARGE))  # fmt: skip
        report = self._report("slow-node", f"a night with a slow node ({slow})", stages)
        worse = _worse(report)
        self._expect(
            bool(worse) and all(f"-{LARGE}gpu-" in name for name in worse), f"only 512 GPUs are worse: {worse}"
        )
        found = [finding.text for _, probe in report.preflights for finding in probe.findings]
        self._expect(bool(found) and all(each.startswith(f"{slow} GPU ") for each in found), f"it is named: {found}")
        cause = [each.cause for each in report.rehearsals if each.cause]
        told = bool(cause) and all(each.startswith("communication:") for each in cause)
        self._expect(told, f"it is put down to what a rehearsal does not have: {cause}")
        unsure = [s for s in report.scalings if s.gpus == LARGE and s.decision is Decision.SKIPPED]
        self._expect(bool(unsure), "no efficiency is made of a case that failed")
        return report

    def regression(self) -> Report:
        """The third night: selective checkpointing lost 3 % at every size; the larger rungs are not even tried."""
        self._dawn(3, slower={"selective": SLOWER})
        report = self._report("regression", "a night with a regression of 3 %", self._night("regression"))
        worse = _worse(report)
        self._expect(bool(worse) and all("-selective-" in name for name in worse), f"selective is worse: {worse}")
        self._expect(any(f"-{SMALL}gpu-" in name for name in worse), "it is seen at 16 GPUs")
        above = [c for c in report.cases if c.now.gpus > SMALL and "-selective-" in c.id]
        self._expect(bool(above) and not any(c.now.times for c in above), "no selective case ran at 128 or 512 GPUs")
        closed = [c for c in above if "closed by" in c.now.reason]
        self._expect(bool(closed), "the reports say which case closed the gate")
        return report

    def optima(self, report: Report) -> list[tuple[int, str, float]]:
        """Each rung's optimum by the report, and how far below the best of all points it truly is, as a share."""
        suite = load_suite(self.project.folder / "suites" / "b200_30b_a3b.yaml")
        points: dict[int, list[Point]] = {}
        for case in suite.cases():
            points.setdefault(case.gpus, []).append(_point(case))
        found = []
        for step in ladder(report):
            top = best(self.scenario, points[step.gpus])
            most = true(self.scenario, top).tps or 0.0
            if step.best is None:
                found.append((step.gpus, "nothing", 1.0))
                continue
            now = step.best.now
            case = next(case for case in suite.cases() if case.id == now.case_id)
            mine = true(self.scenario, _point(case)).tps or 0.0
            found.append((step.gpus, now.case_id, 1 - mine / most))
            _tell(
                f"  {step.gpus:>3} GPUs: found {configuration(now)} at {now.value(Metric.TPS) or 0:,.0f} tokens/s/GPU, "
                f"best of all {len(points[step.gpus])} points: {top.mode} {top.batch} (FSDP {top.dp_shard}) {most:,.0f}"
            )
        return found

    @property
    def _published(self) -> bool:
        return self.scenario.name == "published"

    def _dawn(self, night: int, **what: Mapping[str, float]) -> None:
        self._began = time.time()
        self.project.condition(night, **what)

    def _stored(self, gpus: int) -> list[str]:
        """The cases of that size that the campaign recorded."""
        path = self.project.folder / "baselines" / "b200" / f"{SUITE}.yaml"
        return sorted(name for name in read_baselines(path) if f"-{gpus}gpu-" in name)

    def _night(self, name: str) -> list[Stage]:
        """Every rung, judged against what the campaign recorded."""
        stages = [
            self._stage(f"{name}-16", "suites/test_throughput.py", "-k", f"{_ONE} or {_TWO}", gpus=SMALL),
            self._stage(f"{name}-128", "suites/test_throughput.py", "-k", f"{SUITE}-{MIDDLE}gpu", gpus=MIDDLE),
            self._stage(f"{name}-512", "suites/test_throughput.py", "-k", f"{SUITE}-{LARGE}gpu", gpus=LARGE),
        ]
        return [*stages, self._stage(f"{name}-scaling", "suites/test_scaling.py", gpus=LARGE)]

    def _stage(self, name: str, *args: str, gpus: int, meanwhile: Callable[[], bool] = lambda: True) -> Stage:
        nodes = {SMALL: self.size.small, MIDDLE: self.size.middle}.get(gpus, self.size.nodes)
        if name.endswith(("scaling", "recorded", "rehearsed")):
            nodes = 1  # nothing is launched
        made = self.played.stage(name, *args, nodes=nodes, gpus=gpus, meanwhile=meanwhile)
        last = made.output.strip().splitlines()[-1:] or ["no output"]
        _tell(f"  {name}: pytest ended with {made.status} after {made.seconds:.0f} s: {last[0]}")
        self.cluster.await_idle()
        return made

    def _report(self, name: str, title: str, stages: Sequence[Stage]) -> Report:
        page = self.played.report(name, f"{_TITLE}; {title}", stages, self._began)
        _tell(f"{LABEL}: {title}: {page}")
        summary = page.with_suffix(".md").read_text()
        _tell("\n".join(f"  {line}" for line in _table(summary)))
        return read([*self.project.nights(), *(stage.junit for stage in stages)], self.played.age(self._began))[0]

    def _expect(self, holds: bool, what: str) -> None:  # noqa: FBT001 - what is expected, and whether it is so
        if not holds:
            self.faults.append(what)


def _tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _point(case: Case) -> Point:
    return Point(case.gpus, case.layout.dp_shard, str(case.activation_checkpoint), case.batch.local)


def _worse(report: Report) -> list[str]:
    return [case.id for case in report.cases if case.now.decision is Decision.REGRESSION]


def _lost(report: Report, gpus: int) -> bool:
    """Whether a launch of that size was lost to its node, and made again."""
    launches = (launch for case in report.cases if case.now.gpus == gpus for launch in case.now.launches)
    return any(launch.outcome is Outcome.NODE_FAILURE for launch in launches)


def _table(summary: str) -> list[str]:
    """The headline and the ladder of a summary, as plain lines."""
    plain = html.unescape(re.sub(r"</?code>", "", summary))
    kept = [plain.splitlines()[0].lstrip("# ")]
    for title in ("### The ladder: the optimum of each rung", "### The ladder beside what was published"):
        part = plain.partition(title)[2].partition("\n### ")[0]
        kept += [line for line in part.splitlines() if line.startswith("|")]
    return kept
