"""What a CPU rank could do at most while it trained: the rate of a short matrix multiplication, sampled along the way.

The machine is shared, with the other ranks and with whatever else runs there, and its speed changes within seconds.
So the rate is sampled just before training and after every logged step, by all ranks at about the same time, and
torchtitan's clock is set forward by what a sample took: it is in no step time.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
import torch.distributed

_SIZE = 512  # of three square fp32 matrices, 3 MiB in all: large enough for a steady rate, a few ms each
_LONG = 0.3  # seconds of the first sample and of the last
_SHORT = 0.05  # seconds of a sample between two steps


class Peak:
    """The samples of one rank, each a rate in FLOP/s. ``after`` is that of the run's last step."""

    def __init__(self) -> None:
        self.before: float | None = None
        self.steps: dict[int, float] = {}
        self.after: float | None = None

    def sample_before(self) -> None:
        """Once, as training begins; every rank has to call it."""
        torch.distributed.barrier()
        self.before = _rate(_LONG)

    def sample_step(self, trainer: Any) -> None:  # noqa: ANN401 - a torchtitan class
        """After a step of this trainer: the last one, and any that is logged, where torchtitan's clock begins anew.

        The step's own collectives have just brought the ranks together; waiting for them once more could only
        make a run fail that has trained to its end.
        """
        if not trainer.should_continue_training():
            self.after = _rate(_LONG)
        elif trainer.metrics_processor.should_log(trainer.step):
            self.steps[trainer.step] = _rate(_SHORT)
            trainer.metrics_processor.time_last_log = time.perf_counter()

    def facts(self) -> dict[str, Any]:
        """What the rank file holds; see `rank_file.py`. Step 1 is left out, as it is in everything that is judged."""
        between = [rate for step, rate in self.steps.items() if step > 1]
        return {
            "matmul_flops": None if self.before is None else statistics.median([self.before, *between]),
            "matmul_flops_after": None if self.after is None else statistics.median([*between, self.after]),
            "matmul_samples": {"before": self.before, "steps": self.steps, "after": self.after},
        }


def _rate(seconds: float) -> float:
    """FLOP/s of ``_SIZE``^3 fp32 products, over about ``seconds``."""
    a, b = torch.rand(_SIZE, _SIZE), torch.rand(_SIZE, _SIZE)
    out = torch.empty(_SIZE, _SIZE)
    torch.mm(a, b, out=out)
    products = 0
    start = time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        torch.mm(a, b, out=out)
        products += 1
    return float(products * 2 * _SIZE**3 / elapsed)
