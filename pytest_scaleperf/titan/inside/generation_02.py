"""torchtitan 0.2: where synthetic tokens go in, and how its training is started."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.profiler
import torchtitan.protocols.train_spec as specs
import torchtitan.train
from torchtitan.components.tokenizer import BaseTokenizer

from pytest_scaleperf.titan.inside import cut
from pytest_scaleperf.titan.inside.say import refuse
from pytest_scaleperf.titan.inside.tokens import END_OF_DOCUMENT, SyntheticTokens

TRAINER: type[Any] = torchtitan.train.Trainer


class NoTokenizer(BaseTokenizer):  # type: ignore[misc] # torchtitan ships no types
    """Answers the end-of-document token, which some attention masks ask for; nothing is encoded or decoded."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.eos_id = END_OF_DOCUMENT
        self._vocabulary = vocabulary

    def encode(self, *_: object, **__: object) -> list[int]:
        """Not possible."""
        raise NotImplementedError

    def decode(self, *_: object, **__: object) -> str:
        """Not possible."""
        raise NotImplementedError

    def get_vocab_size(self) -> int:
        """Size of the model's vocabulary."""
        return self._vocabulary


class _CpuProfile(torch.profiler.profile):  # type: ignore[misc] # torch's types are not followed
    """0.2 lists the accelerator's activity also where there is none, as None, which torch refuses."""

    def __init__(self, *, activities: Sequence[Any], **words: Any) -> None:  # noqa: ANN401 - torch's own keywords
        super().__init__(activities=[activity for activity in activities if activity is not None], **words)


def install(*, cpu: bool, layers: int | None = None) -> None:
    """Have every model's training specification build our tokens instead of a data set and a tokenizer.

    ``layers``: have it build that many of its layers only.
    """
    if cpu:
        torch.profiler.profile = _CpuProfile
    original = specs.get_train_spec

    def get_train_spec(name: str) -> Any:  # noqa: ANN401 - a torchtitan class
        spec = original(name)
        return dataclasses.replace(
            spec,
            model_args=spec.model_args if layers is None else _Cut(name, spec.model_args, layers),
            build_dataloader_fn=lambda **words: _dataloader(spec, **words),
            build_tokenizer_fn=lambda job_config: NoTokenizer(_vocabulary(spec, job_config)),
        )

    specs.get_train_spec = get_train_spec


class _Cut(Mapping[str, Any]):
    """A model's flavours, each with its first layers only; what is wrong with that is said for the one that is used."""

    def __init__(self, model: str, flavours: Mapping[str, Any], layers: int) -> None:
        self._model, self._flavours, self._layers = model, flavours, layers
        self._made: dict[str, Any] = {}

    def __getitem__(self, flavour: str) -> Any:  # noqa: ANN401 - a torchtitan class
        """The same object each time: torchtitan writes its settings into it."""
        if flavour not in self._made:
            whole = self._flavours[flavour]
            layers = cut.check(self._layers, whole.n_layers, f"{self._model} {flavour}")
            self._made[flavour] = dataclasses.replace(whole, n_layers=layers)
        return self._made[flavour]

    def __iter__(self) -> Iterator[str]:
        return iter(self._flavours)

    def __len__(self) -> int:
        return len(self._flavours)


def run() -> None:
    """Train as ``python -m torchtitan.train`` would."""
    torchtitan.train.main(TRAINER)


def is_profiling(trainer: Any) -> bool:  # noqa: ANN401 - a torchtitan class
    """True where this run writes traces."""
    return bool(trainer.job_config.profiling.enable_profiling)


def _dataloader(spec: Any, *, dp_rank: int, job_config: Any, **_: object) -> SyntheticTokens:  # noqa: ANN401 - torchtitan classes
    return SyntheticTokens(
        vocabulary=_vocabulary(spec, job_config),
        sequence=job_config.training.seq_len,
        batch=job_config.training.local_batch_size,
        dp_rank=dp_rank,
        positions=False,
    )


def _vocabulary(spec: Any, job_config: Any) -> int:  # noqa: ANN401 - torchtitan classes
    vocabulary = getattr(spec.model_args[job_config.model.flavor], "vocab_size", None)
    if not isinstance(vocabulary, int):
        refuse(
            f"synthetic tokens need a model with a vocab_size; {job_config.model.name} {job_config.model.flavor} has "
            "none: set trainer.entry to a module of your own"
        )
    return vocabulary
