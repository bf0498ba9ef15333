"""Run a case for real, as a session would, and read back what torchtitan wrote: no part of ours but the command."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from pytest_scaleperf.model import Case
from pytest_scaleperf.titan import command
from tests.titan import cases, interpreters

SECONDS = 240
TPS = "throughput(tps)"
LOSS = "loss_metrics/global_avg_loss"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class Ended:
    """A finished run: exit code, its log without colours, its folder, and its files."""

    case: Case
    code: int
    log: str
    folder: Path

    def scalars(self) -> dict[int, dict[str, dict[int, float]]]:
        """Rank to tag to step to value, from every rank's event file."""
        found: dict[int, dict[str, dict[int, float]]] = {}
        for path in sorted(self.folder.glob("tb/*/rank_*/events.out.tfevents.*")):
            tags = found.setdefault(int(path.parent.name.removeprefix("rank_")), {})
            for event in EventFileLoader(str(path)).Load():
                for value in event.summary.value:
                    tags.setdefault(value.tag, {})[event.step] = value.tensor.float_val[0]
        return found

    def ranks(self) -> dict[int, dict[str, Any]]:
        """Every rank's own file."""
        files = (self.folder / "ranks").glob("rank*.json")
        return {
            facts["rank"]: facts for facts in (json.loads(path.read_text(encoding="utf-8")) for path in sorted(files))
        }

    def phases(self) -> dict[int, dict[str, int]]:
        """Rank to how often each of our annotations stands in its trace."""
        found = {}
        for path in sorted(self.folder.glob("prof*/**/rank*_trace.json*")):
            raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            names = (event.get("name", "") for event in json.loads(raw)["traceEvents"])
            rank = int(path.name.removeprefix("rank").split("_")[0])
            found[rank] = dict(Counter(name for name in names if name.startswith("scaleperf.")))
        return found

    def says(self, text: str) -> bool:
        return text in self.log


def run(case: Case, folder: Path, *, extra: Mapping[str, str] | None = None, rehearse: bool = False) -> Ended:
    """Train ``case`` on this machine's CPU in ``folder``; skips where its torchtitan is not installed."""
    generation = case.suite.trainer.dialect
    python = interpreters.of(generation)
    make = command.build_rehearsal if rehearse else command.build
    folder.mkdir(parents=True, exist_ok=True)
    built = make(
        case,
        cases.dialect(generation),
        folder,
        device="cpu",
        python=python,
        base_env=interpreters.environment(python, **(extra or {})),
    )
    path = folder / "stdout.log"
    with path.open("wb") as log:
        job = subprocess.Popen(
            built.argv, env=dict(built.env), stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = job.wait(timeout=SECONDS)
        finally:
            if job.poll() is None:  # torchrun and its ranks are one group
                os.killpg(job.pid, signal.SIGKILL)
                job.wait()
    return Ended(case, code, _COLOUR.sub("", path.read_text(encoding="utf-8")), folder)


def check_trained(ended: Ended) -> None:
    """Every rank trained to the last step and said so everywhere that it has to."""
    assert ended.code == 0, ended.log[-3000:]
    last, ranks = ended.case.suite.measure.steps, range(ended.case.gpus)
    scalars = ended.scalars()
    assert sorted(scalars) == list(ranks)
    for rank in ranks:
        tags = scalars[rank]
        assert max(tags[TPS]) == last
        assert tags[TPS][last] > 0
        assert tags["tflops"][last] > 0
        assert 5 < tags[LOSS][last] < 10, "about ln 2048 = 7.6 for tokens that cannot be predicted"
        assert 0.3 < tags["memory/max_reserved(GiB)"][last] < 8, "the rank's peak resident set size"
        assert tags["memory/num_alloc_retries"][last] == 0
        assert re.search(rf"^\[rank{rank}\]:.*step: +{last} +loss:", ended.log, re.MULTILINE)
    files, traced = ended.ranks(), bool(ended.phases())
    assert sorted(files) == list(ranks)
    for facts in files.values():
        assert 1e9 < facts["matmul_flops"] < 1e13
        assert traced or 1e9 < facts["matmul_flops_after"] < 1e13
        assert facts["software"]["torchtitan"].startswith(ended.case.suite.trainer.dialect)
        assert facts["device"]
