"""Names for the phases of a step in a profiler's trace: ``scaleperf.forward``, ``.backward``, ``.optimizer``.

torchtitan annotates none of them. They are put on only where the run writes traces, and they cover what the
calling thread does: under a CUDA graph that is nothing (``no_cuda_graphs`` in the dialect), and a pipeline
schedule does not call ``Tensor.backward``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.profiler import record_function

if TYPE_CHECKING:
    from collections.abc import Callable

PREFIX = "scaleperf."


def install(trainer: type[Any], is_profiling: Callable[[Any], bool]) -> None:
    """Annotate each trainer that writes traces, as its training begins."""
    original = trainer.train

    def train(self: Any) -> Any:  # noqa: ANN401 - a torchtitan class
        if is_profiling(self):
            _annotate(self)
        return original(self)

    trainer.train = train


def _annotate(trainer: Any) -> None:  # noqa: ANN401 - a torchtitan class
    for part in trainer.model_parts:
        _annotate_forward(part)
    torch.Tensor.backward = _named("backward", torch.Tensor.backward)
    trainer.optimizers.step = _named("optimizer", trainer.optimizers.step)


def _named(phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def named(*args: Any, **words: Any) -> Any:  # noqa: ANN401 - whatever the function takes
        with record_function(PREFIX + phase):
            return function(*args, **words)

    return named


def _annotate_forward(module: Any) -> None:  # noqa: ANN401 - a torch module
    """Hooks that run before and after all others, so that FSDP's gathering lies inside."""
    running: list[Any] = []

    def begin(*_: object) -> None:
        running.append(record_function(PREFIX + "forward").__enter__())

    def end(*_: object) -> None:
        running.pop().__exit__(None, None, None)

    module.register_forward_pre_hook(begin, prepend=True)
    module.register_forward_hook(end, always_call=True)
