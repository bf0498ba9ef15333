"""How one generation of torchtitan spells our words as arguments; read from YAML, so that a fork brings its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

import pydantic

from pytest_scaleperf import yamlfile
from pytest_scaleperf.model import SuiteError
from pytest_scaleperf.yamlfile.schema import FileModel, Text, expected

_FOLDER = Path(__file__).parent / "dialects"
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_NUMBERS = re.compile(r"[0-9]+(?:\.[0-9]+)*")

Version: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Dialect:
    """The words of one dialect. ``words`` maps ``group.word`` (as in the file) to arguments with placeholders.

    ``first`` and ``before`` bound the torchtitan versions that it is for. ``activation_checkpoint_last`` is true
    where activation checkpointing has to come after every other argument.
    """

    name: str
    path: Path
    first: Version
    before: Version
    words: Mapping[str, tuple[str, ...]]
    activation_checkpoint_last: bool

    def has(self, word: str) -> bool:
        """True where the dialect can say this word."""
        return word in self.words

    def say(self, word: str, **values: object) -> tuple[str, ...]:
        """The word as arguments, each ``{name}`` replaced by the value of that name.

        Raises SuiteError where the dialect has no such word.
        """
        template = self.words.get(word)
        if template is None:
            raise SuiteError(
                f"{self.path}: expected arguments for {word}, which a case needs, found none: "
                f"dialect {self.name!r} cannot ask for it; add the word to that file or take the case out of the suite"
            )
        return tuple(_PLACEHOLDER.sub(lambda match: str(values[match[1]]), argument) for argument in template)

    def speaks(self, version: str) -> bool:
        """True where ``version``, a torchtitan version such as ``0.3.0.dev1+git``, lies in this dialect's range."""
        match = _NUMBERS.match(version)
        return match is not None and self.first <= _numbers(match[0]) < self.before

    @property
    def versions(self) -> str:
        """The range for a message: ``torchtitan >= 0.3, < 0.4``."""
        first, before = (".".join(map(str, numbers)) for numbers in (self.first, self.before))
        return f"torchtitan >= {first}, < {before}"


def known_dialects() -> tuple[str, ...]:
    """Names of the dialects that come with this package."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


def load_dialect(name: str, *, relative_to: Path) -> Dialect:
    """A dialect by its name, or a fork's own by the path of its YAML file, relative to the folder ``relative_to``.

    Raises SuiteError for an unknown name and for every fault of the file: file, line, expected, found.
    """
    if name.endswith((".yaml", ".yml")):
        return _read(relative_to / name)
    if name not in known_dialects():
        known = ", ".join(f'"{known}"' for known in known_dialects())
        raise SuiteError(
            f"trainer.dialect: expected {known} or the path of a .yaml file, found {name!r}. "
            f"A fork with flags of its own: copy {_FOLDER / '0.3.yaml'}, change it, and name the copy"
        )
    return _read(_FOLDER / f"{name}.yaml")


def _read(path: Path) -> Dialect:
    file = yamlfile.validate(yamlfile.parse(path, SuiteError), _File, SuiteError)
    groups = {
        "layout": file.layout,
        "batch": file.batch,
        "run": file.run,
        "switches": file.switches,
        "activation_checkpoint": file.activation_checkpoint,
    }
    words = {
        f"{group}.{word}": tuple(arguments)
        for group, spoken in groups.items()
        for word, arguments in spoken.model_dump(by_alias=True, exclude_none=True).items()
    }
    words["model"] = tuple(file.model)
    if file.profiler is not None:
        words["profiler"] = tuple(file.profiler)
    return Dialect(
        name=file.name,
        path=path,
        first=_numbers(file.torchtitan.first),
        before=_numbers(file.torchtitan.before),
        words=words,
        activation_checkpoint_last=file.activation_checkpoint_last,
    )


def _numbers(version: str) -> Version:
    return tuple(int(part) for part in version.split("."))


def _template(*names: str) -> pydantic.AfterValidator:
    """Arguments in which exactly these placeholders stand, each at least once."""
    form = f"a list of arguments with {' and '.join(f'{{{name}}}' for name in names)}"
    form = form if names else "a list of arguments without {placeholders}"

    def check(arguments: list[str]) -> list[str]:
        found = {name for argument in arguments for name in _PLACEHOLDER.findall(argument)}
        if found != set(names):
            raise expected(form)
        return arguments

    return pydantic.AfterValidator(check)


_Plain = Annotated[list[Text], _template()]
_Value = Annotated[list[Text], _template("value")]
_Number = Annotated[str, pydantic.Field(pattern=rf"^{_NUMBERS.pattern}$", description='a version in quotes: "0.3"')]


class _Versions(FileModel):
    first: _Number = pydantic.Field(alias="from")
    before: _Number


class _Layout(FileModel):
    dp_shard: _Value
    dp_replicate: _Value
    tp: _Value | None = None
    cp: _Value | None = None
    pp: _Value | None = None
    ep: _Value | None = None


class _Batch(FileModel):
    local: _Value
    global_: _Value = pydantic.Field(alias="global")
    sequence: _Value


class _Run(FileModel):
    steps: _Value
    log_freq: _Value
    metrics: _Plain
    dump_folder: _Value
    seed: _Value | None = None
    init_timeout: _Value | None = None
    train_timeout: _Value | None = None


class _Switches(FileModel):
    force_load_balance: _Plain | None = None
    fake_backend: _Plain | None = None
    compile: _Plain | None = None
    no_compile: _Plain | None = None
    no_cuda_graphs: _Plain | None = None
    cpu: _Plain | None = None


class _ActivationCheckpoint(FileModel):
    none: _Plain | None = None
    selective: _Plain | None = None
    full: _Plain | None = None
    memory_budget: _Plain | None = None


class _File(FileModel):
    name: Text
    torchtitan: _Versions
    model: Annotated[list[Text], _template("module", "config")]
    layout: _Layout
    batch: _Batch
    run: _Run
    switches: _Switches
    profiler: Annotated[list[Text], _template("freq", "active", "warmup")] | None = None
    activation_checkpoint: _ActivationCheckpoint
    activation_checkpoint_last: bool
