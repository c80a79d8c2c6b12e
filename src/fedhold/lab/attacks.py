"""Attacks: what Byzantine clients send, from what the adversary knows in one round.

The adversary sees everything the server will see, and what its own clients would honestly have sent; nothing here imports
an aggregation rule. An attack is a function of a `Knowledge` that returns an (f, d) array with one row per Byzantine
client, in the order of the mask, possibly a read-only view of one repeated row. It modifies nothing. Without an attack,
f = 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedhold.errors import integer, positive, require
from fedhold.kernels import Floats, Matrix, Vector

Attack = Callable[..., Floats]
Mask = NDArray[np.bool_]

COLUMNS = 1024  # columns that are read together: those of some hundred clients stay in the cache


@dataclass(frozen=True, eq=False)
class Knowledge:
    """All an adversary may know in one round.

    honest      (m, d) what all m clients would send if none lied, the Byzantine ones included
    byzantine   (m,) true for the clients that lie
    rng         the generator for an attack's randomness
    thresholds  (m,) the T_i of the server's Huber rule; with an automatic threshold, those it would compute from `honest`

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

    def __post_init__(self) -> None:
        shape, dtype = self.honest.shape, self.honest.dtype
        remedy = "Stack the updates: np.stack(updates)."
        is_matrix = len(shape) == 2 and dtype.kind == "f"
        require(is_matrix, "honest", needs="(m, d) floats", remedy=remedy, shape=shape, dtype=dtype)
        check_mask(self.byzantine, self.m)
        if self.thresholds is not None:
            shape, remedy = self.thresholds.shape, "One T for all clients: np.full(m, T)."
            require(shape == (self.m,), "thresholds", needs=f"shape ({self.m},)", remedy=remedy, shape=shape)

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


def check_mask(mask: Mask, m: int) -> None:
    """Raise a ValueError unless `mask` has one bool per client: client numbers would index other clients without an error."""
    is_mask = mask.shape == (m,) and mask.dtype == np.bool_
    remedy = "From client numbers: np.isin(np.arange(m), numbers)."
    require(is_mask, "byzantine", needs=f"shape ({m},), bool", remedy=remedy, shape=mask.shape, dtype=mask.dtype)


def needs_thresholds(attack: Attack) -> Attack:
    """Declare, as a decorator, that an attack reads `knowledge.thresholds`; `federate` then computes them for it.

    >>> @needs_thresholds
    ... def outside(knowledge): ...
    >>> reads_thresholds(outside), reads_thresholds(sign_flip)
    (True, False)
    """
    attack.needs_thresholds = True  # type: ignore[attr-defined]
    return attack


def reads_thresholds(attack: Attack) -> bool:
    """Whether an attack declares that it needs the server's thresholds."""
    return getattr(attack, "needs_thresholds", False)


def sign_flip(knowledge: Knowledge) -> Floats:
    """Every liar sends its own gradient with the sign flipped: X_i = -G_i.

    Paper, section 7.

    >>> sign_flip(Knowledge(np.array([[1.0], [2.0]]), np.array([False, True]), np.random.default_rng(0)))
    array([[-2.]])
    """
    return -knowledge.honest[knowledge.byzantine]


def krum_attack(knowledge: Knowledge, *, start: float = 1.0, stop: float = 1e-4) -> Floats:
    """KA: all liars sit together as far from g_0, against its sign, as Krum still chooses one of them.

    X_i = g_0 - lambda s, lambda = start, start/2, start/4, ... until Krum (with the true f) chooses a liar or
    lambda < stop; in the latter case that last lambda is sent untried.

    start  the first lambda; a larger one lets the liars begin farther out
    stop   the search ends below this lambda

    Needs m >= f + 3 (Krum's m - f - 2 neighbours), start > 0 and stop > 0.  Paper, section 7; Fang et al. 2020.

    >>> honest = np.random.default_rng(0).normal(1.0, 1.0, (8, 50))
    >>> knowledge = Knowledge(honest, np.arange(8) < 2, np.random.default_rng(0))
    >>> float(abs(krum_attack(knowledge) - knowledge.mean).max().round(3))  # the lambda that was found
    1.0
    """
    m, f = knowledge.m, knowledge.f
    require(m >= f + 3, "krum_attack", needs="m >= f + 3", remedy="Use fewer liars or more clients.", m=m, f=f)
    start, stop = positive(start, "krum_attack's start"), positive(stop, "krum_attack's stop")
    if f == 0:
        return knowledge.honest[:0]
    krum_chooses_liar = _krum_probe(knowledge)
    step = start
    while step >= stop and not krum_chooses_liar(step):
        step /= 2
    return _to_all(knowledge.mean - knowledge.honest.dtype.type(step) * knowledge.sign, knowledge)


