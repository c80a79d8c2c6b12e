"""What an adversary knows in one round, and what its clients may send: the language of attacks.

Nothing here imports an aggregation rule. An attack that needs one declares it, and is given the server's own as a function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedhold.errors import require, word_among
from fedhold.kernels import Floats, Vector
from fedhold.lab.datasets import Samples
from fedhold.lab.tasks import Shards

Attack = Callable[..., Any]
"""A function of a `Knowledge`, or a poison: a function of shards and of who lies; with parameters of its own."""

Function = TypeVar("Function", bound=Attack)

Mask = NDArray[np.bool_]
Server = Callable[[Floats], Floats]
"""(m, d) what clients send -> (d,) the aggregate that the server would make of it."""


@dataclass(frozen=True, eq=False)
class Lies:
    """What liars send where they lie about more than their updates.

    updates  (f, d) one row per liar
    samples  (f,) the numbers of samples n_i that they claim
    """

    updates: Floats
    samples: Vector


@dataclass(frozen=True, eq=False)
class Knowledge:
    """All an adversary may know in one round.

    honest      (m, d) what all m clients would send if none lied, the Byzantine ones included
    byzantine   (m,) true for the clients that lie
    rng         the generator for an attack's randomness
    thresholds  (m,) the T_i of the server's Huber rule; with an automatic threshold, those it would compute from `honest`
    samples     (m,) the n_i that clients hold; by default 1 each
    server      the server's rule: what it would aggregate from (m, d) updates

    >>> from fedhold.lab import sign_flip, trimmed_mean_attack
    >>> honest = np.array([[1.0, -2.0], [3.0, -2.0], [2.0, -5.0]])
    >>> knowledge = Knowledge(honest, np.array([False, True, False]), np.random.default_rng(0))
    >>> sign_flip(knowledge)
    array([[-3.,  2.]])
    >>> trimmed_mean_attack(knowledge)
    array([[ 1., -2.]])
    """

    honest: Floats
    byzantine: Mask
    rng: np.random.Generator
    thresholds: Floats | None = None
    samples: NDArray[np.number] | None = None
    server: Server | None = None

    def __post_init__(self) -> None:
        shape, dtype = self.honest.shape, self.honest.dtype
        remedy = "Stack the updates: np.stack(updates)."
        is_matrix = len(shape) == 2 and dtype.kind == "f"
        require(is_matrix, "honest", needs="(m, d) floats", remedy=remedy, shape=shape, dtype=dtype)
        check_mask(self.byzantine, self.m)
        for name, given in (("thresholds", self.thresholds), ("samples", self.samples)):
            if given is not None:
                remedy = "The same for all clients: np.full(m, T)."
                require(given.shape == (self.m,), name, needs=f"shape ({self.m},)", remedy=remedy, shape=given.shape)

    @property
    def m(self) -> int:
        """The number of clients."""
        return len(self.honest)

    @property
    def f(self) -> int:
        """The number of Byzantine clients; the paper's q."""
        return int(np.count_nonzero(self.byzantine))

    @property
    def benign(self) -> Floats:
        """(m - f, d) what the truthful clients send; a copy."""
        return self.honest[~self.byzantine]

    @cached_property
    def mean(self) -> Floats:
        """g_0 = (1/m) sum_i G_i over all m clients, with the Byzantine clients' honest gradients among them."""
        # A product takes half the time of mean(). Dividing after the sum keeps a coordinate that is exactly 0 at 0.
        total: Floats = np.ones(self.m, self.honest.dtype) @ self.honest
        return total / self.honest.dtype.type(self.m)

    @cached_property
    def sign(self) -> Floats:
        """s = sign(g_0), with sign(0) = 0."""
        sign: Floats = np.sign(self.mean)
        return sign

    def limited(self, knows: str) -> Knowledge:
        """The same for liars that see less.

        knows  "all": what all m clients would send; "own": only what the liars themselves would, as if there were no others
        """
        word_among(knows, "knows", ("all", "own"))
        if knows == "all":
            return self
        own = self.byzantine
        thresholds = None if self.thresholds is None else self.thresholds[own]
        samples = None if self.samples is None else self.samples[own]
        return Knowledge(self.honest[own], own[own], self.rng, thresholds, samples)

    @property
    def claims(self) -> Vector:
        """(m,) the n_i of all clients, as they are."""
        return np.ones(self.m) if self.samples is None else self.samples.astype(np.float64)

    @cached_property
    def truth(self) -> Vector:
        """(d,) the mean of the truthful clients, weighted by their n_i: what the server would like to know."""
        shares = np.where(self.byzantine, 0, self.claims)
        truth: Vector = (shares / shares.sum()) @ self.honest
        return truth

    def damage(self, lies: Floats) -> float:
        """How far the server's aggregate is from the truth if the liars send this.

        lies  (f, d) one row per liar, or (d,) the same for all
        """
        if self.server is None:
            raise ValueError(
                "this attack tries its lies on the server's rule. Pass Knowledge(..., server=its function)."
            )
        sent = self.honest.copy()
        sent[self.byzantine] = lies
        return float(np.linalg.norm(self.server(sent) - self.truth))

    def to_all(self, row: Floats) -> Floats:
        """The same row for every liar; a view that cannot be written to."""
        return np.broadcast_to(row, (self.f, row.size))


def check_mask(mask: Mask, m: int) -> None:
    """Raise a ValueError unless `mask` has one bool per client: client numbers would index other clients without an error."""
    is_mask = mask.shape == (m,) and mask.dtype == np.bool_
    remedy = "From client numbers: np.isin(np.arange(m), numbers)."
    require(is_mask, "byzantine", needs=f"shape ({m},), bool", remedy=remedy, shape=mask.shape, dtype=mask.dtype)


@dataclass(frozen=True, eq=False)
class Poisoned:
    """Shards with poisoned samples.

    shards  of all clients
    probe   test samples -> samples with the targets that the liars want; the model's accuracy on them is the attack's success.
            None for an attack whose success shows in the accuracy itself
    """

    shards: Shards
    probe: Callable[[Samples], Samples] | None = None


# What an attack declares


def needs_thresholds(attack: Function) -> Function:
    """Declare, as a decorator, that an attack reads `knowledge.thresholds`; `federate` then computes them for it.

    >>> @needs_thresholds
    ... def outside(knowledge): ...
    >>> declares(outside, needs_thresholds)
    True
    """
    return _declared(attack, needs_thresholds)


def needs_server(attack: Function) -> Function:
    """Declare, as a decorator, that an attack tries its lies on the server's rule; `federate` then passes it."""
    return _declared(attack, needs_server)


def poisons_data(attack: Function) -> Function:
    """Declare, as a decorator, that an attack is a poison: a function (shards, byzantine) -> Poisoned."""
    return _declared(attack, poisons_data)


def declares(attack: Attack, what: Callable[..., Any]) -> bool:
    """Whether an attack declares this; `what` is one of the decorators."""
    attack = attack.func if isinstance(attack, partial) else attack
    return what in getattr(attack, "declared", ())


def _declared(attack: Function, what: Callable[..., Any]) -> Function:
    attack.declared = (*getattr(attack, "declared", ()), what)  # type: ignore[attr-defined]
    return attack
