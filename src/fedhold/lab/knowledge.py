"""What an adversary may know in one round."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhold.errors import require

__all__ = ["COLUMNS", "Floats", "Knowledge"]

Floats = NDArray[np.floating[Any]]

COLUMNS = 1024  # of some hundred clients: they stay in cache


@dataclass(frozen=True, eq=False)
class Knowledge:
    """All an adversary may know in one round.

    honest      (m, d) what all m clients would send if none lied; the Byzantine ones too
    byzantine   (m,) true for the clients that lie
    rng         where the attack's chance comes from
    thresholds  (m,) the T_i of the server's Huber rule (with an automatic one: those it would compute from `honest`)

    >>> from fedhold.lab.attacks import sign_flip, trimmed_mean_attack
    >>> honest = np.array([[1.0, -2.0], [3.0, -2.0], [2.0, -5.0]])
    >>> knowledge = Knowledge(honest, np.array([False, True, False]), np.random.default_rng(0))
    >>> sign_flip(knowledge)
    array([[-3.,  2.]])
    >>> trimmed_mean_attack(knowledge)
    array([[ 1., -2.]])
    """

    honest: Floats
    byzantine: NDArray[np.bool_]
    rng: np.random.Generator
    thresholds: Floats | None = None

    def __post_init__(self) -> None:
        shape, m = self.honest.shape, len(self.honest)
        is_matrix = len(shape) == 2 and self.honest.dtype.kind == "f"
        remedy = "Stack the updates: np.stack(updates)."
        require(is_matrix, "honest", needs="(m, d) floats", remedy=remedy, shape=shape, dtype=self.honest.dtype)
        # Client numbers in place of a mask would index without complaint, and lie about who lies.
        mask, remedy = self.byzantine, "From client numbers: np.isin(np.arange(m), numbers)."
        is_mask = mask.shape == (m,) and mask.dtype == np.bool_
        require(is_mask, "byzantine", needs=f"shape ({m},), bool", remedy=remedy, shape=mask.shape, dtype=mask.dtype)
        if self.thresholds is not None:
            shape, remedy = self.thresholds.shape, "One T for all clients: np.full(m, T)."
            require(shape == (m,), "thresholds", needs=f"shape ({m},)", remedy=remedy, shape=shape)

    @property
    def m(self) -> int:
        return len(self.honest)

    @property
    def f(self) -> int:
        """How many lie; the paper's q."""
        return int(np.count_nonzero(self.byzantine))

    @property
    def parts(self) -> list[slice]:
        """All columns, some at a time."""
        return [slice(a, a + COLUMNS) for a in range(0, self.honest.shape[1], COLUMNS)]

    @property
    def benign(self) -> Floats:
        """(m - f, d) what the truthful clients send; a copy."""
        return self.honest[~self.byzantine]

    @cached_property
    def mean(self) -> Floats:
        """g_0 = (1/m) sum_i G_i over all m clients, the Byzantine ones' honest gradients among them."""
        # A product runs at twice the speed of mean(); a sum first and one division keep an exact 0 an exact 0.
        total: Floats = np.ones(self.m, self.honest.dtype) @ self.honest
        return total / self.honest.dtype.type(self.m)

    @cached_property
    def sign(self) -> Floats:
        """s = sign(g_0), with sign(0) = 0."""
        sign: Floats = np.sign(self.mean)
        return sign