def trimmed_mean_attack(knowledge: Knowledge) -> Floats:
    """TMA: every liar sends, coordinate by coordinate, the honest extreme that points against g_0.

    X_ij = max_k G_kj where s_j = -1, min_k G_kj where s_j = 1 (k over all m clients), 0 where s_j = 0.
    Paper, section 7; Fang et al. 2020, who draw at random beyond the extreme so that the liars differ.

    >>> honest = np.array([[1.0, -2.0], [3.0, -2.0], [2.0, -5.0]])
    >>> trimmed_mean_attack(Knowledge(honest, np.array([True, False, False]), np.random.default_rng(0)))
    array([[ 1., -2.]])
    """
    row = np.zeros_like(knowledge.sign)
    for columns in _column_blocks(row.size):  # max() leaves them in the cache for min()
        block, sign = knowledge.honest[:, columns], knowledge.sign[columns]
        row[columns] = np.where(sign < 0, block.max(axis=0), block.min(axis=0))
    row[knowledge.sign == 0] = 0
    return _to_all(row, knowledge)


@needs_thresholds
def huber_attack(knowledge: Knowledge) -> Floats:
    """HLMA: every liar moves its own gradient by its threshold, against the sign of g_0.

    X_ij = G_ij - s_j T_i / sqrt(d).
    Needs `knowledge.thresholds`.  Paper, section 7, with T_i where the thresholds differ.

    >>> known = Knowledge(np.ones((3, 4)), np.arange(3) < 1, np.random.default_rng(0), thresholds=np.full(3, 0.5))
    >>> huber_attack(known)
    array([[0.75, 0.75, 0.75, 0.75]])
    """
    if knowledge.thresholds is None:
        raise ValueError("huber_attack needs the server's thresholds. Pass Knowledge(..., thresholds=np.full(m, T)).")
    moved: Floats = knowledge.honest[knowledge.byzantine]
    lengths = knowledge.thresholds[knowledge.byzantine] / np.sqrt(moved.shape[1])
    for row, length in zip(moved, lengths.astype(moved.dtype), strict=True):
        row -= length * knowledge.sign
    return moved


# Attacks from elsewhere. These look at what the truthful clients send, as their sources do, not at g_0.


def alie(knowledge: Knowledge, *, z: float | None = None) -> Floats:
    """A little is enough: all liars z standard deviations below the mean, where truthful clients are found too.

    X = mean - z std per coordinate, over the truthful.

    z  how far out; by default Phi^-1((m - f - s)/(m - f)) with s = floor(m/2 + 1) - f, the place where s truthful clients
       lie farther out and make a majority together with the liars

    Needs f <= m/2 and m >= 3 unless z is given.  Baruch et al. 2019.

    >>> alie(Knowledge(np.array([[9.0], [1.0], [3.0]]), np.arange(3) < 1, np.random.default_rng(0)), z=2.0)
    array([[0.]])
    """
    m, f = knowledge.m, knowledge.f
    if z is None:
        require(2 * f <= m, "alie", needs="f <= m/2", remedy="Use fewer liars or pass z.", m=m, f=f)
        supporters = m // 2 + 1 - f
        require(m - f > supporters, "alie", needs="m >= 3", remedy="Use more clients or pass z.", m=m, f=f)
        z = NormalDist().inv_cdf((m - f - supporters) / (m - f))
    benign = knowledge.benign
    return _to_all(benign.mean(axis=0) - knowledge.honest.dtype.type(z) * benign.std(axis=0), knowledge)


