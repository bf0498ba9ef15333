"""A Triton kernel that reads two vectors and writes a third: nothing but memory traffic."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
import triton.testing

_BLOCK = 4096


@triton.jit  # type: ignore[untyped-decorator] # triton ships no types
def _add(a_pointer, b_pointer, out_pointer, n, BLOCK: tl.constexpr) -> None:  # type: ignore[no-untyped-def] # noqa: ANN001, N803 - triton's own form
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    a = tl.load(a_pointer + offsets, mask=mask)
    b = tl.load(b_pointer + offsets, mask=mask)
    tl.store(out_pointer + offsets, a + b, mask=mask)


def milliseconds(elements: int, device: Any) -> float:  # noqa: ANN401 - a torch device
    """Median time of one addition of ``elements`` fp32 values.

    Raises RuntimeError where the sum is wrong: a GPU that adds wrongly is worse than a slow one.
    """
    a = torch.rand(elements, device=device)
    b = torch.rand(elements, device=device)
    out = torch.empty_like(a)
    grid = (triton.cdiv(elements, _BLOCK),)
    _add[grid](a, b, out, elements, BLOCK=_BLOCK)
    if not torch.equal(out, a + b):
        raise RuntimeError(f"the sum of two vectors of {elements} values is wrong on this GPU")
    return float(triton.testing.do_bench(lambda: _add[grid](a, b, out, elements, BLOCK=_BLOCK), return_mode="median"))
