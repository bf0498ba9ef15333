"""Records are whole or absent, never overwritten, and only readable ones are evidence."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from pytest_scaleperf import records
from pytest_scaleperf.model import Decision, Fingerprint, LaunchError

PRINT = {
    "device": "lab",
    "driver": None,
    "torch": "2.13.0",
    "nccl": None,
    "torchtitan": "0.3.0",
    "torchtitan_commit": None,
    "config": "abc",
    "peak_flops": 1.0,
}


def write(folder: records.SessionFolder, case_id: str = "a", decision: str = "pass", finished: float = 1.0) -> Path:
    return folder.write(case_id, {"decision": decision, "fingerprint": PRINT, "finished": finished, "samples": []})


@pytest.fixture
def session(tmp_path: Path) -> records.SessionFolder:
    return records.SessionFolder.create(tmp_path, {})


def test_a_second_record_of_a_case_stays_beside_the_first(session: records.SessionFolder) -> None:
    first = write(session, decision="regression")
    second = write(session, decision="pass")
    assert first != second
    assert json.loads(first.read_text())["decision"] == "regression"
    newest = session.latest("a")
    assert newest is not None
    assert newest["decision"] == "pass"


def test_a_record_is_kept_although_a_job_removed_the_folder(session: records.SessionFolder) -> None:
    (session.path / "records").rmdir()
    assert write(session).exists()


def test_evidence_is_newest_first_over_sessions(tmp_path: Path) -> None:
    for number, decision in enumerate(("regression", "pass")):
        folder = records.SessionFolder.create(tmp_path, {})
        # Names begin with the time to the second; two sessions of one second are ordered by their random part.
        renamed = folder.path.with_name(f"2026010{number + 1}-000000-aaaaaa")
        folder.path.rename(renamed)
        folder.path = renamed
        write(folder, decision=decision, finished=float(number))
        folder.close()
    found = list(records.evidence(tmp_path, "a"))
    assert [e.decision for e in found] == [Decision.PASS, Decision.REGRESSION]
    assert found[0].fingerprint == Fingerprint(**PRINT)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"schema": 1}', '{"schema": 99}', '{"schema": 1, "decision": "splendid"}', "\x00"]
)
def test_a_record_that_cannot_be_read_is_no_evidence(session: records.SessionFolder, text: str) -> None:
    write(session).write_text(text)
    run_dir = session.path.parent.parent
    assert list(records.evidence(run_dir, "a")) == []


def test_skipped_cases_are_no_evidence(session: records.SessionFolder) -> None:
    write(session, decision="skipped")
    assert list(records.evidence(session.path.parent.parent, "a")) == []


def test_attempts_get_new_folders(session: records.SessionFolder) -> None:
    assert [session.attempt_folder("a").name for _ in range(3)] == ["1", "2", "3"]


def test_no_half_written_record_is_ever_seen(session: records.SessionFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_self: Path, _target: object) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(LaunchError, match="No space left on device; make room"):
        write(session)
    assert session.latest("a") is None
    assert list((session.path / "records").iterdir()) == []


def test_records_are_synced_soon_and_all_of_them_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = os.fsync

    def note(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    syncer = records.Syncer(every=0.01)
    (tmp_path / "first").write_text("1")
    syncer.add(tmp_path / "first")
    deadline = time.monotonic() + 10
    while not synced:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    (tmp_path / "last").write_text("2")
    syncer.add(tmp_path / "last")
    syncer.add(tmp_path / "gone")
    syncer.close()
    assert synced == ["first", "last"]


def test_resume_takes_the_latest_and_refuses_a_running_one(session: records.SessionFolder) -> None:
    run_dir = session.path.parent.parent
    with pytest.raises(LaunchError, match="still running"):
        records.SessionFolder.resume(run_dir, "latest")
    session.close()
    again = records.SessionFolder.resume(run_dir, "latest")
    assert again.path == session.path
    assert again.resumed


def test_resume_of_an_unknown_session_names_the_newest(session: records.SessionFolder) -> None:
    with pytest.raises(LaunchError, match=session.id):
        records.SessionFolder.resume(session.path.parent.parent, "yesterday")


def test_numbers_that_are_none_are_refused(session: records.SessionFolder) -> None:
    with pytest.raises(ValueError, match="JSON"):
        session.write("a", {"value": float("nan")})
