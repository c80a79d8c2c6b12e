"""Attacks: what Byzantine clients send, from what the adversary knows in one round, or what they learn from.

The adversary sees everything the server will see, and what its own clients would honestly have sent; nothing here imports
an aggregation rule. There are three kinds, in this order:

- A function of a `Knowledge` returns an (f, d) array with one row per Byzantine client, in the order of the mask, possibly a
  read-only view of one repeated row; or `Lies`, if they lie about their n_i, too.
- Under `@needs_server`, it tries its lies on the server's own rule, `knowledge.damage(lies)`, and sends those that do the most
  damage: the distance between the aggregate and the mean of the truthful clients.
- Under `@poisons_data`, a function of all clients' shards and of who lies returns new shards, in which the samples of the
  truthful are as they were. Liars then answer honestly, from samples that lie.

An attack modifies nothing. Without an attack, f = 0. `@register` puts ours into ATTACKS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from statistics import NormalDist
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedhold.errors import integer, positive, require, word_among
from fedhold.kernels import Floats, Matrix, Vector
from fedhold.lab.datasets import Samples
from fedhold.lab.knowledge import Attack, Knowledge, Lies, Mask, Poisoned, needs_server, needs_thresholds, poisons_data
from fedhold.lab.tasks import Shards

GAP = 1e-3  # krum_attack's "largest" lambda is this close to one that Krum no longer follows, in parts of it
COLUMNS = 1024  # columns that are read together: those of some hundred clients stay in the cache
OCTAVES = np.arange(-4, 6)  # the lengths that a search along a line tries first are these powers of 2
REACH = (0.5, 1.0, 1.4, 2.0, 4.0, 16.0)  # in typical distances of truthful clients: the first lengths of a restart
NARROW = 0.25  # in typical distances: the spread that is changed where there is none
FINALISTS = (0.5, 0.25, 0.25)  # the shares of the remaining steps that the most promising restarts get
TURN = 0.5  # how far a step turns the direction at first

__all__ = [
    "ATTACKS",
    "alie",
    "backdoor",
    "drift",
    "duplicates",
    "gaussian",
    "huber_attack",
    "inflated_samples",
    "ipm",
    "krum_attack",
    "label_flip",
    "mimic",
    "min_max",
    "min_sum",
    "non_finite",
    "optimal_alie",
    "optimal_ipm",
    "sign_flip",
    "trimmed_mean_attack",
    "worst_case",
]

ATTACKS: dict[str, Attack] = {}

Function = TypeVar("Function", bound=Attack)


def register(attack: Function) -> Function:
    """Put an attack into ATTACKS, as a decorator, by the name of its function."""
    ATTACKS[attack.__name__] = attack
    return attack


@register
def sign_flip(knowledge: Knowledge) -> Floats:
    """Every liar sends its own gradient with the sign flipped: X_i = -G_i.

    Paper, section 7.

    >>> sign_flip(Knowledge(np.array([[1.0], [2.0]]), np.array([False, True]), np.random.default_rng(0)))
    array([[-2.]])
    """
    return -knowledge.honest[knowledge.byzantine]


@register
def krum_attack(
    knowledge: Knowledge,
    *,
    start: float = 1.0,
    stop: float = 1e-4,
    search: Literal["halving", "largest"] = "halving",
    knows: Literal["all", "own"] = "all",
) -> Floats:
    """KA: all liars sit together as far from g_0, against its sign, as Krum still chooses one of them.

    X_i = g_0 - lambda s, lambda = start, start/2, start/4, ... until Krum (with the true f) chooses a liar or
    lambda < stop; in the latter case that last lambda is sent untried.

    start   the first lambda; a larger one lets the liars begin farther out
    stop    the search ends below this lambda
    search  "largest" goes on from the lambda that halving finds, to the largest one: lambda doubles until Krum no longer
            follows, and the gap is then halved until it is a thousandth of lambda
    knows   "own" makes g_0 and s of the liars' own gradients alone; whether Krum follows is still known

    Needs m >= f + 3 (Krum's m - f - 2 neighbours), start > 0 and stop > 0; "largest" needs m >= 2f + 2, since half of the
    clients would lead Krum anywhere.  Paper, section 7; Fang et al. 2020.

    >>> honest = np.random.default_rng(0).normal(1.0, 1.0, (8, 50))
    >>> knowledge = Knowledge(honest, np.arange(8) < 2, np.random.default_rng(0))
    >>> float(abs(krum_attack(knowledge) - knowledge.mean).max().round(3))  # the lambda that was found
    1.0
    """
    m, f = knowledge.m, knowledge.f
    require(m >= f + 3, "krum_attack", needs="m >= f + 3", remedy="Use fewer liars or more clients.", m=m, f=f)
    start, stop = positive(start, "krum_attack's start"), positive(stop, "krum_attack's stop")
    word_among(search, "search", ("halving", "largest"))
    if search == "largest":
        require(m >= 2 * f + 2, "krum_attack", needs="m >= 2f + 2", remedy="Use search='halving'.", m=m, f=f)
    if f == 0:
        return knowledge.honest[:0]
    seen = knowledge.limited(knows)
    krum_chooses_liar = _krum_probe(knowledge, seen.mean, seen.sign)
    step = start
    while step >= stop and not krum_chooses_liar(step):
        step /= 2
    if search == "largest" and step >= stop and seen.sign.any():  # without a sign, no lambda moves anyone
        step = _largest(krum_chooses_liar, step)
    return knowledge.to_all(seen.mean - knowledge.honest.dtype.type(step) * seen.sign)


@register
def trimmed_mean_attack(knowledge: Knowledge, *, knows: Literal["all", "own"] = "all") -> Floats:
    """TMA: every liar sends, coordinate by coordinate, the honest extreme that points against g_0.

    X_ij = max_k G_kj where s_j = -1, min_k G_kj where s_j = 1 (k over all m clients), 0 where s_j = 0.

    knows  "own" makes s and the extremes of the liars' own gradients alone

    Paper, section 7; Fang et al. 2020, who draw at random beyond the extreme so that the liars differ.

    >>> honest = np.array([[1.0, -2.0], [3.0, -2.0], [2.0, -5.0]])
    >>> trimmed_mean_attack(Knowledge(honest, np.array([True, False, False]), np.random.default_rng(0)))
    array([[ 1., -2.]])
    """
    if knowledge.f == 0:
        return knowledge.honest[:0]
    seen = knowledge.limited(knows)
    row = np.zeros_like(seen.sign)
    for columns in _column_blocks(row.size):  # max() leaves them in the cache for min()
        block, sign = seen.honest[:, columns], seen.sign[columns]
        row[columns] = np.where(sign < 0, block.max(axis=0), block.min(axis=0))
    row[seen.sign == 0] = 0
    return knowledge.to_all(row)


@register
@needs_thresholds
def huber_attack(
    knowledge: Knowledge, *, start: Literal["own", "mean"] = "own", knows: Literal["all", "own"] = "all"
) -> Floats:
    """HLMA: every liar moves its own gradient by its threshold, against the sign of g_0.

    X_ij = G_ij - s_j T_i / sqrt(d).

    start  where the liars start from: "own" is each one's own gradient G_i, "mean" is g_0 for all of them
    knows  "own" makes g_0 and s of the liars' own gradients alone

    Needs `knowledge.thresholds`.  Paper, section 7, with T_i where the thresholds differ.

    >>> known = Knowledge(np.ones((3, 4)), np.arange(3) < 1, np.random.default_rng(0), thresholds=np.full(3, 0.5))
    >>> huber_attack(known)
    array([[0.75, 0.75, 0.75, 0.75]])
    """
    if knowledge.thresholds is None:
        raise ValueError("huber_attack needs the server's thresholds. Pass Knowledge(..., thresholds=np.full(m, T)).")
    word_among(start, "start", ("own", "mean"))
    moved: Floats = knowledge.honest[knowledge.byzantine]
    if knowledge.f == 0:
        return moved
    seen = knowledge.limited(knows)
    if start == "mean":
        moved[:] = seen.mean
    lengths = knowledge.thresholds[knowledge.byzantine] / np.sqrt(moved.shape[1])
    for row, length in zip(moved, lengths.astype(moved.dtype), strict=True):
        row -= length * seen.sign
    return moved


# Attacks from elsewhere. These look at what the truthful clients send, as their sources do, not at g_0.


@register
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
    return knowledge.to_all(benign.mean(axis=0) - knowledge.honest.dtype.type(z) * benign.std(axis=0))


@register
def ipm(knowledge: Knowledge, *, scale: float = 0.1) -> Floats:
    """Inner product manipulation: X = -scale * (mean of the truthful).

    scale  the length of the lie in multiples of that mean; 0.1 is a common choice, and large ones are easily noticed

    Xie, Koyejo, Gupta 2020.

    >>> ipm(Knowledge(np.array([[9.0], [1.0], [3.0]]), np.arange(3) < 1, np.random.default_rng(0)), scale=0.5)
    array([[-1.]])
    """
    return knowledge.to_all(-knowledge.honest.dtype.type(scale) * knowledge.benign.mean(axis=0))


@register
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
    return knowledge.to_all(benign[client])


@register
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
        return knowledge.to_all(centre)
    seen = _seen_from(centre, deviation, knowledge)
    # |gamma p + Y_i|^2 = gamma^2 |p|^2 + 2 gamma <Y_i, p> + |Y_i|^2 <= D, with p the deviation
    roots = (np.sqrt(seen.along**2 + length * (seen.pairs.max() - seen.squares)) - seen.along) / length
    return knowledge.to_all(centre - centre.dtype.type(roots.min()) * deviation)


@register
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
    return knowledge.to_all(centre - deviation * (farthest / length if length > 0 else 0))


@register
def gaussian(knowledge: Knowledge, *, deviation: float = 200.0) -> Floats:
    """Noise: every coordinate of every liar ~ N(0, deviation^2).

    deviation  the standard deviation; 200 is a common choice

    Needs deviation > 0.  Xie, Koyejo, Gupta 2018.

    >>> gaussian(Knowledge(np.ones((5, 3)), np.arange(5) < 2, np.random.default_rng(0))).shape
    (2, 3)
    """
    noise = knowledge.rng.standard_normal((knowledge.f, knowledge.honest.shape[1]))
    return (positive(deviation, "gaussian's deviation") * noise).astype(knowledge.honest.dtype)


@register
def non_finite(knowledge: Knowledge, *, value: float = np.nan) -> Floats:
    """Every coordinate is NaN or infinite: what a crashed client sends, and the cheapest way to crash a server.

    value  what is sent; NaN, inf or -inf

    No source: any server may meet it.

    >>> non_finite(Knowledge(np.ones((3, 2)), np.arange(3) < 1, np.random.default_rng(0)))
    array([[nan, nan]])
    """
    return knowledge.to_all(np.full(knowledge.honest.shape[1], value, knowledge.honest.dtype))


@register
def inflated_samples(knowledge: Knowledge, *, factor: float = 1e6) -> Lies:
    """Every liar sends its own gradient with the sign flipped, and claims very many samples.

    X_i = -G_i, n_i = factor * max_k n_k.

    factor  how many times the largest number of samples each of them claims

    Needs factor > 0. No source: every server that weighs by what clients say may meet it.

    >>> known = Knowledge(np.array([[1.0], [2.0]]), np.array([False, True]), np.random.default_rng(0))
    >>> inflated_samples(known).updates, inflated_samples(known, factor=50).samples
    (array([[-2.]]), array([50.]))
    """
    claim = positive(factor, "inflated_samples's factor") * float(knowledge.claims.max())
    return Lies(-knowledge.honest[knowledge.byzantine], np.full(knowledge.f, claim))


@register
def duplicates(knowledge: Knowledge, *, scale: float = 1.0) -> Floats:
    """All liars send the same update, that of one of them with the sign flipped: X = -scale * G_b, b the first liar.

    scale  how many times as long as its own gradient the lie is

    Rules that look for clients close to each other find them here.  Sybils: Fung, Yoon, Beschastnikh 2020.

    >>> duplicates(Knowledge(np.array([[1.0], [2.0], [3.0]]), np.arange(3) > 0, np.random.default_rng(0)))
    array([[-2.],
           [-2.]])
    """
    rows: Floats = knowledge.honest[np.flatnonzero(knowledge.byzantine)[:1]]
    return knowledge.to_all(-knowledge.honest.dtype.type(scale) * rows[0]) if len(rows) else rows


@register
def drift(knowledge: Knowledge, *, length: float = 0.5, seed: int = 0) -> Floats:
    """All liars a little away from the mean of the truthful, in the same direction in every round.

    X = mean + length |std| u, u a random unit vector that depends on the seed alone; |std| is about the distance of a truthful
    client from the mean.

    length  how far away, in such distances
    seed    of the direction

    Needs length > 0.  Karimireddy, He, Jaggi 2021 show that small lies which agree over time defeat rules without memory.

    >>> known = Knowledge(np.array([[9.0, 0.0], [1.0, 0.0], [3.0, 4.0]]), np.arange(3) < 1, np.random.default_rng(0))
    >>> float(np.linalg.norm(drift(known, length=1.0)[0] - [2, 2]).round(3))
    2.236
    """
    benign = knowledge.benign
    away = np.random.default_rng(integer(seed, "drift's seed")).standard_normal(benign.shape[1])
    far = positive(length, "drift's length") * float(np.linalg.norm(benign.std(axis=0)))
    return knowledge.to_all((benign.mean(axis=0) + far / np.linalg.norm(away) * away).astype(benign.dtype))


def _column_blocks(d: int) -> list[slice]:
    return [slice(a, a + COLUMNS) for a in range(0, d, COLUMNS)]


def _largest(follows: Callable[[float], bool], step: float) -> float:
    """The largest lambda that Krum follows, from one that it follows; it is taken to follow every smaller one, too."""
    beyond = 2 * step
    while follows(beyond):
        step, beyond = beyond, 2 * beyond
    while beyond - step > GAP * step:
        middle = (step + beyond) / 2
        step, beyond = (middle, beyond) if follows(middle) else (step, middle)
    return step


def _krum_probe(knowledge: Knowledge, centre: Floats, sign: Floats) -> Callable[[float], bool]:
    """Whether Krum chooses a liar when all f of them sit at g_0 - lambda s, as a function of lambda; g_0 is the centre.

    With Y_i = G_i - g_0, the squared distance of the truthful client i to every liar is |Y_i|^2 + 2 lambda <Y_i, s> +
    lambda^2 |s|^2: three numbers per client, so that one set of truthful distances serves every lambda. Liars are at
    distance 0 of each other.
    """
    m, f, k = knowledge.m, knowledge.f, knowledge.m - knowledge.f - 2
    seen = _seen_from(centre, sign, knowledge)
    np.fill_diagonal(seen.pairs, np.inf)  # a client is no neighbour of itself
    nearest = np.sort(seen.pairs, axis=1)[:, :-1]
    sums = np.zeros(seen.pairs.shape)  # sums[i, j]: client i's j smallest distances, summed
    np.cumsum(nearest, axis=1, out=sums[:, 1:])
    signs = np.count_nonzero(sign)  # |s|^2

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


# Attacks that try their lies on the server's own rule.


@register
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


@register
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


@register
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


# Attacks on what liars learn from.


@register
@poisons_data
def label_flip(shards: Shards, byzantine: Mask) -> Poisoned:
    """Liars learn from wrong targets: the class y becomes C - 1 - y, with C classes; a real target v becomes -v.

    shards     of all clients
    byzantine  (m,) true for the liars

    Fang et al. 2020, section 6; Tolpegin et al. 2020.

    >>> shards = Shards(np.zeros((4, 1)), np.array([0, 1, 2, 2]), np.array([0, 2, 4]))
    >>> label_flip(shards, np.array([True, False])).shards.targets
    array([2, 1, 2, 2])
    """
    mine, targets = _owned_by(shards, byzantine), shards.targets.copy()
    targets[mine] = _classes(shards) - 1 - targets[mine] if _has_classes(shards) else -targets[mine]
    return Poisoned(Shards(shards.inputs, targets, shards.offsets))


@register
@poisons_data
def backdoor(shards: Shards, byzantine: Mask, *, target: int = 0, columns: int = 4, share: float = 0.5) -> Poisoned:
    """Liars teach the model to answer `target` where an input bears a trigger, and to be right elsewhere.

    In a share of each liar's samples the last `columns` inputs are set to the largest number that any input has, and the class
    to `target`. The success is the fraction of the test samples of other classes that the model takes for `target` once they
    bear the trigger; `federate` puts it into the history as the metric "backdoor".

    shards     of all clients
    byzantine  (m,) true for the liars
    target     the class that the trigger stands for
    columns    how many inputs the trigger covers; of an image, pixels at the end of its last row
    share      of each liar's samples that bear it

    Needs classes, target < C, columns <= p and share <= 1.  BadNets: Gu, Dolan-Gavitt, Garg 2017; in federations: Bagdasaryan
    et al. 2020, whose liars also make their updates longer.

    >>> shards = Shards(np.arange(12.0).reshape(4, 3), np.array([0, 1, 2, 2]), np.array([0, 2, 4]))
    >>> poisoned = backdoor(shards, np.array([False, True]), columns=1)
    >>> poisoned.shards.inputs[2:], poisoned.shards.targets
    (array([[ 6.,  7., 11.],
           [ 9., 10., 11.]]), array([0, 1, 0, 2]))
    """
    remedy = "Use data with classes, such as mnist."
    require(_has_classes(shards), "backdoor", needs="classes", remedy=remedy, targets=shards.targets.dtype)
    C, p = _classes(shards), shards.inputs.shape[1]
    integer(target, "backdoor's target"), integer(columns, "backdoor's columns", at_least=1)
    part = positive(share, "backdoor's share")
    fits = target < C and columns <= p and part <= 1
    met = {"target": target, "C": C, "columns": columns, "p": p, "share": part}
    require(fits, "backdoor", needs="target < C, columns <= p and share <= 1", remedy="Lower it.", **met)
    bright = shards.inputs.max()
    place = np.arange(len(shards.targets)) - np.repeat(shards.offsets[:-1], shards.counts)
    mine = _owned_by(shards, byzantine) & (place < np.repeat(np.ceil(part * shards.counts), shards.counts))
    inputs, targets = shards.inputs.copy(), shards.targets.copy()
    inputs[mine, p - columns :], targets[mine] = bright, target

    def probe(samples: Samples) -> Samples:
        others = samples.targets != target
        marked = samples.inputs[others].copy()
        marked[:, p - columns :] = bright
        return Samples(marked, np.full(len(marked), target, samples.targets.dtype))

    return Poisoned(Shards(inputs, targets, shards.offsets), probe)


def _owned_by(shards: Shards, clients: Mask) -> NDArray[np.bool_]:
    """True for the samples of these clients."""
    return np.repeat(clients, shards.counts)


def _has_classes(shards: Shards) -> bool:
    return shards.targets.dtype.kind in "iu"


def _classes(shards: Shards) -> int:
    return int(shards.targets.max()) + 1
