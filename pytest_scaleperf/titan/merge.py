"""Console samples and event scalars of all ranks to one sample per step, with the source of each number."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_scaleperf.model import Source, StepSample
from pytest_scaleperf.titan.events import TAGS, Events

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_scaleperf.titan.console import Console
    from pytest_scaleperf.titan.samples import Sample

# How one number is made of those of all ranks. A median of an even count is the lower of the two in the middle, so
# that every number shown is one that a rank reported.
_OVER_RANKS: Mapping[str, Callable[[list[float]], float]] = {
    "tps": statistics.median_low,
    "tflops": statistics.median_low,
    "mfu_pct": statistics.median_low,
    "memory_gib": max,
    "memory_pct": max,
    "alloc_retries": max,
    "grad_norm": statistics.median_low,
}
_FIELDS = (*_OVER_RANKS, "loss")
_NAMES = frozenset(_FIELDS)
_TAGS_OF = {name: [tag for tag, field in TAGS.items() if field == name] for name in _FIELDS}
# The console rounds tps to 1 and memory to 0.01; anything further apart is another run.
_TPS_ROUNDING = 0.51


@dataclass(frozen=True, slots=True)
class Merged:
    """The last attempt's steps in rising order. ``loss_rank`` is the rank whose loss is shown, where one is known."""

    series: tuple[StepSample, ...]
    sources: Mapping[str, Source]
    loss_rank: int | None
    warnings: tuple[str, ...]


def merge(console: Console, events: Events, world_size: int | None) -> Merged:
    """One sample per step: event files first, the console for what they do not hold."""
    printed = _by_step(console.last(console.samples))
    warnings: list[str] = []
    usable = _same_attempt(console, printed, events, warnings)
    pipeline = _has_pipeline(console)
    sources: dict[str, set[Source]] = {}
    series = []
    for step in sorted(set(printed) | set(usable.steps())):
        sample, of_step = _one_step(step, printed.get(step, []), usable, pipeline=pipeline)
        series.append(sample)
        for name, source in of_step.items():
            sources.setdefault(name, set()).add(source)
    mixed = [name for name, found in sources.items() if len(found) > 1]
    if mixed:
        warnings.append(f"the event files lack some steps: {', '.join(mixed)} of those come from the console")
    visible = loss_rank(console, world_size)
    if series and visible is not None and all(sample.loss is None for sample in series):
        warnings.append(f"loss not visible; loss-visible rank is {visible}")
    # Where both have a number, the event files are named: they come first.
    chief = {
        name: Source.EVENT_FILES if Source.EVENT_FILES in found else Source.CONSOLE for name, found in sources.items()
    }
    return Merged(tuple(series), chief, _shown_loss_rank(console, visible), tuple(warnings))


def loss_rank(console: Console, world_size: int | None) -> int | None:
    """The rank with the loss under pipeline parallelism: the first of the last stage (torchtitan, metrics.py).

    None without a pipeline. A V schedule (ZBVZeroBubble) has it on rank 0; the log does not name the schedule, so
    this is the rank of all other schedules unless the log's own warning names one.
    """
    settings = console.settings
    if settings.loss_rank is not None:
        return settings.loss_rank
    stages = settings.mesh.get("pp", 1)
    size = world_size or settings.world_size
    return size // stages * (stages - 1) if stages > 1 and size else None


def _has_pipeline(console: Console) -> bool:
    return console.settings.loss_rank is not None or console.settings.mesh.get("pp", 1) > 1


def visible_loss(loss: float | None, *, pipeline: bool) -> float | None:
    """None for the sentinel that ranks outside the last stage print: -accumulation, from 0.2.2 also times dp x cp.

    A cross entropy is never negative. Without a known pipeline only a whole negative number is taken for one.
    """
    if loss is None or math.isnan(loss) or loss >= 0:
        return loss
    return None if pipeline or loss == round(loss) else loss


