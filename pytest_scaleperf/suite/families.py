"""Names of the families whose local batch is searched: the ids of their cases without the batch."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_scaleperf.model import Search
from pytest_scaleperf.suite.expand import Configuration
from pytest_scaleperf.yamlfile import Faults, Loc


def searches(faults: Faults, prefix: str, configurations: Sequence[Configuration]) -> list[Search | None]:
    """The search that each configuration is a candidate of, or None; equal families share one.

    The target of the global batch and the sequence length are in a name where the rung has several of them.
    """
    found = [c for c in configurations if c.found is not None]
    targets = {c.batch.target for c in found}
    lengths = {c.batch.sequence for c in found}
    made: dict[str, tuple[Loc, Search]] = {}
    answer: list[Search | None] = []
    for c in configurations:
        if c.found is None:
            answer.append(None)
            continue
        name = f"{prefix}-{c.layout.label}-{c.activation_checkpoint.replace('_', '-')}"
        name += f"-gbs{c.batch.target}" if len(targets) > 1 and c.batch.target is not None else ""
        name += f"-seq{c.batch.sequence}" if len(lengths) > 1 else ""
        if name not in made:
            made[name] = (c.loc, Search(name, None if c.found.offsets is None else tuple(sorted(c.found.offsets))))
        loc, search = made[name]
        if loc != c.loc:
            line = faults.document.line(loc)
            faults.add((*c.loc, "local_batch"), f"each family searched once: {name} is searched in line {line} already")
            made[name] = (c.loc, search)
        answer.append(search)
    return answer
