"""The ``scaleperf`` command: what the plugin does, for a person at a terminal."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console as Screen
from rich.markup import escape
from rich.table import Table

from pytest_scaleperf import steady
from pytest_scaleperf.baselines_cli.command import baselines_app
from pytest_scaleperf.model import Metric, Outcome, StopReason
from pytest_scaleperf.plan.command import plan
from pytest_scaleperf.preflight_cli import preflight_command
from pytest_scaleperf.printable import one_line
from pytest_scaleperf.rehearse_cli.command import rehearse
from pytest_scaleperf.report.command import report
from pytest_scaleperf.titan.answer import Given, answer, tokens_per_step_per_gpu
from pytest_scaleperf.titan.events import EventFile, is_event_file, read_dump
from pytest_scaleperf.titan.observe import Files, Run, find_files, read_run
from pytest_scaleperf.titan.signatures import End
from pytest_scaleperf.trace.command import trace_app

app = typer.Typer(
    name="scaleperf",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

_UNREADABLE = 2


app.add_typer(trace_app, name="trace")
app.command()(report)
app.command()(plan)
app.command()(rehearse)
app.command(name="preflight")(preflight_command)
app.add_typer(baselines_app, name="baselines")


@app.callback()
def main() -> None:
    """Performance regression tests of torchtitan runs."""


@app.command()
def observe(  # noqa: PLR0913 - one option for each thing that only the caller knows
    paths: Annotated[
        list[Path],
        typer.Argument(help="One run: its directory, its log files, event files, or a JSON list of scalars."),
    ],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    exit_code: Annotated[
        int | None, typer.Option(help="How the run's command ended: 0-255, or negative for a signal.")
    ] = None,
    slurm_state: Annotated[str | None, typer.Option(help="The job's state as sacct or scontrol says it.")] = None,
    stopped: Annotated[StopReason | None, typer.Option(help="Why you ended it yourself, if you did.")] = None,
    world_size: Annotated[int | None, typer.Option(min=1, help="Ranks of the run.")] = None,
    requested_steps: Annotated[int | None, typer.Option(min=1, help="Steps that the run was to make.")] = None,
    warmup: Annotated[int, typer.Option(min=0, help="Steps not to count; the first logged interval never counts.")] = 0,
    peak_flops: Annotated[float | None, typer.Option(min=1.0, help="Peak of one GPU in FLOP/s, for MFU.")] = None,
    log_freq: Annotated[int | None, typer.Option(min=1, help="Steps between two log lines.")] = None,
    tokens_per_step_per_gpu_: Annotated[
        float | None,
        typer.Option("--tokens-per-step-per-gpu", min=1.0, help="Global batch x sequence / GPUs, for step times."),
    ] = None,
    given: Annotated[
        list[str] | None,
        typer.Option(help="A setting that the files do not say, as NAME=VALUE: cp=2, seq_len=8192, dp_shard=-1 …"),
    ] = None,
) -> None:
    """Say what a finished run did: how it ended and why, its steps, TPS, MFU, memory, and where each number is from.

    Several files are one run's (of several nodes or ranks). Exit code 0 whatever the run's outcome; 2 where a path
    is missing or holds nothing readable.
    """
    facts = _facts(given or [])
    files, dumps = _collect(paths)
    end = End(
        exit_code=exit_code,
        slurm_state=slurm_state,
        stopped=stopped,
        requested_steps=requested_steps,
        log_freq=log_freq,
    )
    known_size = world_size if world_size is not None else _whole(facts.get("world_size"))
    run = read_run(files, end, world_size=known_size, dumps=dumps, facts=facts)
    if _empty(run, files, dumps):
        _refuse(f"nothing readable in {', '.join(map(str, paths))}: expected torchtitan logs or event files")
    per_gpu = tokens_per_step_per_gpu_ or tokens_per_step_per_gpu(run, facts)
    kept = steady.window(run.observation.series, run.observation.first_step, warmup)
    result = Given(
        window=kept,
        alloc_retries=steady.new_retries(run.observation.series, kept),
        measurement=steady.measure(
            run.observation,
            warmup=warmup,
            peak_flops=peak_flops,
            tokens_per_step_per_gpu=per_gpu,
            find_start=False,  # the window is what the user says with --warmup
        ),
        peak_flops=peak_flops,
        tokens_per_step_per_gpu=per_gpu,
        facts=facts,
    )
    found = answer(run, result)
    if as_json:
        typer.echo(json.dumps(found, ensure_ascii=True, indent=1, allow_nan=False))
    else:
        _show(found, Screen(highlight=False, soft_wrap=True))


def _refuse(message: str) -> None:
    typer.echo(f"scaleperf observe: {printable(message)}", err=True)
    raise typer.Exit(_UNREADABLE)


def _facts(texts: list[str]) -> dict[str, int | str]:
    facts: dict[str, int | str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            _refuse(f"--given {text!r}: expected NAME=VALUE, such as cp=2")
        facts[name] = int(value) if re.fullmatch(r"-?\d+", value) else value
    return facts


def _whole(value: int | str | None) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _collect(paths: list[Path]) -> tuple[Files, list[EventFile]]:
    logs: list[Path] = []
    events: list[Path] = []
    ranks: list[Path] = []
    dumps: list[EventFile] = []
    for path in paths:
        if path.is_dir():
            inside = find_files(path)
            logs += inside.logs
            events += inside.events
            ranks += inside.ranks
        elif not path.exists():
            _refuse(f"no such file or directory: {path}")
        elif is_event_file(path.name):
            events.append(path)
        elif path.suffix == ".json" and (dump := read_dump(path)) is not None:
            dumps.append(dump)
        else:
            logs.append(path)
    return Files(tuple(logs), tuple(events), tuple(ranks)), dumps


def _empty(run: Run, files: Files, dumps: list[EventFile]) -> bool:
    """Whether nothing of what was named could be read: no text at all, and no scalar."""
    text = any(log.text.strip() for log in run.console.texts)
    return not (text or run.events.ranks or dumps or (files.ranks and run.observation.rank_peak_flops))


def printable(text: object) -> str:
    """Text of unknown origin for a terminal: no control or direction characters, no markup."""
    return escape(one_line(str(text)))


def _show(found: dict[str, Any], screen: Screen) -> None:
    colour = "green" if found["outcome"] == Outcome.COMPLETED else "red"
    screen.print(f"[bold {colour}]{printable(found['outcome'])}[/]  {_end_line(found)}")
    if found["reason_line"]:
        where = f" (line {found['line']})" if found["line"] else ""
        screen.print(f"  {printable(found['reason_line'])}{where}")
    for text in found["consequences"]:
        screen.print(f"  then {printable(text)}", style="dim")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title, side in (("", "left"), ("value", "right"), ("unit", "left"), ("source", "left")):
        table.add_column(title, justify=side)  # type: ignore[arg-type]  # rich names the two literals
    for row in _rows(found):
        table.add_row(*(printable(cell) for cell in row))
    screen.print(table)
    for text in found["warnings"]:
        screen.print(f"[yellow]note[/] {printable(text)}")


def _end_line(found: dict[str, Any]) -> str:
    parts = [f"step {_known(found['last_step'], 'none')} of {_known(found['requested_steps'], 'unknown')}"]
    parts += [f"{name} {printable(found[name])}" for name in ("rank", "host", "signal") if found[name] is not None]
    if found["requested_gib"] is not None:
        parts.append(f"tried to allocate {found['requested_gib']:.2f} GiB")
    if quiet := found["failure_details"].get("quiet_ranks"):
        parts.append(f"not heard from: rank {', '.join(map(str, quiet))}")
    if found["attempts"] > 1:
        parts.append(f"attempt {found['attempts']}, from step {found['first_step']}")
    return ", ".join(parts)


def _known(value: object, otherwise: str) -> str:
    return otherwise if value is None else printable(value)


def _rows(found: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    sources = found["sources"]
    steps = ", ".join(map(str, found["usable_steps"])) or "none"
    rows = [("steady steps", steps, f"of {found['steps']} logged", "")]
    for label, name, unit, source, digits in (
        ("TPS", "median_tps", Metric.TPS.unit, "tps", 0),
        ("TFLOP/s", "tflops", "TFLOP/s/GPU", "tflops", 2),
        ("MFU", "mfu", Metric.MFU.unit, "tflops", 2),
        ("MFU (torchtitan's)", "mfu_pct", Metric.MFU.unit, "mfu_pct", 2),
        ("step time", "step_time_s", Metric.STEP_TIME.unit, "tps", 3),
        ("peak reserved", "run_peak_gib", Metric.PEAK_MEMORY.unit, "memory_gib", 2),
        ("", "run_peak_pct", "%", "memory_pct", 2),
        ("allocation retries", "alloc_retries", "in the steady steps", "alloc_retries", 0),
    ):
        value = found[name]
        shown = "-" if value is None else f"{value:,.{digits}f}"
        rows.append((label, shown, unit, sources.get(source, "") if value is not None else "not known"))
    return rows
