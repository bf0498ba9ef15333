"""What is known of a finished run as one plain object, for ``scaleperf observe --json``: names, units, nothing new.

The names are those that people who compare readers of torchtitan logs use, so one quantity can stand under two names
(``attempts`` and ``n_attempts``). A quantity that is not known is null, never 0.
"""

from __future__ import annotations

import math
import re
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_scaleperf.model import Failure, Metric, Outcome
from pytest_scaleperf.titan.events import TOKENS_SEEN, WRONG_STEP_TIME
from pytest_scaleperf.titan.merge import visible_loss
from pytest_scaleperf.titan.settings import mesh_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_scaleperf.model import Measurement, StepSample
    from pytest_scaleperf.titan.observe import Run
    from pytest_scaleperf.titan.samples import Sample

_SAMPLE_FIELDS = ("step", "loss", "grad_norm", "memory_gib", "memory_pct", "tps", "tflops", "mfu_pct")
_DEGREE = re.compile(r"(\w+)\((\d+)\)")
_REMAINDER = re.compile(r"\((\d+) % \(?(\d+)(?: \* (\d+))?\)? != 0\)")
_DIVISIBLE = re.compile(r"\((\d+)\)[^()]*?(?:divisible by|multiple of)[^()]*?\(?(\d+)\b")


@dataclass(frozen=True, slots=True)
class Given:
    """What the caller knows beside the files. ``facts`` are settings by torchtitan's names (``cp``, ``dp_shard``, …).

    ``window`` holds the steady steps, also of a run that is not judged; ``measurement`` the numbers of one that is.
    ``alloc_retries`` are those of the window, ``peak_flops`` is the peak of one GPU in FLOP/s.
    """

    window: tuple[StepSample, ...]
    measurement: Measurement
    alloc_retries: int | None = None
    peak_flops: float | None = None
    tokens_per_step_per_gpu: float | None = None
    facts: Mapping[str, int | str] = field(default_factory=dict)


def answer(run: Run, given: Given) -> dict[str, Any]:
    """Everything about one run, as plain JSON values."""
    found = {
        **_ending(run),
        **_steps(run, given),
        **_speed(run, given),
        **_memory(run, given),
        **_tokens(run, given),
        **_configuration(run, given),
        "sources": {name: str(source) for name, source in run.merged.sources.items()},
        "software": dict(run.observation.software),
        "warnings": list(run.observation.warnings) + list(given.measurement.warnings),
    }
    return {name: _plain(value) for name, value in found.items()}