def _shown_loss_rank(console: Console, visible: int | None) -> int | None:
    if visible is None:
        return None
    for sample in console.last(console.samples):
        if visible_loss(sample.loss, pipeline=True) is not None:
            return sample.speaker.outer if sample.speaker.label is None else visible
    return visible


def _by_step(samples: Sequence[Sample]) -> dict[int, list[Sample]]:
    found: dict[int, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.step, []).append(sample)
    return found


def _same_attempt(
    console: Console, printed: Mapping[int, Sequence[Sample]], events: Events, warnings: list[str]
) -> Events:
    """The events, unless the console shows that they are another attempt's (or another run's)."""
    warnings += events.warnings
    steps = events.steps()
    last = console.last_attempt
    if not steps or last is None:
        return events
    if last.first_step is not None and steps[0] < last.first_step:
        warnings.append(
            f"event files begin at step {steps[0]}, the last attempt at step {last.first_step}: they are not used"
        )
        return Events()
    if len(console.attempts) > max(events.attempts, 1) and not printed:
        warnings.append(
            f"the log tells of {len(console.attempts)} attempts, the event files of {events.attempts}, and the last "
            "attempt printed no step: the event files are not used"
        )
        return Events()
    for step, samples in printed.items():
        told = [value for tag in ("throughput(tps)", "wps") for _, value in events.values(step, tag)]
        shown = [sample.tps for sample in samples if sample.tps is not None]
        if told and shown and not any(abs(a - b) <= _TPS_ROUNDING for a in told for b in shown):
            warnings.append(
                f"event files and console disagree at step {step} (tps {told[0]:.1f} and {shown[0]:.0f}): not of one "
                "attempt, the event files are not used"
            )
            return Events()
    return events


def _one_step(
    step: int, printed: Sequence[Sample], events: Events, *, pipeline: bool
) -> tuple[StepSample, dict[str, Source]]:
    if len(printed) == 1 and not events.ranks:
        return _alone(step, printed[0], pipeline=pipeline)
    fields: dict[str, Any] = {}
    sources: dict[str, Source] = {}
    ranks = len(printed)
    for name in _FIELDS:
        told = [value for tag in _TAGS_OF[name] for _, value in events.values(step, tag)]
        values, source = _meaningful(name, told, pipeline=pipeline), Source.EVENT_FILES
        if not values:
            shown = [getattr(sample, name) for sample in printed]
            values, source = _meaningful(name, shown, pipeline=pipeline), Source.CONSOLE
        if values:
            fields[name], sources[name] = _combine(name, values), source
            if name == "tps":
                fields["tps_min"] = min(values)
        ranks = max(ranks, len(told))
    return StepSample(step=step, ranks=ranks, **fields), sources


def _alone(step: int, sample: Sample, *, pipeline: bool) -> tuple[StepSample, dict[str, Source]]:
    """The same for one rank on the console and nothing else: most short logs, and nothing to merge."""
    fields: dict[str, Any] = {}
    for name in _FIELDS:
        value = getattr(sample, name)
        if value is not None and (known := _meaningful(name, (value,), pipeline=pipeline)):
            fields[name] = known[0]
    if "tps" in fields:
        fields["tps_min"] = fields["tps"]
    return StepSample(step=step, **fields), dict.fromkeys(fields.keys() & _NAMES, Source.CONSOLE)


def _meaningful(name: str, values: Sequence[float | None], *, pipeline: bool) -> list[float]:
    """Without absences: a sentinel loss, and -1 for a statistic that the device does not have."""
    if name == "loss":
        values = [visible_loss(value, pipeline=pipeline) for value in values]
    known = [value for value in values if value is not None]
    if name in ("memory_gib", "memory_pct"):
        return [value for value in known if value > 0]
    return [value for value in known if value >= 0] if name == "alloc_retries" else known


def _combine(name: str, values: list[float]) -> float | int:
    if name == "loss":
        return next((value for value in values if not math.isfinite(value)), values[0])
    if name == "alloc_retries":
        return int(max(values))
    return _OVER_RANKS[name](values)
