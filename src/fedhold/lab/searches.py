"""Attacks that try their lies on the server's own rule, and send those that do the most damage.

The damage is the distance between the aggregate and the mean of the truthful clients. The rule reaches an attack as the
function `Knowledge.server`; nothing here imports one.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from fedhold.errors import integer
from fedhold.kernels import Floats, Matrix, Vector
from fedhold.lab.knowledge import Knowledge, needs_server

OCTAVES = np.arange(-4, 6)  # the lengths that a search along a line tries first are these powers of 2
REACH = (
    0.5,
    1.0,
    1.4,
    2.0,
    4.0,
    16.0,
)  # in typical distances of truthful clients: the lengths that a restart tries first
NARROW = 0.25  # in typical distances: the spread that is changed where there is none
FINALISTS = (0.5, 0.25, 0.25)  # the shares of the remaining steps that the most promising restarts get
TURN = 0.5  # how far a step turns the direction at first


@needs_server
def optimal_alie(knowledge: Knowledge, *, evaluations: int = 30) -> Floats:
    """`alie` with the z that does the most damage to the server's rule: X = mean - z std, on either side of the mean.

    evaluations  how many z are tried: plus and minus the powers of 2 from 1/16 to 32, then ever smaller steps around the best

    Needs `knowledge.server`, and evaluations >= 20.  Baruch et al. 2019; the search: Shejwalkar & Houmansadr 2021.

    >>> rng = np.random.default_rng(0)
    >>> known = Knowledge(rng.normal(1.0, 1.0, (9, 4)), np.arange(9) < 2, rng, server=lambda sent: np.median(sent, axis=0))
    >>> known.damage(optimal_alie(known)) >= known.damage(known.benign.mean(axis=0) - known.benign.std(axis=0))
    True
    """
    if _is_idle(knowledge):
        return knowledge.honest[knowledge.byzantine]
    benign = knowledge.benign
    return _along(-benign.std(axis=0), benign.mean(axis=0), knowledge, evaluations, sides=(1, -1))


@needs_server
def optimal_ipm(knowledge: Knowledge, *, evaluations: int = 20) -> Floats:
    """`ipm` with the scale that does the most damage to the server's rule: X = -scale * (mean of the truthful).

    evaluations  how many scales are tried: the powers of 2 from 1/16 to 32, then ever smaller steps around the best

    Needs `knowledge.server`, and evaluations >= 10.  Xie, Koyejo, Gupta 2020; the search: Shejwalkar & Houmansadr 2021.

    >>> rng = np.random.default_rng(0)
    >>> known = Knowledge(rng.normal(1.0, 1.0, (9, 4)), np.arange(9) < 2, rng, server=lambda sent: sent.mean(axis=0))
    >>> known.damage(optimal_ipm(known)) >= known.damage(-32 * known.benign.mean(axis=0))  # the mean follows the farthest lie
    True
    """
    if _is_idle(knowledge):
        return knowledge.honest[knowledge.byzantine]
    mean = knowledge.benign.mean(axis=0)
    return _along(-mean, np.zeros_like(mean), knowledge, evaluations, sides=(1,))


def _is_idle(knowledge: Knowledge) -> bool:
    """Whether there is nothing to search for: nobody lies, or nobody is left to be harmed."""
    return knowledge.f in (0, knowledge.m)


def _along(direction: Floats, origin: Floats, knowledge: Knowledge, evaluations: int, sides: tuple[int, ...]) -> Floats:
    """The row origin + length * direction for all liars, with the length, of these signs, that does the most damage."""
    first = np.outer(sides, 2.0**OCTAVES).ravel().tolist()
    tries = integer(evaluations, "evaluations", at_least=len(first))

    def row(length: float) -> Floats:
        return origin + direction.dtype.type(length) * direction

    damages = {length: knowledge.damage(row(length)) for length in first}
    factor = 2.0
    while len(damages) + 2 <= tries:
        factor **= 0.5
        best = max(damages, key=damages.__getitem__)
        damages |= {length: knowledge.damage(row(length)) for length in (best / factor, best * factor)}
    return knowledge.to_all(row(max(damages, key=damages.__getitem__)))


@needs_server
def worst_case(knowledge: Knowledge, *, restarts: int = 8, evaluations: int = 160) -> Floats:
    """The lies that do the most damage to the server's rule, as far as a restarted search finds them.

    X_i = truth + length u + spread e_i: u is a unit vector that all liars share, and e_i one of each liar's own, either along
    its honest gradient's deviation from the truth, so that liars differ as truthful clients do, or random. Restarts begin at
    the directions of `ipm`, of `alie` on both sides, of `krum_attack` and along which the truthful clients vary most, then at
    random ones. Each tries some lengths, and a spread; the most promising then take steps that change one of length, spread
    and direction, and keep those that do more damage.

    restarts     how many directions the search begins at
    evaluations  how many lies are tried in all

    Needs `knowledge.server`, and evaluations >= 8 * restarts. No source: it is ours. It gives a lower bound on the worst case,
    which more evaluations raise.

    >>> rng = np.random.default_rng(0)
    >>> known = Knowledge(rng.normal(1.0, 1.0, (9, 4)), np.arange(9) < 2, rng, server=lambda sent: np.median(sent, axis=0))
    >>> known.damage(worst_case(known)) >= known.damage(optimal_ipm(known))
    True
    """
    restarts = integer(restarts, "restarts", at_least=1)
    begun = (len(REACH) + 2) * restarts
    steps = integer(evaluations, "evaluations", at_least=begun) - begun
    if _is_idle(knowledge):
        return knowledge.honest[knowledge.byzantine]
    searches = [_Search(knowledge, direction) for direction in islice(_directions(knowledge), restarts)]
    searches.sort(key=lambda search: -search.damage)
    for search, share in zip(searches, FINALISTS, strict=False):
        search.run(int(share * steps))
    return max(searches, key=lambda search: search.damage).lies


def _directions(knowledge: Knowledge) -> Iterator[Vector]:
    """Unit vectors to begin at: first those of known attacks, then random ones."""
    benign, rng = knowledge.benign.astype(np.float64), knowledge.rng
    around = benign - benign.mean(axis=0)
    products = around @ around.T
    if np.isfinite(products).all():  # Otherwise the run has diverged, and there is nothing to gain.
        widest = np.linalg.eigh(products)[1][:, -1] @ around
        against: Vector = -np.sign(knowledge.truth)
        known = (-knowledge.truth, -benign.std(axis=0), benign.std(axis=0), against, widest)
        yield from (_unit(direction) for direction in known if direction.any())
    while True:
        yield _unit(rng.standard_normal((benign.shape[1],)))


def _unit(vector: Vector) -> Vector:
    unit: Vector = vector / np.linalg.norm(vector)
    return unit


def _units(rows: Matrix) -> Matrix:
    """The rows, each made as long as 1; a row of zeros stays."""
    sizes = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(sizes > 0, sizes, 1.0)


class _Search:
    """One restart: the worst lies found so far, and how they were made."""

    def __init__(self, knowledge: Knowledge, direction: Vector) -> None:
        """Every length of REACH is tried without a spread; the best one then with a spread as wide as the truthful clients'."""
        self.knowledge, self.direction = knowledge, direction
        own = knowledge.honest[knowledge.byzantine] - knowledge.truth
        self.typical = float(np.median(np.linalg.norm(knowledge.benign - knowledge.truth, axis=1))) or 1.0
        self.apart = _units(knowledge.rng.standard_normal(own.shape))
        self.length, self.spread, self.damage = 0.0, 0.0, -1.0
        self.lies = knowledge.honest[knowledge.byzantine]
        for length in REACH:
            self._is_worse(self.typical * length, 0.0, direction)
        self._is_worse(self.length, self.typical, direction)
        at_random, self.apart = self.apart, _units(own)
        if not self._is_worse(self.length, self.typical, direction):
            self.apart = at_random

    def _is_worse(self, length: float, spread: float, direction: Vector) -> bool:
        """Try these lies, and keep them if they do more damage than the worst so far."""
        lies = (self.knowledge.truth + length * direction + spread * self.apart).astype(self.lies.dtype)
        damage = self.knowledge.damage(lies)
        if not damage > self.damage:
            return False
        self.length, self.spread, self.direction, self.damage, self.lies = length, spread, direction, damage, lies
        return True

    def run(self, steps: int) -> None:
        """Take this many steps, by turns in length, in spread and in direction.

        After a step that fails, the next one goes the other way, then the first way again by less.
        """
        lengthen = widen = 2.0
        turn = TURN
        for step in range(steps):
            if step % 3 == 0:
                worse = self._is_worse(self.length * lengthen, self.spread, self.direction)
                lengthen = lengthen if worse else _next(lengthen)
            elif step % 3 == 1:
                worse = self._is_worse(self.length, (self.spread or NARROW * self.typical) * widen, self.direction)
                widen = widen if worse else _next(widen)
            else:
                aside = _unit(self.knowledge.rng.standard_normal(len(self.direction)))
                worse = self._is_worse(self.length, self.spread, _unit(self.direction + turn * aside))
                turn *= 1.5 if worse else 0.8


def _next(factor: float) -> float:
    """The factor to try after this one has failed: its inverse, then a smaller one."""
    return 1 / factor if factor > 1 else float(factor**-0.5)
