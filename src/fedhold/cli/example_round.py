"""An example: one round of made-up clients, some of whom lie, and what different rules make of it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhold.aggregation import aggregate
from fedhold.errors import integer, require
from fedhold.kernels import Floats, Vector
from fedhold.result import Aggregation
from fedhold.spec import DEFAULT

NUMBERS = 10_000  # in an update: enough for honest clients to be about as far from each other as in a network
HIDDEN = 0.5  # spreads between the honest mean and the colluders: closer to everyone than the honest are to each other
REPEATS = 3  # runs of a rule, of which the shortest is shown

LIES: dict[str, str] = {
    "collude": "all the same: the honest mean, moved by half a spread against its signs",
    "flip": "its own update times -10",
    "claim": "an update 3 spreads off, and a claim to have 1e9 samples",
    "nan": "NaN everywhere",
    "huge": "1e20 everywhere: finite, but float32 cannot hold its square",
    "shape": "an update with one number missing",
}
# The first liar tells the first of these lies, and so on, from the beginning again after the last.
TURNS = ("collude", "flip", "claim", "nan", "collude", "huge", "collude", "flip", "shape", "collude")


@dataclass(frozen=True, eq=False)
class ExampleRound:
    """What a server received in one round, and the truth about it, which the server does not know.

    updates  one float32 array per client
    samples  the n_i that clients claim
    lies     one per client: a key of LIES, or '' for an honest client
    centre   the mean of the honest, weighted by their samples: what a round without liars would give
    spread   the median distance of an honest client to the centre
    """

    updates: list[NDArray[np.float32]]
    samples: Vector
    lies: tuple[str, ...]
    centre: Vector
    spread: float

    @cached_property
    def liars(self) -> NDArray[np.intp]:
        """The indices of the clients that lie."""
        return np.flatnonzero([bool(lie) for lie in self.lies])

    def off(self, value: Floats) -> float:
        """The distance of an aggregate to the centre, in spreads."""
        return float(np.linalg.norm(value.astype(np.float64) - self.centre)) / self.spread

    def moved(self, result: Aggregation) -> float:
        """How far an aggregate of the default rule is, in spreads, from the Huber aggregate of the honest clients alone.

        Thresholds and samples are as the rule took them: it counts no n_i beyond their median.
        """
        most = np.median([row.samples for row in result.clients if row.status != "rejected"])
        honest = [row for row in result.clients if not self.lies[row.client]]
        alone = aggregate(
            [self.updates[row.client] for row in honest],
            "huber",
            samples=[min(row.samples, most) for row in honest],
            sample_cap=None,
            threshold=[row.threshold for row in honest],
        )
        return float(np.linalg.norm(alone.value.astype(np.float64) - result.value)) / self.spread


@dataclass(frozen=True)
class Outcome:
    """What one rule made of a round.

    result   None where the rule's own bound on m and f fails
    refused  why there is no result, or ''
    seconds  of the shortest run
    """

    rule: str
    result: Aggregation | None
    refused: str
    seconds: float

    def liars_weight(self, example: ExampleRound) -> float | None:
        """The sum of the liars' weights; None where there is no result, and for column rules, which have no weights."""
        weights = None if self.result is None else self.result.weights
        return None if weights is None else float(weights[example.liars].sum())


def make_round(clients: int = 100, liars: int = 20, seed: int = 0) -> ExampleRound:
    """Make up a round: honest clients send the true gradient plus noise that shrinks with their samples.

    clients  how many send an update
    liars    how many of them lie, as LIES says, in the order of TURNS
    seed     decides who lies, and every number
    """
    m, f, seed = integer(clients, "clients", at_least=3), integer(liars, "liars"), integer(seed, "seed")
    remedy = f"Lower liars to {(m - 1) // 2}, or raise clients to {2 * f + 1}."
    require(2 * f < m, "demo", needs="liars < clients / 2", remedy=remedy, clients=m, liars=f)
    rng = np.random.default_rng(seed)
    samples = rng.integers(20, 101, m).astype(np.float64)
    gradient = rng.standard_normal(NUMBERS)
    noise = 5 * rng.standard_normal((m, NUMBERS)) / np.sqrt(samples)[:, None]
    updates = (gradient + noise) / np.sqrt(NUMBERS)
    who = np.sort(rng.permutation(m)[:f])
    honest = np.setdiff1d(np.arange(m), who)
    centre = samples[honest] @ updates[honest] / samples[honest].sum()
    spread = float(np.median(np.linalg.norm(updates[honest] - centre, axis=1)))
    against = -spread * np.sign(centre) / np.sqrt(NUMBERS)

    sent, lies = list(updates.astype(np.float32)), [""] * m
    for turn, client in enumerate(who.tolist()):
        lie = lies[client] = TURNS[turn % len(TURNS)]
        if lie == "claim":
            samples[client] = 1e9
        sent[client] = {
            "collude": centre + HIDDEN * against,
            "flip": -10 * updates[client],
            "claim": updates[client] + 3 * against,
            "nan": np.full(NUMBERS, np.nan),
            "huge": np.full(NUMBERS, 1e20),
            "shape": updates[client, 1:],
        }[lie].astype(np.float32)
    return ExampleRound(sent, samples, tuple(lies), centre, spread)


def apply_rules(
    example: ExampleRound, rules: tuple[str, ...] = ("mean", "median", "krum", "huber", DEFAULT)
) -> list[Outcome]:
    """Aggregate the round by each of the rules. Krum is given the true number of liars; the others need no parameter."""
    return [_outcome(example, rule, {"f": len(example.liars)} if rule == "krum" else {}) for rule in rules]


def _outcome(example: ExampleRound, rule: str, parameters: dict[str, Any]) -> Outcome:
    times: list[float] = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        try:
            result = aggregate(example.updates, rule, samples=example.samples, **parameters)
        except ValueError as refusal:
            return Outcome(rule, None, str(refusal), time.perf_counter() - started)
        times.append(time.perf_counter() - started)
    return Outcome(rule, result, "", min(times))
