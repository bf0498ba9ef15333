"""``scaleperf preflight``: probe the GPUs of this machine (or its CPU) and say what is slow or ill."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console as Screen
from rich.markup import escape
from rich.table import Table

from pytest_scaleperf import preflight
from pytest_scaleperf.campaign.checking import probe
from pytest_scaleperf.launch.local import LocalLauncher
from pytest_scaleperf.model import ProbePlace, ScalePerfError, System
from pytest_scaleperf.preflight.job import SECONDS
from pytest_scaleperf.preflight.words import MATMUL, MEMORY
from pytest_scaleperf.printable import printable
from pytest_scaleperf.system import choose_system, detect_device

if TYPE_CHECKING:
    from pytest_scaleperf.preflight import Finding, GpuProbe, ProbeReport

_RED, _FAULT = 1, 2
_COLOURS = {"error": "red", "warning": "yellow", "note": "dim"}


def preflight_command(  # noqa: PLR0913 - each is one option of the command line
    *,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs of this machine to probe; ranks on a CPU.")],
    system: Annotated[str, typer.Option(metavar="auto|NAME", help="A folder of the baselines.")] = "auto",
    baselines: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the systems are.")] = Path("baselines"),
    python: Annotated[str, typer.Option(help="The job's interpreter: the one that has torch.")] = sys.executable,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help=f"Keep the report here, as {preflight.FILE}.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="End it after this long.")] = SECONDS,
) -> None:
    """Probe each GPU (BF16 products, memory, clocks, heat, ECC, Xids) and the links between them; some seconds.

    Exit code 0 where nothing is wrong, 1 where something is, 2 where the probes could not be started.
    """
    try:
        chosen = choose_system(baselines, system)
        device = chosen.device if system != "auto" else detect_device()
        with tempfile.TemporaryDirectory(prefix="scaleperf-preflight.") as folder:
            report = run(Path(folder), chosen, gpus=gpus, device=device, python=python, seconds=seconds)
        if output is not None:
            preflight.save(output, report)
    except (ScalePerfError, OSError) as error:
        typer.echo(f"scaleperf preflight: {printable(str(error))}", err=True)
        raise typer.Exit(_FAULT) from None
    _show(report, chosen, Screen(highlight=False, soft_wrap=True))
    if preflight.is_red(report.findings):
        raise typer.Exit(_RED)


def run(  # noqa: PLR0913 - as above
    folder: Path, system: System, *, gpus: int, device: str, python: str, seconds: float = SECONDS
) -> ProbeReport:
    """Probe ``gpus`` devices of this machine in ``folder`` and judge them.

    Raises LaunchError where the job cannot be started.
    """
    with LocalLauncher() as launcher:
        return probe(
            folder, launcher, system, ProbePlace(gpus), python=python, env=os.environ, device=device, seconds=seconds
        )


def _show(report: ProbeReport, system: System, screen: Screen) -> None:
    screen.print(f"pre-flight of {len(report.gpus)} of {report.expected} on system {escape(system.name)}")
    screen.print(_gpu_table(report))
    if report.links:
        screen.print(_link_table(report))
    for finding in report.findings:
        screen.print(_line(finding))
    if not preflight.is_red(report.findings):
        screen.print("[green]nothing wrong[/]")


def _line(finding: Finding) -> str:
    return f"[{_COLOURS[finding.severity]}]{finding.severity}[/] {escape(printable(finding.text))}"


def _gpu_table(report: ProbeReport) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    titles = ("", "matmul TFLOP/s", "memory GB/s", "SM MHz", "C", "W", "clocks held by", "ECC", "Xids", "links")
    for number, title in enumerate(titles):
        table.add_column(title, justify="left" if number == 0 else "right")
    for gpu in report.gpus:
        table.add_row(*(escape(printable(cell)) for cell in _cells(gpu)))
    return table


def _cells(gpu: GpuProbe) -> tuple[str, ...]:
    health = gpu.health
    rates = (_rate(gpu.rates.get(MATMUL)), _rate(gpu.rates.get(MEMORY)))
    if health is None:
        return (gpu.name, *rates, *("-" for _ in range(7)))
    clocks = "-" if health.sm_clock is None else f"{health.sm_clock} of {_or(health.sm_clock_max)}"
    return (
        gpu.name,
        *rates,
        clocks,
        _or(health.temperature),
        _rate(health.power),
        "-" if health.reasons is None else ", ".join(health.reasons) or "nothing",
        _or(health.ecc_uncorrected),
        "-" if health.xids is None else str(len(health.xids)),
        _or(health.nvlinks),
    )


def _link_table(report: ProbeReport) -> Table:
    sizes = sorted({link.mib for link in report.links})
    table = Table(box=None, pad_edge=False, header_style="bold", title="bus bandwidth, GB/s", title_justify="left")
    table.add_column("")
    table.add_column("collective")
    for mib in sizes:
        table.add_column(f"{mib} MiB", justify="right")
    rows: dict[tuple[str, str], dict[int, float]] = {}
    for link in report.links:
        few = len(link.ranks) <= 2  # noqa: PLR2004 - a pair is named whole
        who = report.names(link.ranks) if few else f"{link.scope} of {len(link.ranks)} from rank {link.ranks[0]}"
        rows.setdefault((who, link.operation), {})[link.mib] = link.gb_s
    for (who, operation), rates in rows.items():
        table.add_row(escape(printable(who)), operation, *(_rate(rates.get(mib)) for mib in sizes))
    return table


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}" if value >= 1 else f"{value:.3f}"


def _or(value: int | None) -> str:
    return "-" if value is None else str(value)
