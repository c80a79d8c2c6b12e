"""Quarantine: nodes that are rejected or held down again and again are left out of sampling for a while."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedhold.audit import NodeRecord
from fedhold.errors import integer, require

__all__ = ["Quarantine", "Ward", "offenders"]


@dataclass(frozen=True)
class Quarantine:
    """A node that offends in `strikes` of its last `window` rounds is left out of sampling for `rounds` rounds.

    To offend is to be rejected in training, or to get less than `share` of the weight that is fair for its samples. The
    window counts the rounds in which the node was asked.
    """

    strikes: int = 3
    window: int = 5
    rounds: int = 10
    share: float = 0.1

    def __post_init__(self) -> None:
        integer(self.strikes, "strikes", at_least=1)
        integer(self.window, "window", at_least=1)
        integer(self.rounds, "rounds", at_least=1)
        met = {"strikes": self.strikes, "window": self.window}
        require(self.strikes <= self.window, "Quarantine", needs="strikes <= window", remedy="Widen the window.", **met)
        require(0 <= self.share < 1, "Quarantine", needs="0 <= share < 1", remedy="Usual is 0.1.", share=self.share)


@dataclass(frozen=True)
class Ward:
    """Where every node stands.

    record   for each node its last rounds, True where it offended
    until    for each node in quarantine the last round of it
    """

    record: Mapping[int, tuple[bool, ...]] = field(default_factory=dict)
    until: Mapping[int, int] = field(default_factory=dict)

    def after(self, rule: Quarantine, round: int, asked: Iterable[int], offending: Iterable[int]) -> Ward:
        """The ward after a round: who was asked, and who of them offended. Whoever goes in starts afresh when out again.

        >>> ward = Ward()
        >>> for t in (1, 2):
        ...     ward = ward.after(Quarantine(strikes=2, window=3, rounds=5), t, [7, 8], [8])
        >>> dict(ward.until), ward.out(3, [7, 8], least=1), ward.out(8, [7, 8], least=1)
        ({8: 7}, [8], [])
        """
        bad = set(offending)
        record = {**self.record, **{n: (*self.record.get(n, ()), n in bad)[-rule.window :] for n in asked}}
        caught = [node for node, last in record.items() if sum(last) >= rule.strikes]
        until = {node: last for node, last in self.until.items() if last > round}
        return Ward(
            {node: last for node, last in record.items() if node not in caught},
            {**until, **dict.fromkeys(caught, round + rule.rounds)},
        )

    def out(self, round: int, nodes: Sequence[int], least: int) -> list[int]:
        """Who of `nodes` is left out of this round: never so many that fewer than `least` remain.

        Those who have been in longest come back first.
        """
        inside = sorted(
            (node for node in nodes if self.until.get(node, -1) >= round), key=lambda node: (-self.until[node], node)
        )
        return sorted(inside[: max(len(nodes) - least, 0)])

    def to_json(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"record": [[n, list(last)] for n, last in self.record.items()], "until": list(self.until.items())}

    @staticmethod
    def from_json(saved: Mapping[str, Any]) -> Ward:
        """And back."""
        return Ward({n: tuple(last) for n, last in saved["record"]}, dict(map(tuple, saved["until"])))


def offenders(rows: Iterable[NodeRecord], share: float) -> list[int]:
    """The nodes that were rejected, or got less than `share` of the weight that is fair for their samples.

    A rule that gives most clients next to nothing, as Krum does, selects: its weights accuse nobody.
    """
    train = [row for row in rows if row.phase == "train"]
    rejected = [int(row.node) for row in train if row.status == "rejected"]
    weighed = [row for row in train if row.weight is not None and row.samples is not None and row.status != "rejected"]
    total = sum(row.samples or 0.0 for row in weighed)
    low = [int(row.node) for row in weighed if (row.weight or 0.0) < share * (row.samples or 0.0) / total]
    return rejected + (low if 2 * len(low) < len(weighed) else [])