def ipm(knowledge: Knowledge, *, scale: float = 0.1) -> Floats:
    """Inner product manipulation: X = -scale * (mean of the truthful).

    scale  the length of the lie in multiples of that mean; 0.1 is a common choice, and large ones are easily noticed

    Xie, Koyejo, Gupta 2020.

    >>> ipm(Knowledge(np.array([[9.0], [1.0], [3.0]]), np.arange(3) < 1, np.random.default_rng(0)), scale=0.5)
    array([[-1.]])
    """
    return _to_all(-knowledge.honest.dtype.type(scale) * knowledge.benign.mean(axis=0), knowledge)


def mimic(knowledge: Knowledge, *, client: int = 0) -> Floats:
    """All liars copy one truthful client, so that the others count for less: X = G_c.

    client  the place of c among the truthful clients

    Needs 0 <= client < m - f.  Karimireddy, He, Jaggi 2022, who first spend some rounds on choosing c.

    >>> mimic(Knowledge(np.array([[9.0], [1.0], [3.0]]), np.arange(3) < 1, np.random.default_rng(0)), client=1)
    array([[3.]])
    """
    benign = knowledge.benign
    remedy = "Name one of the truthful clients by its place among them."
    require(0 <= integer(client, "client") < len(benign), "mimic", needs="client < m - f", remedy=remedy, client=client)
    return _to_all(benign[client], knowledge)


def min_max(knowledge: Knowledge) -> Floats:
    """All liars no farther from any truthful client than the two truthful clients farthest from each other.

    X = mean - gamma std, the largest gamma with max_i |X - G_i| <= max_ij |G_i - G_j| over the truthful.
    Shejwalkar & Houmansadr 2021, who search for gamma. Here it is computed: each i gives a quadratic inequality in gamma,
    and the smallest of their positive roots is the answer.

    >>> min_max(Knowledge(np.array([[9.0], [1.0], [3.0]]), np.arange(3) < 1, np.random.default_rng(0)))
    array([[1.]])
    """
    benign = knowledge.benign
    centre, deviation = benign.mean(axis=0), benign.std(axis=0)
    length = float(np.sum(deviation**2, dtype=np.float64))
    if length == 0:  # all truthful clients agree, so that no gamma > 0 and no direction is left
        return _to_all(centre, knowledge)
    seen = _seen_from(centre, deviation, knowledge)
    # |gamma p + Y_i|^2 = gamma^2 |p|^2 + 2 gamma <Y_i, p> + |Y_i|^2 <= D, with p the deviation
    roots = (np.sqrt(seen.along**2 + length * (seen.pairs.max() - seen.squares)) - seen.along) / length
    return _to_all(centre - centre.dtype.type(roots.min()) * deviation, knowledge)


def min_sum(knowledge: Knowledge) -> Floats:
    """All liars with a sum of squared distances to the truthful no larger than that of some truthful client.

    X = mean - gamma std, the largest gamma with sum_j |X - G_j|^2 <= max_i sum_j |G_i - G_j|^2 over the truthful.
    Shejwalkar & Houmansadr 2021, who search for gamma. Both sums equal the sum around the mean plus (m - f) times the
    squared distance to it, so gamma |std| is simply the largest distance of a truthful client to the mean.

    >>> min_sum(Knowledge(np.array([[9.0], [1.0], [3.0]]), np.arange(3) < 1, np.random.default_rng(0)))
    array([[1.]])
    """
    benign = knowledge.benign
    centre, deviation = benign.mean(axis=0), benign.std(axis=0)
    farthest, length = np.linalg.norm(benign - centre, axis=1).max(), np.linalg.norm(deviation)
    return _to_all(centre - deviation * (farthest / length if length > 0 else 0), knowledge)


def gaussian(knowledge: Knowledge, *, deviation: float = 200.0) -> Floats:
    """Noise: every coordinate of every liar ~ N(0, deviation^2).

    deviation  the standard deviation; 200 is a common choice

    Needs deviation > 0.  Xie, Koyejo, Gupta 2018.

    >>> gaussian(Knowledge(np.ones((5, 3)), np.arange(5) < 2, np.random.default_rng(0))).shape
    (2, 3)
    """
    noise = knowledge.rng.standard_normal((knowledge.f, knowledge.honest.shape[1]))
    return (positive(deviation, "gaussian's deviation") * noise).astype(knowledge.honest.dtype)


