"""The minimiser of eq. (5): a fixed point in the space of m weights, one pass over the data per step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedhold.geometry.newton import newton, pulls_at
from fedhold.geometry.view import Geometry, Measurement, Weights, normalised
from fedhold.kernels import Vector, length

__all__ = ["Solved", "solve"]

MEMORY = 5  # steps Anderson mixing looks back on; what it and Newton save: docs/solver.md
COARSE = 1e-4  # rounding of the centre, in typical distances, from which float32 is not enough
CAUTION = 4.0  # times the estimate is held against the bound: a step more costs less than a measurement that says no
PATIENCE = 20  # passes before Newton takes over


@dataclass(frozen=True)
class Solved:
    """Weights of a centre, the thresholds there, and how well it solves the problem."""

    weights: Weights
    thresholds: Vector | None = None
    converged: bool = True
    iterations: int = 0
    stationarity: float = 0.0
    """At least |sum_i n_i psi_i| at the centre."""
    measured: Measurement | None = None


def solve(
    geometry: Geometry, thresholds_at: Callable[[Vector], Vector], start: Weights, *, tol: float, max_iterations: int
) -> Solved:
    """Weights w with w_i proportional to n_i min(1, T_i / d_i), d_i the distance of client i to the centre w @ X.

    Stops when |sum_i n_i psi_i| <= tol * sum_i n_i min(T_i, d_i): no client can raise that beyond its n_i T_i. The left
    side is estimated every step, and measured in a pass of its own before it is believed.
    """
    weights, past, caution, missed = start, list[tuple[Weights, Weights]](), CAUTION, np.inf
    if COARSE * float(np.median(geometry.distances(weights))) < geometry.rounding:
        geometry = geometry.widened()  # an offset so large that float32 distances to a float32 centre are too rough
    for iteration in range(1, max_iterations + 1):
        distances = geometry.distances(weights)
        thresholds = thresholds_at(distances)
        pulls = pulls_at(geometry.shares, thresholds, distances)
        bound = tol * float(geometry.shares @ np.minimum(thresholds, distances))
        target = normalised(pulls)
        gap = target - weights
        # Residuals of different clients are nearly orthogonal in many dimensions, so this is close to the left side; where
        # they are not, `caution` learns by how much it is short.
        estimate = float(pulls.sum() * length(gap * distances))
        # Thresholds of 0, most clients on the centre: mixing with steps that were elsewhere would leave it again.
        past = [*past, (target, gap)][-MEMORY - 1 :] if bound > 0 else [(target, gap)]
        if caution * estimate <= bound or iteration == max_iterations:
            found = _verified(
                geometry, thresholds_at, weights, pulls, tol, iteration, directly=4 * geometry.blur(pulls) > bound
            )
            if found.converged or iteration == max_iterations:
                return found
            if found.stationarity > missed / 2:  # no better than last time: rounding is what is left
                geometry = geometry.widened()
            caution, missed = max(caution, found.stationarity / estimate if estimate > 0 else 1.0), found.stationarity
            weights = target
        elif iteration % PATIENCE == 0 and bound > 0:
            geometry = geometry.widened()
            weights, past = newton(geometry, thresholds, weights, tol), []
        else:
            weights = _anderson(past, distances)
    raise AssertionError("max_iterations is at least 1")


def _verified(
    geometry: Geometry,
    thresholds_at: Callable[[Vector], Vector],
    weights: Weights,
    pulls: Weights,
    tol: float,
    iteration: int,
    directly: bool,
) -> Solved:
    """|sum_i n_i psi_i| in a pass of its own: the force of the pulls, and at most |change| d_i for each pull that changes."""
    measured = geometry.measure(weights, pulls=pulls, directly=directly)
    assert measured.force is not None
    thresholds = thresholds_at(measured.distances)
    changes = np.abs(pulls_at(geometry.shares, thresholds, measured.distances) - pulls)
    stationarity = measured.force + float(changes @ measured.distances)
    bound = tol * float(geometry.shares @ np.minimum(thresholds, measured.distances))
    if bound == 0:  # the centre is a client, up to its own rounding
        bound = 8 * geometry.resolution * length(measured.centre) * float(pulls.sum())
    return Solved(weights, thresholds, stationarity <= bound, iteration, stationarity, measured)


def _anderson(past: list[tuple[Weights, Weights]], distances: Vector) -> Weights:
    """The mixture of past steps whose gap, in units of distance, is smallest.  Anderson 1965; Walker & Ni 2011."""
    targets, gaps = (np.array(part) for part in zip(*past, strict=True))
    if len(past) == 1:
        return np.asarray(targets[0])
    typical = np.median(distances) or 1.0
    scale = np.minimum(distances / typical, 1e3)  # a client at 1e30 must not be all that the fit sees
    fit = np.linalg.lstsq((np.diff(gaps, axis=0) * scale).T, gaps[-1] * scale, rcond=1e-10)[0]
    mixture = np.maximum(targets[-1] - fit @ np.diff(targets, axis=0), 0)
    return normalised(mixture) if mixture.any() else np.asarray(targets[-1])
