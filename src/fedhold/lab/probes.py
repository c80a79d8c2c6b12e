"""What an adversary finds out about pairs of truthful clients before it decides where to stand."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhold.lab.knowledge import COLUMNS, Floats, Knowledge

__all__ = ["krum_probe", "pair_distances"]

Doubles = NDArray[np.float64]

CENTRAL = 4  # clients in the middle of the truthful
SURE = 1e-3  # what rounding could not do to a score
FEW = 4 * COLUMNS  # columns, whose products cost less than it does to sort distances time and again
SOME, ENERGIES = 32, (0.5, 0.75, 0.9, 0.97)  # clients to see where they differ; shares of that, which few columns hold


def krum_probe(knowledge: Knowledge) -> Callable[[float], bool]:
    """Whether Krum chooses a liar when all f of them sit at g_0 - lambda s, as a function of lambda.

    With Y_i = G_i - g_0, the squared distance of honest client i to the liars is |Y_i|^2 + 2 lambda <Y_i, s> +
    lambda^2 |s|^2: three numbers per client, which make the liars' score. Liars are at distance 0 of each other.
    Most lambdas are decided by bounds on the lowest honest score: from above by sums of distances to all honest clients, which
    take no pairs, from both sides by distances over some of the columns, from above by the scores of a few in the middle.
    """
    m, f, k = knowledge.m, knowledge.f, knowledge.m - knowledge.f - 2
    square, along, sums = _around_mean(knowledge)
    nonzero = np.count_nonzero(knowledge.sign)
    growing, grown = _growing_distances(knowledge, square, sums), list[tuple[Doubles, ...]]()
    few = np.argsort(sums)[:CENTRAL]  # one of them will score lowest, or nearly so

    @cache
    def few_distances() -> tuple[Doubles, Doubles]:
        return _sorted_with_sums(_distances_of(knowledge, few, square))

    def nearest() -> Iterator[tuple[Doubles, ...]]:
        yield from grown
        for found in growing:
            grown.append(found)
            yield found

    def honest_scores(among: Doubles, nearest_sums: Doubles, to_liars: Doubles) -> Doubles:
        # The k nearest of an honest client: those honest ones that are nearer than the liars, then up to f liars,
        # then more honest ones. Only the number of liars among them matters, since honest ones come in order.
        nearer = np.minimum((among <= to_liars[:, None]).sum(axis=1), k)
        liars = np.minimum(f, k - nearer)
        scores: Doubles = nearest_sums[np.arange(len(among)), k - liars] + liars * to_liars
        return scores

    def chooses_liar(step: float) -> bool:
        to_liars = square + 2 * step * along + step**2 * nonzero
        liar = np.sort(to_liars)[: max(k - (f - 1), 0)].sum()
        met, mean = min(f, k), sums / (m - f - 1)
        if liar > (1 + SURE) * np.minimum(k * mean, met * to_liars + (k - met) * mean).min():
            return False
        scores = np.full(m, liar)
        for level, (among, nearest_sums, rest_at_least, rest_at_most) in enumerate(nearest()):
            found = honest_scores(among, nearest_sums, to_liars)
            if liar < (1 - SURE) * (found + rest_at_least).min():
                return True
            if liar > (1 + SURE) * (found + rest_at_most).min():
                return False
            if level == 0 and liar > (1 + SURE) * honest_scores(*few_distances(), to_liars[few]).min():
                return False
        scores[~knowledge.byzantine] = found
        return bool(knowledge.byzantine[scores.argmin()])

    return chooses_liar


def _distances_of(knowledge: Knowledge, few: NDArray[np.intp], square: Doubles) -> Doubles:
    """|Y_i - Y_j|^2 of a few truthful clients i to all others, infinity to themselves."""
    truthful = np.flatnonzero(~knowledge.byzantine)
    kind, products = _precise(knowledge, square), np.zeros((len(few), knowledge.m))
    for part in knowledge.parts:
        here = knowledge.mean[part]
        own, others = knowledge.honest[truthful[few], part] - here, knowledge.honest[:, part] - here
        products += own.astype(kind, copy=False) @ others.astype(kind, copy=False).T
    distances = np.maximum(square[few][:, None] + square - 2 * products[:, truthful], 0)
    distances[np.arange(len(few)), few] = np.inf
    return distances


def _precise(knowledge: Knowledge, square: Doubles) -> np.dtype[Any]:
    """What to multiply in: single precision overflows beyond 1e19."""
    kind = knowledge.honest.dtype
    return kind if square.max() < np.finfo(kind).max / 8 else np.dtype(np.float64)


def _sorted_with_sums(distances: Doubles) -> tuple[Doubles, Doubles]:
    """Each row in rising order without its last, infinite number, and the sums of the first so many."""
    among = np.sort(distances, axis=1)[:, :-1]
    sums = np.zeros(distances.shape)
    np.cumsum(among, axis=1, out=sums[:, 1:])
    return among, sums


def _around_mean(knowledge: Knowledge) -> tuple[Doubles, Doubles, Doubles]:
    """|Y_i|^2, <Y_i, s> and sum_j |Y_i - Y_j|^2 of the truthful, Y_i = G_i - g_0; the last within rounding."""
    truthful = ~knowledge.byzantine
    for kind in (knowledge.honest.dtype, np.float64):
        found, chosen = np.zeros((3, knowledge.m)), truthful.astype(kind)
        with np.errstate(over="ignore", invalid="ignore"):  # single precision overflows beyond 1e19; then float64
            for part in knowledge.parts:
                centred = (knowledge.honest[:, part] - knowledge.mean[part]).astype(kind, copy=False)
                found[0] += np.vecdot(centred, centred)
                found[1] += centred @ knowledge.sign[part]
                found[2] += centred @ (chosen @ centred)
        if np.isfinite(found).all():
            break
    square, along, with_all = found[:, truthful]
    return square, along, np.maximum(len(square) * square + square.sum() - 2 * with_all, 0)


def _growing_distances(knowledge: Knowledge, square: Doubles, sums: Doubles) -> Iterator[tuple[Doubles, ...]]:
    """|Y_i - Y_j|^2 among the truthful in rising order for each i, and the sums of the first so many: over few columns in
    which they differ most, then over more, at last over all. Then what the columns not seen add to a score, at least, at most.

    At most the sum over all honest ones, which is known. At least that without those whom a score leaves out, each no farther
    than |Y_i - Y_j|^2 <= 2 |Y_i|^2 + 2 |Y_j|^2.
    """
    truthful, kind = np.flatnonzero(~knowledge.byzantine), _precise(knowledge, square)
    order, ends = np.arange(knowledge.honest.shape[1]), np.empty(0, dtype=np.intp)
    if len(order) > FEW:
        some = (knowledge.honest[truthful[:SOME]] - knowledge.mean).astype(kind, copy=False)
        energy = np.square(some).sum(axis=0, dtype=np.float64)
        order = energy.argsort()[::-1]
        energy = energy[order].cumsum()
        ends = np.searchsorted(energy, np.array(ENERGIES) * energy[-1])
    gram = np.zeros((len(truthful),) * 2)
    for columns in np.split(order, ends):
        columns.sort()
        for a in range(0, len(columns), 2 * COLUMNS):
            part = columns[a : a + 2 * COLUMNS]
            rows = knowledge.honest.take(part, axis=1)[truthful]  # both at once, by np.ix_, takes three times as long
            centred = (rows - knowledge.mean[part]).astype(kind, copy=False)
            gram += centred @ centred.T
        distances = _pairs(gram)
        np.fill_diagonal(distances, np.inf)
        among, nearest_sums = _sorted_with_sums(distances)
        unseen, rest = np.maximum(square - gram.diagonal(), 0), np.maximum(sums - nearest_sums[:, -1], 0)
        left_out = min(knowledge.f, len(truthful) - 2) + 1
        farthest = 2 * (left_out * unseen + np.sort(unseen)[-left_out:].sum())
        yield among, nearest_sums, np.maximum(rest - farthest, 0), rest


def pair_distances(knowledge: Knowledge, centre: Floats, direction: Floats) -> tuple[Doubles, Doubles, Doubles]:
    """|Y_i|^2, |Y_i - Y_j|^2 and <Y_i, direction> of the truthful, Y_i = G_i - centre."""
    truthful = np.flatnonzero(~knowledge.byzantine)
    for kind in (knowledge.honest.dtype, np.float64):
        gram, along = np.zeros((len(truthful),) * 2), np.zeros(len(truthful))
        with np.errstate(over="ignore", invalid="ignore"):
            for part in knowledge.parts:
                centred = (knowledge.honest[truthful, part] - centre[part]).astype(kind, copy=False)
                gram += centred @ centred.T
                along += centred @ direction[part]
        if np.isfinite(gram).all():
            break
    return gram.diagonal().copy(), _pairs(gram), along


def _pairs(gram: Doubles) -> Doubles:
    """|Y_i - Y_j|^2 from <Y_i, Y_j>."""
    square = gram.diagonal()
    return np.maximum(square[:, None] + square - 2 * gram, 0)
