"""Made-up audits of deployed runs: what a strategy would write, with texts that hostile clients would choose."""

import dataclasses

import numpy as np

from fedhold.audit.records import NodeRecord, RoundRecord

SCRIPT = "<script>console.error('reason')</script>"
METRIC = "<img src=x onerror=console.error('metric')>"
ESCAPES = "\x1b[31mred\x1b[0m\x1b]0;title\x07 [bold]markup[/bold] \u202egnp.exe\r\n\x9b2J"
CLAIM = "=cmd|' /C calc'!A0 <b>\x1b[2J"


def identity(k):
    return str(4_000_000_000_000_000_000 + 7_919_777_777_777 * k)


NODES = [identity(k) for k in range(12)]
LIARS = NODES[:3]
CAPPED = NODES[3]  # claims too much, but sends honest work


def record(k, nodes=NODES, *, run="5eed", rule="huber(threshold=automatic)", seconds=8.0):
    """Round k: node 0 is held down, 1 sends nonsense, 2 fails in evaluation and is left out later, 3 claims too much."""
    rng = np.random.default_rng(k)
    weights = np.clip(rng.normal(1, 0.15, len(nodes)), 0.6, 1.6)
    weights[:2] = 0.02, 0.0
    quarantined = 9 <= k <= 13
    asked = [i for i in range(len(nodes)) if i < 4 or (i + k) % 5]
    weights /= weights[[i for i in asked if i != 2 or not quarantined]].sum()
    rows = []
    for i in asked:
        row = NodeRecord(nodes[i], "train", "clipped", None, 3.0 + 0.1 * i, 2.4, float(weights[i]), 100, 100)
        if i == 0:
            row = dataclasses.replace(row, distance=340.0)
        if i == 1:
            row = NodeRecord(nodes[i], "train", "rejected", (SCRIPT, ESCAPES)[k % 2], claimed=CLAIM)
        if i == 2 and quarantined:
            row = NodeRecord(nodes[i], "train", "quarantined", "held down in 5 of the last 8 rounds")
        elif i == 2:
            rows.append(NodeRecord(nodes[i], "evaluate", "rejected", "a metric that is not finite"))
        if i == 3:
            row = dataclasses.replace(row, claimed=10**9, samples=300, reason="samples 1e+09 capped at 300")
        rows.append(row)
    kept = k in (7, 8)
    return RoundRecord(
        run=run,
        round=k,
        time=f"2026-01-31T12:{k % 60:02d}:00+00:00",
        rule=rule,
        outcome="kept" if kept else "aggregated",
        nodes=tuple(rows),
        note=f"2 good replies, 4 needed {SCRIPT}" if kept else None,
        converged=True,
        iterations=4,
        certificate={"f": 2, "radius": None if k < 3 else 1 / k},
        seconds={"round": seconds + 0.1 * (k % 3), "aggregation": 0.02},
        metrics={
            "train": {"loss": 2 * float(np.exp(-k / 8)), METRIC: 1.0},
            "evaluate": {"loss": 2.1 * float(np.exp(-k / 8)), "accuracy": 1 - 0.9 * float(np.exp(-k / 8))},
        },
    )


def records(rounds=20, **more):
    return [record(k, **more) for k in range(1, rounds + 1)]
