"""Rules: from the geometry of the clients to their weights (or, for column rules, to what is done with each column)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from fedhold.errors import FEWER, integer, positive, require
from fedhold.geometry import Geometry, Solved, Weights, normalised, pulls_at, solve
from fedhold.kernels import Vector, numbers
from fedhold.rules.declaration import declares
from fedhold.thresholds import Threshold, threshold_function
from fedhold.updates import Columnwise, columns

__all__ = [
    "centered_clipping",
    "geometric_median",
    "huber",
    "mean",
    "mean_around_median",
    "median",
    "median_of_means",
    "trimmed_mean",
]

VANISHING = 1e-250  # below so many typical distances, T_i/d_i may be 0 for everyone
LIMIT = 1e-6  # thresholds of so many typical distances stand for 0: the answer is then at most that far off


@declares(distances=False)
def mean(geometry: Geometry) -> Weights:
    """The mean weighted by samples; not robust, the yardstick of everything else.

    argmin_s sum_i n_i |s - X_i|^2.  FedAvg: McMahan et al. 2017.
    """
    return normalised(geometry.samples)


@declares(certifies=True)
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
        return np.full(len(samples), LIMIT * _weighted_median(distances, samples))

    return replace(_huber(geometry, nearly_zero, tol, max_iterations, start), thresholds=None)


def _huber(geometry: Geometry, threshold: Threshold, tol: float, max_iterations: int, start: Vector | None) -> Solved:
    tol, max_iterations = positive(tol, "tol"), integer(max_iterations, "max_iterations", at_least=1)

    def thresholds_at(distances: Vector) -> Vector:
        thresholds = numbers(threshold(geometry.real(distances), geometry.samples))
        if thresholds.shape != distances.shape or not (thresholds >= 0).all():
            raise ValueError(
                f"the threshold function must give {geometry.m} numbers of at least 0, one per admitted client; "
                f"it gave {thresholds!r}."
            )
        thresholds = geometry.read(thresholds)
        if thresholds.max() > VANISHING * np.median(distances) or not distances.any():
            return thresholds
        return np.full(geometry.m, LIMIT * _weighted_median(distances, geometry.samples))

    weights = geometry.start()
    if start is not None:
        distances = geometry.distances_to(start)
        weights = normalised(pulls_at(geometry.shares, thresholds_at(distances), distances))
    return solve(geometry, thresholds_at, weights, tol=tol, max_iterations=max_iterations)


def median_of_means(
    geometry: Geometry, *, rng: np.random.Generator, f: int | None = None, batches: int | None = None
) -> Solved:
    """The geometric median of the means of random batches of clients (the paper's GMM).

    argmin_s sum_j |s - mean of batch j|, with 2f + 1 batches unless `batches` is given. Needs m >= 2f + 1.  Chen et al. 2017.
    """
    if (f is None) == (batches is None):
        raise TypeError("median_of_means takes f (then there are 2f + 1 batches) or batches. Pass exactly one of them.")
    m, met = geometry.m, {"batches": batches} if f is None else {"f": f}
    count = integer(batches, "batches", at_least=1) if f is None else 2 * integer(f, "f") + 1
    needs = "batches <= m" if f is None else "m >= 2f + 1"
    require(
        count <= m,
        "median_of_means",
        needs=needs,
        m=m,
        **met,
        remedy=FEWER if f is not None else "Lower batches, or gather more clients.",
    )
    mixture = np.zeros((count, geometry.m))
    for row, batch in zip(mixture, np.array_split(rng.permutation(geometry.m), count), strict=True):
        row[batch] = 1 / len(batch)
    means = geometry.mixed(mixture, np.ones(count))
    if means.gram is None:
        rows = means.updates.materialised()
        norms, ordinary, _ = rows.magnitudes()
        means = Geometry(rows, means.samples, norms if ordinary.all() else None)
    solved = geometric_median(means)
    return Solved(solved.weights @ mixture, None, solved.converged, solved.iterations, solved.stationarity)


@declares(view="columns")
def median(geometry: Geometry) -> Columnwise:  # noqa: ARG001
    """The median of every column; for even m the mean of the two middle values.

    Yin et al. 2018.
    """
    return Columnwise(columns.median)


@declares(view="columns")
def trimmed_mean(geometry: Geometry, *, f: int) -> Columnwise:
    """The mean of every column without its f smallest and f largest values.

    Needs m >= 2f + 1.  Yin et al. 2018.
    """
    f, m = integer(f, "f"), geometry.m
    require(m >= 2 * f + 1, "trimmed_mean", needs="m >= 2f + 1", m=m, f=f, remedy=FEWER)
    return Columnwise(partial(columns.trimmed_mean, f=f))


@declares(view="columns")
def mean_around_median(geometry: Geometry, *, f: int) -> Columnwise:
    """The mean of the m - f values of every column that are nearest to its median.

    Needs m >= 2f + 1.  Xie et al. 2018 (Meamed).
    """
    f, m = integer(f, "f"), geometry.m
    require(m >= 2 * f + 1, "mean_around_median", needs="m >= 2f + 1", m=m, f=f, remedy=FEWER)
    return Columnwise(partial(columns.mean_around_median, keep=m - f))


@declares(distances=False, from_last=True)
def centered_clipping(
    geometry: Geometry, *, radius: float | None = None, iterations: int = 5, start: Vector | None = None
) -> Solved:
    """Steps from `start` towards the clients, none of which moves it by more than radius/m.

    v <- v + (1/m) sum_i (X_i - v) min(1, radius/|X_i - v|). Without `start`, from the Huber aggregate; its source starts
    from the last round's. Without `radius`, the median distance to the start.
    Karimireddy et al. 2021.
    """
    steps, m = integer(iterations, "iterations", at_least=1), geometry.m
    reach = None if radius is None else float(geometry.read(positive(radius, "radius", infinite=True)))
    weights = huber(geometry, tol=1e-3).weights if start is None else np.zeros(m)
    for _ in range(steps):
        distances = geometry.measure(weights, origin=start).distances
        reach = float(np.median(distances)) if reach is None else reach
        pulls = pulls_at(np.ones(m), np.full(m, reach), distances) / m
        weights = (1 - pulls.sum()) * weights + pulls
    return Solved(weights, np.full(m, reach), True, steps)


def _weighted_median(values: Vector, weights: Weights) -> float:
    """The smallest value at which at least half of the weight lies at or below."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(normalised(weights)[order])
    return float(values[order][np.searchsorted(reached, 0.5 - 1e-12)])
