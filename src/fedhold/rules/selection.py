"""Rules that choose among the clients, or weigh them down, by how they lie to each other: Krum and kin, spectral filters."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedhold.errors import FEWER, integer, positive, require
from fedhold.geometry import Geometry, Matrix, Weights, normalised
from fedhold.kernels import Vector
from fedhold.rules.declaration import declares
from fedhold.rules.m_estimators import huber
from fedhold.updates import Columnwise, columns

__all__ = ["bulyan", "divide_and_conquer", "krum", "krum_scores", "multi_krum", "spectral_filter"]

SORTED = 64  # rows at a time: what sorting takes beside them is then small
WORN = 1e-6  # of its sum: below that, what subtraction left of a score is computed anew
FAR = 10  # median distances: beyond them no projection on one direction is needed to tell a liar


def krum_scores(squared_distances: Matrix, f: int) -> Vector:
    """The sum of the m - f - 2 smallest squared distances to others, for every client."""
    others = np.sort(squared_distances, axis=1)[:, 1:]  # a client's distance 0 to itself sorts first
    neighbours = max(len(squared_distances) - f - 2, 1)
    scores: Vector = others[:, :neighbours].sum(axis=1)
    return scores


@declares(pairs=True)
def krum(geometry: Geometry, *, f: int) -> Weights:
    """Keep the client closest to its neighbours.

    score_i = sum of |x_i - x_j|^2 over the m - f - 2 nearest j != i; the smallest score wins, ties to the lower index.
    Needs m >= 2f + 3.  Blanchard et al. 2017.
    """
    return _lowest_scores(geometry, "krum", f, 1)


@declares(pairs=True)
def multi_krum(geometry: Geometry, *, f: int, keep: int | None = None) -> Weights:
    """The plain mean of the `keep` clients (m - f unless given) with the smallest Krum scores.

    Needs m >= 2f + 3 and keep <= m - f.  Blanchard et al. 2017.
    """
    return _lowest_scores(geometry, "multi_krum", f, keep)


def _lowest_scores(geometry: Geometry, rule: str, f: int, keep: int | None) -> Weights:
    f, m = integer(f, "f"), geometry.m
    require(m >= 2 * f + 3, rule, needs="m >= 2f + 3", m=m, f=f, remedy=FEWER)
    kept = m - f if keep is None else integer(keep, "keep", at_least=1)
    require(kept <= m - f, rule, needs="keep <= m - f", m=m, f=f, keep=kept, remedy="Lower keep.")
    return _equal(np.argsort(krum_scores(geometry.squared_distances, f), kind="stable")[:kept], m)


@declares(pairs=True)
def bulyan(geometry: Geometry, *, f: int) -> Columnwise:
    """Krum m - 2f times, each time among those not yet chosen; then, column by column, the mean around the median.

    Of the m - 2f chosen, each column averages the m - 4f values nearest to their median. Needs m >= 4f + 3.
    El Mhamdi et al. 2018.
    """
    f, m = integer(f, "f"), geometry.m
    require(m >= 4 * f + 3, "bulyan", needs="m >= 4f + 3", m=m, f=f, remedy=FEWER)
    chosen = _one_by_one(geometry.squared_distances, f, m - 2 * f)
    return Columnwise(partial(columns.mean_around_median, keep=m - 4 * f), np.sort(chosen))


def _one_by_one(squares: Matrix, f: int, count: int) -> NDArray[np.intp]:
    """Who wins Krum `count` times, each time among those not yet chosen.

    Whoever leaves takes one neighbour from each of the others: itself, or else their farthest. So one sort serves all.
    """
    m = len(squares)
    line, ordered = np.arange(m), np.empty((m, m))
    order, place = (np.empty((m, m), dtype=np.min_scalar_type(m)) for _ in range(2))
    for rows in np.array_split(line, -(-m // SORTED)):
        others = squares[rows]
        others[np.arange(len(rows)), rows] = np.inf
        sorted_ = np.argsort(others, axis=1)  # ties count the same in any order
        np.put_along_axis(place[rows[0] : rows[-1] + 1], sorted_, line[None].astype(place.dtype), axis=1)
        order[rows], ordered[rows] = sorted_, np.take_along_axis(others, sorted_, axis=1)
    left, end = np.ones(m, dtype=bool), np.full(m, m - f - 2)  # the neighbours left are before `end`
    scores = ordered[:, : m - f - 2].sum(axis=1)
    exact, chosen = scores.copy(), list[int]()
    while len(chosen) < count and (neighbours := m - len(chosen) - f - 2) > 1:
        winner = int(np.argmin(np.where(left, scores, np.inf)))
        chosen.append(winner)
        left[winner] = False
        near, farthest = place[:, winner] < end, end - 1
        while (passed := left & ~near & ~left[order[line, farthest]]).any():
            farthest[passed] -= 1
        scores = scores - np.where(near, squares[:, winner], ordered[line, farthest])
        end = np.where(near, end, farthest)
        for i in np.flatnonzero(left & (scores < WORN * exact)):  # what is left is mostly rounding
            scores[i] = exact[i] = ordered[i][left[order[i]]][: neighbours - 1].sum()
    rest = np.flatnonzero(left)
    while len(chosen) < count:  # one neighbour each: two that are each other's tie exactly, which sums must not blur
        winner = int(np.argmin(krum_scores(squares[np.ix_(rest, rest)], f)))
        chosen.append(int(rest[winner]))
        rest = np.delete(rest, winner)
    return np.array(chosen)


@declares(pairs=True)
def spectral_filter(geometry: Geometry, *, f: int) -> Weights:
    """Take weight from the clients that stretch the covariance, until 2f clients' worth of it is gone.

    w_i <- w_i (1 - s_i / max_j s_j), s_i = <v, X_i - mu_w>^2, v the top eigenvector of the covariance under w: found from
    the m x m Gram matrix. While liars stretch it, they lose more weight than the honest do, so all of theirs is gone by
    then. Needs m >= 2f + 1.  Diakonikolas et al. 2017, who stop at a known bound on the covariance instead.
    """
    f, m = integer(f, "f"), geometry.m
    require(m >= 2 * f + 1, "spectral_filter", needs="m >= 2f + 1", m=m, f=f, remedy=FEWER)
    squares = geometry.squared_distances
    weights = np.ones(m)
    while weights.sum() > m - 2 * f + 1e-9:
        alive = weights > 0
        scores = _top_scores(squares[np.ix_(alive, alive)], normalised(weights[alive]))
        top = scores.max()
        if top == 0:
            break
        weights[alive] *= np.maximum(1 - scores / top, 0)
    return normalised(weights)


def _top_scores(squares: Matrix, weights: Weights) -> Vector:
    """<v, X_i - mu>^2 up to a factor, v the top eigenvector of sum_i w_i (X_i - mu)(X_i - mu)', from squared distances."""
    to_mean = squares @ weights
    gram = (to_mean[:, None] + to_mean - squares - weights @ to_mean) / 2  # double centring: <X_i - mu, X_j - mu>
    roots = np.sqrt(weights)
    scale = gram.diagonal().max()
    vector = np.linalg.eigh((gram / (scale or 1.0)) * roots[:, None] * roots)[1][:, -1]
    scores: Vector = (gram / (scale or 1.0) @ (roots * vector)) ** 2
    return scores


