"""A model cut to its first layers: ``SCALEPERF_LAYERS=8`` trains 8 layers of the configuration that the suite names.

So a model that needs a cluster can be measured on one node: width, experts, vocabulary and sequence stay, and with
them the shape of every kernel and collective; only how often each comes in a step changes. A suite says it in
``trainer.env``, which is part of what a case is: its numbers are never compared with those of the whole model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_scaleperf.titan.inside.say import refuse, say

if TYPE_CHECKING:
    from collections.abc import Mapping

LAYERS = "SCALEPERF_LAYERS"


def read_layers(env: Mapping[str, str]) -> int | None:
    """How many layers the environment asks for, None where it asks for none. Ends the rank where it cannot be."""
    text = env.get(LAYERS)
    if not text:
        return None
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        refuse(f"{LAYERS}: expected a whole number of layers, at least 1, found {text!r}")
    return int(text)


def check(wanted: int, has: int, model: str) -> int:
    """``wanted`` where the model has that many layers, and a line in the log. Ends the rank where it has fewer."""
    if wanted > has:
        refuse(f"{LAYERS}: expected at most the {has} layers of {model}, found {wanted}")
    say(f"{LAYERS}={wanted}: the first {wanted} of the {has} layers of {model} are trained")
    return wanted
