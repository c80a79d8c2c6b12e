"""Rules that find the directions in which liars stretch the updates, and take weight from the clients along them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, islice
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhold.errors import integer, positive, require
from fedhold.geometry import Geometry, HuberCentre, Solved, location, normalised, pulls_at, sampled_centre
from fedhold.kernels import Matrix, Vector, Weights, middle
from fedhold.rules.declaration import Bound, declares
from fedhold.rules.m_estimators import huber
from fedhold.rules.selection import equal_weights
from fedhold.thresholds import KAPPA

__all__ = ["covariance_agnostic_filter", "divide_and_conquer", "smea", "spectral_filter", "spectral_huber"]

SUBSETS = 100_000  # sets of clients that smea looks at
LESS = 1 - 1e-9  # An eigenvalue is smaller than another if it is below this part of it; the rest may be rounding.
STEPS = 50  # of the power method, before the eigenvalues of all sets that are left are computed
AT_ONCE = 2**20  # numbers that its steps work on at a time
FAR = 10  # median distances. A client farther away than this is taken for a liar without looking at directions.

# spectral_huber; docs/default.md has the experiments behind these numbers.
ANY = 1e60  # times the root of the median claim, or its inverse: the root of a claim beyond that is as good as this.
BEYOND = 4  # median distances. Clients farther away than this get no weight.
REACH = 0.5  # median distances. Residuals are clipped to this length before they choose the directions.
ALONG = 0.5  # the threshold of the location along a direction, in units of the median deviation from its median
DOUBT = 1.25  # standard errors. A location along a direction that is nearer to the centre than this is taken for it.
# Clients. With fewer, the correction costs 3 % without an attack, and gains nothing against one or two liars.
FEWEST = 7
TWO = 40  # clients, from which on two directions are used. Fewer clients have too much noise along the second one.
NEGLIGIBLE = 1e-9  # median distances. A shift this short is rounding.


@declares(
    pairs=True, bound=Bound(2, 1), source="Diakonikolas et al. 2017", also_known_as=("spectral_filtering", "filtering")
)
def spectral_filter(geometry: Geometry, *, f: int) -> Weights:
    """Take weight from the clients that stretch the covariance, until as much as 2f clients' weight is gone.

    w_i <- w_i (1 - s_i / max_j s_j), s_i = <v, X_i - mu_w>^2, v the top eigenvector of the covariance under w, which is found
    from the m x m Gram matrix. While liars stretch the covariance, they lose more weight than the honest clients do, so theirs
    is gone by then. The last step is shortened to end at 2f exactly: in full, it could take all the weight that is left.

    f  how many liars to withstand

    >>> from fedhold import aggregate
    >>> result = aggregate(np.array([[1.0], [1.1], [1.2], [99.0]]), "spectral_filter", f=1)
    >>> result.value.round(1), result.clients.with_status("dropped")
    (array([1.1]), [3])

    Needs m >= 2f + 1.  Diakonikolas et al. 2017, who stop at a known bound on the covariance instead.
    """
    *_, (_, weights) = _filtered(geometry.squared_distances, integer(f, "f"))
    return normalised(weights)


@declares(pairs=True, bound=Bound(2, 1), source="Allouah, Guerraoui, Stephan 2025", also_known_as=("caf",))
def covariance_agnostic_filter(geometry: Geometry, *, f: int) -> Weights:
    """Take weight from the clients that stretch the covariance, and average with those weights that stretched it least (CAF).

    The weights are those of `spectral_filter`, w_i <- w_i (1 - s_i / max_j s_j), s_i = <v, X_i - mu_w>^2, while they sum to
    more than m - 2f. Of the means mu_w met on the way, the value is the one with the smallest top eigenvalue of the covariance
    under w.

    f  how many liars to withstand

    >>> from fedhold import aggregate
    >>> aggregate(np.array([[1.0], [1.1], [1.2], [99.0]]), "covariance_agnostic_filter", f=1).value.round(1)
    array([1.1])

    Needs m >= 2f + 1.  Allouah, Guerraoui, Stephan 2025. Ours takes the largest s_j among the clients with weight left: one far
    away without any would make all further steps tiny.
    """
    steps = _filtered(geometry.squared_distances, integer(f, "f"))
    return normalised(min(steps, key=lambda step: step[0])[1])


def _filtered(squares: Matrix, f: int) -> Iterator[tuple[float, Weights]]:
    """Weights, each after the top eigenvalue of the covariance under them: from equal ones down to a sum of m - 2f.

    In each step, those who stretch the covariance most lose most. The last weights come with inf.
    """
    m = len(squares)
    weights = np.ones(m)
    while (excess := weights.sum() - (m - 2 * f)) > 1e-9:
        alive = weights > 0
        eigenvalue, scores = _top(squares[np.ix_(alive, alive)], normalised(weights[alive]))
        yield eigenvalue, weights
        top = scores.max()
        if top == 0:  # All that are left are alike.
            break
        taken = weights[alive] * (scores / top)
        weights = weights.copy()
        weights[alive] = np.maximum(weights[alive] - min(excess / taken.sum(), 1.0) * taken, 0)
    yield np.inf, weights


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


def _check_sets(m: int, *, f: int) -> None:
    remedy = "Lower f, or use covariance_agnostic_filter, which needs no search."
    require(comb(m, f) <= SUBSETS, "smea", needs=f"C(m, f) <= {SUBSETS:,}, the sets it tries", m=m, f=f, remedy=remedy)


@declares(
    pairs=True,
    bound=Bound(2, 1),
    check=_check_sets,
    source="Allouah et al. 2023",
    needs="C(m, f) <= 100,000",
    also_known_as=("smallest_maximum_eigenvalue_averaging",),
)
def smea(geometry: Geometry, *, f: int) -> Weights:
    """The mean of the m - f clients whose covariance has the smallest top eigenvalue.

    argmin over sets S of m - f clients of the largest eigenvalue of (1/|S|) sum_{i in S} (X_i - mean_S)(X_i - mean_S)'.

    f  how many liars to withstand

    >>> from fedhold import aggregate
    >>> result = aggregate(np.array([[1.0], [1.1], [1.3], [99.0]]), "smea", f=1)
    >>> result.value.round(3), result.clients.with_status("dropped")
    (array([1.133]), [3])

    Needs m >= 2f + 1, and C(m, f) <= 100,000, since it looks at all sets.  Allouah et al. 2023 (smallest maximum eigenvalue
    averaging).
    """
    f, m = integer(f, "f"), geometry.m
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
        central = np.median(squares, axis=1).argmin()
        # Around a client in the middle, far clients do not cost the others their digits.
        self.gram = (squares[central][:, None] + squares[central] - squares) / 2
        self.best, self.eigenvalue = np.sort(np.argsort(squares[central], kind="stable")[: self.kept]), np.inf
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


@declares(
    spreads=True,
    begins=lambda updates, samples: sampled_centre(updates, np.ones_like(samples)),
    certifies=True,
    accuses=True,
    source="ours, after Zhao, Yu, Wan 2024",
    needs="liars are less than half of the clients, whatever samples they claim",
)
def spectral_huber(
    geometry: Geometry,
    *,
    tol: float = 1e-6,
    max_iterations: int = 200,
    start: Vector | None = None,
    scale: float | None = None,
) -> Solved:
    """The Huber aggregate, corrected along the directions in which the clients spread most; the default rule.

    1. The Huber centre with the automatic threshold, where every client counts alike; s = median d_i.
    2. Where clients have unequal n_i, a claim is believed as far as it brings the client near the centre: c is one step of
       Huber from there with b_i samples, sqrt(b_i) = min(sqrt(n_i), median_j(sqrt(n_j) d_j) / d_i). Clients with d_i > 4 s get
       no weight. The other weights are w_i, and c is their centre.
    3. The top two principal directions of their residuals, clipped so that nobody far away chooses them:
       (X_i - c) min(1, s / (2 d_i)). For fewer than 40 clients, the top one alone; for fewer than seven, none, and the value
       is c.
    4. Along each of them, the Huber location x_j of the clients with a threshold of half a median deviation. It becomes
       x_j max(0, 1 - (e_j / x_j)^2), where e_j is 5/4 of a standard error, l_j / m for the singular value l_j: a place that
       chance explains becomes c, and one that is far beyond chance is kept. Together these are the shift x.
    5. Clients that lie behind c + x, by t_i along x, get w_i min(1, h / t_i), with the h for which the mean along x is c + x.
    6. The value stays within the median distance s of the Huber centre.

    Liars who move a centre must lie on one side of it. This adds variance, so their direction is among the top ones; and along
    one direction, a location is off by the spread along it and not by that in all directions, as Huber's is. It holds while
    liars are less than half of the clients, whatever they claim: samples only refine what equal votes have found. A client with
    many samples is near the centre, so who claims many and is far away is not believed. It need not know how many lie.

    tol             of the Huber centre, as in `huber`
    max_iterations  of the Huber centre, as in `huber`
    start           where to begin: a start near the answer saves passes and changes nothing else
    scale           `result.scale` of the round before, as in `huber`: s is then the remembered one but in step 6

    >>> from fedhold import aggregate
    >>> aggregate(np.array([[1.0], [1.1], [1.2], [1.1], [1.0], [1.2], [99.0]]), "spectral_huber").value.round(1)
    array([1.1])

    Its certificate is that of the Huber centre, widened by the distance to it. The rule is ours, after Zhao, Yu, Wan 2024;
    docs/default.md measures it.
    """
    alike = (geometry.samples == geometry.samples[0]).all()
    points = geometry if alike else geometry.counted(np.ones(geometry.m))
    centre = huber(points, tol=tol, max_iterations=max_iterations, start=start, scale=scale)
    assert centre.thresholds is not None
    assert centre.scale is not None
    distances = points.distances(centre.weights) if centre.measured is None else centre.measured.distances
    about = HuberCentre(points, centre.weights, distances, centre.thresholds, centre.kappa)
    typical = middle(distances)
    if typical == 0:
        return replace(centre, huber=about)
    weights = centre.weights if alike else _believed(geometry.samples, distances)
    if points.m >= FEWEST:
        weights = _corrected(points, weights, distances, max(centre.scale, typical))
    if weights is centre.weights:
        return replace(centre, huber=about)
    # The triangle inequality bounds the distance of the two centres; mostly that is enough, and saves a pass.
    if float(np.abs(weights - centre.weights) @ distances) > typical:
        part = min(1.0, typical / points.separation(weights, centre.weights))
        weights = (1 - part) * centre.weights + part * weights
    return replace(centre, weights=weights, measured=None, huber=about)


def _believed(samples: Weights, distances: Vector) -> Weights:
    """The weights of one step of Huber in which claims count as far as clients are near enough for them.

    samples    the n_i that clients claim
    distances  the d_i to a centre
    """
    roots = np.sqrt(samples)
    claimed = np.clip(roots / middle(roots), 1 / ANY, ANY)
    scale = middle(claimed * distances)
    believed = np.divide(scale, distances, out=claimed.copy(), where=claimed * distances > scale)
    return normalised(pulls_at(np.square(believed), KAPPA * scale / believed, distances))


def _corrected(points: Geometry, weights: Weights, distances: Vector, typical: float) -> Weights:
    """These weights, without clients that are far away, and corrected along the directions in which the others spread most.

    distances  the d_i to the Huber centre
    typical    their median
    """
    away = distances / typical
    near = away <= BEYOND
    if not near.all():
        weights = normalised(np.where(near, weights, 0.0))
    scales = np.divide(REACH, away, out=np.ones(points.m), where=away > REACH)
    found = points.principal(weights, np.where(near, scales, 0.0), 2 if points.m >= TWO else 1, distances)
    along = found.along[near]
    shift = _shift(along, found.values)
    length = float(np.linalg.norm(shift))
    if length <= NEGLIGIBLE * typical:
        return weights
    moved = np.zeros(points.m)
    moved[near] = _moved(weights[near], length - along @ (shift / length), length)
    return moved


def _shift(along: Matrix, values: Vector) -> Vector:
    """The clients' location along each direction, as far as it is beyond chance."""
    places = np.array([_location(column) for column in along.T])
    errors = DOUBT * values / len(along)
    # Of a place, errors^2 / place is taken away: ever less, the farther it is. A constant would leave liars a constant gain.
    taken = np.divide(errors**2, places, out=places.copy(), where=np.abs(places) > errors)
    return np.asarray(places - taken)


