"""Rules that minimise a sum of losses of the clients' distances (mean, Huber, geometric median), and steps towards it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedhold.errors import integer, positive, require
from fedhold.geometry import Geometry, Measurement, Solved, normalised, pulls_at, sampled_centre, solve
from fedhold.kernels import Matrix, Vector, Weights, middle, numbers, weighted_median
from fedhold.rules.declaration import Bound, declares
from fedhold.thresholds import Threshold, kappa_of, remembered, threshold_function
from fedhold.updates import Centre

__all__ = ["centered_clipping", "geometric_median", "huber", "mean", "means_of", "median_of_means"]

TINY = float(np.finfo(np.float64).tiny)
VANISHING = 1e-250  # typical distances. For thresholds below this, T_i/d_i could round to 0 for every client.
LIMIT = 1e-6  # typical distances. A threshold this small stands for 0, and moves the answer by at most as much.


@declares(
    centres=False,
    begins=lambda _, samples: Centre(normalised(samples)),
    accuses=True,
    source="McMahan et al. 2017",
    needs="no liars",
    also_known_as=("fedavg", "average"),
    robust=False,
)
def mean(geometry: Geometry) -> Weights:
    """The mean weighted by samples. It is not robust; other rules are measured against it.

    argmin_s sum_i n_i |s - X_i|^2.

    >>> from fedhold import aggregate
    >>> aggregate(np.array([[1.0], [2.0], [99.0]]), "mean", samples=[2, 2, 1]).value
    array([21.])

    FedAvg: McMahan et al. 2017.
    """
    return normalised(geometry.samples)


@declares(
    begins=sampled_centre,
    certifies=True,
    accuses=True,
    source="Zhao, Yu, Wan 2024",
    needs="liars hold less than half of the samples, and are less than half of the clients",
    also_known_as=("huber_loss",),
)
def huber(
    geometry: Geometry,
    *,
    threshold: str | Threshold | ArrayLike = "automatic",
    tol: float = 1e-6,
    max_iterations: int = 200,
    start: Vector | None = None,
    scale: float | None = None,
) -> Solved:
    """The minimiser of the multi-dimensional Huber loss.

    argmin_s sum_i n_i phi_i(|s - X_i|), phi_i(u) = u^2/2 up to T_i and T_i u - T_i^2/2 beyond: clients nearer than T_i count
    as in the mean, and those farther away pull with the force n_i T_i and no more. It holds while liars have less than half of
    the samples and are less than half of the clients, and need not know how many they are. Where clients on a line, or only
    two of them, have several minimisers between them, it is the point halfway between the two middle clients.

    threshold       T_i: "automatic", a number, one number per client, or a function of fedhold.thresholds
    tol             the solver stops when |sum_i n_i psi_i| <= tol * sum_i n_i min(T_i, d_i), where psi_i is the gradient of
                    phi_i(|s - X_i|) and d_i = |s - X_i|
    max_iterations  the most steps that the solver makes
    start           where to begin: a start near the answer saves passes and changes nothing else
    scale           `result.scale` of the round before: the automatic threshold then never falls faster than by 3 % a round, up
                    to 3 times this round's

    >>> from fedhold import aggregate
    >>> result = aggregate(np.array([[1.0], [2.0], [99.0]]), "huber", threshold=2.0)
    >>> result.value.round(3), result.clients.with_status("clipped")
    (array([2.5]), [2])

    Zhao, Yu, Wan 2024, eq. (5); its printed iteration leaves out the n_i, ours does not.
    """
    threshold_at = threshold_function(threshold)
    kappa, root = kappa_of(threshold_at), np.sqrt(geometry.samples)
    if scale is not None and kappa is None:
        raise TypeError("scale is remembered for the automatic threshold. Leave out one of scale and threshold.")
    solved = _huber(geometry, threshold_at, tol, max_iterations, start, scale)
    if kappa is None or solved.thresholds is None:
        return solved
    # Samples may be counted in other units in another round, so the scale is that of a client with the usual number of them.
    found = float(solved.thresholds[0]) / kappa * float(root[0] / middle(root))
    return replace(solved, kappa=kappa if scale is None else None, scale=found)


@declares(
    begins=sampled_centre,
    accuses=True,
    source="Weiszfeld 1937; Pillutla et al. 2022",
    needs="as `huber`",
    also_known_as=("rfa", "geomed"),
)
def geometric_median(
    geometry: Geometry, *, tol: float = 1e-6, max_iterations: int = 200, start: Vector | None = None
) -> Solved:
    """The point with the smallest sum of distances, weighted by samples.

    argmin_s sum_i n_i |s - X_i|: Huber with thresholds near 0.

    tol             the solver stops when |sum_i n_i psi_i| <= tol * sum_i n_i min(T_i, d_i), as in `huber`
    max_iterations  the most steps that the solver makes
    start           where to begin: a start near the answer saves passes and changes nothing else

    >>> from fedhold import aggregate
    >>> aggregate(np.array([[1.0], [2.0], [99.0]]), "geometric_median").value.round(3)
    array([2.])

    Weiszfeld 1937; RFA: Pillutla et al. 2022.
    """

    def nearly_zero(distances: Vector, samples: Weights) -> Vector:
        return np.full(len(samples), LIMIT * float(weighted_median(distances, samples)))

    return replace(_huber(geometry, nearly_zero, tol, max_iterations, start), thresholds=None)


def _huber(
    geometry: Geometry,
    threshold: Threshold,
    tol: float,
    max_iterations: int,
    start: Vector | None,
    scale: float | None = None,
) -> Solved:
    tol, max_iterations = positive(tol, "tol"), integer(max_iterations, "max_iterations", at_least=1)
    kappa, roots = kappa_of(threshold), np.sqrt(geometry.samples)
    memory = None if scale is None else float(geometry.read(scale)) * middle(roots)

    def thresholds_at(distances: Vector) -> Vector:
        if kappa is not None and (typical := middle(roots * distances)) > 0:  # The automatic rule needs no checks.
            return np.maximum(kappa * remembered(typical, memory) / roots, TINY)
        thresholds = numbers(threshold(geometry.real(distances), geometry.samples))
        if thresholds.shape != distances.shape or not (thresholds >= 0).all():
            raise ValueError(
                f"the threshold function must give {geometry.m} numbers of at least 0, one per admitted client; "
                f"it gave {thresholds!r}."
            )
        thresholds = geometry.read(thresholds)
        if thresholds.max() > VANISHING * middle(distances) or not distances.any():
            return thresholds
        return np.full(geometry.m, LIMIT * float(weighted_median(distances, geometry.samples)))

    weights = geometry.start()
    if start is not None and geometry.middle is None:
        distances = geometry.distances_to(start)
        weights = normalised(pulls_at(geometry.shares, thresholds_at(distances), distances))
    return solve(geometry, thresholds_at, weights, tol=tol, max_iterations=max_iterations)


def means_of(groups: Sequence[NDArray[np.intp]]) -> Matrix:
    """The matrix that makes the mean of each group of clients; every client is in one group."""
    mixture = np.zeros((len(groups), sum(map(len, groups))))
    for row, group in zip(mixture, groups, strict=True):
        row[group] = 1 / len(group)
    return mixture


def _check_batches(m: int, *, f: int | None = None, batches: int | None = None) -> None:
    if (f is None) == (batches is None):
        raise TypeError("median_of_means takes f (then there are 2f + 1 batches) or batches. Pass exactly one of them.")
    if batches is not None:
        count, remedy = integer(batches, "batches", at_least=1), "Lower batches, or gather more clients."
        require(count <= m, "median_of_means", needs="batches <= m", m=m, batches=count, remedy=remedy)


@declares(
    bound=Bound(2, 1),
    check=_check_batches,
    source="Chen et al. 2017",
    also_known_as=("gmm", "mom", "geometric_median_of_means"),
)
def median_of_means(
    geometry: Geometry, *, rng: np.random.Generator, f: int | None = None, batches: int | None = None
) -> Solved:
    """The geometric median of the means of random batches of clients (the paper's GMM).

    argmin_s sum_j |s - mean of batch j|.

    f        how many liars to withstand: there are then 2f + 1 batches
    batches  how many batches to make, in place of f. Where fewer clients are left after rejections, each is a batch
    rng      draws the batches; from the operating system unless the caller of aggregate() gives one

    >>> from fedhold import aggregate
    >>> aggregate(np.array([[1.0], [2.0], [99.0]]), "median_of_means", f=1).value.round(3)
    array([2.])

    Needs m >= 2f + 1.  Chen et al. 2017.
    """
    m = geometry.m
    count = min(batches, m) if batches is not None else 2 * integer(f, "f") + 1
    mixture = means_of(np.array_split(rng.permutation(m), count))
    means = geometry.mixed(mixture, np.ones(count)).materialised()
    solved = geometric_median(means)
    # The centre is made from the means that the solver has seen, and not from the clients anew: where huge clients of a batch
    # cancel out, another order of the sum would leave another rounding error, which nobody has weighed.
    centre = means.measure(solved.weights).centre if solved.measured is None else solved.measured.centre
    return Solved(
        solved.weights @ mixture,
        converged=solved.converged,
        iterations=solved.iterations,
        stationarity=solved.stationarity,
        measured=Measurement(centre, geometry.distances_to(centre)),
    )


@declares(
    from_last=True,
    accuses=True,
    source="Karimireddy et al. 2021",
    needs="a sound `start` (without one, as `huber`)",
    also_known_as=("cc", "cclip", "centred_clipping"),
)
def centered_clipping(
    geometry: Geometry, *, radius: float | None = None, iterations: int = 5, start: Vector | None = None
) -> Solved:
    """Steps from `start` towards the clients, in each of which no client moves it by more than radius/m.

    v <- v + (1/m) sum_i (X_i - v) min(1, radius/|X_i - v|). Its fixed point is the Huber minimiser with T_i = radius.

    radius      how far a client may pull; by default the median distance to the start
    iterations  how many steps to make
    start       where to begin; by default the Huber aggregate. In its source this is the last round's aggregate

    >>> from fedhold import aggregate
    >>> updates, last = np.array([[1.0], [2.0], [99.0]]), np.array([0.0])
    >>> aggregate(updates, "centered_clipping", radius=1.0, start=last, iterations=1).value
    array([1.])

    Karimireddy et al. 2021.
    """
    steps, m = integer(iterations, "iterations", at_least=1), geometry.m
    reach = None if radius is None else float(geometry.read(positive(radius, "radius", infinite=True)))
    weights = huber(geometry, tol=1e-4).weights if start is None else np.zeros(m)
    for _ in range(steps):
        distances = geometry.distances(weights, origin=start)
        reach = middle(distances) if reach is None else reach
        pulls = pulls_at(np.ones(m), np.full(m, reach), distances) / m
        weights = (1 - pulls.sum()) * weights + pulls
    return Solved(weights, np.full(m, reach), iterations=steps, origin=start)
