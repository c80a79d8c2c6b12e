"""Rules that find the direction in which liars stretch the updates, and take weight from the clients along it."""

from __future__ import annotations

import numpy as np

from fedhold.errors import FEWER, integer, positive, require
from fedhold.geometry import Geometry, normalised
from fedhold.kernels import Matrix, Vector, Weights
from fedhold.rules.declaration import declares
from fedhold.rules.m_estimators import huber
from fedhold.rules.selection import equal_weights

__all__ = ["divide_and_conquer", "spectral_filter"]

FAR = 10  # median distances. A client farther away than this is taken for a liar without looking at directions.


@declares(pairs=True)
def spectral_filter(geometry: Geometry, *, f: int) -> Weights:
    """Take weight from the clients that stretch the covariance, until as much as 2f clients' weight is gone.

    w_i <- w_i (1 - s_i / max_j s_j), s_i = <v, X_i - mu_w>^2, v the top eigenvector of the covariance under w, which is found
    from the m x m Gram matrix. While liars stretch the covariance, they lose more weight than the honest clients do, so theirs
    is gone by then.

    f  how many liars to withstand

    >>> import numpy as np
    >>> from fedhold import aggregate
    >>> result = aggregate(np.array([[1.0], [1.1], [1.2], [99.0]]), "spectral_filter", f=1)
    >>> result.value.round(1), result.clients.with_status("dropped")
    (array([1.1]), [0, 3])

    Needs m >= 2f + 1.  Diakonikolas et al. 2017, who stop at a known bound on the covariance instead.
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


@declares()
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
    keeps the m - filter_fraction * f clients with the lowest scores; the clients kept by all iterations are averaged.

    f                how many liars to withstand
    iterations       how many samples of columns to draw
    sample           how many columns each sample has; all of them where there are fewer
    filter_fraction  how many clients, in units of f, each iteration removes
    rng              draws the columns

    >>> import numpy as np
    >>> from fedhold import aggregate
    >>> result = aggregate(np.array([[1.0], [1.1], [1.2], [99.0]]), "divide_and_conquer", f=1)
    >>> result.value.round(1), result.clients.with_status("dropped")
    (array([1.1]), [3])

    Needs m >= 2f + 1, and iterations * filter_fraction * f < m.  Shejwalkar & Houmansadr 2021 (DnC). Ours first drops clients
    beyond 10 median distances from the Huber aggregate, and counts them as removed: where several liars are huge, one direction
    does not show them all.
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
        # The projections are proportional to the top left singular vector of the sample.
        scores = np.abs(np.linalg.eigh(geometry.sampled_gram(near, size, rng))[1][:, -1])
        good[near[np.argsort(scores, kind="stable")[m - removed :]]] = False
    return equal_weights(np.flatnonzero(good), m)
