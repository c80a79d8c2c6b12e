"""Rules that find the direction in which liars stretch the updates, and take weight from the clients along it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, islice
from math import comb

import numpy as np
from numpy.typing import NDArray

from fedhold.errors import FEWER, integer, positive, require
from fedhold.geometry import Geometry, normalised
from fedhold.kernels import Matrix, Vector, Weights
from fedhold.rules.declaration import declares
from fedhold.rules.m_estimators import huber
from fedhold.rules.selection import equal_weights

__all__ = ["covariance_agnostic_filter", "divide_and_conquer", "smea", "spectral_filter"]

SUBSETS = 100_000  # sets of clients that smea looks at
LESS = (
    1 - 1e-9
)  # An eigenvalue is smaller than another if it is smaller than this part of it; the rest may be rounding.
STEPS = 50  # of the power method, before the eigenvalues of all sets that are left are computed
AT_ONCE = 2**20  # numbers that its steps work on at a time
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
    weights = np.ones(m)
    for step in _filtered(geometry.squared_distances, f):
        weights = step.following
    return normalised(weights)


@declares(pairs=True)
def covariance_agnostic_filter(geometry: Geometry, *, f: int) -> Weights:
    """Take weight from the clients that stretch the covariance, and average with those weights that stretched it least (CAF).

    The weights are those of `spectral_filter`, w_i <- w_i (1 - s_i / max_j s_j), s_i = <v, X_i - mu_w>^2, while they sum to
    more than m - 2f. Of the means mu_w met on the way, the value is the one with the smallest top eigenvalue of the covariance
    under w.

    f  how many liars to withstand

    >>> import numpy as np
    >>> from fedhold import aggregate
    >>> aggregate(np.array([[1.0], [1.1], [1.2], [99.0]]), "covariance_agnostic_filter", f=1).value.round(1)
    array([1.1])

    Needs m >= 2f + 1.  Allouah, Guerraoui, Stephan 2025. Ours takes the largest s_j among the clients with weight left: one far
    away without any would make all further steps tiny.
    """
    f, m = integer(f, "f"), geometry.m
    require(m >= 2 * f + 1, "covariance_agnostic_filter", needs="m >= 2f + 1", m=m, f=f, remedy=FEWER)
    best, least = np.ones(m), np.inf
    for step in _filtered(geometry.squared_distances, f):
        if step.eigenvalue < least:
            best, least = step.weights, step.eigenvalue
    return normalised(best)


@dataclass(frozen=True, eq=False)
class _Step:
    """A step of the filter: the weights, the top eigenvalue of the covariance under them, and the weights that follow."""

    weights: Weights
    eigenvalue: float
    following: Weights


def _filtered(squares: Matrix, f: int) -> Iterator[_Step]:
    """The steps that take weight from those who stretch the covariance most, while more than m - 2f is left.

    squares  the squared distances of all pairs
    f        how many liars to withstand
    """
    m = len(squares)
    weights = np.ones(m)
    while weights.sum() > m - 2 * f + 1e-9:
        alive = weights > 0
        eigenvalue, scores = _top(squares[np.ix_(alive, alive)], normalised(weights[alive]))
        top = scores.max()
        if top == 0:
            return
        following = weights.copy()
        following[alive] *= np.maximum(1 - scores / top, 0)
        yield _Step(weights, eigenvalue, following)
        weights = following


def _top(squares: Matrix, weights: Weights) -> tuple[float, Vector]:
    """The top eigenvalue of sum_i w_i (X_i - mu)(X_i - mu)', and <v, X_i - mu>^2 up to a factor, v its eigenvector."""
    gram = _centred(squares, weights)
    roots = np.sqrt(weights)
    scale = float(gram.diagonal().max()) or 1.0
    values, vectors = np.linalg.eigh((gram / scale) * roots[:, None] * roots)
    return scale * float(values[-1]), (gram / scale @ (roots * vectors[:, -1])) ** 2


def _centred(squares: Matrix, weights: Weights) -> Matrix:
    """<X_i - mu, X_j - mu> from squared distances, by double centring; mu is the weighted mean."""
    to_mean = squares @ weights
    gram: Matrix = (to_mean[:, None] + to_mean - squares - weights @ to_mean) / 2
    return gram


