"""The whole product on a machine with two H200s, stage by stage: `python benchmarks/h200.py OUTPUT`; see docs/h200.md.

Every stage is a command that a person could type; it is printed, its output goes to ``WORK/<stage>.log``, and how it
has to end is checked: the slowed run has to be red. A stage that ends otherwise is said and the next one goes on.
At the end what is worth keeping lies in OUTPUT as a few small files. Exit code 1 where a stage ended otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SLOWED = "fsdp2-dp1-selective-lbs4"
TRACED = "fsdp2-dp1-selective-lbs2-gbs8"
SLOWDOWN = "1.03"
BALLAST_GIB = "1.4"  # 2 % of the 69.2 GiB that the slowed case reserves
GRACE = 40.0
LARGEST = 15 << 20
FAULT_TESTS = "tests/gpu"


@dataclass(frozen=True, slots=True)
class Stage:
    """A command with its additional environment, how it has to end, and the seconds that it may take.

    ``says`` has to stand in its output; ``least``: with less time than this it is not begun.
    """

    name: str
    argv: tuple[str, ...]
    seconds: float
    least: float
    code: int = 0
    says: str = ""
    env: dict[str, str] = field(default_factory=dict)


def stages(given: argparse.Namespace) -> list[Stage]:
    """All stages in their order, for these arguments."""
    scaleperf = (sys.executable, "-c", "from pytest_scaleperf.cli import app; app()")
    pytest = (sys.executable, "-m", "pytest")
    suites = (*pytest, "suites/", f"--gpus={given.gpus}", f"--system={given.system}", f"--run-dir={given.work / 'run'}")
    record = ("--record-baselines", f"--repeats={given.repeats}")

    def measured(name: str, *arguments: str) -> tuple[str, ...]:
        chosen = ("-k", given.cases) if given.cases and "-k" not in arguments else ()
        return (*suites, f"--junitxml={given.work / f'{name}.xml'}", *chosen, *arguments)

    preflight = ("preflight", f"--gpus={given.gpus}", f"--system={given.system}")
    return [
        Stage("preflight", (*scaleperf, *preflight, f"--output={given.work / 'preflight.json'}"), 120, 20),
        Stage("faults", (*pytest, FAULT_TESTS, f"--junitxml={given.work / 'faults.xml'}", "-v"), 240, 60),
        Stage("record", measured("record", *record), 520, 60),
        Stage("green", measured("green"), 520, 60),
        Stage(
            "slower", measured("slower", "-k", SLOWED), 150, 45,
            code=1, says="regression: tps", env={"SCALEPERF_SLOWDOWN": SLOWDOWN},
        ),
        Stage(
            "fatter", measured("fatter", "-k", SLOWED), 150, 45,
            code=1, says="regression: peak_memory", env={"SCALEPERF_BALLAST_GIB": BALLAST_GIB},
        ),
        Stage("trace", measured("trace", "-k", TRACED, "--with-trace", "--record-baselines"), 180, 60),
        Stage("rehearse", measured("rehearse", "--rehearse"), 400, 40),
    ]  # fmt: skip


def main() -> int:
    """Run the stages that were asked for, then make the report and the files to keep."""
    given = _arguments()
    given.work.mkdir(parents=True, exist_ok=True)
    given.output.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + given.budget
    wanted = given.stages.split(",") if given.stages else [stage.name for stage in stages(given)]
    known = {stage.name: stage for stage in stages(given)}
    if unknown := [name for name in wanted if name not in known]:
        raise SystemExit(f"--stages: expected some of {', '.join(known)}, found {', '.join(unknown)}")
    results = [_run(known[name], given.work, end) for name in wanted]
    _note(given.work, results)
    _reports(given.work)
    _keep(given)
    for result in results:
        print(f"{result['stage']:10} {result['result']:12} {result['seconds']:6.1f} s  exit {result['code']}")
    return 0 if all(result["result"] == "as expected" for result in results) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="folder for what is worth keeping: a few small files")
    parser.add_argument(
        "--work", type=Path, help="folder for everything else (OUTPUT/work); a later call goes on in it"
    )
    parser.add_argument("--stages", help="some of the stages, with commas (all)")
    parser.add_argument("--budget", type=float, default=3600.0, help="seconds in all; what does not fit is not begun")
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--system", default="auto")
    parser.add_argument("--repeats", type=int, default=1, help="launches of each case while recording")
    parser.add_argument("--cases", default="", help="as pytest's -k: only these cases")
    given = parser.parse_args()
    given.output = given.output.resolve()
    given.work = (given.work or given.output / "work").resolve()
    return given


def _run(stage: Stage, work: Path, end: float) -> dict[str, object]:
    """One stage under its own limit and what is left of the budget; ended in order, then by force."""
    left = end - time.monotonic()
    shown = " ".join((*(f"{name}={value}" for name, value in stage.env.items()), *stage.argv))
    print(f"== {stage.name}: {shown}", flush=True)
    about: dict[str, object] = {"stage": stage.name, "argv": stage.argv, "env": stage.env, "code": None, "seconds": 0.0}
    if left < stage.least:
        return {**about, "result": "no time left"}
    before = set(_sessions(work))
    begin, log = time.monotonic(), work / f"{stage.name}.log"
    with log.open("wb") as file:
        job = subprocess.Popen(
            stage.argv, cwd=ROOT, env={**os.environ, **stage.env}, stdout=file, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        code, cut = _wait(job, min(stage.seconds, left))
    text = log.read_text(encoding="utf-8", errors="replace")
    is_well = not cut and code == stage.code and stage.says in text
    print("\n".join(text.splitlines()[-(12 if is_well else 60) :]), flush=True)
    return {
        **about,
        "result": "as expected" if is_well else "cut off" if cut else "OTHERWISE",
        "code": code,
        "expected": stage.code,
        "seconds": time.monotonic() - begin,
        "sessions": sorted(str(path.relative_to(work)) for path in set(_sessions(work)) - before),
    }


def _wait(job: subprocess.Popen[bytes], seconds: float) -> tuple[int, bool]:
    """Its exit code, and whether it had to be ended: SIGTERM lets the plugin end its jobs, SIGKILL is for the rest."""
    try:
        return job.wait(seconds), False
    except subprocess.TimeoutExpired:
        job.send_signal(signal.SIGTERM)
    try:
        return job.wait(GRACE), True
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        return job.wait(), True


def _sessions(work: Path) -> list[Path]:
    return sorted((work / "run" / "sessions").glob("*/"))


def _note(work: Path, results: list[dict[str, object]]) -> None:
    """Add this call's stages to ``stages.json``, and give the sessions the pre-flight that was made before them."""
    path = work / "stages.json"
    earlier = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    path.write_text(json.dumps([*earlier, *results], indent=1) + "\n", encoding="utf-8")
    preflight = work / "preflight.json"
    for session in _sessions(work) if preflight.exists() else ():
        if not (session / preflight.name).exists():
            shutil.copy(preflight, session)


