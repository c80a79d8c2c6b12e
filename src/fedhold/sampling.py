"""How likely a sample of nodes is to hold more liars than honest nodes, and how many nodes to ask so that it does not.

No rule survives a round in which most of those who answer lie. Who samples few nodes in many rounds meets such a round by
chance, and liars can wait for it.
"""

from __future__ import annotations

from bisect import bisect_left
from math import exp, expm1, lgamma, log1p

from fedhold.errors import integer, require

__all__ = ["asked_for", "captured", "told_risk"]

NEGLIGIBLE = 1e-17
WARNED = 0.01  # the probability of a captured round, over a run, beyond which users are warned
MORE_NODES = "Let more nodes take part, or trust fewer of them to lie."


def captured(nodes: int, liars: int, asked: int, rounds: int = 1, *, ties: bool = False) -> float:
    """The probability that in one round or more, more than half of the nodes asked lie.

    In each round `asked` of the nodes are drawn, all equally likely: the number of liars among them is hypergeometric.

    Args:
        nodes: How many nodes there are.
        liars: How many of them lie.
        asked: How many are asked in a round.
        rounds: How many rounds the run has.
        ties: Whether a round counts as captured, too, in which half of those asked lie. No rule has a guarantee for it.

    Example:
        >>> round(captured(nodes=20, liars=5, asked=6), 3), round(captured(20, 5, 6, rounds=50), 2)
        (0.014, 0.5)
        >>> captured(nodes=20, liars=5, asked=20, rounds=50)
        0.0
    """
    nodes, liars, asked, rounds = _checked(nodes, liars, asked, rounds)
    low, high = max((asked + 1) // 2 if ties else asked // 2 + 1, asked - (nodes - liars)), min(liars, asked)
    all_ways, in_one = _log_choose(nodes, asked), 0.0
    for lying in range(low, high + 1):
        ways = _log_choose(liars, lying) + _log_choose(nodes - liars, asked - lying)
        likely = exp(ways - all_ways)
        in_one += likely
        if likely <= NEGLIGIBLE * in_one and lying * nodes > liars * asked:
            break  # Beyond the mean, every further number of liars is less likely still.
    return 1.0 if in_one >= 1 else abs(expm1(rounds * log1p(-in_one)))


def asked_for(nodes: int, liars: int, rounds: int, risk: float = 0.001, *, ties: bool = False) -> int:
    """How many nodes to ask, so that `captured` is at most `risk` for this sample and for every larger one.

    Args:
        nodes: How many nodes there are.
        liars: How many of them lie; fewer than half.
        rounds: How many rounds the run has.
        risk: The largest probability of a captured round that you accept.
        ties: As for `captured`.

    Example:
        >>> asked_for(nodes=1000, liars=200, rounds=100)
        38
        >>> captured(1000, 200, 38, rounds=100) <= 0.001 < captured(1000, 200, 37, rounds=100)
        True
    """
    nodes, liars, *_ = _checked(nodes, liars, nodes, rounds)
    require(
        2 * liars < nodes,
        "asked_for",
        needs="fewer than half of the nodes to lie",
        nodes=nodes,
        liars=liars,
        remedy=MORE_NODES,
    )
    if not 0 < risk < 1:
        raise ValueError(f"risk must be a probability between 0 and 1, got {risk!r}. Pass one such as 0.001.")

    def is_safe(asked: int) -> bool:
        return captured(nodes, liars, asked, rounds, ties=ties) <= risk

    # One node more can be worse, since it can make a tie a majority; two more never are.
    odd, even = (bisect_left(range(first, nodes + 1, 2), True, key=is_safe) * 2 + first for first in (1, 2))
    return min(max(odd, even) - 1, nodes) if abs(odd - even) == 1 else max(odd, even) - 1


def told_risk(nodes: int, liars: int, asked: int, rounds: int) -> tuple[str, bool]:
    """One line on how likely a run is to meet a sample that no rule survives, and whether that is a warning.

    Half of those asked are enough for that, as for `captured` with `ties`: rules withstand fewer than half.

    >>> line, warned = told_risk(nodes=20, liars=5, asked=6, rounds=50)
    >>> line[-31:], warned
    ('From 11 on it is at most 0.001.', True)
    """
    asked, liars = min(asked, nodes), min(liars, nodes)
    risk = captured(nodes, liars, asked, rounds, ties=True)
    line = (
        f"{asked:,} of {nodes:,} nodes asked, {liars:,} of them liars: in {rounds:,} rounds half or more of a sample lie with "
        f"a probability of {risk:.3g}."
    )
    if 2 * liars >= nodes:
        return f"{line} {MORE_NODES}", True
    safe = asked_for(nodes, liars, rounds, ties=True)
    return f"{line} From {safe:,} on it is at most 0.001.", risk > WARNED


def _checked(nodes: int, liars: int, asked: int, rounds: int) -> tuple[int, int, int, int]:
    nodes, liars = integer(nodes, "nodes", at_least=1), integer(liars, "liars")
    asked, rounds = integer(asked, "asked", at_least=1), integer(rounds, "rounds", at_least=1)
    for name, number in (("liars", liars), ("asked", asked)):
        if number > nodes:
            raise ValueError(f"{name} must be at most nodes={nodes}, got {number}. Pass {nodes} for all of them.")
    return nodes, liars, asked, rounds


def _log_choose(n: int, k: int) -> float:
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)
