"""What one process on one device tells of a run of any size: does it fit, is it valid, how fast without communication.

``words`` are the values, ``judge`` makes them from what the process did, ``gate`` says which real case they close,
``tax`` sets a real speed against the ceiling and puts a regression down to compute or communication, ``stored`` reads
and writes the files. All of it is pure.
"""

from __future__ import annotations

from pytest_scaleperf.rehearsed.gate import rehearsal_gate
from pytest_scaleperf.rehearsed.judge import (
    DEFAULT_RESERVE_GIB,
    Room,
    judge_case,
    judge_rank,
    not_rehearsable,
    ranks_of,
    room_of,
    with_baseline,
)
from pytest_scaleperf.rehearsed.stored import SCHEMA as REHEARSAL_FORM
from pytest_scaleperf.rehearsed.stored import as_record, from_record
from pytest_scaleperf.rehearsed.tax import Attribution, Cause, Speeds, attribute, communication_tax
from pytest_scaleperf.rehearsed.words import Fit, RankRehearsal, Rehearsal, WithBaseline

__all__ = [
    "DEFAULT_RESERVE_GIB",
    "REHEARSAL_FORM",
    "Attribution",
    "Cause",
    "Fit",
    "RankRehearsal",
    "Rehearsal",
    "Room",
    "Speeds",
    "WithBaseline",
    "as_record",
    "attribute",
    "communication_tax",
    "from_record",
    "judge_case",
    "judge_rank",
    "not_rehearsable",
    "ranks_of",
    "rehearsal_gate",
    "room_of",
    "with_baseline",
]
