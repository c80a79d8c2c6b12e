"""What liars send: honest updates, and what the adversary knows of them -> one row per Byzantine client.

The adversary sees everything the server will see, and what its own clients would honestly have sent; nothing here
imports an aggregation rule. An attack returns an (f, d) array in the order of the mask, possibly a read-only view of
one repeated row, and modifies nothing. No attack at all is f = 0.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.checks import integer, positive, require

__all__ = [
    "ATTACKS",
    "Attack",
    "Knowledge",
    "alie",
    "gaussian",
    "huber_attack",
    "ipm",
    "krum_attack",
    "mimic",
    "min_max",
    "min_sum",
    "non_finite",
    "sign_flip",
    "trimmed_mean_attack",
]

Floats = NDArray[np.floating[Any]]
Doubles = NDArray[np.float64]

COLUMNS = 1024  # worked on at a time where clients are compared in pairs


@dataclass(frozen=True, eq=False)
class Knowledge:
    """All an adversary may know in one round.

    honest      (m, d) what all m clients would send if none lied; the Byzantine ones too
    byzantine   (m,) true for the clients that lie
    rng         where the attack's chance comes from
    thresholds  (m,) the T_i of the server's Huber rule (with an automatic one: those it would compute from `honest`)

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


Attack = Callable[..., Floats]


def sign_flip(knowledge: Knowledge) -> Floats:
    """Every liar sends its own gradient with the sign flipped: X_i = -G_i.  Paper, section 7."""
    return -knowledge.honest[knowledge.byzantine]


def krum_attack(knowledge: Knowledge, *, start: float = 1.0, stop: float = 1e-4) -> Floats:
    """KA: all liars together as far from g_0, against its sign, as Krum will follow.

    X_i = g_0 - lambda s, lambda = start, start/2, start/4, ... until Krum (told the true f) chooses a liar or
    lambda < stop; in the latter case that last lambda is sent untried.
    Needs m >= f + 3 (Krum's m - f - 2 neighbours) and 0 < stop.  Paper, section 7; Fang et al. 2020.
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
    row = knowledge.mean - knowledge.honest.dtype.type(step) * knowledge.sign
    return _to_all(row, knowledge)


def trimmed_mean_attack(knowledge: Knowledge) -> Floats:
    """TMA: every liar sends, coordinate by coordinate, the honest extreme that points against g_0.

    X_ij = max_k G_kj where s_j = -1, min_k G_kj where s_j = 1 (k over all m clients), 0 where s_j = 0.
    Paper, section 7; Fang et al. 2020, who draw at random beyond the extreme so that the liars differ.
    """
    highest, lowest = knowledge.honest.max(axis=0), knowledge.honest.min(axis=0)
    row = np.where(knowledge.sign < 0, highest, lowest)
    row[knowledge.sign == 0] = 0
    return _to_all(row, knowledge)


def huber_attack(knowledge: Knowledge) -> Floats:
    """HLMA: every liar moves its own gradient by its threshold, against the sign of g_0.

    X_ij = G_ij - s_j T_i / sqrt(d).
    Needs `knowledge.thresholds`.  Paper, section 7, with T_i where the thresholds differ.
    """
    if knowledge.thresholds is None:
        raise ValueError("huber_attack needs the server's thresholds. Pass Knowledge(..., thresholds=np.full(m, T)).")
    honest = knowledge.honest[knowledge.byzantine]
    lengths = knowledge.thresholds[knowledge.byzantine] / np.sqrt(honest.shape[1])
    moved: Floats = honest - lengths.astype(honest.dtype)[:, None] * knowledge.sign
    return moved


# Beyond the paper. These look at what the truthful clients send, as their sources do, not at g_0.


def alie(knowledge: Knowledge, *, z: float | None = None) -> Floats:
    """A little is enough: all liars z standard deviations below the mean, where a crowd of truthful ones stands too.

    X = mean - z std per coordinate; by default z = Phi^-1((m - f - s)/(m - f)), s = floor(m/2 + 1) - f, the place
    where s truthful clients lie further out and with the liars make a majority.
    Needs f <= m/2 unless z is given.  Baruch et al. 2019.
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
    """Inner product manipulation: X = -scale * (mean of the truthful).  Xie, Koyejo, Gupta 2020; 0.1 is a common choice."""
    return _to_all(-knowledge.honest.dtype.type(scale) * knowledge.benign.mean(axis=0), knowledge)


def mimic(knowledge: Knowledge, *, client: int = 0) -> Floats:
    """All liars copy one truthful client, so that the others count for less: X = G_c, c the `client`-th truthful one.

    Needs 0 <= client < m - f.  Karimireddy, He, Jaggi 2022, who first spend some rounds on choosing c.
    """
    benign = knowledge.benign
    remedy = "Name one of the truthful clients by its place among them."
    require(0 <= integer(client, "client") < len(benign), "mimic", needs="client < m - f", remedy=remedy, client=client)
    return _to_all(benign[client], knowledge)


def min_max(knowledge: Knowledge) -> Floats:
    """All liars as far out as the two truthful clients furthest from each other are apart.

    X = mean - gamma std, the largest gamma with max_i |X - G_i| <= max_ij |G_i - G_j| over the truthful.
    Shejwalkar & Houmansadr 2021, who search for gamma; each i asks for a root of a quadratic, and the least one rules.
    """
    centre, deviation, _ = _cloud(knowledge)
    square, among, along = _distances(knowledge, centre, deviation)
    length = float(np.sum(deviation**2, dtype=np.float64))
    if length == 0:  # all truthful clients agree: there is no room, and no direction
        return _to_all(centre, knowledge)
    # |gamma p + Y_i|^2 = gamma^2 |p|^2 + 2 gamma <Y_i, p> + |Y_i|^2 <= D
    roots = (np.sqrt(along**2 + length * (among.max() - square)) - along) / length
    return _to_all(centre - centre.dtype.type(roots.min()) * deviation, knowledge)


