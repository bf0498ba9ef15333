"""Synthetic tokens: endless batches that need no hub, no file and no tokenizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

END_OF_DOCUMENT = 0  # never drawn, so that every sequence is one document for masks that look for its end
SEED = 20_000  # any number; the data-parallel rank is added to it


class SyntheticTokens:
    """Batches of uniformly drawn tokens, seeded by the data-parallel rank; the same on every run.

    Each is ``({"input": int64[batch, sequence]}, labels int64[batch, sequence])``, where the labels are the
    inputs one token later; with ``positions`` the input has ``"positions": int64[batch, sequence]`` as well,
    counted from 0 in every sequence. A resumed run begins with the first batch again.
    """

    def __init__(self, *, vocabulary: int, sequence: int, batch: int, dp_rank: int, positions: bool) -> None:
        self._vocabulary = vocabulary
        self._sequence = sequence
        self._batch = batch
        self._positions = positions
        self._generator = torch.Generator().manual_seed(SEED + dp_rank)

    def __iter__(self) -> Iterator[tuple[dict[str, Any], Any]]:
        """Draw batches for ever."""
        while True:
            shape = (self._batch, self._sequence + 1)
            tokens = torch.randint(END_OF_DOCUMENT + 1, self._vocabulary, shape, generator=self._generator)
            inputs = {"input": tokens[:, :-1].contiguous()}
            if self._positions:
                inputs["positions"] = torch.arange(self._sequence).repeat(self._batch, 1)
            yield inputs, tokens[:, 1:].contiguous()

    def state_dict(self) -> dict[str, Any]:
        """Nothing is kept in a checkpoint."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing is taken from a checkpoint."""
