"""How every picture looks and is saved; colours stay apart for every kind of colour vision."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from pytest_scaleperf.model import ActivationCheckpoint, ScalePerfError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours (https://jfly.uni-koeln.de/color/).
BLUE, ORANGE, GREEN, VERMILLION, PURPLE, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"
INK, GREY, PALE = "#1a1a1a", "#767676", "#ececec"
MODES = {
    ActivationCheckpoint.NONE: (BLUE, "o"),
    ActivationCheckpoint.SELECTIVE: (ORANGE, "s"),
    ActivationCheckpoint.FULL: (GREEN, "D"),
    ActivationCheckpoint.MEMORY_BUDGET: (PURPLE, "v"),
}
"""Colour and marker of each kind of checkpointing: the shape says what the colour says."""

_LOOK: dict[Any, Any] = {
    "font.size": 9,
    "font.family": ["DejaVu Sans"],
    "axes.titlesize": 10,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#d9d9d9",
    "legend.frameon": False,
    "svg.fonttype": "none",  # text stays text: small, found by a search, read by a screen reader
    "text.parse_math": False,  # a "$" in a name is a dollar
}
_DPI = 150
_NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))
_ID = re.compile(r' id="([^"]*)"')


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture: a file name without suffix, what it shows, and where it belongs (a suite, or a case's id)."""

    name: str
    title: str
    place: tuple[str, str]
    draw: Callable[[], Figure]

    def svg(self) -> str:
        """The picture as one ``<svg>`` element; the same text each time for the same report."""
        with rc_context({**_LOOK, "svg.hashsalt": self.name}):
            text = io.StringIO()
            self.draw().savefig(text, format="svg", metadata=_NO_METADATA)
        return _inline(text.getvalue())

    def png(self, folder: Path) -> Path:
        """Write it as PNG into a folder.

        Raises ScalePerfError where it cannot be written.
        """
        target = folder / f"{self.name}.png"
        with rc_context(_LOOK):
            figure = self.draw()
            FigureCanvasAgg(figure)
            try:
                folder.mkdir(parents=True, exist_ok=True)
                figure.savefig(target, dpi=_DPI, metadata={"Software": None})
            except OSError as error:
                raise ScalePerfError(f"{target}: cannot be written: {error.strerror or error}") from error
        return target


def _inline(document: str) -> str:
    """The ``<svg>`` element of a document, without ids that nothing refers to: a page holds many pictures."""
    element = document[document.index("<svg") :]
    used = set(re.findall(r"#([A-Za-z0-9_-]+)", element))
    return _ID.sub(lambda found: found.group() if found.group(1) in used else "", element).strip()


def file_name(*parts: object) -> str:
    """A name that every file system takes."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", "-".join(str(part) for part in parts))[:150]


def calm(axes: Axes) -> None:
    """Grid behind the data, no tick marks."""
    axes.grid(visible=True, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)


def compact(value: float) -> str:
    """A number that fits into a small cell: ``57.3k``, ``1,512``, ``92.7``."""
    if value >= 1e6:  # noqa: PLR2004 - a million
        return f"{value / 1e6:.1f}M"
    if value >= 1e4:  # noqa: PLR2004 - ten thousand
        return f"{value / 1e3:.1f}k"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"  # noqa: PLR2004 - three digits need no decimal


def ink_on(red: float, green: float, blue: float) -> str:
    """Black or white, whichever is better read on a colour (0 to 1 each; luminance of Rec. 709)."""
    return INK if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.5 else "#ffffff"  # noqa: PLR2004 - the middle