def non_finite(knowledge: Knowledge, *, value: float = np.nan) -> Floats:
    """Every coordinate is NaN or infinite: what a crashed client sends, and the cheapest way to crash a server.

    value  what is sent; NaN, inf or -inf

    No source: any server may meet it.

    >>> non_finite(Knowledge(np.ones((3, 2)), np.arange(3) < 1, np.random.default_rng(0)))
    array([[nan, nan]])
    """
    return _to_all(np.full(knowledge.honest.shape[1], value, knowledge.honest.dtype), knowledge)


ATTACKS: dict[str, Attack] = {
    attack.__name__: attack
    for attack in (
        *(sign_flip, krum_attack, trimmed_mean_attack, huber_attack),  # the paper's
        *(alie, ipm, mimic, min_max, min_sum, gaussian, non_finite),
    )
}


def _to_all(row: Floats, knowledge: Knowledge) -> Floats:
    """The same row for every liar."""
    return np.broadcast_to(row, (knowledge.f, row.size))


def _column_blocks(d: int) -> list[slice]:
    return [slice(a, a + COLUMNS) for a in range(0, d, COLUMNS)]


def _krum_probe(knowledge: Knowledge) -> Callable[[float], bool]:
    """Whether Krum chooses a liar when all f of them sit at g_0 - lambda s, as a function of lambda.

    With Y_i = G_i - g_0, the squared distance of the truthful client i to every liar is |Y_i|^2 + 2 lambda <Y_i, s> +
    lambda^2 |s|^2: three numbers per client, so that one set of truthful distances serves every lambda. Liars are at
    distance 0 of each other.
    """
    m, f, k = knowledge.m, knowledge.f, knowledge.m - knowledge.f - 2
    seen = _seen_from(knowledge.mean, knowledge.sign, knowledge)
    np.fill_diagonal(seen.pairs, np.inf)  # a client is no neighbour of itself
    nearest = np.sort(seen.pairs, axis=1)[:, :-1]
    sums = np.zeros(seen.pairs.shape)  # sums[i, j]: client i's j smallest distances, summed
    np.cumsum(nearest, axis=1, out=sums[:, 1:])
    signs = np.count_nonzero(knowledge.sign)  # |s|^2

    def chooses_liar(step: float) -> bool:
        to_liars = seen.squares + 2 * step * seen.along + step**2 * signs
        # A truthful client's k nearest: the truthful that are nearer than the liars, then up to f liars, then more of the
        # truthful. These come in order, so that the number of liars among the k decides the sum.
        nearer = np.minimum((nearest <= to_liars[:, None]).sum(axis=1), k)
        liars = np.minimum(f, k - nearer)
        scores = np.full(m, np.sort(to_liars)[: max(k - (f - 1), 0)].sum())  # of a liar
        scores[~knowledge.byzantine] = sums[np.arange(m - f), k - liars] + liars * to_liars
        return bool(knowledge.byzantine[scores.argmin()])

    return chooses_liar


class _Seen(NamedTuple):
    """The truthful clients as seen from a centre, Y_i = G_i - centre."""

    squares: Vector
    """|Y_i|^2"""
    pairs: Matrix
    """|Y_i - Y_j|^2"""
    along: Vector
    """<Y_i, direction>"""


def _seen_from(centre: Floats, direction: Floats, knowledge: Knowledge) -> _Seen:
    """Products of differences to a centre among the clients: products of the gradients themselves would lose the digits
    in which clients differ. In the precision of the gradients, or in float64 where squares of float32 overflow.
    """
    truthful = np.flatnonzero(~knowledge.byzantine)
    for dtype in (knowledge.honest.dtype, np.float64):
        gram, along = np.zeros((len(truthful),) * 2), np.zeros(len(truthful))
        with np.errstate(over="ignore", invalid="ignore"):
            for columns in _column_blocks(centre.size):
                differences = (knowledge.honest[truthful, columns] - centre[columns]).astype(dtype, copy=False)
                gram += differences @ differences.T
                along += differences @ direction[columns]
        if np.isfinite(gram).all():
            break
    squares = gram.diagonal().copy()
    return _Seen(squares, np.maximum(squares[:, None] + squares - 2 * gram, 0), along)