@declares(pairs=True)
def smea(geometry: Geometry, *, f: int) -> Weights:
    """The mean of the m - f clients whose covariance has the smallest top eigenvalue.

    argmin over sets S of m - f clients of the largest eigenvalue of (1/|S|) sum_{i in S} (X_i - mean_S)(X_i - mean_S)'.

    f  how many liars to withstand

    >>> import numpy as np
    >>> from fedhold import aggregate
    >>> result = aggregate(np.array([[1.0], [1.1], [1.3], [99.0]]), "smea", f=1)
    >>> result.value.round(3), result.clients.with_status("dropped")
    (array([1.133]), [3])

    Needs m >= 2f + 1, and C(m, f) <= 100,000, since it looks at all sets.  Allouah et al. 2023 (smallest maximum eigenvalue
    averaging).
    """
    f, m = integer(f, "f"), geometry.m
    require(m >= 2 * f + 1, "smea", needs="m >= 2f + 1", m=m, f=f, remedy=FEWER)
    remedy = "Lower f, or use covariance_agnostic_filter, which needs no search."
    require(comb(m, f) <= SUBSETS, "smea", needs=f"C(m, f) <= {SUBSETS:,}, the sets it tries", m=m, f=f, remedy=remedy)
    search = _LeastEigenvalue(geometry.squared_distances, f)
    sets = combinations(range(m), f)
    while removed := list(islice(sets, AT_ONCE // m + 1)):
        search.among(np.array(removed, dtype=np.intp).reshape(len(removed), f))
    return equal_weights(search.best, m)


class _LeastEigenvalue:
    """The clients whose covariance has the smallest top eigenvalue, among the sets tried so far.

    Steps of the power method bound a set's eigenvalue from below. Sets whose bound is above the smallest eigenvalue that is
    known are given up.
    """

    def __init__(self, squares: Matrix, f: int) -> None:
        """The first set tried is that of the m - f clients nearest to the one in the middle of most."""
        self.squares, self.kept = squares, len(squares) - f
        middle = np.median(squares, axis=1).argmin()
        # Around a client in the middle, far clients do not cost the others their digits.
        self.gram = (squares[middle][:, None] + squares[middle] - squares) / 2
        self.best, self.eigenvalue = np.sort(np.argsort(squares[middle], kind="stable")[: self.kept]), np.inf
        self._try(self.best)
        top = np.linalg.eigh(self._products(self.best)[0])[1][:, -1]
        self.start = self.gram[:, self.best] @ (top - top.mean())

    def _products(self, clients: NDArray[np.intp]) -> tuple[Matrix, float]:
        """<X_i - mean, X_j - mean> within a set, divided by the largest of them, and that divisor."""
        gram = _centred(self.squares[np.ix_(clients, clients)], np.full(self.kept, 1 / self.kept))
        scale = float(gram.diagonal().max()) or 1.0
        return gram / scale, scale

    def _try(self, clients: NDArray[np.intp]) -> None:
        products, scale = self._products(clients)
        eigenvalue = scale * float(np.linalg.eigvalsh(products)[-1]) / self.kept
        if eigenvalue < LESS * self.eigenvalue:
            self.best, self.eigenvalue = clients, eigenvalue

    def among(self, removed: NDArray[np.intp]) -> None:
        """Try the sets without the clients in each row of `removed`."""
        inside = np.ones((len(removed), len(self.gram)))
        np.put_along_axis(inside, removed, 0.0, axis=1)
        vectors = np.broadcast_to(self.start, inside.shape)
        for _ in range(STEPS):
            if not len(inside):
                return
            vectors = self._centred(vectors, inside)
            images = vectors @ self.gram
            sizes = self.kept * np.maximum(np.vecdot(vectors, vectors), 1.0)
            bounds = np.vecdot(images, vectors) / sizes  # Rayleigh's quotient
            lowest = int(bounds.argmin())
            self._try(np.flatnonzero(inside[lowest]))
            open_ = bounds < LESS * self.eigenvalue
            open_[lowest] = False
            inside, vectors = inside[open_], images[open_]
        for clients in inside:
            self._try(np.flatnonzero(clients))

    def _centred(self, vectors: Matrix, inside: Matrix) -> Matrix:
        """The vectors over the clients inside each set, with mean 0 there, and 1 as the largest number."""
        vectors = vectors * inside
        vectors -= inside * (vectors.sum(axis=1, keepdims=True) / self.kept)
        return vectors / np.maximum(np.abs(vectors).max(axis=1, keepdims=True), np.finfo(np.float64).tiny)


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
