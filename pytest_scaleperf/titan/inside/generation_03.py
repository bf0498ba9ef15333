"""torchtitan 0.3: where synthetic tokens and the CPU's attention go in, and how its training is started."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torchtitan.train
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.config import ConfigManager
from torchtitan.models.common.attention import FlexAttention, ScaledDotProductAttention, VarlenAttention
from torchtitan.trainer import Trainer

from pytest_scaleperf.titan.inside import cut
from pytest_scaleperf.titan.inside.say import refuse
from pytest_scaleperf.titan.inside.tokens import END_OF_DOCUMENT, SyntheticTokens

TRAINER: type[Any] = Trainer


class SyntheticDataLoader(SyntheticTokens, BaseDataLoader):  # type: ignore[misc] # torchtitan ships no types
    """Synthetic tokens in the form that a 0.3 configuration builds."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):  # type: ignore[misc] # torchtitan ships no types
        """``vocabulary``: tokens are drawn from 1 to this, exclusive."""

        vocabulary: int

    def __init__(  # noqa: PLR0913 - torchtitan's own keywords
        self,
        config: Config,
        *,
        dp_rank: int,
        seq_len: int,
        local_batch_size: int,
        dp_world_size: int,  # noqa: ARG002 - passed by torchtitan
        tokenizer: BaseTokenizer,  # noqa: ARG002 - passed by torchtitan
        snapshot_every_n_steps: int | None = None,  # noqa: ARG002 - passed by torchtitan
    ) -> None:
        super().__init__(
            vocabulary=config.vocabulary, sequence=seq_len, batch=local_batch_size, dp_rank=dp_rank, positions=True
        )


class NoTokenizer(BaseTokenizer):  # type: ignore[misc] # torchtitan ships no types
    """Stands where torchtitan builds a tokenizer; nothing encodes or decodes synthetic tokens."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):  # type: ignore[misc] # torchtitan ships no types
        """``vocabulary``: what get_vocab_size answers."""

        vocabulary: int

    def __init__(self, config: Config, *, tokenizer_path: str) -> None:  # noqa: ARG002 - passed by torchtitan
        super().__init__()
        self.eos_id = END_OF_DOCUMENT
        self._vocabulary = config.vocabulary

    def encode(self, *_: object, **__: object) -> list[int]:
        """Not possible."""
        raise NotImplementedError

    def decode(self, *_: object, **__: object) -> str:
        """Not possible."""
        raise NotImplementedError

    def get_vocab_size(self) -> int:
        """Size of the model's vocabulary."""
        return self._vocabulary


def install(*, cpu: bool, layers: int | None = None) -> None:
    """Change every configuration after torchtitan has parsed it: our tokens, and on a CPU plain attention.

    ``layers``: that many of the model's layers only.
    """
    original = ConfigManager.parse_args

    def parse_args(manager: ConfigManager, args: list[str] | None = None) -> Any:  # noqa: ANN401 - a torchtitan class
        config = original(manager, args)
        vocabulary = _vocabulary(config)
        config.dataloader = SyntheticDataLoader.Config(vocabulary=vocabulary)
        config.tokenizer = NoTokenizer.Config(vocabulary=vocabulary)
        if layers is not None:
            model = config.model_spec.model
            kept = cut.check(layers, len(model.layers), f"{config.model_spec.name} {config.model_spec.flavor}")
            model.layers = model.layers[:kept]
        if cpu:
            _use_plain_attention(config.model_spec.model)
        return config

    ConfigManager.parse_args = parse_args


def run() -> None:
    """Train as ``python -m torchtitan.train`` would."""
    torchtitan.train.main()


def is_profiling(trainer: Any) -> bool:  # noqa: ANN401 - a torchtitan class
    """True where this run writes traces."""
    return bool(trainer.config.profiler.enable_profiling)


def _vocabulary(config: Any) -> int:  # noqa: ANN401 - a torchtitan class
    vocabulary = getattr(config.model_spec.model, "vocab_size", None)
    if not isinstance(vocabulary, int):
        refuse(
            f"synthetic tokens need a model with a vocab_size; {config.model_spec.name} {config.model_spec.flavor} has "
            "none: set trainer.entry to a module of your own"
        )
    return vocabulary


def _use_plain_attention(model: Any) -> None:  # noqa: ANN401 - a torchtitan class
    """Causal SDPA everywhere: on a CPU FlexAttention has no backward, variable-length attention no kernel."""
    places = [
        (parent, attribute)
        for kind in (FlexAttention.Config, VarlenAttention.Config)
        for _name, _config, parent, attribute in model.traverse(kind)
    ]
    for parent, attribute in places:
        setattr(parent, attribute, ScaledDotProductAttention.Config())