def min_sum(knowledge: Knowledge) -> Floats:
    """All liars as far out as the sum of squared distances to the truthful allows.

    X = mean - gamma std, the largest gamma with sum_j |X - G_j|^2 <= max_i sum_j |G_i - G_j|^2 over the truthful.
    Shejwalkar & Houmansadr 2021, who search for gamma. Both sums are those around the mean plus (m - f) times the
    squared distance to it, so gamma |std| is simply the largest distance of a truthful client to the mean.
    """
    centre, deviation, centred = _cloud(knowledge)
    furthest = np.sqrt(np.einsum("ij,ij->i", centred, centred).max())
    length = np.sqrt(np.sum(deviation**2))
    return _to_all(centre - deviation * (furthest / length if length > 0 else 0), knowledge)


def gaussian(knowledge: Knowledge, *, deviation: float = 200.0) -> Floats:
    """Noise: every coordinate of every liar ~ N(0, deviation^2).  Xie, Koyejo, Gupta 2018; 200 is a common choice."""
    noise = knowledge.rng.standard_normal((knowledge.f, knowledge.honest.shape[1]))
    return (positive(deviation, "gaussian's deviation") * noise).astype(knowledge.honest.dtype)


def non_finite(knowledge: Knowledge, *, value: float = np.nan) -> Floats:
    """Every coordinate NaN, or the infinity given: a crashed client, or the cheapest way to crash a server."""
    return _to_all(np.full(knowledge.honest.shape[1], value, knowledge.honest.dtype), knowledge)


ATTACKS: dict[str, Attack] = {
    attack.__name__: attack
    for attack in (
        *(sign_flip, krum_attack, trimmed_mean_attack, huber_attack),  # the paper's
        *(alie, ipm, mimic, min_max, min_sum, gaussian, non_finite),
    )
}


def _to_all(row: Floats, knowledge: Knowledge) -> Floats:
    return np.broadcast_to(row, (knowledge.f, row.size))


def _krum_probe(knowledge: Knowledge) -> Callable[[float], bool]:
    """Whether Krum chooses a liar when all f of them sit at g_0 - lambda s, as a function of lambda.

    With Y_i = G_i - g_0, the squared distance of honest client i to the liars is |Y_i|^2 + 2 lambda <Y_i, s> +
    lambda^2 |s|^2: three numbers per client. Liars are at distance 0 of each other, and the distances among honest
    clients do not depend on lambda, so one product of (m - f)^2 d serves every lambda.
    """
    m, f, k = knowledge.m, knowledge.f, knowledge.m - knowledge.f - 2
    square, among, along = _distances(knowledge, knowledge.mean, knowledge.sign)
    nonzero = np.count_nonzero(knowledge.sign)

    np.fill_diagonal(among, np.inf)
    among = np.sort(among, axis=1)[:, :-1]
    nearest_sums = np.concatenate([np.zeros((m - f, 1)), np.cumsum(among, axis=1)], axis=1)

    def chooses_liar(step: float) -> bool:
        to_liars = square + 2 * step * along + step**2 * nonzero
        # The k nearest of an honest client: those honest ones that are nearer than the liars, then up to f liars,
        # then more honest ones. Only the number of liars among them matters, since honest ones come in order.
        nearer = np.minimum((among <= to_liars[:, None]).sum(axis=1), k)
        liars = np.minimum(f, k - nearer)
        scores = np.empty(m)
        scores[~knowledge.byzantine] = nearest_sums[np.arange(m - f), k - liars] + liars * to_liars
        scores[knowledge.byzantine] = np.sort(to_liars)[: max(k - (f - 1), 0)].sum()
        return bool(knowledge.byzantine[scores.argmin()])

    return chooses_liar


def _cloud(knowledge: Knowledge) -> tuple[Floats, Floats, Floats]:
    """Mean and deviation of the truthful, and each one's difference to the mean."""
    centred = knowledge.benign
    centre: Floats = centred.mean(axis=0)
    centred -= centre
    deviation: Floats = np.sqrt(np.einsum("ij,ij->j", centred, centred) / len(centred))
    return centre, deviation, centred


def _distances(knowledge: Knowledge, centre: Floats, direction: Floats) -> tuple[Doubles, Doubles, Doubles]:
    """|Y_i|^2, |Y_i - Y_j|^2 and <Y_i, direction> of the truthful, Y_i = G_i - centre."""
    truthful, d = np.flatnonzero(~knowledge.byzantine), len(centre)
    for kind in (knowledge.honest.dtype, np.float64):
        gram, along = np.zeros((len(truthful),) * 2), np.zeros(len(truthful))
        with np.errstate(over="ignore", invalid="ignore"):  # single precision overflows beyond 1e19; then float64
            for part in (slice(a, a + COLUMNS) for a in range(0, d, COLUMNS)):
                centred = (knowledge.honest[truthful, part] - centre[part]).astype(kind, copy=False)
                gram += centred @ centred.T
                along += centred @ direction[part]
        if np.isfinite(gram).all():
            break
    square = gram.diagonal().copy()
    return square, np.maximum(square[:, None] + square - 2 * gram, 0), along
