"""The audit of a deployed run: one JSON line per round, appended, that says what was done to every node.

First what a line holds and how lines are read without trust, then what can be read from them by round: the rule, metrics,
radius and seconds. `fedhold.audit.chain` writes them.
"""

from __future__ import annotations

import json
import logging
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from fedhold.report import visible

FORMAT = 1
STATUSES = ("kept", "clipped", "dropped", "rejected", "quarantined")
PHASES = ("train", "evaluate")
OUTCOMES = ("aggregated", "kept")
LINKS = ("previous", "hash", "signature")  # the keys of a line that bind it to the others
MAX_ROUND = 100_000  # charts have a place for each round up to the last
MAX_NODE_ID = 200  # characters

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
    groups     its status in each group of arrays, where there are groups: the rest of the row is of the group that treats it
               worst
    cosine     of the angle between its update and the aggregate of the others; measured in rounds in which some node has
               little weight
    update     the SHA-256 of the arrays that it sent, as array_hash() computes it; None where none could be read
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
    groups: Mapping[str, str] | None = None
    cosine: float | None = None
    update: str | None = None


@dataclass(frozen=True)
class RoundRecord:
    """One round: what came out of it, and one row per node that was asked, or left out by a quarantine.

    run           the same for all rounds of a run, also after it was resumed
    round         its number, from 1
    time          when it ended, as ISO 8601
    rule          the aggregation rule with its parameters, as a spec
    outcome       "aggregated", or "kept": the model stayed as it was, and `note` says why
    nodes         the NodeRecords
    note          why the model stayed as it was
    converged     whether the rule converged; None for rules that do not iterate
    iterations    how many it took; None for rules that do not iterate
    certificate   {"f": ..., "radius": ... or None}; None for rules without one
    seconds       {"round": ..., "aggregation": ...}
    metrics       {"train": {...}, "evaluate": {...}, "server": {...}}, each as far as there were any
    averages      the plain weighted averages of the nodes' metrics, {"train": {...}, "evaluate": {...}}. `metrics` has robust
                  ones, which no minority of nodes can move far
    quorum        {"asked": ..., "usable": ..., "needed": ...}: how many nodes were asked to train, how many of their replies
                  could be used, and how many the round needed
    f             how many liars the rule had to withstand among the clients that were left; None for rules that need no f
    scale         the typical distance behind the thresholds; None for rules without one
    validation    {"before": ..., "after": ...}: the loss of the model on data of the server; None without such data
    corrected     how many numbers of the new model were raised because they are negative, or far too small, where no client's
                  are, such as variances
    guard         the fields of `fedhold.Guarded`: which candidate a guard has chosen, and by how much; None without a guard
    diagnosis     which clients form groups, in words; None where they form one, or where that was not found on the way
    model         {"before": ..., "after": ...}: the SHA-256 of the model that was sent, and of the one after the round, as
                  array_hash() computes it

    Its line in the file is a JSON object with these fields and four more:

    format        the version of this schema, 1
    previous      the hash of the line before; 64 zeros in the first
    hash          of this line, as `fedhold.audit.chain` defines it
    signature     Ed25519, of the text "fedhold audit line " and the hash, as 128 hexadecimal digits; null without a key
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
    certificate: Mapping[str, float | None] | None = None
    seconds: Mapping[str, float | None] = field(default_factory=dict)
    metrics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    averages: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    quorum: Mapping[str, int] | None = None
    f: int | None = None
    scale: float | None = None
    validation: Mapping[str, float | None] | None = None
    corrected: int = 0
    guard: Mapping[str, float | str | Mapping[str, float | None] | None] | None = None
    diagnosis: str | None = None
    model: Mapping[str, str] | None = None


def audit_files(path: Path) -> list[Path]:
    """The files of an audit in their order: those that were full and got a number, and `path` itself where it is there."""
    numbered = [
        (int(file.suffix[1:]), file)
        for file in (path.parent.iterdir() if path.parent.is_dir() else ())
        if re.fullmatch(r"\.[1-9][0-9]{0,8}", file.suffix) and file.name.removesuffix(file.suffix) == path.name
    ]
    return [*(file for _, file in sorted(numbered)), *([path] if path.exists() else [])]


def read(path: Path, tell: Callable[[str], None] | None = None) -> list[RoundRecord]:
    """The rounds of the last run in the audit, in order; of a round that is there twice, the later line.

    path   the audit file; those that were full before it, `audit.jsonl.1` and so on, are read, too
    tell   is called with a sentence about a last line that was not written to its end, and is skipped, and about runs before
           the last one; by default these sentences go to the log

    A file of another kind or format is a ValueError. Hashes are not checked here: that is what `fedhold verify` is for.
    """
    warn = logging.getLogger("fedhold").warning if tell is None else tell
    rounds: list[RoundRecord] = []
    for file in audit_files(path) or [path]:
        lines = file.read_bytes().split(b"\n")
        for number, line in enumerate(lines, start=1):
            if line.strip() and number == len(lines):
                warn(f"{visible(file)}: line {number} was not written to its end, and is left out.")
            elif line.strip():
                try:
                    rounds.append(record_of(object_of(line.decode())))
                except ValueError as problem:
                    told = f"{file}, line {number}, is no round of an audit: {visible(problem)}"
                    raise ValueError(f"{told}. Pass the file a strategy wrote.") from None
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


def object_of(text: str) -> dict[str, Any]:
    """The JSON object in a text that anybody may have written; anything else is a ValueError."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    try:
        value = json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError:
        raise ValueError("it is not JSON") from None
    except RecursionError:
        raise ValueError("it nests too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return value


def record_of(line: Mapping[str, Any]) -> RoundRecord:
    """The round in a line; one that no version of fedhold would write is a ValueError."""
    if line.get("format") != FORMAT:
        raise ValueError(f"its format is {visible(line.get('format'), 20)}, and this version reads {FORMAT}")
    facts = {name: line[name] for name in line if name not in ("format", *LINKS)}
    rows = facts.pop("nodes", None)
    if not isinstance(rows, list):
        raise ValueError("`nodes` is no list")
    nodes = tuple(_made(NodeRecord, row) for row in rows)
    record: RoundRecord = _made(RoundRecord, {**facts, "nodes": nodes})
    for row in nodes:
        _check(len(row.node) <= MAX_NODE_ID, "node")
        _check(row.phase in PHASES, "phase")
        _check(row.status in STATUSES, "status")
        _check(row.weight is None or 0 <= row.weight <= 1.001, "weight")
        _check(row.samples is None or row.samples > 0, "samples")
    _check(0 < record.round <= MAX_ROUND, "round")
    _check(record.outcome in OUTCOMES, "outcome")
    _check(set(record.metrics) | set(record.averages) <= {*PHASES, "server"}, "metrics")
    return record


def _made(kind: Any, given: object) -> Any:
    """The NodeRecord or RoundRecord with these fields."""
    if not isinstance(given, dict):
        raise ValueError("a row of `nodes` is no object")
    hints = _hints(kind)
    for name, value in given.items():
        if name not in hints:
            raise ValueError(f"there is no field {visible(name, 40)!r}")
        _check(_fits(value, hints[name]), name)
    try:
        return kind(**given)
    except TypeError:
        raise ValueError("a field is missing") from None


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _check(sound: bool, name: str) -> None:
    if not sound:
        raise ValueError(f"`{name}` has a value of another type, or one out of its range")


def _fits(value: object, hint: Any) -> bool:
    """Whether a value from JSON is of an annotated type. Numbers must be such that floats can hold them."""
    if hint is Any:
        return (
            isinstance(value, str | bool | None)
            or _fits(value, float)
            or (
                isinstance(value, list)
                and all(isinstance(part, str | bool | None) or _fits(part, float) for part in value)
            )
        )
    if isinstance(hint, UnionType):
        return any(_fits(value, part) for part in get_args(hint))
    if get_origin(hint) is Mapping:
        return isinstance(value, dict) and all(_fits(part, get_args(hint)[1]) for part in value.values())
    if hint in (int, float):
        kinds = (int, float) if hint is float else (int,)
        largest = sys.float_info.max
        return isinstance(value, kinds) and not isinstance(value, bool) and -largest <= value <= largest
    return isinstance(value, get_origin(hint) or hint)


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
