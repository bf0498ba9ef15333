"""The search for the OOM edge at world size 16, answered by rehearsals that were recorded on one H200.

    python -m tests.search.recorded_edge FOLDER

writes docs/examples/h200-edge16 again. The recorded runs were not started by the plugin: torchtitan's own command ran
them on another day. Here their logs and event files are read, measured and judged as those of a rehearsal of the
plugin, and the search is told what they say. Where it asks for a batch that nobody recorded, that is written down, and
it goes on without it.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from pytest_scaleperf import steady
from pytest_scaleperf.campaign.searching import _rehearsed as as_answer
from pytest_scaleperf.model import ActivationCheckpoint, Case, Fingerprint, Outcome, System
from pytest_scaleperf.records import SCHEMA, write_json
from pytest_scaleperf.rehearsed import Rehearsal, as_record, judge_case, judge_rank, room_of
from pytest_scaleperf.search.edge import EdgeResult, EdgeSearch
from pytest_scaleperf.search.words import Findings, on_line
from pytest_scaleperf.suite import digest, load_suite
from pytest_scaleperf.system import load_system
from pytest_scaleperf.titan.observe import observe
from tests.report.h200_records import H200, times

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs/examples/h200-edge16"
SESSION = "20261130-185100-edge16"
_CUT_SHORT = "ended by the recording time limit"


@dataclass(slots=True)
class Searched:
    """One family: the batches in the order in which they were asked for, and what came of it."""

    mode: ActivationCheckpoint
    search: EdgeSearch
    asked: list[tuple[int, Rehearsal | None]] = field(default_factory=list)

    @property
    def result(self) -> EdgeResult:
        return self.search.result()

    @property
    def line_ends(self) -> int | None:
        """The last batch on the line through the largest two that fit without retries; None with fewer than two."""
        known, room = self.search.findings.memory_answers(), self.search.findings.room
        found = (batch for batch in range(1, 257) if (memory := on_line(known, batch)) is None or memory > (room or 0))
        end = next(found, None)
        return None if end is None or on_line(known, end) is None else end - 1


def searches() -> list[Searched]:
    """Both families of the example's suite, searched to where the recorded rehearsals lead."""
    cases, system = load_suite(EXAMPLE / "suite.yaml").cases(), load_system(ROOT / "baselines", "h200")
    return [_searched(mode, cases, system) for mode in (ActivationCheckpoint.SELECTIVE, ActivationCheckpoint.FULL)]


def _searched(mode: ActivationCheckpoint, cases: tuple[Case, ...], system: System) -> Searched:
    members = {case.batch.local: case for case in cases if case.activation_checkpoint is mode}
    room = room_of(next(iter(members.values())), system)
    assert room.total_gib is not None
    findings = Findings(tuple(sorted(members)), room=room.total_gib - room.reserve_gib)
    made = Searched(mode, EdgeSearch(findings))
    while wanted := made.search.wanted():
        batch = wanted[0]
        found = rehearsal(members[batch], system)
        made.asked.append((batch, found))
        if found is None:
            findings.grid = tuple(other for other in findings.grid if other != batch)
        else:
            findings.rehearsed[batch] = as_answer(found)
    return made


def rehearsal(case: Case, system: System) -> Rehearsal | None:
    """What the recorded process that stood for rank 0 of this case says, read as the plugin reads its own."""
    run = _recorded(case)
    if run is None:
        return None
    folder, room = H200 / "runs" / run["run"], room_of(case, system)
    seen = observe(folder, requested_steps=case.suite.rehearse.steps, world_size=1, losses=False)
    if run["outcome"].startswith(_CUT_SHORT):  # after its last logged step; what it measured until then is valid
        seen = dataclasses.replace(seen, outcome=Outcome.COMPLETED, failure=None, requested_steps=seen.last_step)
    measured = steady.measure(
        seen,
        warmup=2,
        peak_flops=system.peak_flops,
        memory_total_gib=system.memory_gib,
        tokens_per_step_per_gpu=case.batch.tokens_per_step / case.gpus,
    )
    began, ended = times(folder / "log.txt")
    rank = judge_rank(0, seen, measured, room)
    rank = dataclasses.replace(rank, folder=f"tests/data/h200/runs/{run['run']}", started=began, seconds=ended - began)
    fit, reason, notes = judge_case((rank,), room)
    return Rehearsal(
        case.id, case.suite.name, system.name, case.gpus, case.layout, case.activation_checkpoint, case.batch, fit,
        reason, (rank,), case.suite.rehearse.steps, room.reserve_gib,
        Fingerprint("NVIDIA H200", None, "2.11.0", None, "0.2.2", None, digest(case), system.peak_flops),
        notes=(*notes, "recorded with torchtitan's own command on another day, read afterwards"),
        session=SESSION, finished=ended,
    )  # fmt: skip


def _recorded(case: Case) -> dict[str, str] | None:
    runs = yaml.safe_load((H200 / "index.yaml").read_text(encoding="utf-8"))
    wanted = {
        "rehearsal": True, "world_size": case.gpus, "model": case.suite.trainer.config,
        "activation_checkpoint": str(case.activation_checkpoint), "local_batch_size": case.batch.local,
        "dp_shard": case.layout.dp_shard, "dp_replicate": case.layout.dp_replicate, "seq_len": case.batch.sequence,
    }  # fmt: skip
    return next((run for run in runs if all(run.get(key) == value for key, value in wanted.items())), None)


def outcome(found: list[Searched]) -> dict[str, object]:
    """What ``search.json`` says: question, answers and result of each family."""
    return {
        str(each.mode): {
            "asked": [
                {"local_batch": batch, "said": "not recorded"}
                if said is None
                else {
                    "local_batch": batch, "said": str(said.fit), "why": said.reason, "of": said.ranks[0].folder,
                    "peak_gib": said.ranks[0].peak_gib, "ceiling_tps": said.ceiling,
                }
                for batch, said in each.asked
            ],
            "result": each.result.sentence(),
            "edge": each.result.edge,
            "clean": each.result.clean,
            "ends_with_what_was_recorded": each.result.at_end,
            "line_ends_at": each.line_ends,
        }
        for each in found
    }  # fmt: skip


def write(folder: Path) -> None:
    """Everything of the example that is made: the rehearsals' records and the searches' outcome."""
    found = searches()
    said = [rehearsal for each in found for _, rehearsal in each.asked if rehearsal is not None]
    session = folder / "run/sessions" / SESSION
    (session / "rehearsals").mkdir(parents=True, exist_ok=True)
    about = {"arguments": ["recorded runs, not a session of the plugin"], "system": "h200"}
    started = min(each.ranks[0].started for each in said)
    write_json(session / "session.json", {"schema": SCHEMA, "session": SESSION, "started": started, **about})
    for each in said:
        record = {"schema": SCHEMA, "session": SESSION, "case": each.case_id, **as_record(each)}
        write_json(session / "rehearsals" / f"{each.case_id}.json", record)
    (folder / "search.json").write_text(json.dumps(outcome(found), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
