"""What Slurm says of a job or a step, as our words. Pure: text in, values out; nothing is asked here.

The state decides, the exit code comes second: 143 is four different things, and 0 can be a time limit.
States: slurm.h of 22.05 and 24.11 (``job_states`` and the JOB_* flags, which commands print in the state's place).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from pytest_scaleperf.model import JobState

QUEUE_FORMAT = "%i|%T|%N|%V|%S|%e|%r"
"""squeue -o: id, state, nodes, submitted, started, ended, reason (last, as it may hold anything)."""

STEPS_FORMAT = "%i|%j|%N"
"""squeue -s -o: step id, name, nodes."""

ACCOUNT_FORMAT = "jobid,state,exitcode,nodelist,submit,start,end"
"""sacct -P -n -o; of jobs and of steps."""

_STATES: Mapping[str, JobState] = {
    "PENDING": JobState.PENDING,
    "CONFIGURING": JobState.PENDING,  # its nodes boot
    "POWER_UP_NODE": JobState.PENDING,
    "REQUEUED": JobState.PENDING,
    "REQUEUE_FED": JobState.PENDING,
    "REQUEUE_HOLD": JobState.PENDING,
    "SPECIAL_EXIT": JobState.PENDING,  # requeued and held
    "RESV_DEL_HOLD": JobState.PENDING,
    "RUNNING": JobState.RUNNING,
    "SUSPENDED": JobState.RUNNING,
    "STOPPED": JobState.RUNNING,
    "SIGNALING": JobState.RUNNING,
    "RESIZING": JobState.RUNNING,
    "STAGE_OUT": JobState.RUNNING,
    "COMPLETING": JobState.RUNNING,  # something of it may still run
    "COMPLETED": JobState.COMPLETED,
    "FAILED": JobState.FAILED,
    "LAUNCH_FAILED": JobState.FAILED,
    "OUT_OF_MEMORY": JobState.OUT_OF_MEMORY,
    "TIMEOUT": JobState.TIMEOUT,
    "DEADLINE": JobState.TIMEOUT,
    "NODE_FAIL": JobState.NODE_FAIL,
    "BOOT_FAIL": JobState.NODE_FAIL,
    "RECONFIG_FAIL": JobState.NODE_FAIL,
    "PREEMPTED": JobState.PREEMPTED,
    "CANCELLED": JobState.CANCELLED,
    "REVOKED": JobState.CANCELLED,  # a sibling of a federation took it
}

_KEY = re.compile(r"(?:^|\s)([A-Z][A-Za-z/:]*)=")
_NAME = re.compile(r"^(JobId=\S+ )JobName=.* (UserId=)")
_NO_TIME = frozenset({"", "Unknown", "None", "N/A", "(null)"})
_STEP_ID = re.compile(r"(?P<job>\d+)\.(?P<step>\d+)")


class Wait(StrEnum):
    """What a pending job's reason lets us hope for."""

    WAITS = "waits"
    DOUBTFUL = "doubtful"
    """Nodes that are down may come back, a held job may be released: given up after a while."""
    NEVER = "never"


# Reasons that no waiting resolves: what was asked for is beyond a limit for a single job.
_NEVER = re.compile(
    r"PartitionNodeLimit|PartitionTimeLimit|BadConstraints|DependencyNeverSatisfied|InvalidAccount|InvalidQOS|QOSNotAllowed"
    r"|AccountNotAllowed|NodeCountNotAvail|FrontEndDown|BurstBufferStageInError"
    r"|(?:Assoc|QOS)(?:Max|Min)(?:\w*)(?:PerJob|PerNode|MinutesPerJob|Duration)\w*|QOSMin\w+"
)
_DOUBTFUL = re.compile(
    r"ReqNodeNotAvail|Nodes_?\s?required.*DOWN|JobHeld\w*|Partition(?:Down|Inactive)|ReservationDeleted|Reservation\b"
    r"|launch.failed.requeued.held|Prolog|NonZeroExitCode|DeadLine"
)


@dataclass(frozen=True, slots=True)
class Seen:
    """One job or step as Slurm last told it; times are of the controller's clock, None where it says none."""

    id: str
    word: str
    state: JobState
    reason: str = ""
    nodes: str = ""
    exit_code: int | None = None
    submitted: datetime | None = None
    started: datetime | None = None
    ended: datetime | None = None

    @property
    def waited(self) -> float:
        """Seconds in the queue, 0 where it never started."""
        return _between(self.submitted, self.started)

    @property
    def seconds(self) -> float:
        """Seconds that it ran, 0 where it never started or has not ended."""
        return _between(self.started, self.ended)


