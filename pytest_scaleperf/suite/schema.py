"""What a suite file may hold, key by key; each ``description`` is the accepted form in words."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, StringConstraints, Tag, model_validator

from pytest_scaleperf.model import AXES, FINGERPRINT_FIELDS, ActivationCheckpoint, Metric, Outcome
from pytest_scaleperf.yamlfile.schema import FRACTION, Count, FileModel, Fraction, Name, Text, different, expected

COUNTS = "a whole number of at least 1, or a list of different ones"
MODES = f"one of {', '.join(ActivationCheckpoint)}, or a list of different ones"
EXPECTABLE = tuple(outcome for outcome in Outcome if not outcome.is_machine)
_OUTCOMES = f"an outcome that the code or the configuration decides: {', '.join(EXPECTABLE)}"
_METRICS = f"a mapping from {', '.join(Metric)} to {FRACTION}"
_AXES = f"a list of different names out of {', '.join(AXES)}"
_FIELDS = f"a list of different names out of {', '.join(FINGERPRINT_FIELDS)}"
_SECONDS = "a number of seconds, more than 0"
_GRID = "a mapping with from, step and, where the grid is to end, to: whole numbers of at least 1"
_OFFSETS = "a list of different whole numbers, such as [0, 4, 8]"
_FOUND = "{search: {from: 2, step: 4}} or {around: peak, offsets: [0, 4, 8]}"
LOCAL_BATCHES = f"{COUNTS}, or {_FOUND}"


def _as_list(value: object) -> object:
    return value if isinstance(value, list) else [value]


def _axis_name(value: str) -> str:
    if value not in AXES:
        raise expected(f"one of {', '.join(AXES)}")
    return value


def _field_name(value: str) -> str:
    if value not in FINGERPRINT_FIELDS:
        raise expected(f"one of {', '.join(FINGERPRINT_FIELDS)}")
    return value


def _by_the_code(value: Outcome) -> Outcome:
    if value.is_machine:
        raise expected(f"{_OUTCOMES} (a failure of the machine is an error, never expected)")
    return value


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise expected(f"a regular expression ({error})") from None
    return value


def _as_mapping(value: object) -> object:
    return {"always": value} if isinstance(value, bool) else value


def _grid(value: dict[str, int]) -> dict[str, int]:
    if not {"from", "step"} <= value.keys():
        raise expected(_GRID)
    second = value["from"] + value["step"]
    if value.get("to", second) < second:
        raise expected(f"a grid of at least two batches: to at least {second}, not {value['to']}")
    return value


def _form(value: object) -> str:
    """Which form of a local batch is written; a tag in brackets is left out of the place of a fault."""
    return "[found]" if isinstance(value, dict) else "[given]"


def _env_value(value: object) -> str:
    """Numbers are accepted; the text that is used is taken from the file as it is written."""
    if isinstance(value, bool) or not isinstance(value, str | int | float) or "\0" in str(value):
        raise expected("text or a number; put true, false and lists in quotes")
    return str(value)


Mode = Annotated[ActivationCheckpoint, Field(strict=False)]
Counts = Annotated[list[Count] | None, BeforeValidator(_as_list), different, Field(min_length=1)]
Modes = Annotated[list[Mode] | None, BeforeValidator(_as_list), different, Field(min_length=1)]
Expect = Annotated[Outcome, Field(strict=False), AfterValidator(_by_the_code)]
Module = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$")]
Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+-]*$")]
EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Seconds = Annotated[float, Field(gt=0)]
Patterns = Annotated[list[Annotated[str, AfterValidator(_pattern)]], Field(min_length=1)]
Part = dict[str, Any]
_TRACE = "true, false, or a mapping with always, steps, tolerance and rules"
_REHEARSE = "a mapping with steps, ranks, reserve_gib, closes_gate and executable"
_RANKS = "a whole number, or a list of different ones (negative: from the end)"
_KINDS = ("communication", "compute", "forward", "backward", "optimizer")


class SuiteFile(FileModel):
    """The top of a suite file; its parts are checked one by one, so that a fault in one hides none in another."""

    name: Name = Field(description="a name of a-z, 0-9 and -, such as cpu-dense")
    system: Name = Field(description="a system's name: a folder of the baselines, of a-z, 0-9 and -")
    trainer: Part = Field(description="a mapping with dialect, module and config")
    measure: Part = Field(description="a mapping with steps, warmup and log_freq")
    limits: Part = Field(description="a mapping with startup, no_progress and total")
    tolerance: dict[Annotated[Metric, Field(strict=False)], Fraction] = Field(
        default_factory=dict, description=_METRICS
    )
    compare_across: Annotated[list[Annotated[str, AfterValidator(_field_name)]], different] = Field(
        default_factory=list, description=_FIELDS
    )
    scaling: ScalingPart | None = Field(default=None, description="a mapping with tolerance")
    trace: Annotated[TracePart | None, BeforeValidator(_as_mapping)] = Field(default=None, description=_TRACE)
    rehearse: RehearsePart | None = Field(default=None, description=_REHEARSE)
    sequence: Count = Field(description="a whole number of tokens, at least 1")
    ladder: list[Part] = Field(min_length=1, description="a list of rungs, at least one")


class TrainerPart(FileModel):
    """How a case's training is started."""

    dialect: Text = Field(description='a dialect in quotes, such as "0.3", or the path of a .yaml file')
    module: Word = Field(description="torchtitan's name of the model, such as llama3, or an importable module")
    config: Word = Field(description="the name of a configuration, such as llama3_debugmodel, or of a flavour")
    entry: Module = Field(default="synthetic", description="synthetic, or a module to run with python -m")
    python: Text | None = Field(default=None, description="a Python interpreter: a path with /, or a name on PATH")
    executable: Text | None = Field(default=None, description="a program: a path with /, or a name on PATH")
    args: list[Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]] = Field(
        default_factory=list, description="a list of arguments, each as text (numbers in quotes)"
    )
    env: dict[EnvName, Annotated[str, BeforeValidator(_env_value)]] = Field(
        default_factory=dict, description="a mapping from names of environment variables to text or numbers"
    )
    force_load_balance: bool = Field(default=False, description="true or false")


