"""Rules: from the geometry of the clients to their weights (or, for column rules, to what is done with each column)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from holdfast import columns
from holdfast.arrays import Vector
from holdfast.checks import integer, positive, require
from holdfast.columns import Columnwise
from holdfast.geometry import Geometry, Matrix, Weights, normalised
from holdfast.newton import pulls_at
from holdfast.solver import Solved, solve
from holdfast.thresholds import Threshold, threshold_function

__all__ = [
    "bulyan",
    "centered_clipping",
    "divide_and_conquer",
    "geometric_median",
    "huber",
    "krum",
    "krum_scores",
    "mean",
    "mean_around_median",
    "median",
    "median_of_means",
    "multi_krum",
    "spectral_filter",
    "trimmed_mean",
]

LIMIT = 1e-6  # thresholds of so many typical distances stand for 0: the answer is then at most that far off
FEWER = "Lower f, or gather more clients."


def mean(geometry: Geometry) -> Weights:
    """The mean weighted by samples; not robust, the yardstick of everything else.

    argmin_s sum_i n_i |s - X_i|^2.
    """
    return normalised(geometry.samples)


def huber(
    geometry: Geometry,
    *,
    threshold: str | Threshold | ArrayLike = "automatic",
    tol: float = 1e-6,
    max_iterations: int = 200,
    start: Vector | None = None,
) -> Solved:
    """The minimiser of the multi-dimensional Huber loss.

    argmin_s sum_i n_i phi_i(|s - X_i|), phi_i(u) = u^2/2 up to T_i and T_i u - T_i^2/2 beyond: clients nearer than T_i count
    as in the mean, those farther pull with the force n_i T_i and no more. Holds while liars have less than half of the
    samples; never asks how many they are. Stops when |sum_i n_i psi_i| <= tol * sum_i n_i T_i. A `start` near the answer
    saves passes and changes nothing else.
    Zhao, Yu, Wan 2024, eq. (5); its printed iteration forgets the n_i, ours does not.
    """
    threshold_at = threshold_function(threshold)
    return _huber(geometry, threshold_at, tol, max_iterations, start)


def geometric_median(
    geometry: Geometry, *, tol: float = 1e-6, max_iterations: int = 200, start: Vector | None = None
) -> Solved:
    """The point with the smallest sum of distances, weighted by samples.

    argmin_s sum_i n_i |s - X_i|: Huber with thresholds near 0.  Weiszfeld 1937; RFA: Pillutla et al. 2022.
    """

    def nearly_zero(distances: Vector, samples: Weights) -> Vector:
        return np.full(len(samples), LIMIT * weighted_median(distances, samples))

    return replace(_huber(geometry, nearly_zero, tol, max_iterations, start), thresholds=None)


def _huber(geometry: Geometry, threshold: Threshold, tol: float, max_iterations: int, start: Vector | None) -> Solved:
    tol, max_iterations = positive(tol, "tol"), integer(max_iterations, "max_iterations", at_least=1)

    def thresholds_at(distances: Vector) -> Vector:
        thresholds = np.asarray(threshold(distances, geometry.samples), dtype=np.float64)
        if thresholds.shape != distances.shape or not (thresholds >= 0).all():
            raise ValueError(
                f"the threshold function must give {geometry.m} numbers of at least 0, one per admitted client; "
                f"it gave {thresholds!r}."
            )
        if thresholds.any() or not distances.any():
            return thresholds
        return np.full(geometry.m, LIMIT * weighted_median(distances, geometry.samples))

    weights = geometry.start()
    if start is not None:
        distances = geometry.distances_to(start)
        weights = normalised(pulls_at(geometry.samples, thresholds_at(distances), distances))
    return solve(geometry, thresholds_at, weights, tol=tol, max_iterations=max_iterations)


def median_of_means(
    geometry: Geometry, *, rng: np.random.Generator, f: int | None = None, batches: int | None = None
) -> Solved:
    """The geometric median of the means of random batches of clients (the paper's GMM).

    argmin_s sum_j |s - mean of batch j|, with 2f + 1 batches unless `batches` is given. Needs m >= 2f + 1.  Chen et al. 2017.
    """
    if (f is None) == (batches is None):
        raise TypeError("median_of_means takes f (then there are 2f + 1 batches) or batches: pass exactly one of them.")
    count = integer(batches, "batches", at_least=1) if f is None else 2 * integer(f, "f") + 1
    require(count <= geometry.m, "median_of_means", needs="batches <= m", m=geometry.m, batches=count, remedy=FEWER)
    mixture = np.zeros((count, geometry.m))
    for row, batch in zip(mixture, np.array_split(rng.permutation(geometry.m), count), strict=True):
        row[batch] = 1 / len(batch)
    means = Geometry(geometry.mixed(mixture, np.ones(count)).updates.materialised(), np.ones(count))
    solved = geometric_median(means)
    return Solved(solved.weights @ mixture, None, solved.converged, solved.iterations, solved.stationarity)


def krum_scores(squared_distances: Matrix, f: int) -> Vector:
    """The sum of the m - f - 2 smallest squared distances to others, for every client."""
    others = np.sort(squared_distances, axis=1)[:, 1:]  # a client's distance 0 to itself sorts first
    neighbours = max(len(squared_distances) - f - 2, 1)
    with np.errstate(over="ignore"):  # a client as far as that scores inf, and loses
        scores: Vector = others[:, :neighbours].sum(axis=1)
    return scores


def krum(geometry: Geometry, *, f: int) -> Weights:
    """Keep the client closest to its neighbours.

    score_i = sum of |x_i - x_j|^2 over the m - f - 2 nearest j != i; the smallest score wins, ties to the lower index.
    Needs m >= 2f + 3.  Blanchard et al. 2017.
    """
    return _lowest_scores(geometry, "krum", f, 1)


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


def bulyan(geometry: Geometry, *, f: int) -> Columnwise:
    """Krum m - 2f times, each time among those not yet chosen; then, column by column, the mean around the median.

    Of the m - 2f chosen, each column averages the m - 4f values nearest to their median. Needs m >= 4f + 3.
    El Mhamdi et al. 2018.
    """
    f, m = integer(f, "f"), geometry.m
    require(m >= 4 * f + 3, "bulyan", needs="m >= 4f + 3", m=m, f=f, remedy=FEWER)
    rest, chosen = np.arange(m), []
    for _ in range(m - 2 * f):
        winner = int(np.argmin(krum_scores(geometry.squared_distances[np.ix_(rest, rest)], f)))
        chosen.append(rest[winner])
        rest = np.delete(rest, winner)
    return Columnwise(partial(columns.mean_around_median, keep=m - 4 * f), np.sort(np.array(chosen)))


def median(geometry: Geometry) -> Columnwise:  # noqa: ARG001
    """The median of every column; for even m the mean of the two middle values.

    Yin et al. 2018.
    """
    return Columnwise(columns.median)


def trimmed_mean(geometry: Geometry, *, f: int) -> Columnwise:
    """The mean of every column without its f smallest and f largest values.

    Needs m >= 2f + 1.  Yin et al. 2018.
    """
    f, m = integer(f, "f"), geometry.m
    require(m >= 2 * f + 1, "trimmed_mean", needs="m >= 2f + 1", m=m, f=f, remedy=FEWER)
    return Columnwise(partial(columns.trimmed_mean, f=f))


def mean_around_median(geometry: Geometry, *, f: int) -> Columnwise:
    """The mean of the m - f values of every column that are nearest to its median.

    Needs m >= 2f + 1.  Xie et al. 2018 (Meamed).
    """
    f, m = integer(f, "f"), geometry.m
    require(m >= 2 * f + 1, "mean_around_median", needs="m >= 2f + 1", m=m, f=f, remedy=FEWER)
    return Columnwise(partial(columns.mean_around_median, keep=m - f))


def centered_clipping(
    geometry: Geometry, *, radius: float | None = None, iterations: int = 5, start: Vector | None = None
) -> Solved:
    """Steps from `start` towards the clients, none of which moves it by more than radius/m.

    v <- v + (1/m) sum_i (X_i - v) min(1, radius/|X_i - v|). Without `start`, from the Huber aggregate; its source starts
    from the last round's. Without `radius`, the median distance to the start.
    Karimireddy et al. 2021.
    """
    steps, m = integer(iterations, "iterations", at_least=1), geometry.m
    reach = None if radius is None else positive(radius, "radius", infinite=True)
    weights = huber(geometry, tol=1e-3).weights if start is None else np.zeros(m)
    for _ in range(steps):
        distances = geometry.measure(weights, origin=start).distances
        reach = float(np.median(distances)) if reach is None else reach
        pulls = pulls_at(np.ones(m), np.full(m, reach), distances) / m
        weights = (1 - pulls.sum()) * weights + pulls
    return Solved(weights, np.full(m, reach), True, steps)


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
    finite = np.isfinite(squares)
    if not finite.all():  # farther than float64 can say: those farthest from everyone go first
        return np.where(finite.sum(axis=1) == finite.sum(axis=1).min(), 1.0, 0.0)
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
    keeps the m - filter_fraction * f lowest; the clients kept by all are averaged. Needs iterations * filter_fraction * f < m.
    Shejwalkar & Houmansadr 2021 (DnC).
    """
    f, m = integer(f, "f"), geometry.m
    rounds, size = integer(iterations, "iterations", at_least=1), integer(sample, "sample", at_least=1)
    removed = int(positive(filter_fraction, "filter_fraction") * f)
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
    good = np.ones(m, dtype=bool)
    for _ in range(rounds):
        chosen = np.sort(rng.choice(geometry.updates.d, min(size, geometry.updates.d), replace=False))
        good[np.argsort(_projections(geometry, chosen), kind="stable")[m - removed :]] = False
    return _equal(np.flatnonzero(good), m)


def _projections(geometry: Geometry, chosen: NDArray[np.intp]) -> Vector:
    """|<v, X_i - mu>| over the chosen columns, v the top right singular vector there."""
    block = geometry.updates.gather(chosen)
    largest = np.abs(block).max()
    block = block / (largest or 1.0)
    centred = block - block.mean(axis=0)
    vector = np.linalg.eigh(centred @ centred.T)[1][
        :, -1
    ]  # top left singular vector; the scores are proportional to it
    scores: Vector = np.abs(vector)
    return scores


def weighted_median(values: Vector, weights: Weights) -> float:
    """The smallest value at which at least half of the weight lies at or below."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(normalised(weights)[order])
    return float(values[order][np.searchsorted(reached, 0.5 - 1e-12)])


def _equal(chosen: NDArray[np.intp], m: int) -> Weights:
    weights = np.zeros(m)
    weights[chosen] = 1 / len(chosen)
    return weights