def divide_and_conquer(
    geometry: Geometry,
    *,
    f: int,
    rng: np.random.Generator,
    iterations: int = 1,
    sample: int = 10_000,
    filter_fraction: float = 1.0,
) -> Weights:
    """The mean of the clients that stand out in none of several random samples of columns.

    Each iteration centres a sample of columns, scores clients by their squared projection on its top singular vector, and
    keeps the m - filter_fraction * f lowest; the clients kept by all are averaged. Needs m >= 2f + 1, and
    iterations * filter_fraction * f < m.
    Shejwalkar & Houmansadr 2021 (DnC). Ours first drops, out of the same budget, clients beyond 10 median distances from the
    Huber aggregate: of several huge liars, one direction does not see them all.
    """
    f, m = integer(f, "f"), geometry.m
    rounds, size = integer(iterations, "iterations", at_least=1), integer(sample, "sample", at_least=1)
    removed = int(min(positive(filter_fraction, "filter_fraction") * f, m))
    require(m >= 2 * f + 1, "divide_and_conquer", needs="m >= 2f + 1", m=m, f=f, remedy=FEWER)
    require(
        rounds * removed < m,
        "divide_and_conquer",
        needs="iterations * filter_fraction * f < m",
        m=m,
        removed_per_iteration=removed,
        iterations=rounds,
        remedy="Lower one of them.",
    )
    distances = geometry.distances(huber(geometry, tol=1e-2).weights)
    far = np.argsort(distances, kind="stable")[m - removed :]
    far = far[distances[far] > FAR * np.median(distances)]
    good = np.ones(m, dtype=bool)
    good[far] = False
    near = np.flatnonzero(good)
    for _ in range(rounds):
        chosen = np.sort(rng.choice(geometry.updates.d, min(size, geometry.updates.d), replace=False))
        scores = _projections(geometry.updates.take(near).gather(chosen))
        good[near[np.argsort(scores, kind="stable")[m - removed :]]] = False
    return _equal(np.flatnonzero(good), m)


def _projections(block: Matrix) -> Vector:
    """|<v, X_i - mu>| of every row, v the top right singular vector."""
    largest = np.abs(block).max()
    block = block / (largest or 1.0)
    centred = block - block.mean(axis=0)
    vector = np.linalg.eigh(centred @ centred.T)[1][
        :, -1
    ]  # top left singular vector; the scores are proportional to it
    scores: Vector = np.abs(vector)
    return scores


def _equal(chosen: NDArray[np.intp], m: int) -> Weights:
    weights = np.zeros(m)
    weights[chosen] = 1 / len(chosen)
    return weights
