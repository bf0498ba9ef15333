"""What tells one case from another: its id, which people read and select, and the digest of what it runs."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import PurePath

from pytest_scaleperf.model import ActivationCheckpoint, Batch, Case, Layout

DIGEST_LENGTH = 12


def base_id(prefix: str, layout: Layout, mode: ActivationCheckpoint, batch: Batch) -> str:
    """The id without what only some rungs need; ``prefix`` is ``<suite>-<gpus>gpu``.

    The global batch is shown where it needs accumulation; without, it follows from the layout and ``lbs``.
    """
    shown = f"-gbs{batch.global_}" if batch.accumulation > 1 else ""
    return f"{prefix}-{layout.label}-{mode.replace('_', '-')}-lbs{batch.local}{shown}"


def distinct_ids(ids: Sequence[str], batches: Sequence[Batch]) -> list[str]:
    """The ids of one rung, with the sequence length wherever several cases differ in nothing else."""
    if len(set(ids)) == len(ids):
        return list(ids)
    told = set(zip(ids, (batch.sequence for batch in batches), strict=True))
    lengths = Counter(name for name, _ in told)
    return [
        f"{name}-seq{batch.sequence}" if lengths[name] > 1 else name for name, batch in zip(ids, batches, strict=True)
    ]


def digest(case: Case) -> str:
    """Twelve hex digits over everything that decides what one launch of the case trains.

    Left out: names and places (suite, file, folder of an executable, interpreter), which differ between
    machines; limits, repeats and expectations, which decide what is done about a run. Of a dialect or an
    executable only the file name counts. What the interpreter has installed is in the fingerprint itself.
    """
    trainer, measure, layout, batch = case.suite.trainer, case.suite.measure, case.layout, case.batch
    decides = {
        "trainer": {
            "dialect": PurePath(trainer.dialect).name,
            "module": trainer.module,
            "config": trainer.config,
            "entry": trainer.entry,
            "executable": trainer.executable and PurePath(trainer.executable).name,
            "args": trainer.args,
            "env": sorted(trainer.env),
            "force_load_balance": trainer.force_load_balance,
        },
        "measure": [measure.steps, measure.warmup, measure.log_freq],
        "layout": [layout.dp_shard, layout.dp_replicate, layout.tp, layout.cp, layout.pp, layout.ep],
        "activation_checkpoint": case.activation_checkpoint,
        "batch": [batch.local, batch.global_, batch.accumulation, batch.sequence],
    }
    canonical = json.dumps(decides, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:DIGEST_LENGTH]
