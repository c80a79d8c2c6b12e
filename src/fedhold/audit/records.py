"""The audit of a deployed run: one JSON line per round, appended, that says what was done to every node.

First how rounds are written and read, then what can be read from them by round: the rule, metrics, radius and seconds.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedhold.report import visible

FORMAT = 1
STATUSES = ("kept", "clipped", "dropped", "rejected", "quarantined")

Series = Mapping[int, float]  # round -> value


@dataclass(frozen=True)
class NodeRecord:
    """What was done to one node in one round.

    node       its id, as decimal text: JavaScript cannot hold an integer of 64 bits
    phase      "train", or "evaluate": only nodes that failed there have such a row
    status     one of STATUSES
    reason     why, where the status has a reason
    distance   of its update to the aggregate
    threshold  the distance from which on the rule clipped its update
    weight     its share of the aggregate (None for column rules, and for nodes that were not aggregated)
    claimed    the number of samples it claimed, or the text of what it sent instead
    samples    the number of samples it was given, after the cap
    name       what it calls itself, where it does: text that it chose, so the id stays beside it
    effect     by how much its own model has a larger loss than the model that was sent, on data of the server; None where that
               was not measured
    """

    node: str
    phase: str
    status: str
    reason: str | None = None
    distance: float | None = None
    threshold: float | None = None
    weight: float | None = None
    claimed: float | str | None = None
    samples: float | None = None
    name: str | None = None
    effect: float | None = None


@dataclass(frozen=True)
class RoundRecord:
    """One round: what came out of it, and one row per node that was asked, or left out by a quarantine.

    run           the same for all rounds of a run, also after it was resumed
    round         its number, from 1
    time          when it ended, as ISO 8601
    rule          the aggregation rule with its parameters, as a spec
    outcome       "aggregated", or "kept": the model stayed as it was, and `note` says why
    converged     whether the rule converged, and in how many `iterations`; None for rules that do not iterate
    certificate   {"f": ..., "radius": ... or None}; None for rules without one
    seconds       {"round": ..., "aggregation": ...}
    metrics       {"train": {...}, "evaluate": {...}, "server": {...}}, each as far as there were any
    averages      the plain weighted averages of the nodes' metrics, {"train": {...}, "evaluate": {...}}. `metrics` has robust
                  ones, which no minority of nodes can move far
    quorum        {"asked": ..., "usable": ..., "needed": ...}: how many nodes were asked to train, how many of their replies
                  could be used, and how many the round needed
    f             how many liars the rule had to withstand among the clients that were left; None for rules that need no f
    validation    {"before": ..., "after": ...}: the loss of the model on data of the server; None without such data
    guard         the fields of `fedhold.Guarded`: which candidate a guard has chosen, and by how much; None without a guard
    diagnosis     which clients form groups, in words; None where they form one, or where that was not found on the way
    """

    run: str
    round: int
    time: str
    rule: str
    outcome: str
    nodes: tuple[NodeRecord, ...]
    note: str | None = None
    converged: bool | None = None
    iterations: int | None = None
    certificate: Mapping[str, Any] | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    averages: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    quorum: Mapping[str, int] | None = None
    f: int | None = None
    validation: Mapping[str, float] | None = None
    guard: Mapping[str, Any] | None = None
    diagnosis: str | None = None


def append(path: Path, record: RoundRecord) -> None:
    """Put one round at the end of the file, on the disk before this returns. Numbers that are not finite become null."""
    line = json.dumps(_finite({"format": FORMAT, **asdict(record)}), allow_nan=False, ensure_ascii=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # the process that wrote before was killed in the middle of a line
                line = "\n" + line
        file.write(line.encode("utf-8", errors="replace") + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read(path: Path, tell: Callable[[str], None] | None = None) -> list[RoundRecord]:
    """The rounds of the last run in the file, in order; of a round that is there twice, the later line.

    path   the audit file
    tell   is called with a sentence about each line that was not written to its end, and is skipped, and about runs
           before the last one; by default these sentences go to the log

    A file of another kind or format is a ValueError.
    """
    warn = logging.getLogger("fedhold").warning if tell is None else tell
    rounds: list[RoundRecord] = []
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            # The last line may still be being written, and a run that was killed and resumed goes on below a torn line.
            if number != len(lines) and not line.startswith(b'{"format"'):
                raise ValueError(
                    f"{path}, line {number}, is not JSON: no audit. Pass the file a strategy wrote."
                ) from None
            warn(f"{visible(path)}: line {number} was not written to its end, and is left out.")
            continue
        rounds.append(_round(row, path, number))
    if not rounds:
        return []
    last = [record for record in rounds if record.run == rounds[-1].run]
    if len({record.run for record in rounds}) > 1:
        warn(f"{visible(path)} holds {len({record.run for record in rounds})} runs; this is the last of them.")
    return sorted({record.round: record for record in last}.values(), key=lambda record: record.round)


def find_audit(path: Path) -> Path | None:
    """The audit that a path names: a file, or the only *.jsonl of a directory without results; None where there is none."""
    if path.is_file():
        return path
    if not path.is_dir() or (path / "results").is_dir():
        return None
    found = sorted(path.glob("*.jsonl"))
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise ValueError(f"{path} holds {len(found)} audits: {names}. Name one of them.")
    return found[0] if found else None


def _round(row: Any, path: Path, number: int) -> RoundRecord:
    where = f"{path}, line {number},"
    if not isinstance(row, dict) or "format" not in row:
        raise ValueError(f"{where} is no round of an audit. Pass the file a strategy wrote.")
    if row["format"] != FORMAT:
        raise ValueError(f"{where} has format {row['format']!r}, and this version reads {FORMAT}. Update fedhold.")
    try:
        nodes = tuple(NodeRecord(**node) for node in row["nodes"])
        return RoundRecord(**{**{name: row[name] for name in row if name != "format"}, "nodes": nodes})
    except (TypeError, KeyError) as problem:
        raise ValueError(f"{where} is no round of an audit: {problem}. Pass the file a strategy wrote.") from None


def _finite(value: Any) -> Any:
    """`value` for JSON: null for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {str(key): _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


# What rounds hold


def rule_of(record: RoundRecord) -> str:
    """The rule with its parameters, fit for printing."""
    return visible(record.rule)


def metric_series(rounds: Iterable[RoundRecord]) -> dict[str, dict[str, Series]]:
    """Every metric that is a number: its name -> phase -> round -> value. Clients chose the names."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    for record in rounds:
        for phase, metrics in record.metrics.items():
            for name, value in metrics.items():
                if (number := number_of(value)) is not None:
                    found.setdefault(name, {}).setdefault(phase, {})[record.round] = number
    return {name: {**phases} for name, phases in found.items()}


def radius_series(rounds: Iterable[RoundRecord]) -> Series:
    """The radius of every round that has one."""
    return _numbers((record.round, (record.certificate or {}).get("radius")) for record in rounds)


def seconds_series(rounds: Iterable[RoundRecord], part: str) -> Series:
    """How long a part of every round took."""
    return _numbers((record.round, record.seconds.get(part)) for record in rounds)


def number_of(value: object) -> float | None:
    """A number that a curve can show, or None; an integer beyond all floats counts as the largest of them."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or (isinstance(value, float) and not math.isfinite(value))
    ):
        return None
    return float(max(-sys.float_info.max, min(sys.float_info.max, value)))


def _numbers(pairs: Iterable[tuple[int, object]]) -> Series:
    return {when: number for when, value in pairs if (number := number_of(value)) is not None}
