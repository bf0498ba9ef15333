"""How fast one device multiplies matrices and moves memory.

On a GPU the products are BF16, 8192^3, on random data (zeros are up to 13 % faster, as they draw less power), after
``WARM`` seconds of the same: a cold H200 gave 679 TFLOP/s in one call and 735 to 798 once warm. The memory is moved by
a Triton kernel, timed by ``triton.testing.do_bench``; without Triton by torch's own addition. On a CPU both are
small, fp32, and take a third of a second each.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

WARM = 1.5
"""Seconds of products before any is timed."""

_SIZE = 8192
_ROUNDS, _PRODUCTS = 8, 12
_ELEMENTS = 1 << 28  # fp32: 1 GiB in each of three buffers, far above any cache
_CPU_SIZE, _CPU_ELEMENTS, _CPU_SECONDS = 512, 1 << 23, 0.3


def matmul(device: Any, under_load: Callable[[], None]) -> float:  # noqa: ANN401 - a torch device
    """TFLOP/s of the median round; ``under_load`` is called once while the device is busy."""
    if device.type != "cuda":
        under_load()
        return _cpu_matmul()
    a = torch.randn(_SIZE, _SIZE, device=device, dtype=torch.bfloat16)
    b = torch.randn(_SIZE, _SIZE, device=device, dtype=torch.bfloat16)
    out = torch.empty(_SIZE, _SIZE, device=device, dtype=torch.bfloat16)
    begin = time.perf_counter()
    while time.perf_counter() - begin < WARM:
        _round(a, b, out)
    rates = [_round(a, b, out) for _ in range(_ROUNDS)]
    for _ in range(_PRODUCTS * _ROUNDS):  # still busy while somebody looks
        torch.mm(a, b, out=out)
    time.sleep(0.05)
    under_load()
    torch.cuda.synchronize(device)
    return statistics.median(rates)


def _round(a: Any, b: Any, out: Any) -> float:  # noqa: ANN401 - torch tensors
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(_PRODUCTS):
        torch.mm(a, b, out=out)
    end.record()
    end.synchronize()
    return float(_PRODUCTS * 2 * _SIZE**3 / (start.elapsed_time(end) * 1e-3) / 1e12)


def _cpu_matmul() -> float:
    a, b = torch.rand(_CPU_SIZE, _CPU_SIZE), torch.rand(_CPU_SIZE, _CPU_SIZE)
    out = torch.empty(_CPU_SIZE, _CPU_SIZE)
    seconds = _repeat(lambda: torch.mm(a, b, out=out))
    return float(2 * _CPU_SIZE**3 / seconds / 1e12)


def memory(device: Any) -> float:  # noqa: ANN401 - a torch device
    """GB/s of an addition of two vectors into a third: three times its bytes over its time."""
    if device.type != "cuda":
        a, b = torch.rand(_CPU_ELEMENTS), torch.rand(_CPU_ELEMENTS)
        out = torch.empty(_CPU_ELEMENTS)
        return float(3 * 4 * _CPU_ELEMENTS / _repeat(lambda: torch.add(a, b, out=out)) / 1e9)
    from pytest_scaleperf.preflight.inside import vector_add  # noqa: PLC0415 - triton, where there is a GPU

    milliseconds = vector_add.milliseconds(_ELEMENTS, device)
    return 3 * 4 * _ELEMENTS / (milliseconds * 1e-3) / 1e9


def _repeat(work: Callable[[], object]) -> float:
    """Seconds of the median call, over about ``_CPU_SECONDS``; the first is not counted."""
    work()
    times: list[float] = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < _CPU_SECONDS:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