def state_of(word: str) -> JobState:
    """Our word for a state: ``CANCELLED by 0`` and ``CANCELLED+`` are the same; what is not known is UNKNOWN."""
    return _STATES.get(word.split(" ", maxsplit=1)[0].rstrip("+").upper(), JobState.UNKNOWN)


def hope(reason: str) -> Wait:
    """What a pending job's reason says; one that is not known only waits (a limit ends that)."""
    if _NEVER.search(reason):
        return Wait.NEVER
    return Wait.DOUBTFUL if _DOUBTFUL.search(reason) else Wait.WAITS


def parse_queue(text: str) -> dict[str, Seen]:
    """The answer of squeue (``QUEUE_FORMAT``) by job id; lines of another form are left out."""
    found: dict[str, Seen] = {}
    for line in text.splitlines():
        parts = line.split("|", 6)
        if len(parts) == 7:  # noqa: PLR2004 - the fields of QUEUE_FORMAT
            name, word, nodes, submitted, started, ended, reason = parts
            times = [moment(t) for t in (submitted, started, ended)]
            found[name] = Seen(name, word, state_of(word), reason, nodes, None, *times)
    return found


def parse_account(text: str) -> dict[str, Seen]:
    """The answer of sacct (``ACCOUNT_FORMAT``) by job or step id."""
    found: dict[str, Seen] = {}
    for line in text.splitlines():
        parts = line.split("|")
        if len(parts) == 7:  # noqa: PLR2004 - the fields of ACCOUNT_FORMAT
            name, word, code, nodes, submitted, started, ended = parts
            times = [moment(t) for t in (submitted, started, ended)]
            found[name] = Seen(name, word, state_of(word), "", nodes, exit_code(code), *times)
    return found


def parse_steps(text: str) -> dict[str, str]:
    """The answer of squeue -s (``STEPS_FORMAT``): step id by step name; batch and extern steps are left out."""
    parts = (line.split("|", 2) for line in text.splitlines())
    return {part[1]: part[0] for part in parts if len(part) == 3 and _STEP_ID.fullmatch(part[0])}  # noqa: PLR2004 - as above


def parse_records(text: str) -> Iterator[dict[str, str]]:
    """``scontrol show job|step|node|topology -o``: one mapping a line. Of a key that is repeated the first holds."""
    for line in text.splitlines():
        # A name may hold anything, also what looks like a state.
        line = _NAME.sub(r"\1\2", line.strip())  # noqa: PLW2901 - the same line without its name
        found = list(_KEY.finditer(line))
        record: dict[str, str] = {}
        for at, following in zip(found, [*found[1:], None], strict=True):
            end = len(line) if following is None else following.start()
            record.setdefault(at[1], line[at.end() : end].strip())
        if record:
            yield record


def parse_job(text: str) -> Seen | None:
    """``scontrol show job -o`` of one job; None where it is no such answer."""
    record = next((r for r in parse_records(text) if "JobState" in r), None)
    if record is None:
        return None
    word = record["JobState"]
    return Seen(
        id=record.get("JobId", ""),
        word=word,
        state=state_of(word),
        reason=record.get("Reason", ""),
        nodes=record.get("NodeList", "").replace("(null)", ""),
        exit_code=exit_code(record.get("ExitCode", "")),
        submitted=moment(record.get("SubmitTime", "")),
        started=moment(record.get("StartTime", "")),
        ended=moment(record.get("EndTime", "")),
    )


def exit_code(text: str) -> int | None:
    """``3:0`` is 3, ``0:15`` is -15 (a signal); None where it is neither."""
    code, colon, signum = text.partition(":")
    if not colon or not code.isdecimal() or not signum.isdecimal():
        return None
    return -int(signum) if int(signum) else int(code)


def moment(text: str) -> datetime | None:
    """A time of the controller, without a zone, as Slurm prints it."""
    try:
        return None if text in _NO_TIME else datetime.fromisoformat(text)
    except ValueError:
        return None


def _between(first: datetime | None, second: datetime | None) -> float:
    return 0.0 if first is None or second is None else max(0.0, (second - first).total_seconds())
