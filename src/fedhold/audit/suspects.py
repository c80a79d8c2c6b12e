"""Which nodes to suspect: what became of every node over the rounds of an audit.

A node is held down in a round when one of its replies was rejected, in training or in evaluation, or when its weight was low
among the admitted nodes (`fedhold.report.held_down`). A suspect is a node that was held down in more than half of the rounds
in which it was asked, or that is or was in quarantine. They are sorted by

    suspicion = rounds held down / (rounds asked + 1)

so that of two nodes held down every time the one with more rounds comes first.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fedhold.audit.records import NodeRecord, RoundRecord
from fedhold.report import LOW, held_down

NOT_ASKED = "not asked"
FAR = "far from the others: little weight"
TAIL = 6  # digits of a node's id that are shown where there is no room for all
RULE = (
    "A node is held down in a round when one of its replies was rejected, in training or in evaluation, or when both its "
    f"weight and its weight per sample were below {LOW:g} of the median of the admitted nodes. A suspect was held down in more "
    "than half of the rounds in which it was asked, or was put in quarantine. Suspects are sorted by suspicion: rounds held "
    "down / (rounds asked + 1). A suspect is not proven to lie: a broken node looks the same, and so does a node whose data "
    "are unlike those of all others."
)


@dataclass(frozen=True)
class Seen:
    """What became of one node in one round.

    status           of its training reply; "not asked" where it has a row for its evaluation only
    reasons          for what was done to it
    share            its weight in units of an equal share among the admitted; None where it has none
    held             whether it was held down
    bad_evaluation   whether its evaluation was rejected
    """

    node: str
    status: str
    reasons: tuple[str, ...]
    share: float | None
    held: bool
    bad_evaluation: bool


@dataclass(frozen=True)
class Standing:
    """What became of one node over all rounds.

    asked ... quarantined   in how many rounds each of these was the case
    share                   its mean weight in units of an equal share, 0 for each rejection; None where it never had one
    reasons                 the three most frequent, each with its number of rounds
    last_asked, last_good   the last round in which it was asked, or its reply was accepted; None for never
    """

    node: str
    asked: int
    held: int
    rejected: int
    clipped: int
    dropped: int
    bad_evaluations: int
    quarantined: int
    share: float | None
    reasons: tuple[tuple[str, int], ...]
    last_asked: int | None
    last_good: int | None

    @property
    def suspicion(self) -> float:
        return self.held / (self.asked + 1)

    @property
    def is_suspect(self) -> bool:
        return 2 * self.held > self.asked or self.quarantined > 0


def judge_round(record: RoundRecord) -> dict[str, Seen]:
    """What became of every node with a row in the round, in the order of the rows."""
    rows: dict[str, dict[str, NodeRecord]] = {}
    for row in record.nodes:
        rows.setdefault(row.node, {})[row.phase] = row
    admitted = [row for row in record.nodes if row.phase == "train" and row.status not in ("rejected", "quarantined")]
    weighed = [row for row in admitted if row.weight is not None]
    weights, samples = np.array([row.weight for row in weighed], np.float64), [row.samples or 1.0 for row in weighed]
    held = held_down(weights, np.array(samples))
    low = {row.node for row, is_low in zip(weighed, held, strict=True) if is_low}
    return {node: _seen(node, phases, len(admitted), node in low) for node, phases in rows.items()}


def standings(rounds: Iterable[RoundRecord]) -> list[Standing]:
    """Every node of the audit, suspects first, the most suspicious on top."""
    history: dict[str, list[tuple[int, Seen]]] = {}
    for record in rounds:
        for node, seen in judge_round(record).items():
            history.setdefault(node, []).append((record.round, seen))
    every = [_standing(node, times) for node, times in history.items()]
    return sorted(every, key=lambda one: (not one.is_suspect, -one.suspicion, len(one.node), one.node))


def short_names(nodes: Sequence[str]) -> dict[str, str]:
    """The ends of the ids, as long as it takes to tell them apart.

    >>> short_names(["1234567890", "9999567890", "7"])
    {'1234567890': '..4567890', '9999567890': '..9567890', '7': '7'}
    """
    tail = TAIL
    while len({node[-tail:] for node in nodes}) < len(set(nodes)):
        tail += 1
    return {node: node if len(node) <= tail + 2 else f"..{node[-tail:]}" for node in nodes}


def ranges(numbers: Iterable[int]) -> str:
    """Integers as short text: neighbours as a range.

    >>> ranges([3, 7, 8, 9])
    '3, 7-9'
    """
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _seen(node: str, phases: dict[str, NodeRecord], admitted: int, low: bool) -> Seen:
    train, evaluate = phases.get("train"), phases.get("evaluate")
    bad_evaluation = evaluate is not None and evaluate.status == "rejected"
    status = NOT_ASKED if train is None else train.status
    share = 0.0 if status == "rejected" else None
    if train is not None and train.weight is not None and status not in ("rejected", "quarantined"):
        share = train.weight * admitted
    reasons = tuple(row.reason for row in (train, evaluate) if row is not None and row.reason)
    reasons += (FAR,) * low
    return Seen(node, status, reasons, share, status == "rejected" or bad_evaluation or low, bad_evaluation)


def _standing(node: str, times: Sequence[tuple[int, Seen]]) -> Standing:
    asked = [(k, seen) for k, seen in times if seen.status != "quarantined"]
    statuses = Counter(seen.status for _, seen in times)
    shares = [seen.share for _, seen in asked if seen.share is not None]
    good = [k for k, seen in asked if seen.status not in ("rejected", NOT_ASKED)]
    return Standing(
        node,
        asked=len(asked),
        held=sum(seen.held for _, seen in asked),
        rejected=statuses["rejected"],
        clipped=statuses["clipped"],
        dropped=statuses["dropped"],
        bad_evaluations=sum(seen.bad_evaluation for _, seen in asked),
        quarantined=statuses["quarantined"],
        share=statistics.fmean(shares) if shares else None,
        reasons=tuple(Counter(reason for _, seen in times for reason in seen.reasons).most_common(3)),
        last_asked=max((k for k, _ in asked), default=None),
        last_good=max(good, default=None),
    )
