"""Keep a share of the device free: what communication takes in a real run, a rehearsal's allocator must not take.

``SCALEPERF_MOST_MEMORY=0.985714`` lets the allocator take that share of the device's memory and no more. So a
rehearsal retries and runs out of memory where the real run does, and not two GiB later.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from pytest_scaleperf.titan.inside.say import refuse, say

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_MEMORY = "SCALEPERF_MOST_MEMORY"


def read_share(env: Mapping[str, str]) -> float | None:
    """The share that the environment says, None where it says none. Ends the rank where it cannot be one."""
    text = env.get(MOST_MEMORY)
    if text is None:
        return None
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0.0 < share <= 1.0:
        refuse(f"{MOST_MEMORY}: expected a share of the device's memory, above 0 and at most 1, found {text!r}")
    return share


def limit(share: float | None) -> None:
    """Hold this rank's allocator to its share; nothing is done where there is no CUDA device."""
    if share is None or not torch.cuda.is_available():
        return
    torch.cuda.set_per_process_memory_fraction(share, int(os.environ.get("LOCAL_RANK", "0")))
    say(f"{MOST_MEMORY}={share:g}: the rest of the device's memory is kept for what communication takes")
