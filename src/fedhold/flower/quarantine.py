"""Quarantine: nodes that are rejected or outweighed again and again are left out of sampling for a while."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fedhold.audit import Seen
from fedhold.errors import integer, require


@dataclass(frozen=True)
class Quarantine:
    """A node that offends in `strikes` of its last `window` rounds is left out of sampling for `rounds` rounds.

    A node offends when what it sent in training is rejected, or when it gets less than `share` of the weight that is fair
    for its samples, under a rule whose weights accuse; see `offenders`. So many nodes always stay that a round meets its
    quorum and the bound of its rule.

    strikes  the number of offences that lead to quarantine
    window   the number of rounds over which they are counted, of those rounds in which the node sent a reply: silence, and an
             error in place of a reply, are no offence, since whoever cuts nodes off could have them left out
    rounds   how long the node is then left out
    share    the fraction of the fair weight below which a node offends; 0 counts rejections only
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
class QuarantineState:
    """Which nodes are in quarantine, and what counts against the others.

    offences  for each node its last rounds, True where it offended
    until     for each node in quarantine the last round of it
    """

    offences: Mapping[int, tuple[bool, ...]] = field(default_factory=dict)
    until: Mapping[int, int] = field(default_factory=dict)

    def after(self, rule: Quarantine, round: int, asked: Iterable[int], offending: Iterable[int]) -> QuarantineState:
        """The state after a round. A node that enters quarantine comes out of it without old offences.

        rule       how many offences lead to quarantine
        round      the number of the round
        asked      the nodes that were asked in it and sent a reply
        offending  those of them that offended

        >>> state = QuarantineState()
        >>> for t in (1, 2):
        ...     state = state.after(Quarantine(strikes=2, window=3, rounds=5), t, asked=[7, 8], offending=[8])
        >>> dict(state.until), state.left_out(3, [7, 8], least=1), state.left_out(8, [7, 8], least=1)
        ({8: 7}, [8], [])
        """
        bad = set(offending)
        offences = {**self.offences, **{n: (*self.offences.get(n, ()), n in bad)[-rule.window :] for n in asked}}
        caught = [node for node, last in offences.items() if sum(last) >= rule.strikes]
        until = {node: last for node, last in self.until.items() if last > round}
        return QuarantineState(
            {node: last for node, last in offences.items() if node not in caught},
            {**until, **dict.fromkeys(caught, round + rule.rounds)},
        )

    def left_out(self, round: int, nodes: Sequence[int], least: int) -> list[int]:
        """Which of `nodes` are left out of this round: never so many that fewer than `least` remain.

        Where some must come back early, those whose quarantine ends first do.
        """
        inside = sorted(
            (node for node in nodes if self.until.get(node, -1) >= round), key=lambda node: (-self.until[node], node)
        )
        return sorted(inside[: max(len(nodes) - least, 0)])


def offenders(seen: Collection[Seen], share: float, *, accuses: bool) -> list[int]:
    """The nodes that were rejected in training, or held down with less than `share` of the weight fair for their samples.

    seen     what became of the nodes in a round
    share    the fraction of the fair weight below which a node offends
    accuses  whether a low weight tells against a node, as the rule declares. A rule that always leaves out f clients leaves
             out honest ones where nobody lies; under such a rule only rejections count

    This is stricter than what an audit calls "held down": the audit only advises, and compares with half of the median node;
    quarantine takes a node out of the federation, and at the usual share of 0.1 it wants a node that the rule has all but
    ignored. Where at least half of the nodes get so little weight, the weights accuse nobody: liars are a minority.
    """
    shares = {int(one.node): one.share for one in seen if one.share is not None and one.status != "rejected"}
    held = {int(one.node) for one in seen if one.held}
    low = [node for node, part in shares.items() if part < share and node in held]
    rejected = [int(one.node) for one in seen if one.status == "rejected"]
    return rejected + (low if accuses and 2 * len(low) < len(shares) else [])
