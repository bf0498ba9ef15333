"""Make torch answer what torchtitan asks of a device, on a machine that has only a CPU.

Everything here has to happen before torchtitan is imported: it looks for its device while it is imported.
Nothing of this is used where there is an accelerator.
"""

from __future__ import annotations

import os
import resource
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch._utils
import torch.cpu
import torch.distributed
from torch.distributed.fsdp import FSDPModule

if TYPE_CHECKING:
    from datetime import timedelta

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # proc(5): writing 5 sets the peak resident set size to the current one


@dataclass(frozen=True, slots=True)
class Properties:
    """The one device property that torchtitan reads. ``total_memory``: bytes of this machine's memory."""

    total_memory: int


def is_needed() -> bool:
    """True where torch finds no accelerator."""
    return torch._utils._get_available_device_type() is None  # noqa: SLF001 - torchtitan asks this very function


def prepare() -> None:
    """Put the CPU in the accelerator's place. Affects this process only."""
    torch._utils._get_available_device_type = lambda: "cpu"  # noqa: SLF001 - see is_needed
    answers: dict[str, Any] = {
        "get_device_name": lambda _device=None: name(),
        "get_device_properties": lambda _device=None: Properties(_total_memory()),
        "memory_stats": lambda _device=None: _memory_stats(),
        "reset_peak_memory_stats": lambda _device=None: _reset_peak(),
        "empty_cache": lambda: None,
        "current_device": lambda: 0,  # an int: torchtitan hands it to barrier(device_ids=...)
    }
    for attribute, answer in answers.items():
        setattr(torch.cpu, attribute, answer)
    if not hasattr(torch.distributed, "set_timeout"):  # torch 2.13 and older
        torch.distributed.set_timeout = _set_timeout
    _sum_without_scaling()


def name() -> str:
    """The processor's name as the system has it, or ``cpu`` where it says nothing."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "cpu"
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return value.strip()
    return "cpu"


def _total_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _memory_stats() -> dict[str, int]:
    """Peak resident set size of this rank in place of the CUDA allocator's numbers; it never retries.

    The peak is that since the last reset, as with the allocator's. It includes the interpreter and its
    libraries (about 0.5 GiB), which no allocator would count.
    """
    peak = _peak_bytes()
    return {
        "active_bytes.all.peak": peak,
        "reserved_bytes.all.peak": peak,
        "num_alloc_retries": 0,
        "num_ooms": 0,
    }


def _peak_bytes() -> int:
    """VmHWM, which _reset_peak resets; elsewhere than on Linux the peak since the process began."""
    if _STATUS.exists():
        for line in _STATUS.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # bytes there, KiB elsewhere


def _reset_peak() -> None:
    """Begin a new peak. Where the system forbids it, the peak stays that of the whole process: higher, never lower."""
    try:
        _CLEAR_REFS.write_text(_RESET_PEAK, encoding="ascii")
    except OSError:
        return


def _set_timeout(timeout: timedelta, group: Any = None) -> None:  # noqa: ANN401 - torch ships no types here
    """What torch 2.14 calls ``torch.distributed.set_timeout``; older releases have it under a private name."""
    torch.distributed.distributed_c10d._set_pg_timeout(timeout, group)  # noqa: SLF001 - see the docstring


def _sum_without_scaling() -> None:
    """Have FSDP divide outside the collective: gloo has no PREMUL_SUM, which a gradient factor would use."""
    original = FSDPModule.set_gradient_divide_factor

    def set_gradient_divide_factor(module: Any, factor: float) -> None:  # noqa: ANN401 - torch ships no types here
        original(module, factor)
        module.set_force_sum_reduction_for_comms(True)

    FSDPModule.set_gradient_divide_factor = set_gradient_divide_factor
