"""The numbers of an audit: its series by round, and its tables.

Reasons, metric names and claims are texts that clients chose: tables hold them as `visible` or, for CSV, `quoted`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence

from fedhold.audit.records import NodeRecord, RoundRecord
from fedhold.audit.suspects import Standing, judge_round
from fedhold.report import Table, quoted, visible

__all__ = [
    "CLAIM",
    "REASONS",
    "Series",
    "claims_table",
    "metric_series",
    "number_of",
    "radius_series",
    "rule_of",
    "seconds_series",
    "standings_table",
    "tables",
]

Series = Mapping[int, float]  # round -> value
Safe = Callable[[object], str]
REASONS = "most frequent reasons"
CLAIM = "largest or strangest claim"


def rule_of(record: RoundRecord) -> str:
    """The rule with its parameters, as one would write it."""
    given = ", ".join(f"{name}={value}" for name, value in record.parameters.items())
    return visible(f"{record.rule}({given})" if given else record.rule)


def metric_series(rounds: Iterable[RoundRecord]) -> dict[str, dict[str, Series]]:
    """Every metric that is a number: its name -> phase -> round -> value."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    for record in rounds:
        for phase, metrics in record.metrics.items():
            for name, value in metrics.items():
                if (number := number_of(value)) is not None:
                    found.setdefault(name, {}).setdefault(phase, {})[record.round] = number
    return {name: {**phases} for name, phases in found.items()}


def radius_series(rounds: Iterable[RoundRecord]) -> Series:
    """The radius of every round that has one."""
    return _present((record.round, (record.certificate or {}).get("radius")) for record in rounds)


def seconds_series(rounds: Iterable[RoundRecord], part: str) -> Series:
    """How long a part of every round took."""
    return _present((record.round, record.seconds.get(part)) for record in rounds)


def number_of(value: object) -> float | None:
    """A number that a curve can show, or None; an integer beyond all floats counts as the largest of them."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or (isinstance(value, float) and not math.isfinite(value))
    ):
        return None
    return float(max(-sys.float_info.max, min(sys.float_info.max, value)))


def tables(rounds: Sequence[RoundRecord], ranked: Sequence[Standing]) -> list[Table]:
    """All there is to tell, for CSV: rounds, what became of every node in each, who is suspect, metrics and claims."""
    every = standings_table(ranked, quoted)
    flags = [(one.is_suspect, *row) for one, row in zip(ranked, every.rows, strict=True)]
    return [
        _rounds(rounds),
        _nodes(rounds),
        Table("suspects", ("suspect", *every.header), flags),
        _metrics(rounds),
        claims_table(rounds, quoted),
    ]


def standings_table(ranked: Iterable[Standing], safe: Safe) -> Table:
    """A row for each node, in the given order. The mean weight is in units of an equal share."""
    header = (
        *("node", REASONS, "suspicion", "asked", "held down", "rejected", "clipped", "dropped", "bad evaluations"),
        *("quarantine", "mean weight", "last asked", "last good"),
    )
    rows = [
        (
            *(safe(one.node), "; ".join(f"{safe(reason)} ({count} x)" for reason, count in one.reasons), one.suspicion),
            *(one.asked, one.held, one.rejected, one.clipped, one.dropped, one.bad_evaluations),
            *(one.quarantined, one.share, one.last_asked, one.last_good),
        )
        for one in ranked
    ]
    return Table("nodes in all", header, rows)


def claims_table(rounds: Sequence[RoundRecord], safe: Safe) -> Table:
    """Nodes whose claimed sample counts were not taken as they came; the claim that was furthest off."""
    found: dict[str, list[tuple[int, NodeRecord]]] = {}
    for record in rounds:
        for row in record.nodes:
            if row.claimed is not None and row.claimed != row.samples:
                found.setdefault(row.node, []).append((record.round, row))
    header = ("node", "rounds", "first", "last", CLAIM, "counted as")
    rows: list[tuple[object, ...]] = []
    for node, times in sorted(found.items(), key=lambda item: -len(item[1])):
        worst = max((row for _, row in times), key=_strangeness)
        claim = safe(worst.claimed) if isinstance(worst.claimed, str) else number_of(worst.claimed)
        counted = "rejected" if worst.status == "rejected" else worst.samples
        rows.append((safe(node), len(times), times[0][0], times[-1][0], claim, counted))
    return Table("claims", header, rows)


def _strangeness(row: NodeRecord) -> tuple[bool, float]:
    return (True, 0.0) if isinstance(row.claimed, str) else (False, abs(number_of(row.claimed) or 0.0))


def _rounds(rounds: Iterable[RoundRecord]) -> Table:
    header = (
        *("round", "time", "run", "rule", "outcome", "note", "nodes", "held down", "converged", "iterations"),
        *("certificate f", "certificate radius", "seconds", "seconds of aggregation"),
    )
    rows = []
    for record in rounds:
        seen = judge_round(record).values()
        proof = record.certificate or {}
        rows.append(
            (
                *(
                    record.round,
                    record.time,
                    record.run,
                    quoted(rule_of(record)),
                    record.outcome,
                    quoted(record.note or ""),
                ),
                *(len(seen), sum(one.held for one in seen), record.converged, record.iterations),
                *(proof.get("f"), proof.get("radius"), record.seconds.get("round"), record.seconds.get("aggregation")),
            )
        )
    return Table("rounds", header, rows)


def _nodes(rounds: Iterable[RoundRecord]) -> Table:
    header = (
        *("round", "node", "phase", "status", "reason", "distance", "threshold", "weight", "equal shares"),
        *("held down", "claimed", "samples"),
    )
    rows = []
    for record in rounds:
        seen = judge_round(record)
        for row in record.nodes:
            one = seen[row.node]
            claimed = quoted(row.claimed) if isinstance(row.claimed, str) else row.claimed
            rows.append(
                (
                    *(record.round, quoted(row.node), row.phase, row.status, quoted(row.reason or "")),
                    *(row.distance, row.threshold, row.weight, one.share if row.phase == "train" else None),
                    *(one.held, claimed, row.samples),
                )
            )
    return Table("nodes", header, rows)


def _metrics(rounds: Sequence[RoundRecord]) -> Table:
    series = metric_series(rounds)
    rows = [
        (record.round, quoted(phase), quoted(name), line[record.round])
        for record in rounds
        for name, phases in series.items()
        for phase, line in phases.items()
        if record.round in line
    ]
    return Table("metrics", ("round", "phase", "metric", "value"), rows)


def _present(pairs: Iterable[tuple[int, object]]) -> Series:
    return {when: number for when, value in pairs if (number := number_of(value)) is not None}