class MeasurePart(FileModel):
    """What is measured."""

    steps: Count = Field(description="a whole number of steps, at least 1")
    warmup: Count = Field(description="a whole number of steps, at least 1 (step 1 is never judged)")
    log_freq: Count = Field(description="a whole number of steps, at least 1")
    repeats: Count = Field(default=1, description="a whole number of runs, at least 1")
    max_samples: Count | None = Field(default=None, description="a whole number of runs, at least 1")
    exclusive: bool = Field(default=False, description="true or false")


class LimitsPart(FileModel):
    """When a run is ended."""

    startup: Seconds = Field(description=_SECONDS)
    no_progress: Seconds = Field(description=_SECONDS)
    total: Seconds = Field(description=_SECONDS)


class RequiresPart(FileModel):
    """A rung's gate."""

    gpus: Count = Field(description="the GPU count of a smaller rung")
    same: Annotated[list[Annotated[str, AfterValidator(_axis_name)]], different] = Field(description=_AXES)


class ScalingPart(FileModel):
    """How far the efficiency against smaller rungs may be from its baseline."""

    tolerance: Fraction = Field(description=FRACTION)


class TracePart(FileModel):
    """How cases are traced, and how far a share of the step may be from its baseline."""

    always: bool = Field(default=False, description="true or false")
    steps: Annotated[int, Field(ge=3)] = Field(default=3, description="a whole number of steps, at least 3")
    tolerance: Fraction | None = Field(default=None, description=FRACTION)
    rules: dict[Literal["communication", "compute", "forward", "backward", "optimizer"], Patterns] = Field(
        default_factory=dict, description=f"a mapping from {', '.join(_KINDS)} to lists of regular expressions"
    )


class RehearsePart(FileModel):
    """How cases are rehearsed; three steps at least give a speed."""

    steps: Annotated[int, Field(ge=3)] = Field(default=5, description="a whole number of steps, at least 3")
    ranks: Annotated[list[int], BeforeValidator(_as_list), different, Field(min_length=1)] = Field(
        default=[0], description=_RANKS
    )
    reserve_gib: Annotated[float | None, Field(ge=0)] = Field(default=None, description="a number of GiB, at least 0")
    closes_gate: bool = Field(default=True, description="true or false")
    executable: bool = Field(default=False, description="true or false")


class FoundBatches(FileModel):
    """A local batch that is found and not given: on a grid of its own, or around the peak of the rung below."""

    search: Annotated[dict[Literal["from", "step", "to"], Count], AfterValidator(_grid)] | None = Field(
        default=None, description=_GRID
    )
    around: Literal["peak"] | None = Field(default=None, description="the word peak")
    offsets: Annotated[list[int], different, Field(min_length=1)] | None = Field(default=None, description=_OFFSETS)

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        grid, near = self.search is not None, self.around is not None and self.offsets is not None
        if grid == near or (grid and (self.around is not None or self.offsets is not None)):
            raise expected(_FOUND)
        return self


LocalBatches = Annotated[
    Annotated[list[Count], BeforeValidator(_as_list), different, Field(min_length=1), Tag("[given]")]
    | Annotated[FoundBatches, Tag("[found]")],
    Discriminator(_form),
]


class LayoutPart(FileModel):
    """Values of the axes that every entry has; a single value is a list of one. Left out is None."""

    dp_shard: Counts = Field(default=None, description=COUNTS)
    dp_replicate: Counts = Field(default=None, description=COUNTS)
    tp: Counts = Field(default=None, description=COUNTS)
    cp: Counts = Field(default=None, description=COUNTS)
    pp: Counts = Field(default=None, description=COUNTS)
    ep: Counts = Field(default=None, description=COUNTS)
    activation_checkpoint: Modes = Field(default=None, description=MODES)
    global_batch: Counts = Field(default=None, description=COUNTS)
    sequence: Counts = Field(default=None, description=COUNTS)


class AxesPart(LayoutPart):
    """Values of all axes, each given."""

    local_batch: Counts = Field(default=None, description=COUNTS)


class IncludePart(AxesPart):
    """One case more; every axis has one value."""

    expect: Expect | None = Field(default=None, description=_OUTCOMES)


class RungPart(LayoutPart):
    """One entry of the ladder."""

    local_batch: LocalBatches | None = Field(default=None, description=LOCAL_BATCHES)
    gpus: Count = Field(description="a whole number of GPUs, at least 1")
    requires: RequiresPart | None = Field(default=None, description="a mapping with gpus and same")
    scaling: ScalingPart | None = Field(default=None, description="a mapping with tolerance")
    expect: Expect = Field(default=Outcome.COMPLETED, description=_OUTCOMES)
    exclude: list[AxesPart] = Field(default_factory=list, description="a list of mappings from axes to values")
    include: list[IncludePart] = Field(default_factory=list, description="a list of mappings, one for each case")