def _reports(work: Path) -> None:
    """One report of what was measured and judged, and one that also has what was made slower and fatter on purpose."""
    told = json.loads((work / "stages.json").read_text(encoding="utf-8"))
    well = {"record", "green", "trace", "rehearse"}
    for name, chosen in (("report", well), ("report-red", {*well, "slower", "fatter"})):
        found = [part for part in told if part["stage"] in chosen and part["code"] is not None]
        paths = [work / session for part in found for session in part.get("sessions", ())]
        paths += [xml for part in found if (xml := work / f"{part['stage']}.xml").exists()]
        paths = [path for path in dict.fromkeys(paths) if path.suffix == ".xml" or any(path.glob("records/*.json"))]
        if not any(path.is_dir() for path in paths):
            continue
        argv = (
            sys.executable, "-c", "from pytest_scaleperf.cli import app; app()", "report", *map(str, paths),
            "--markdown", str(work / f"{name}.md"), "--html", str(work / f"{name}.html"),
        )  # fmt: skip
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
        print(f"== {name}: exit {done.returncode} {done.stderr.strip()[-500:]}", flush=True)


def _keep(given: argparse.Namespace) -> None:
    """Into OUTPUT: the reports, JUnit files and logs of stages, and an archive of records, logs and baselines."""
    work, output = given.work, given.output
    for name in ("report.md", "report.html", "report-red.md", "stages.json", "preflight.json"):
        if (work / name).exists():
            shutil.copy(work / name, output)
    _archive(output / "h200.tar.gz", _small(work), work)
    traces = sorted((work / "run").glob("sessions/*/**/*trace.json*"), key=lambda path: path.stat().st_size)
    _archive(output / "h200-traces.tar.gz", ((path, path.relative_to(work)) for path in traces), work)


def _small(work: Path) -> Iterator[tuple[Path, Path]]:
    """What the archive holds, with the names in it."""
    for path in sorted((ROOT / "baselines" / "h200").glob("*.yaml")):
        yield path, path.relative_to(ROOT)
    for pattern in ("*.log", "*.xml", "*.json", "*.md", "report.html"):
        for path in sorted(work.glob(pattern)):
            yield path, path.relative_to(work)
    for session in _sessions(work):
        for pattern in ("*.json", "records/*.json", "scaling/*.json", "rehearsals/**/*.json", "cases/**/stdout.log",
                        "cases/**/ranks/*.json", "cases/**/events.out.tfevents.*"):  # fmt: skip
            for path in sorted(session.glob(pattern)):
                yield path, path.relative_to(work)


def _archive(path: Path, files: Iterator[tuple[Path, Path]], work: Path) -> None:
    """As many of the files as will be about ``LARGEST`` bytes: logs shrink to a quarter at least, traces to a tenth."""
    left = (10 if "traces" in path.name else 4) * LARGEST
    added, leave_out = 0, _leave_out(work)
    with tarfile.open(path, "w:gz") as archive:
        for file, name in files:
            if file.stat().st_size <= left and not leave_out(file):
                archive.add(file, str(name))
                left -= file.stat().st_size
                added += 1
    if not added:
        path.unlink()


def _leave_out(work: Path) -> Callable[[Path], bool]:
    """Nothing but plain files of the work folder or the repository: no link leads out of the archive."""
    return lambda path: path.is_symlink() or not (path.is_relative_to(work) or path.is_relative_to(ROOT))


if __name__ == "__main__":
    sys.exit(main())
