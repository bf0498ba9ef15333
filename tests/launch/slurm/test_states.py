from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_scaleperf.launch.slurm import messages, states
from pytest_scaleperf.launch.slurm.client import UNKNOWN_JOB, Answer, without_slurm
from pytest_scaleperf.launch.slurm.faults import End, NodeState, classify
from pytest_scaleperf.launch.slurm.hostlist import expand
from pytest_scaleperf.launch.slurm.messages import Words
from pytest_scaleperf.launch.slurm.states import Wait
from pytest_scaleperf.model import JobState, Outcome, StopReason

DATA = Path(__file__).parents[2] / "data" / "slurm"
VERSIONS = ("22.05.8", "24.11.5")


@pytest.fixture(params=VERSIONS)
def recorded(request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    path = DATA / f"recorded-{request.param}.yaml"
    found: dict[str, dict[str, Any]] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


# job_state_string() of 22.05 and 24.11: base states, then the flags that are printed in their place.
FINISHED = {
    "COMPLETED": JobState.COMPLETED, "FAILED": JobState.FAILED, "LAUNCH_FAILED": JobState.FAILED,
    "TIMEOUT": JobState.TIMEOUT, "DEADLINE": JobState.TIMEOUT, "NODE_FAIL": JobState.NODE_FAIL,
    "BOOT_FAIL": JobState.NODE_FAIL, "RECONFIG_FAIL": JobState.NODE_FAIL, "PREEMPTED": JobState.PREEMPTED,
    "CANCELLED": JobState.CANCELLED, "REVOKED": JobState.CANCELLED, "OUT_OF_MEMORY": JobState.OUT_OF_MEMORY,
}  # fmt: skip
PENDING = (
    "PENDING",
    "CONFIGURING",
    "POWER_UP_NODE",
    "REQUEUED",
    "REQUEUE_FED",
    "REQUEUE_HOLD",
    "SPECIAL_EXIT",
    "RESV_DEL_HOLD",
)
RUNNING = ("RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING", "STAGE_OUT", "COMPLETING")


@pytest.mark.parametrize("word", [*FINISHED, *PENDING, *RUNNING])
def test_every_state_of_both_versions(word: str) -> None:
    state = states.state_of(word)
    assert state.is_finished == (word in FINISHED)
    expected = FINISHED.get(word) or (JobState.PENDING if word in PENDING else JobState.RUNNING)
    assert state is expected


@pytest.mark.parametrize("word", ["", "?", "NEW_STATE_OF_SLURM_27", "UPDATE_DB", "0x10000", "completed-ish"])
def test_an_unknown_state_is_never_finished(word: str) -> None:
    assert states.state_of(word) is JobState.UNKNOWN
    assert not states.state_of(word).is_finished


def test_what_sacct_adds_to_a_state() -> None:
    assert states.state_of("CANCELLED by 1000") is JobState.CANCELLED
    assert states.state_of("CANCELLED+") is JobState.CANCELLED


def test_a_job_record(recorded: dict[str, dict[str, Any]]) -> None:
    running, done = (states.parse_job(recorded[name]["out"]) for name in ("scontrol_job_o", "scontrol_done"))
    assert running is not None
    assert done is not None
    assert (running.word, running.state, running.nodes) == ("RUNNING", JobState.RUNNING, "node[1-2]")
    assert (done.state, done.exit_code, done.waited, done.seconds) == (JobState.COMPLETED, 0, 1.0, 3.0)
    failed = states.parse_job(recorded["failed_scontrol"]["out"])
    assert failed is not None
    assert (failed.state, failed.exit_code, failed.reason) == (JobState.FAILED, 7, "NonZeroExitCode")
    assert states.parse_job(recorded["scontrol_gone"].get("out", "")) is None


def test_a_name_cannot_pretend_to_be_a_state() -> None:
    text = "JobId=1 JobName=x JobState=COMPLETED UserId=a(1) GroupId=a(1) JobState=RUNNING Reason=None NodeList=n1 "
    seen = states.parse_job(text)
    assert seen is not None
    assert seen.state is JobState.RUNNING


@pytest.mark.parametrize(
    ("name", "state", "code"),
    [
        ("nodefail_srun_state", JobState.NODE_FAIL, None),
        ("nodedown_state", JobState.NODE_FAIL, None),
        ("scancel_run_state", JobState.CANCELLED, -15),
        ("timelimit_sbatch_state", JobState.TIMEOUT, 0),
        ("tl_shrink_after", JobState.TIMEOUT, -15),
        ("scancel_pending_state", JobState.CANCELLED, 0),
    ],
)
def test_states_with_codes_that_say_nothing(
    recorded: dict[str, dict[str, Any]], name: str, state: JobState, code: int | None
) -> None:
    line = recorded[name]["out"].splitlines()[0]
    seen = states.parse_job(line)
    assert seen is not None
    assert seen.state is state
    assert code is None or seen.exit_code == code


def test_the_queue() -> None:
    text = (
        "7|PENDING||2026-11-30T23:39:30|N/A|N/A|ReqNodeNotAvail, UnavailableNodes:node3|x\n"
        "8|RUNNING|node[1-2]|2026-11-30T23:39:30|2026-11-30T23:40:00|2026-12-01T00:40:00|None\n"
        "a line of a login banner\n"
    )
    seen = states.parse_queue(text)
    assert list(seen) == ["7", "8"]
    assert (seen["7"].state, seen["7"].reason) == (JobState.PENDING, "ReqNodeNotAvail, UnavailableNodes:node3|x")
    assert (seen["8"].waited, expand(seen["8"].nodes)) == (30.0, ("node1", "node2"))


@pytest.mark.parametrize(
    ("reason", "hope"),
    [
        ("Resources", Wait.WAITS), ("Priority", Wait.WAITS), ("None", Wait.WAITS), ("BeginTime", Wait.WAITS),
        ("AssocMaxJobsLimit", Wait.WAITS), ("AssocGrpGRES", Wait.WAITS), ("QOSMaxJobsPerUserLimit", Wait.WAITS),
        ("QOSGrpNodeLimit", Wait.WAITS), ("a reason of Slurm 27", Wait.WAITS),
        ("PartitionNodeLimit", Wait.NEVER), ("PartitionTimeLimit", Wait.NEVER), ("BadConstraints", Wait.NEVER),
        ("QOSMaxNodePerJobLimit", Wait.NEVER), ("AssocMaxWallDurationPerJobLimit", Wait.NEVER),
        ("QOSMinGRES", Wait.NEVER), ("DependencyNeverSatisfied", Wait.NEVER), ("InvalidQOS", Wait.NEVER),
        ("ReqNodeNotAvail, UnavailableNodes:node3", Wait.DOUBTFUL), ("JobHeldAdmin", Wait.DOUBTFUL),
        ("PartitionDown", Wait.DOUBTFUL),
        ("Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions", Wait.DOUBTFUL),
    ],
)  # fmt: skip
def test_what_a_reason_lets_us_hope_for(reason: str, hope: Wait) -> None:
    assert states.hope(reason) is hope


def test_accounting_and_its_absence(recorded: dict[str, dict[str, Any]]) -> None:
    text = (
        "20|COMPLETED|0:0|node[1-2]|2026-11-30T19:01:34|2026-11-30T19:01:35|2026-11-30T19:01:38\n"
        "20.0|CANCELLED by 0|0:15|n|Unknown|None|\n"
    )
    seen = states.parse_account(text)
    assert (seen["20"].seconds, seen["20.0"].state, seen["20.0"].exit_code) == (3.0, JobState.CANCELLED, -15)
    assert states.parse_account(recorded["failed_sacct"].get("out", "")) == {}


def test_steps_of_a_job() -> None:
    assert states.parse_steps("4.0|a.b-1|node1\n4.batch|batch|node1\n4.extern|extern|n\n") == {"a.b-1": "4.0"}


def test_an_error_of_the_controller_is_not_an_unknown_job(recorded: dict[str, dict[str, Any]]) -> None:
    gone = recorded["squeue_gone"]
    assert not Answer(gone["rc"], gone.get("out", ""), gone["err"]).away
    assert UNKNOWN_JOB in gone["err"]
    assert Answer(1, "", recorded["ctld_down"]["err"]).away
    assert Answer(None, "", "").away


@pytest.mark.parametrize(
    ("name", "state", "code", "failed"),
    [
        ("exit3", None, 3, ()),
        ("killonbad", JobState.FAILED, 3, ()),
        ("segv", None, -11, ()),
        ("scancel_srun", JobState.CANCELLED, None, ()),
        ("sigterm_srun", JobState.CANCELLED, None, ()),
        ("timelimit_srun", JobState.TIMEOUT, None, ()),
        ("step_time", JobState.TIMEOUT, None, ()),
        ("nodefail_srun", JobState.NODE_FAIL, None, ("node2",)),
        ("badbin", None, 2, ()),
    ],
)
def test_what_srun_said(
    recorded: dict[str, dict[str, Any]], name: str, state: JobState | None, code: int | None, failed: tuple[str, ...]
) -> None:
    said = messages.read(recorded[name]["err"].splitlines())
    assert (said.state, said.failed) == (state, failed)
    if code is not None:
        assert said.code == code


def test_a_task_cannot_speak_for_slurm() -> None:
    lines = ["0: srun: error: Node failure on node7", "1: srun: error: node1: task 0: Exited with exit code 9"]
    assert messages.read(lines) == Words()


@pytest.mark.parametrize(
    ("name", "rc", "state"),
    [("timelimit_sbatch_out", 0, JobState.TIMEOUT), ("nodefail_nokill", 0, JobState.NODE_FAIL)],
)
def test_exit_code_0_is_not_always_success(name: str, rc: int, state: JobState) -> None:
    recorded = yaml.safe_load((DATA / "recorded-22.05.8.yaml").read_text(encoding="utf-8"))
    text = recorded[name].get("err") or recorded[name]["out"]
    assert classify(End(rc, messages.read(text.splitlines()))).state is state


def test_the_same_143_is_four_things() -> None:
    bad = Words(JobState.FAILED, 3)
    assert classify(End(143, bad)).state is JobState.FAILED
    assert classify(End(143, bad)).code == 3
    assert classify(End(143, Words(JobState.CANCELLED))).fault is Outcome.CANCELLED
    assert classify(End(143, Words(JobState.TIMEOUT))).fault is Outcome.TIME_LIMIT
    found = classify(End(143, Words(JobState.NODE_FAIL, failed=("node2",))))
    assert (found.fault, found.failed_hosts) == (Outcome.NODE_FAILURE, ("node2",))
    assert classify(End(143, Words(), StopReason.NO_PROGRESS)).fault is None
    assert classify(End(143, Words())).code == -15


def test_the_job_s_state_decides_over_its_messages() -> None:
    found = classify(End(1, Words(JobState.CANCELLED), None, JobState.PREEMPTED))
    assert (found.state, found.fault) == (JobState.PREEMPTED, Outcome.PREEMPTED)


def test_a_broken_node_is_to_blame_only_where_something_failed() -> None:
    node = NodeState("node3", "drained", "bad gpu")
    assert node.broken
    assert not NodeState("node3", "mixed", "none").broken
    assert NodeState("node3", "idle*", "none").broken
    assert classify(End(0, Words(), None, JobState.RUNNING, (node,))).state is JobState.COMPLETED
    found = classify(End(1, Words(code=1), None, JobState.RUNNING, (node,)))
    assert (found.state, found.failed_hosts) == (JobState.NODE_FAIL, ("node3",))
    assert "node3 (drained: bad gpu)" in found.detail


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node1", ("node1",)),
        ("node[1-3,07],gpu5", ("node1", "node2", "node3", "node07", "gpu5")),
        ("n[08-11]-ib", ("n08-ib", "n09-ib", "n10-ib", "n11-ib")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
        ("(null)", ()),
        ("", ()),
    ],
)
def test_host_lists(text: str, names: tuple[str, ...]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize("text", ["node[1-", "node[a-b]", "a]b", "node[1-2],"])
def test_what_is_no_host_list(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        expand(text)


def test_an_outer_job_does_not_speak_to_the_inner_one() -> None:
    env = {
        "PATH": "/bin",
        "SLURM_CPUS_PER_TASK": "8",
        "SBATCH_PARTITION": "x",
        "SLURM_CONF": "/c",
        "NCCL_DEBUG": "INFO",
    }
    assert without_slurm(env) == {"PATH": "/bin", "SLURM_CONF": "/c", "NCCL_DEBUG": "INFO"}
