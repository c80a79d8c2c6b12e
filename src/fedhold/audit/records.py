"""The audit of a deployed run: one JSON line per round, appended, that says what was done to every node."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

__all__ = ["FORMAT", "STATUSES", "NodeRecord", "RoundRecord", "append", "read", "told"]

FORMAT = 1
LONGEST = 200  # characters of a client's own words
STATUSES = ("kept", "clipped", "dropped", "rejected", "quarantined")


@dataclass(frozen=True)
class NodeRecord:
    """What was done to one node in one round.

    node       its id, as decimal text: 64 bits do not survive JavaScript
    phase      "train", or "evaluate": only nodes that failed there have such a row
    status     one of STATUSES
    weight     its share of the aggregate (None for column rules, and for those who never had one)
    claimed    the n_i it claimed, or the text of what it sent instead
    samples    the n_i it was given, after the cap
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


@dataclass(frozen=True)
class RoundRecord:
    """One round: what came out of it, and one row per node that was asked, or left out by a quarantine.

    run           the same for all rounds of a run, also after it was resumed
    outcome       "aggregated", or "kept": the model stayed as it was, and `note` says why
    certificate   {"f": ..., "radius": ... or None}; None for rules without one
    seconds       {"round": ..., "aggregation": ...}
    metrics       {"train": {...}, "evaluate": {...}, "server": {...}}, each as far as there were any
    """

    run: str
    round: int
    time: str
    rule: str
    parameters: Mapping[str, Any]
    outcome: str
    nodes: tuple[NodeRecord, ...]
    note: str | None = None
    converged: bool | None = None
    iterations: int | None = None
    certificate: Mapping[str, Any] | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def append(path: Path, record: RoundRecord) -> None:
    """Put one round at the end of the file, on the disk before this returns. Numbers that are not finite become null."""
    line = json.dumps(_finite({"format": FORMAT, **asdict(record)}), allow_nan=False, ensure_ascii=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # whoever wrote before us was killed in the middle of a line
                line = "\n" + line
        file.write(line.encode("utf-8", errors="replace") + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read(path: Path, tell: Callable[[str], None] | None = None) -> list[RoundRecord]:
    """The rounds of the last run in the file, in order; of a round that is there twice, the later line.

    A line that was not written to its end is skipped; `tell` gets a sentence about it, and about runs before the last one
    (without it, they go to the log). A file of another kind, or of a later format, is a ValueError.
    """
    told = logging.getLogger("fedhold").warning if tell is None else tell
    rounds: list[RoundRecord] = []
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            torn = number == len(lines) or line.startswith(b'{"format"')  # a resumed run goes on below a torn line
            if not torn:
                raise ValueError(
                    f"{path}, line {number}, is not JSON: no audit. Pass the file a strategy wrote."
                ) from None
            told(f"{path}: line {number} was not written to its end, and is left out.")
            continue
        rounds.append(_round(row, path, number))
    if not rounds:
        return []
    last = [record for record in rounds if record.run == rounds[-1].run]
    if len({record.run for record in rounds}) > 1:
        told(f"{path} holds {len({record.run for record in rounds})} runs; this is the last of them.")
    return sorted({record.round: record for record in last}.values(), key=lambda record: record.round)


def _round(row: Any, path: Path, number: int) -> RoundRecord:
    where = f"{path}, line {number},"
    if not isinstance(row, dict) or "format" not in row:
        raise ValueError(f"{where} is no round of an audit. Pass the file a strategy wrote.")
    if row["format"] != FORMAT:
        raise ValueError(f"{where} has format {row['format']!r}, and this version reads {FORMAT}. Update fedhold.")
    known = {f.name for f in fields(RoundRecord)}
    try:
        nodes = tuple(NodeRecord(**node) for node in row["nodes"])
        return RoundRecord(**{name: row[name] for name in row if name in known and name != "nodes"}, nodes=nodes)
    except (TypeError, KeyError) as problem:
        raise ValueError(f"{where} is no round of an audit: {problem}. Pass the file a strategy wrote.") from None


def _finite(value: Any) -> Any:
    """`value` for JSON: null for what is not finite."""
    if isinstance(value, Mapping):
        return {str(key): _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def told(words: object) -> str:
    """A client's words on one line, and not too many."""
    line = " ".join("".join(c if c.isprintable() else " " for c in str(words)[: 4 * LONGEST]).split())
    return line if len(line) <= LONGEST else line[: LONGEST - 3] + "..."
