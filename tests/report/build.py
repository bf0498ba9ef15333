"""Records as the plugin writes them, with chosen numbers; ``test_reader`` holds their form equal to the plugin's."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

T0 = 1_796_000_000.0  # 2026-11-30
SESSION = "20261130-020000-aaaaaa"
MEMORY_GIB = 178.35
FLOP_PER_TOKEN = 29.7e9
PEAK_FLOPS = 2.25e15
UNITS = ("tps", "mfu", "peak_memory")


def fingerprint(**changes: object) -> dict[str, object]:
    """What the numbers depend on."""
    return {
        "device": "NVIDIA B200",
        "driver": "570.86.15",
        "torch": "2.13.0+cu129",
        "nccl": "2.27.3",
        "torchtitan": "0.3.0",
        "torchtitan_commit": "4f2c1d9",
        "config": "0123456789ab",
        "peak_flops": PEAK_FLOPS,
        **changes,
    }


def record(  # noqa: PLR0913 - each is one thing that a test chooses
    *,
    suite: str = "b200-30b-a3b",
    gpus: int = 16,
    dp_shard: int = 16,
    mode: str = "selective",
    local: int = 18,
    tps: float | None = 28_400.0,
    share: float = 92.0,
    retries: int = 0,
    baseline: float | None = None,
    decision: str | None = None,
    reason: str | None = None,
    outcome: str = "completed",
    failure: Mapping[str, Any] | None = None,
    gate: Mapping[str, Any] | None = None,
    session: str = SESSION,
    finished: float = T0,
    launches: int = 1,
    seconds: float = 300.0,
    device: str = "NVIDIA B200",
) -> dict[str, Any]:
    """One record. ``baseline`` is the stored TPS; without ``decision`` it follows from it with a band of 3 %."""
    values = {} if tps is None else _values(tps, share, local)
    metrics = [_metric(name, value, baseline, tps) for name, value in values.items()]
    decided = decision or _decided(metrics, outcome)
    case = f"{suite}-{gpus}gpu-fsdp{dp_shard}-dp{gpus // dp_shard}-{mode}-lbs{local}"
    launched = () if decided == "skipped" else range(1, launches + 1)
    return {
        "schema": 1,
        "session": session,
        "case": case,
        "suite": suite,
        "system": "b200",
        "gpus": gpus,
        "layout": {"dp_shard": dp_shard, "dp_replicate": gpus // dp_shard, "tp": 1, "cp": 1, "pp": 1, "ep": 1},
        "activation_checkpoint": mode,
        "batch": {
            "local": local, "global_": local * gpus, "accumulation": 1, "sequence": 4096, "target": None,
        },
        "decision": decided,
        "reason": reason if reason is not None else _reason(decided, metrics),
        "notes": [],
        "metrics": metrics,
        "gate": gate or {"state": "open", "reason": "lowest rung", "parents": []},
        "fingerprint": None if decided == "skipped" else fingerprint(device=device),
        "samples": [
            {
                "argv": ["torchrun", "--nnodes=2", "-m", "ourfork.train", "--training.local_batch_size", f"{local}"],
                "folder": f"/runs/sessions/{session}/cases/{case}/{number}",
                "outcome": outcome,
                "failure": None if failure is None else {**_FAILURE, **failure},
                "exit_code": 0 if outcome == "completed" else 1,
                "stopped": None,
                "hosts": [f"node{node:03d}" for node in range(max(1, gpus // 8))],
                "started": finished - seconds,
                "seconds": seconds,
                "last_step": 30 if outcome == "completed" else 1,
                "sources": {"tps": "event files"},
                "measurement": _measurement(values, share, retries, local, number),
            }
            for number in launched
        ],
        "finished": finished,
    }  # fmt: skip


_FAILURE: dict[str, Any] = {
    "outcome": "error", "reason": "", "rank": None, "host": None, "step": None, "line": None, "signal": None,
    "requested_gib": None, "consequences": [], "details": {},
}  # fmt: skip


def _values(tps: float, share: float, local: int) -> dict[str, float]:
    return {
        "tps": tps,
        "mfu": 100 * tps * FLOP_PER_TOKEN / PEAK_FLOPS,
        "peak_memory": share / 100 * MEMORY_GIB,
        "step_time": local * 4096 / tps,
    }


def _metric(name: str, value: float, baseline: float | None, tps: float | None) -> dict[str, Any]:
    judged = name in UNITS
    stored = None
    if baseline is not None and tps is not None:
        stored = value * baseline / tps if name in ("tps", "mfu") else value
    change = None if stored is None else value / stored - 1
    decision = "not_judged"
    if judged:
        decision = "no_baseline" if change is None else _inside(change)
    tolerance = 0.03 if judged else None
    return {
        "metric": name, "decision": decision, "value": value, "baseline": stored, "tolerance": tolerance,
        "change": change, "noise": 0.004,
    }  # fmt: skip


def _inside(change: float) -> str:
    if change < -0.03:
        return "regression"
    return "improvement" if change > 0.03 else "pass"


def _decided(metrics: list[dict[str, Any]], outcome: str) -> str:
    if outcome != "completed":
        return "run_failed"
    found = {metric["decision"] for metric in metrics}
    return next(word for word in ("regression", "no_baseline", "improvement", "pass") if word in found)


def _reason(decision: str, metrics: list[dict[str, Any]]) -> str:
    if decision != "regression":
        return f"all metrics: {decision}"
    worst = metrics[0]
    return f"tps {worst['value']:.5g} tokens/s/GPU against {worst['baseline']:.5g} ({worst['change']:+.1%}, band -3.0%)"


def _measurement(values: dict[str, float], share: float, retries: int, local: int, number: int) -> dict[str, Any]:
    if not values:
        return {
            "values": {}, "spread": {}, "steps": [], "step_times": [], "tps_min": None, "memory_pct": None,
            "alloc_retries": None, "warnings": ["the run is oom, not completed: its numbers are not judged"],
        }  # fmt: skip
    steps = list(range(11, 31))
    time = local * 4096 / values["tps"]
    return {
        "values": values,
        "spread": dict.fromkeys(values, 0.001),
        "steps": steps,
        "step_times": [time * (1 + 0.002 * ((step * 7 + number * 3) % 5 - 2)) for step in steps],
        "tps_min": values["tps"] * 0.99,
        "memory_pct": share,
        "alloc_retries": retries,
        "warnings": [],
    }


def oom(**chosen: Any) -> dict[str, Any]:
    """A case that ran out of memory."""
    failure = {
        "outcome": "oom", "rank": 3, "host": "node001", "step": 1, "line": 412, "requested_gib": 2.5,
        "reason": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB.",
        "consequences": ["rank 0 on node000: exit code -6"],
    }  # fmt: skip
    reason = f"oom on rank 3 (node001): {failure['reason']}"
    return record(**{"tps": None, "outcome": "oom", "failure": failure, "reason": reason} | chosen)


def skipped(state: str, reason: str, parents: Iterable[str] = (), **chosen: Any) -> dict[str, Any]:
    """A case that was not launched."""
    gate = {"state": state, "reason": reason, "parents": list(parents)}
    return record(**{"tps": None, "decision": "skipped", "reason": reason, "gate": gate} | chosen)


def write(run_dir: Path, records: Iterable[Mapping[str, Any]]) -> Path:
    """Write records into the sessions that they name, as the plugin lays them out."""
    known: Counter[str] = Counter()
    for told in records:
        session = run_dir / "sessions" / told["session"]
        if not known[told["session"]]:
            (session / "records").mkdir(parents=True, exist_ok=True)
            about = {"schema": 1, "session": told["session"], "started": told["finished"] - 600}
            told_by = {"system": told["system"], "arguments": ["suites/", "--gpus", "512"]}
            (session / "session.json").write_text(json.dumps(about | told_by))
        known[told["session"]] += 1
        name = re.sub(r"[^A-Za-z0-9.-]", "_", told["case"])[:80]
        (session / "records" / f"{name}.{known[told['session']]}.json").write_text(json.dumps(told))
    return run_dir


def ladder() -> list[dict[str, Any]]:
    """A night that follows the published ladder: 16, 128 and 512 GPUs, with one regression and what it closes."""
    grid = {
        "none": {2: (19_800, 52), 6: (26_100, 77), 10: (26_900, 93)},
        "selective": {2: (17_900, 41), 6: (24_300, 56), 10: (26_800, 70), 14: (27_900, 82), 18: (28_400, 92),
                      22: (27_100, 98)},
        "full": {2: (15_100, 36), 6: (20_900, 44), 10: (23_400, 52), 14: (24_700, 60), 18: (25_600, 68),
                 22: (26_000, 76), 26: (26_300, 83), 30: (26_500, 88), 34: (26_600, 91), 38: (26_700, 94)},
    }  # fmt: skip
    edge = {"none": 14, "selective": 26}
    found = []
    for mode, cells in grid.items():
        for local, (tps, share) in cells.items():
            retries = 18 if share >= 97 else 0
            base = 28_300.0 if (mode, local) == ("selective", 22) else float(tps)
            found.append(record(mode=mode, local=local, tps=tps, share=share, retries=retries, baseline=base))
        if mode in edge:
            found.append(oom(mode=mode, local=edge[mode], decision="pass", reason="ended as expected: oom"))
    parent = "b200-30b-a3b-16gpu-fsdp16-dp1-selective-lbs22"
    found += [
        record(gpus=128, dp_shard=128, local=18, tps=27_600, share=86, baseline=27_500.0, seconds=420),
        skipped("closed", f"closed by its parent: {parent} (regression)", [parent], gpus=128, dp_shard=128, local=22),
        record(gpus=128, dp_shard=128, local=20, tps=28_000, share=93, baseline=28_000.0, seconds=420),
        record(gpus=128, dp_shard=128, mode="full", local=38, tps=26_300, share=89, baseline=25_000.0, seconds=420),
        record(gpus=512, dp_shard=128, local=20, tps=26_700, share=94, baseline=26_700.0, seconds=500, launches=2),
        *(
            skipped("beyond", "needs 768 GPUs, this session has 512 (--gpus 512)", gpus=768, dp_shard=128, local=local)
            for local in (18, 20, 22)
        ),
    ]
    return found


def nights(count: int, case: Mapping[str, Any], drift: float = 0.0) -> list[dict[str, Any]]:
    """The same case on earlier nights, each slower than the one before by ``drift``; the newest is not among them."""
    found = []
    for night in range(count, 0, -1):
        at = T0 - night * 86_400
        wobble = 1 + 0.004 * ((night * 5) % 3 - 1)
        tps = case["metrics"][0]["value"] * (1 + drift * night) * wobble
        found.append(
            record(
                gpus=case["gpus"], dp_shard=case["layout"]["dp_shard"], mode=case["activation_checkpoint"],
                local=case["batch"]["local"], tps=tps, share=case["samples"][0]["measurement"]["memory_pct"],
                baseline=case["metrics"][0]["baseline"], finished=at, session=f"202611{30 - night:02d}-020000-bbbbbb",
            )
        )  # fmt: skip
    return found


def many(cases: int, nights_before: int = 0) -> Iterable[dict[str, Any]]:
    """A very large night: four suites of two rungs, every kind of verdict, and some nights before."""
    modes = ("none", "selective", "full")
    for number in range(cases):
        suite, rest = number % 4, number // 4
        gpus = (16, 128)[rest % 2]
        rest //= 2
        mode, rest = modes[rest % 3], rest // 3
        shard, local = (16, 8, 4, 2)[rest % 4], 2 + 4 * (rest // 4)
        tps = 30_000.0 - 400 * abs(local - 18) - 100 * (number % 7)
        chosen: dict[str, Any] = {
            "suite": f"suite-{suite}",
            "gpus": gpus,
            "dp_shard": shard,
            "mode": mode,
            "local": local,
        }
        for night in range(nights_before, -1, -1):
            finished = T0 - 86_400 * night
            session = f"202611{30 - night:02d}-020000-cccccc"
            when: dict[str, Any] = {"finished": finished, "session": session}
            if night == 0 and number % 50 == 7:
                yield oom(**chosen, **when)
            elif night == 0 and number % 10 == 3:
                yield skipped("beyond", "needs 128 GPUs, this session has 16 (--gpus 16)", **chosen, **when)
            else:
                lost = 0.08 if night == 0 and number % 40 == 5 else 0.0
                yield record(**chosen, **when, tps=tps * (1 - lost), share=min(99.0, 30 + 2.2 * local), baseline=tps)
