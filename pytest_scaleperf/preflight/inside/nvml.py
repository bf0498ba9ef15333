"""What the driver says of a GPU, through NVML (`nvidia-ml-py`): clocks, heat, power, ECC, NVLink, and Xids.

Everything is optional: a value that this device, driver or container does not tell stays None.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

_KERNEL_LOG = Path("/dev/kmsg")
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): ([0-9]+)")
_MOST_LINES = 200_000
# nvml.h, nvmlClocksEventReasons. GPU idle (1), application clocks (2), sync boost (16) and display clocks (256) say
# nothing about health.
_REASONS = {
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
}
_SM, _MEMORY_CLOCK, _TEMPERATURE_GPU = 1, 2, 0
_UNCORRECTED, _VOLATILE = 1, 0
_MOST_LINKS = 18
_GIB = 1 << 30


class Device:
    """One GPU as NVML sees it, found by torch's own idea of it; ``close`` gives the library back."""

    def __init__(self, properties: Any, index: int) -> None:  # noqa: ANN401 - torch's device properties
        import pynvml  # noqa: PLC0415 - optional: without it there is no health, and the rates are as good

        self._nvml = pynvml
        pynvml.nvmlInit()
        self._handle = self._find(properties, index)

    def _find(self, properties: Any, index: int) -> Any:  # noqa: ANN401 - as above
        """By UUID, as CUDA_VISIBLE_DEVICES renumbers what NVML counts from the bus."""
        uuid = getattr(properties, "uuid", None)
        if uuid is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                return self._nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        return self._nvml.nvmlDeviceGetHandleByIndex(index)

    def uuid(self) -> str | None:
        """The GPU's own name, the same in every machine and container."""
        found = self._ask("nvmlDeviceGetUUID")
        return found.decode() if isinstance(found, bytes) else found

    def index(self) -> int | None:
        """The GPU's number on its host, as nvidia-smi counts."""
        return _whole(self._ask("nvmlDeviceGetIndex"))

    def health(self) -> dict[str, Any]:
        """The fields of ``Health`` that can be told now."""
        watts = {
            name: None if value is None else value / 1000
            for name, value in (
                ("power", self._ask("nvmlDeviceGetPowerUsage")),
                ("power_limit", self._ask("nvmlDeviceGetEnforcedPowerLimit")),
            )
        }
        memory = self._ask("nvmlDeviceGetMemoryInfo")
        remapped = self._ask("nvmlDeviceGetRemappedRows")
        return {
            "sm_clock": _whole(self._ask("nvmlDeviceGetClockInfo", _SM)),
            "sm_clock_max": _whole(self._ask("nvmlDeviceGetMaxClockInfo", _SM)),
            "memory_clock": _whole(self._ask("nvmlDeviceGetClockInfo", _MEMORY_CLOCK)),
            "temperature": _whole(self._ask("nvmlDeviceGetTemperature", _TEMPERATURE_GPU)),
            **watts,
            "reasons": self._reasons(),
            "ecc_uncorrected": _whole(self._ask("nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _VOLATILE)),
            "remapping_failed": None if remapped is None else bool(remapped[3]),
            "nvlinks": self._links(),
            "memory_used_gib": None if memory is None else memory.used / _GIB,
            "xids": self._xids(),
        }

    def close(self) -> None:
        """Give the library back."""
        self._ask_plain(self._nvml.nvmlShutdown)

    def _reasons(self) -> list[str] | None:
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:  # the older name of the same
            bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return None if bits is None else [word for bit, word in _REASONS.items() if bits & bit]

    def _links(self) -> int | None:
        states = [self._ask("nvmlDeviceGetNvLinkState", link) for link in range(_MOST_LINKS)]
        known = [state for state in states if state is not None]
        return sum(1 for state in known if state) if known else None

    def _xids(self) -> list[tuple[int, str]] | None:
        pci = self._ask("nvmlDeviceGetPciInfo")
        if pci is None:
            return None
        text = pci.busId.decode() if isinstance(pci.busId, bytes) else str(pci.busId)
        return xids(text)

    def _ask(self, name: str, *arguments: object) -> Any:  # noqa: ANN401 - whatever NVML answers
        function = getattr(self._nvml, name, None)
        return None if function is None else self._ask_plain(function, self._handle, *arguments)

    def _ask_plain(self, function: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401 - as above
        try:
            return function(*arguments)
        except (self._nvml.NVMLError, OSError):
            return None


def xids(bus_id: str, log: Path = _KERNEL_LOG) -> list[tuple[int, str]] | None:
    """(number, line) of every Xid of the GPU at ``bus_id`` in the kernel's log; None where it cannot be read."""
    try:
        text = _kernel_log(log)
    except OSError:
        return None
    wanted = _bus(bus_id)
    return [
        (int(match[2]), line.partition(";")[2] or line)
        for line in text.splitlines()
        if (match := _XID.search(line)) and _bus(match[1]) == wanted
    ]


def _bus(text: str) -> str:
    """``00000000:1B:00.0`` and ``0000:1b:00`` as one: domain without leading zeros, bus and device."""
    domain, _, rest = text.partition(":")
    return f"{domain.lstrip('0')}:{rest.partition('.')[0].casefold()}"


def _kernel_log(path: Path) -> str:
    """All that is in the log now. /dev/kmsg gives one record a read, and EAGAIN at the end; a file ends by itself."""
    records: list[bytes] = []
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        while len(records) < _MOST_LINES:
            try:
                record = os.read(descriptor, 8192)
            except BrokenPipeError:  # a record was overwritten while we read: the next one is whole
                continue
            except BlockingIOError:
                break
            if not record:
                break
            records.append(record)
    finally:
        os.close(descriptor)
    return b"".join(records).decode(errors="replace")


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None