def _location(points: Vector) -> float:
    """argmin_x sum_i phi(|x - p_i|), T = median_j |p_j - median_k p_k| / 2, on a line.

    Of several minimisers it is the mean of the first and the last, as the median is: a direction has no sign, so a line read
    backwards must give the same place.
    """
    about = middle(points)
    away, alike = points - about, np.ones(len(points))
    return about + location(away, alike, ALONG * middle(np.abs(away)) * alike)


def _moved(weights: Weights, behind: Vector, length: float) -> Weights:
    """Weights whose mean of `behind` is 0: w_i min(1, h / behind_i) for the clients behind the target, normalised.

    sum_i w_i min(behind_i, h) over the clients behind rises with h. The h at which it equals what the clients before the
    target pull forward is found among sorted numbers, because the farthest of them may be 1e30 behind.
    """
    order = np.argsort(behind)
    order = order[behind[order] > 0]
    late, share = behind[order], weights[order]
    forward = -float(weights @ np.minimum(behind, 0))
    nearer = np.concatenate([[0.0], np.cumsum(share * late)[:-1]])  # what those less far behind pull back
    farther = np.cumsum(share[::-1])[::-1]  # the weight of this client and of those farther behind
    first = min(int(np.searchsorted(nearer + farther * late, forward)), len(late) - 1)
    limit = max((forward - nearer[first]) / farther[first], NEGLIGIBLE * length)
    return normalised(weights * np.divide(limit, behind, out=np.ones_like(behind), where=behind > limit))


def _removed(m: int, f: int, filter_fraction: float) -> int:
    """How many clients each iteration of divide_and_conquer removes."""
    return int(min(positive(filter_fraction, "filter_fraction") * f, m))


def _check_removed(m: int, *, f: int, iterations: int = 1, filter_fraction: float = 1.0, **_: Any) -> None:
    rounds, removed = integer(iterations, "iterations", at_least=1), _removed(m, f, filter_fraction)
    met = {"m": m, "removed_per_iteration": removed, "iterations": rounds}
    needs, remedy = "iterations * filter_fraction * f < m", "Lower one of them."
    require(rounds * removed < m, "divide_and_conquer", needs=needs, remedy=remedy, **met)


@declares(bound=Bound(2, 1), check=_check_removed, source="Shejwalkar & Houmansadr 2021", also_known_as=("dnc",))
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
    rng              draws the columns; from the operating system unless the caller of aggregate() gives one: liars who know
                     the columns can hide in the others

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
    # Where clients were rejected, fewer are left than the call was judged by; somebody must be kept by all iterations.
    removed = min(_removed(m, f, filter_fraction), (m - 1) // rounds)
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
