"""How a number is written, the same in every report."""

from __future__ import annotations

import math
import time

_DIGITS = 4
_SECONDS_PER_HOUR = 3600.0
_ALL_DIGITS_FROM = 1000.0
_MOST_DECIMALS = 6


def figure(value: float) -> str:
    """Four significant digits or more, never an exponent: ``41,062``, ``57.31``, ``0.7062``."""
    size = abs(value)
    if not math.isfinite(value):
        return str(value)
    if size >= _ALL_DIGITS_FROM:
        return f"{value:,.0f}"
    before = math.floor(math.log10(size)) + 1 if size else 1
    return f"{value:.{min(_DIGITS - before, _MOST_DECIMALS)}f}"


def change(fraction: float) -> str:
    """A difference from something, signed, in per cent: ``-1.4%``."""
    text = f"{fraction:+.1%}"
    return "+0.0%" if text == "-0.0%" else text


def percent(value: float) -> str:
    """A share that is stored in per cent: ``92.7%``."""
    return f"{value:.1f}%"


def points(value: float) -> str:
    """A change in percentage points: ``-1.78``."""
    text = f"{value:+.2f}"
    return "+0.00" if text == "-0.00" else text


def hours(seconds: float) -> str:
    """Seconds as hours, without the unit: ``1,536``, ``12.5``, ``0.021``."""
    value = seconds / _SECONDS_PER_HOUR
    if not value:
        return "0"
    decimals = 0 if value >= 100 else 1 if value >= 10 else 3  # noqa: PLR2004 - more digits would say nothing
    return f"{value:,.{decimals}f}"


def milliseconds(nanoseconds: float) -> str:
    """A time of a trace, with its unit: ``155.4 ms``, ``0.034 ms``."""
    value = nanoseconds / 1e6
    return f"{value:,.1f} ms" if abs(value) >= 1 else f"{value:.2g} ms"


def size(count: int) -> str:
    """Bytes with a decimal unit, as bandwidths have: ``44.9 GB``."""
    for unit, each in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= each:
            return f"{count / each:.3g} {unit}"
    return f"{count} B"


def moment(seconds: float) -> str:
    """Seconds since 1970 as UTC: ``2026-11-30 21:04 UTC``."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def day(seconds: float) -> str:
    """Seconds since 1970 as a day in UTC."""
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))


def counted(number: int, one: str, many: str | None = None) -> str:
    """``1 case``, ``2 cases``."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
