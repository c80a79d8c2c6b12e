"""What liars send: honest updates, and what the adversary knows of them -> one row per Byzantine client.

The adversary sees everything the server will see, and what its own clients would honestly have sent; nothing here
imports an aggregation rule. An attack returns an (f, d) array in the order of the mask, possibly a read-only view of
one repeated row, and modifies nothing. No attack at all is f = 0.
"""

from collections.abc import Callable
from statistics import NormalDist

import numpy as np

from fedhold.errors import integer, positive, require
from fedhold.lab.knowledge import Floats, Knowledge
from fedhold.lab.probes import krum_probe, pair_distances

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
    krum_chooses_liar = krum_probe(knowledge)
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
    row = np.zeros_like(knowledge.sign)
    for part in knowledge.parts:  # in cache for the second look
        block, sign = knowledge.honest[:, part], knowledge.sign[part]
        row[part] = np.where(sign < 0, block.max(axis=0), block.min(axis=0))
    row[knowledge.sign == 0] = 0
    return _to_all(row, knowledge)


def huber_attack(knowledge: Knowledge) -> Floats:
    """HLMA: every liar moves its own gradient by its threshold, against the sign of g_0.

    X_ij = G_ij - s_j T_i / sqrt(d).
    Needs `knowledge.thresholds`.  Paper, section 7, with T_i where the thresholds differ.
    """
    if knowledge.thresholds is None:
        raise ValueError("huber_attack needs the server's thresholds. Pass Knowledge(..., thresholds=np.full(m, T)).")
    moved: Floats = knowledge.honest[knowledge.byzantine]
    lengths = knowledge.thresholds[knowledge.byzantine] / np.sqrt(moved.shape[1])
    for row, length in zip(moved, lengths.astype(moved.dtype), strict=True):
        row -= length * knowledge.sign
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
    square, among, along = pair_distances(knowledge, centre, deviation)
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


def _cloud(knowledge: Knowledge) -> tuple[Floats, Floats, Floats]:
    """Mean and deviation of the truthful, and each one's difference to the mean."""
    centred = knowledge.benign
    centre: Floats = centred.mean(axis=0)
    centred -= centre
    deviation: Floats = np.sqrt(np.einsum("ij,ij->j", centred, centred) / len(centred))
    return centre, deviation, centred
