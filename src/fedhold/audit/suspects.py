"""Which nodes to suspect: what became of every node over the rounds of an audit.

A node is held down in a round when one of its replies was rejected, in training or in evaluation, or when its weight was low
among the admitted nodes (`fedhold.report.held_down`) and its update did not point the way of the others. Length alone is no
reason: a node with half of all data makes more steps than the others, in the same direction. A suspect is a node that was
held down in more than half of the rounds in which it was asked, or that is or was in quarantine. They are sorted by

    suspicion = rounds held down / (rounds asked + 1)

so that of two nodes held down every time the one with more rounds comes first.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from os.path import commonprefix
from typing import Any

import numpy as np

from fedhold.audit.chain import finite
from fedhold.audit.records import NodeRecord, RoundRecord, number_of
from fedhold.report import LOW, held_down, visible

NOT_ASKED = "not asked"
HELD_DOWN = "held down"  # the word for it, in tables, pages, logs and terminals
COUNTED = "counted"  # the word for a node that was asked and not held down
FAR = "far from the others: little weight"
MOST_NAME = 40  # characters of what a node calls itself
LARGEST = 1e300  # share that is told from larger ones: the sum of many must not overflow
TAIL = 6  # digits of a node's id that are shown where there is no room for all
RULE = (
    "A node is held down in a round when one of its replies was rejected, in training or in evaluation, or when both its "
    f"weight and its weight per sample were below {LOW:g} of the median of the admitted nodes, unless its update points the "
    f"way of the others: its cosine with their aggregate is then at least {LOW:g} of the median one. A suspect was held "
    "down in more than half of the rounds in which it was asked, or was put in quarantine. Suspects are sorted by suspicion: "
    "rounds held down / (rounds asked + 1). A suspect is not proven to lie: a broken node looks the same, and so does a node "
    "whose data are unlike those of all others."
)


@dataclass(frozen=True)
class Seen:
    """What became of one node in one round.

    status           of its training reply; "not asked" where it has a row for its evaluation only
    reasons          for what was done to it
    share            its weight in units of its fair part; 1 is an equal share per sample; None where it has none
    held             whether it was held down
    bad_evaluation   whether its evaluation was rejected
    name             what it calls itself; None where it does not
    effect           of its reply on the loss on the server's own data; None where that was not measured
    """

    node: str
    status: str
    reasons: tuple[str, ...]
    share: float | None
    held: bool
    bad_evaluation: bool
    name: str | None = None
    effect: float | None = None

    @property
    def word(self) -> str:
        """What became of it, in a word: "held down" says more than how the rule did it."""
        if self.status in ("rejected", "quarantined", NOT_ASKED):
            return self.status
        return HELD_DOWN if self.held else COUNTED


@dataclass(frozen=True)
class Standing:
    """What became of one node over all rounds.

    asked ... quarantined   in how many rounds each of these was the case
    share                   its mean weight in units of its fair part, 0 for each rejection; None where it never had one
    reasons                 the three most frequent, each with its number of rounds
    last_asked, last_used   the last round in which it was asked, or its reply was used; None for never
    name                    what it calls itself, as it did last
    effect                  the median effect of its replies, of those that were measured
    """

    node: str
    asked: int
    held: int
    rejected: int
    bad_evaluations: int
    quarantined: int
    share: float | None
    reasons: tuple[tuple[str, int], ...]
    last_asked: int | None
    last_used: int | None
    name: str | None = None
    effect: float | None = None

    @property
    def suspicion(self) -> float:
        return _suspicion(self.held, self.asked)

    @property
    def is_suspect(self) -> bool:
        return _is_suspect(self.held, self.asked, self.quarantined)


@dataclass(frozen=True)
class Tally:
    """How often each node was asked, held down and in quarantine so far: enough to name the suspects after every round of a
    run that is too long to be judged anew each time.

    counts  node -> (asked, held down, in quarantine), in rounds
    """

    counts: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)

    def after(self, seen: Iterable[Seen]) -> Tally:
        """The tally after a round."""
        counts = dict(self.counts)
        for one in seen:
            asked, held, quarantined = counts.get(one.node, (0, 0, 0))
            out = one.status == "quarantined"
            counts[one.node] = (asked + (not out), held + (one.held and not out), quarantined + out)
        return Tally(counts)

    def suspects(self) -> list[str]:
        """The suspects so far, the most suspicious first."""
        found = [(node, *count) for node, count in self.counts.items() if _is_suspect(count[1], count[0], count[2])]
        return [node for node, asked, held, _ in sorted(found, key=lambda one: (-_suspicion(one[2], one[1]), one[0]))]


def _suspicion(held: int, asked: int) -> float:
    return held / (asked + 1)


def _is_suspect(held: int, asked: int, quarantined: int) -> bool:
    return 2 * held > asked or quarantined > 0


def judge_round(record: RoundRecord) -> dict[str, Seen]:
    """What became of every node with a row in the round, in the order of the rows."""
    known: dict[str, Seen] | None = vars(record).get("_judged")
    if known is None:  # A page asks several times, and a round may have 100,000 nodes.
        known = vars(record)["_judged"] = _judged(record)
    return known


def _judged(record: RoundRecord) -> dict[str, Seen]:
    rows: dict[str, dict[str, NodeRecord]] = {}
    for row in record.nodes:
        rows.setdefault(row.node, {})[row.phase] = row
    admitted = [row for row in record.nodes if row.phase == "train" and row.status not in ("rejected", "quarantined")]
    weighed = [row for row in admitted if row.weight is not None]
    weights = np.array([row.weight for row in weighed], np.float64)
    samples = np.array([row.samples or 1.0 for row in weighed], np.float64)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # whoever writes the file chooses the numbers
        held = held_down(weights, samples)
        parts = np.clip(weights / (samples / samples.sum()), 0.0, LARGEST)
    usual = statistics.median([number for row in admitted if (number := number_of(row.cosine)) is not None] or [0.0])
    low = {row.node for row, is_low in zip(weighed, held, strict=True) if is_low and not _along(row, usual)}
    shares = {row.node: number_of(part) for row, part in zip(weighed, parts.tolist(), strict=True)}
    judged = {}
    for node, phases in rows.items():
        train, evaluate = phases.get("train"), phases.get("evaluate")
        both = [row for row in (train, evaluate) if row is not None]
        status = NOT_ASKED if train is None else train.status
        bad_evaluation = evaluate is not None and evaluate.status == "rejected"
        judged[node] = Seen(
            node,
            status,
            reasons=tuple(row.reason for row in both if row.reason) + (FAR,) * (node in low),
            share=0.0 if status == "rejected" else shares.get(node),
            held=status == "rejected" or bad_evaluation or node in low,
            bad_evaluation=bad_evaluation,
            name=next((row.name for row in both if row.name), None),
            effect=None if train is None else number_of(train.effect),
        )
    return judged


def _along(row: NodeRecord, usual: float) -> bool:
    """Whether the update of a node points the way of the others, as far as that was measured and there is such a way.

    usual  the median of the round's cosines; 0 where none was measured
    """
    own = number_of(row.cosine)
    return own is not None and usual > 0 and own >= LOW * usual


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
    turned = sorted({node[::-1] for node in nodes})  # neighbours have the longest ends in common
    tail = max([TAIL, *(1 + len(commonprefix(pair)) for pair in pairwise(turned))])  # noqa: RUF071
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


def shown_name(node: str, name: str | None, short: Mapping[str, str] | None = None) -> str:
    """A node for people: what it calls itself, and its id beside it, since any node can choose any name.

    node   its id
    name   what it calls itself
    short  what to show of ids, as short_names() gives it; the whole id by default

    >>> shown_name("4611686018427387905", "clinic"), shown_name("7", None)
    ('clinic (4611686018427387905)', '7')
    """
    known = node if short is None else short[node]
    return f"{visible(name, MOST_NAME)} ({visible(known)})" if name else visible(known)


def _standing(node: str, times: Sequence[tuple[int, Seen]]) -> Standing:
    asked = [(k, seen) for k, seen in times if seen.status != "quarantined"]
    statuses = Counter(seen.status for _, seen in times)
    shares = [seen.share for _, seen in asked if seen.share is not None]
    effects = [seen.effect for _, seen in asked if seen.effect is not None]
    good = [k for k, seen in asked if seen.status not in ("rejected", NOT_ASKED)]
    return Standing(
        node,
        asked=len(asked),
        held=sum(seen.held for _, seen in asked),
        rejected=statuses["rejected"],
        bad_evaluations=sum(seen.bad_evaluation for _, seen in asked),
        quarantined=statuses["quarantined"],
        share=statistics.fmean(shares) if shares else None,
        reasons=tuple(Counter(reason for _, seen in times for reason in seen.reasons).most_common(3)),
        last_asked=max((k for k, _ in asked), default=None),
        last_used=max(good, default=None),
        name=next((seen.name for _, seen in reversed(times) if seen.name), None),
        effect=statistics.median(effects) if effects else None,
    )


# As JSON


def as_text(facts: object) -> str:
    """Facts as one line of JSON in ASCII, in which no text of a client can act on a terminal."""
    return json.dumps(finite(facts), allow_nan=False)


def round_facts(record: RoundRecord) -> dict[str, Any]:
    """A round, with what became of its nodes."""
    facts = {name: value for name, value in asdict(record).items() if name != "nodes"}
    return facts | {"nodes": [asdict(one) for one in judge_round(record).values()]}


def standing_facts(one: Standing) -> dict[str, Any]:
    """What became of a node over all rounds, and whether that makes it a suspect."""
    return asdict(one) | {"suspicion": one.suspicion, "suspect": one.is_suspect}


def state_of(rounds: Sequence[RoundRecord], notes: Sequence[str]) -> dict[str, Any]:
    """The last round and the standing of every node, suspects first; without a round, neither."""
    last = round_facts(rounds[-1]) if rounds else None
    return {"last": last, "rounds": len(rounds), "nodes": [*map(standing_facts, standings(rounds))], "notes": [*notes]}
