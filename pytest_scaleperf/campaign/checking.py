"""The pre-flight of one session: made before its first launch, through its launcher, and asked before each."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_scaleperf import preflight
from pytest_scaleperf.launch.protocol import Job, Launcher
from pytest_scaleperf.model import (
    Case,
    JobResult,
    LaunchError,
    LaunchSpec,
    ProbePlace,
    Resources,
    StopReason,
    System,
    Wanted,
)
from pytest_scaleperf.preflight.job import SECONDS
from pytest_scaleperf.printable import printable

FOLDER = "preflight"
"""Of a session: the probes' own log and files; what they say together is beside it."""

_LAST_LINES = 5
_SHOWN = 3
_TICK = 0.5


@dataclass(slots=True)
class Checkup:
    """The pre-flight of a session in ``folder``; ``python`` and ``env`` are those of its jobs."""

    system: System
    launcher: Launcher
    folder: Path
    place: ProbePlace
    python: str
    env: Mapping[str, str]
    report: preflight.ProbeReport | None = None
    left_out: list[str] = field(default_factory=list)
    seconds: float = 0.0
    _unexplained: tuple[preflight.Finding, ...] = ()

    def make(self) -> Sequence[str]:
        """Probe once, keep what was found, and leave ill nodes out; the names of these."""
        if self.report is not None or self.place.why_not:
            return ()
        begin = time.monotonic()
        place, hosts = _free_folder(self.folder / FOLDER), list[str]()
        given = (place, self.launcher, self.system, self.place)
        try:
            report = probe(*given, python=self.python, env=self.env, hosts=hosts)
        except LaunchError as error:  # nothing is known of any device: no case may take it for well
            report = preflight.read(place, expected=self.place.gpus, device=self.system.device, problems=[str(error)])
            report = dataclasses.replace(report, findings=preflight.judge(report, self.system))
        self.seconds = time.monotonic() - begin
        _keep(self.folder / preflight.FILE, report)
        self.report = report
        if self.place.may_leave_out:
            found = preflight.blame(report, hosts)
            self._unexplained = found.unexplained
            self.left_out = list(found.hosts)
            for host in found.hosts:
                self.launcher.leave_out(host)
        return tuple(self.left_out)

    def require(self, case: Case) -> None:
        """Raises LaunchError where the case needs what was found to be wrong: it would measure that, not the code."""
        if self.report is None:
            return
        wrong = self._unexplained if self.place.may_leave_out else preflight.concerns(self.report, case.gpus)
        if not wrong:
            return
        told = "; ".join(finding.text for finding in wrong[:_SHOWN])
        more = f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise LaunchError(
            f"{case.id} was not launched. The pre-flight of this session expected healthy devices and found: "
            f"{told}{more}. All of it is in {self.folder / preflight.FILE}; mend that, or say --no-preflight to "
            "measure all the same"
        )

    def noted(self, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """What the record of a case with these launches keeps of it; empty where there was none."""
        if self.report is None:
            return {}
        hosts = {host for sample in samples for host in sample.get("hosts", ())}
        found = preflight.summary(self.report)
        own = {host: uuids for host, uuids in found["gpus"].items() if host in hosts}
        return {FOLDER: {**found, "gpus": own or found["gpus"], "left_out": self.left_out}}

    def lines(self) -> list[str]:
        """What the session's end says of it."""
        if self.place.why_not:
            return [f"pre-flight: not made: {self.place.why_not}"]
        if self.report is None:
            return []
        wrong = preflight.errors(self.report)
        answered = f"{len(self.report.gpus)} of {self.report.expected} devices answered in {self.seconds:.0f} s"
        lines = [f"pre-flight: {answered}, {f'{len(wrong)} found wrong' if wrong else 'nothing wrong'}"]
        lines += [f"  {printable(finding.text)}" for finding in wrong]
        return lines + ([f"  left out: {', '.join(self.left_out)}"] if self.left_out else [])


def probe(  # noqa: PLR0913 - what a launch is made of; each named where it is called
    folder: Path,
    launcher: Launcher,
    system: System,
    place: ProbePlace,
    *,
    python: str,
    env: Mapping[str, str],
    device: str | None = None,
    seconds: float = SECONDS,
    hosts: list[str] | None = None,
) -> preflight.ProbeReport:
    """One pre-flight through ``launcher``, with its files in ``folder``, judged by what ``system`` says.

    ``device`` is the system's where none is given. The nodes that were probed are added to ``hosts``.
    Raises LaunchError where the job cannot be started.
    """
    device = device or system.device
    job = preflight.command(folder, gpus=place.gpus, nodes=place.nodes, device=device, python=python, base_env=env)
    wanted = Wanted("preflight", Resources(place.gpus, max(1, place.gpus // place.nodes)))
    chosen = launcher.choose([wanted])
    if chosen is None:
        raise LaunchError(f"pre-flight: expected {place.gpus} idle devices before the first case, found some in use")
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "stdout.log"
    spec = LaunchSpec("preflight", job.argv, job.env, Path.cwd(), log, wanted.resources, chosen[1])
    if hosts is not None:
        hosts += chosen[1].nodes
    problems = _ended(launcher.submit(spec), seconds, log)
    report = preflight.read(folder, expected=place.gpus, device=device, problems=problems)
    return dataclasses.replace(report, findings=preflight.judge(report, system))


def _ended(started: Job, seconds: float, log: Path) -> list[str]:
    """Wait for the probes, at most ``seconds``; what was wrong with how they ended."""
    try:
        ended = _wait(started, seconds)
        if ended is None:
            started.stop(StopReason.TOTAL_LIMIT)
            return [f"expected an end within {seconds:g} s, found none; the probes were ended"]
    except BaseException:
        started.stop(StopReason.INTERRUPTED)
        raise
    if ended.exit_code == 0:
        return []
    said = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    told = [line for line in said if "Error" in line] or said
    shown = " | ".join(printable(line.strip())[:200] for line in told[:_LAST_LINES])
    code = "unknown" if ended.exit_code is None else ended.exit_code
    return [f"the probes ended with exit code {code}: {shown or ended.detail or 'no output'}"]


def _wait(started: Job, seconds: float) -> JobResult | None:
    """In short waits: a launcher asks its scheduler only in between."""
    end = time.monotonic() + seconds
    while (ended := started.wait(_TICK)) is None and time.monotonic() < end:
        pass
    return ended


def _free_folder(folder: Path) -> Path:
    """One that is not there yet: a resumed session probes again."""
    number = 1
    while (folder / str(number)).exists():
        number += 1
    return folder / str(number)


def _keep(path: Path, report: preflight.ProbeReport) -> None:
    """The newest under the name that reports read; that of a session before it was resumed stays beside it."""
    if path.exists():
        number = 1
        while (older := path.with_name(f"{path.stem}.{number}{path.suffix}")).exists():
            number += 1
        path.rename(older)
    preflight.save(path, report)