def _plain(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Without what JSON cannot hold: a number that is not finite becomes its name."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _ending(run: Run) -> dict[str, Any]:
    failure = run.observation.failure
    outcome = run.observation.outcome
    return {
        "outcome": str(outcome),
        "completed": outcome is Outcome.COMPLETED,
        "reason": _reason(failure),
        "reason_line": failure.reason if failure else None,
        "line": failure.line if failure else None,
        "rank": failure.rank if failure else None,
        "host": failure.host if failure else None,
        "first_failing_rank": failure.rank if failure else None,
        "first_failing_host": failure.host if failure else None,
        "signal": failure.signal if failure else None,
        "step": failure.step if failure else None,
        "requested_gib": failure.requested_gib if failure else None,
        "oom": _oom(failure),
        "where": {Outcome.OOM: "gpu", Outcome.HOST_OOM: "host"}.get(outcome),
        "detail": _remainder(failure),
        "consequences": list(failure.consequences) if failure else [],
        "failure_details": dict(failure.details) if failure else {},
    }


def _reason(failure: Failure | None) -> str | None:
    """The scheduler's word where it has one (preemption, unspecified, …), else the line that says why."""
    if failure is None:
        return None
    return str(failure.details["reason"]) if "reason" in failure.details else failure.reason


def _oom(failure: Failure | None) -> bool | str:
    """Whether memory ran out; after a bare SIGKILL nobody can tell."""
    if failure is None:
        return False
    if failure.outcome is Outcome.KILLED:
        return "unproven"
    return failure.outcome in (Outcome.OOM, Outcome.HOST_OOM)


def _remainder(failure: Failure | None) -> str | None:
    """The division behind a divisibility error: ``100 % 64 = 36``."""
    if failure is None or failure.outcome is not Outcome.CONFIG_ERROR:
        return None
    found = _REMAINDER.search(failure.reason)
    if found:
        whole, part = int(found[1]), int(found[2]) * int(found[3] or 1)
    else:
        found = _DIVISIBLE.search(failure.reason)
        if not found:
            return None
        whole, part = int(found[1]), int(found[2])
    return f"{whole} % {part} = {whole % part}" if part else None


def _steps(run: Run, given: Given) -> dict[str, Any]:
    seen = run.observation
    series = seen.series
    used = {sample.step for sample in given.window}
    dropped = [sample.step for sample in series if sample.step not in used]
    last = run.console.last_attempt
    return {
        "requested_steps": seen.requested_steps,
        "last_step": seen.last_step,
        "last_logged_step": series[-1].step if series else None,
        "steps": len(series),
        "n_steps": len(series),
        "distinct_steps": [sample.step for sample in series],
        "attempts": seen.attempts,
        "n_attempts": seen.attempts,
        "first_step": seen.first_step,
        "first_step_of_last_attempt": last.first_step if last and last.first_step else seen.first_step,
        "samples": [_sample(sample) for sample in series],
        "lines": [_line(sample, run) for sample in run.console.samples],
        "train": {sample.step: _sample(sample) for sample in series},
        "validation": {s.step: _line(s, run) for s in run.console.last(run.console.validation)},
        "usable": {sample.step: sample.tps for sample in given.window},
        "usable_steps": [sample.step for sample in given.window],
        "usable_after_warmup": [sample.step for sample in given.window],
        "excluded_steps": dropped,
        "excluded_warmup": dropped,
        "malformed_lines": seen.malformed_lines,
    }


def _sample(sample: StepSample) -> dict[str, Any]:
    shown = {name: getattr(sample, name) for name in _SAMPLE_FIELDS}
    return {**shown, "tps_min": sample.tps_min, "alloc_retries": sample.alloc_retries, "ranks": sample.ranks}


def _line(sample: Sample, run: Run) -> dict[str, Any]:
    """One printed line as it stands, but for a pipeline's sentinel loss."""
    pipeline = run.merged.loss_rank is not None
    shown = {name: getattr(sample, name) for name in _SAMPLE_FIELDS}
    return {**shown, "loss": visible_loss(sample.loss, pipeline=pipeline), "rank": sample.speaker.outer}


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return statistics.median(known) if known else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return statistics.fmean(known) if known else None


def _speed(run: Run, given: Given) -> dict[str, Any]:
    series, kept = run.observation.series, given.window
    later = [sample.tps for sample in series[1:]]
    mfu = given.measurement.values.get(Metric.MFU)
    tflops = _median([sample.tflops for sample in kept])
    if mfu is None and given.peak_flops and tflops is not None:
        mfu = 100 * tflops * 1e12 / given.peak_flops
    printed = [sample.mfu_pct for sample in series if sample.mfu_pct is not None]
    return {
        "tps": {sample.step: sample.tps for sample in series},
        "tps_min": {sample.step: sample.tps_min for sample in series},
        "median_tps": _median([sample.tps for sample in kept]),
        "tps_per_device": _median([sample.tps for sample in kept]),
        "median_tps_excluding_first": _median(later),
        "mean_tps_excluding_first": _mean(later),
        "tflops": tflops,
        "mfu": mfu,
        "mfu_pct": _median([sample.mfu_pct for sample in kept]),
        "max_mfu_pct": max(printed) if printed else None,
        "peak_flops": given.peak_flops or run.console.settings.peak_flops,
        "spread": {str(metric): value for metric, value in given.measurement.spread.items()},
    }


def _memory(run: Run, given: Given) -> dict[str, Any]:
    series = run.observation.series
    gib = [sample.memory_gib for sample in series if sample.memory_gib is not None]
    pct = [sample.memory_pct for sample in series if sample.memory_pct is not None]
    counts = [sample.alloc_retries for sample in series if sample.alloc_retries]
    return {
        "run_peak_gib": max(gib) if gib else None,
        "run_peak_pct": max(pct) if pct else given.measurement.memory_pct,
        "memory": max(gib) if gib else None,
        "alloc_retries": given.alloc_retries,
        "alloc_retries_cumulative": list(run.console.retries) or counts,
    }


def _tokens(run: Run, given: Given) -> dict[str, Any]:
    """Loss, and everything that follows from the tokens of one step."""
    series = run.observation.series
    losses = {sample.step: sample.loss for sample in series if sample.loss is not None}
    size = run.observation.world_size
    per_gpu = given.tokens_per_step_per_gpu
    tps = _median([sample.tps for sample in given.window])
    total = per_gpu * size if per_gpu is not None and size else None
    times = {s.step: per_gpu / s.tps for s in series if s.tps} if per_gpu is not None else {}
    hidden = [text for text in run.observation.warnings if text.startswith("loss not visible")]
    return {
        "loss": losses or None,
        "loss_rank": run.merged.loss_rank,
        "warn": hidden[0] if hidden else None,
        "world_size": size,
        "tokens_per_step": total,
        "tokens_per_step_per_gpu": per_gpu,
        "global_tokens_per_s": tps * size if tps is not None and size else None,
        "step_time_s": per_gpu / tps if per_gpu is not None and tps else None,
        "true_step_time_s": times or None,
        "tb_value": _tagged(run, WRONG_STEP_TIME) or None,
        **_tokens_seen(run, total),
    }


def _tagged(run: Run, tag: str) -> dict[int, float]:
    return {step: values[0][1] for step in run.events.steps() if (values := run.events.values(step, tag))}


def _tokens_seen(run: Run, total: float | None) -> dict[str, Any]:
    """The tokens up to the last logged step, and how many times too many the event files say.

    Until 0.2.2 torchtitan counts the tokens of a sequence once for each context-parallel rank.
    """
    seen = _tagged(run, TOKENS_SEEN)
    if not seen:
        return {"n_tokens_seen": None, "true_tokens": None, "factor": None}
    step = max(seen)
    true = total * step if total is not None else None
    return {"n_tokens_seen": seen, "true_tokens": true, "factor": seen[step] / true if true else None}


def _configuration(run: Run, given: Given) -> dict[str, Any]:
    settings = run.console.settings
    failure = run.observation.failure
    product = None
    if failure is not None and "!= WORLD_SIZE" in failure.reason:
        product = math.prod(int(n) for _, n in _DEGREE.findall(failure.reason.split("!=")[0]))
    return {
        "mesh": dict(settings.mesh),
        "local_batch": settings.local_batch,
        "global_batch": settings.global_batch,
        "accumulation": settings.accumulation,
        "sequence": settings.sequence,
        "product": product,
        "computed_dp_shard": _computed_dp_shard(run, given),
    }


def _computed_dp_shard(run: Run, given: Given) -> int | None:
    """What torchtitan makes of ``dp_shard = -1``: the ranks that the other degrees leave."""
    size = run.observation.world_size
    facts = {name: value for name, value in given.facts.items() if isinstance(value, int)}
    if size is None or facts.get("dp_shard") != -1:
        return None
    return size // mesh_size({**facts, "dp_shard": 1})


def tokens_per_step_per_gpu(run: Run, facts: Mapping[str, int | str]) -> float | None:
    """Tokens that one GPU stands for in one step, by torchtitan's arithmetic: global batch x sequence / world size.

    From the log's settings, or from what the caller gives. None where a part is not known.
    """
    settings = run.console.settings
    direct = facts.get("tokens_per_step_per_device")
    if isinstance(direct, int):
        rest = facts.get("non_data_parallel_size", 1)
        return direct / rest if isinstance(rest, int) else None
    numbers = {name: value for name, value in facts.items() if isinstance(value, int)}
    size = run.observation.world_size
    sequence = numbers.get("seq_len", settings.sequence)
    batch = numbers.get("global_batch_size", settings.global_batch)
    if batch is None and "local_batch_size" in numbers:
        data_parallel = numbers.get("dp_shard", 1) * numbers.get("dp_replicate", 1)
        batch = numbers["local_batch_size"] * data_parallel * numbers.get("gradient_accumulation", 1)
    return batch * sequence / size if batch and sequence and size else None
