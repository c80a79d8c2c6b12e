"""The minimiser of eq. (5): a fixed point in the space of m weights, one pass over the data per step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from holdfast.arrays import Vector, length
from holdfast.geometry import Geometry, Rays, Weights, normalised

__all__ = ["Solved", "solve"]

MEMORY = 5  # steps Anderson mixing looks back on: 58 passes become 12 in the worst case of benchmarks/passes.py
PATIENCE = 20  # passes before Newton takes over; it is needed where the answer sits on a client, or all lie on a line
NEWTON_STEPS = 200
HALVINGS = 60
RIDGE = 1e-9


@dataclass(frozen=True)
class Solved:
    """Weights of a centre, the thresholds there, and how well it solves the problem."""

    weights: Weights
    thresholds: Vector | None = None
    converged: bool = True
    iterations: int = 0
    stationarity: float = 0.0
    """|sum_i n_i psi_i| at the centre."""


def solve(
    geometry: Geometry, thresholds_at: Callable[[Vector], Vector], start: Weights, *, tol: float, max_iterations: int
) -> Solved:
    """Weights w with w_i proportional to n_i min(1, T_i / d_i), d_i the distance of client i to the centre w @ X.

    Stops when |sum_i n_i psi_i| <= tol * sum_i n_i min(T_i, d_i): no client can raise that beyond its n_i T_i. The left
    side is S |c' - c|, with S = sum_i n_i min(1, T_i/d_i) and c' the centre of the next weights, measured directly.
    """
    weights, past, caution = start, list[tuple[Weights, Weights]](), 1.0
    for iteration in range(1, max_iterations + 1):
        distances = geometry.distances(weights)
        thresholds = thresholds_at(distances)
        pulls = pulls_at(geometry.samples, thresholds, distances)
        bound = tol * float(geometry.samples @ np.minimum(thresholds, distances))
        target = normalised(pulls)
        gap = target - weights
        # Residuals of different clients are nearly orthogonal in many dimensions, so this is close to S |c' - c|; where
        # they are not, `caution` learns by how much it is short.
        estimate = float(pulls.sum() * length(gap * distances))
        # Thresholds of 0, most clients on the centre: mixing with steps that were elsewhere would leave it again.
        past = [*past[-MEMORY:], (target, gap)] if bound > 0 else [(target, gap)]
        last = iteration == max_iterations
        if caution * estimate <= bound or last:
            stationarity = float(pulls.sum()) * geometry.separation(weights, target)
            if stationarity <= bound or last:
                return Solved(weights, thresholds, stationarity <= bound, iteration, stationarity)
            caution = max(caution, stationarity / estimate if estimate > 0 else 1.0)
            weights = target
        elif iteration % PATIENCE == 0 and bound > 0:
            weights, past = newton(geometry, thresholds, weights, tol), []
            geometry = geometry.widened()
        else:
            weights = anderson(past, distances)
    raise AssertionError("max_iterations is at least 1")


def pulls_at(samples: Weights, thresholds: Vector, distances: Vector) -> Weights:
    """n_i min(1, T_i / d_i)."""
    clipped = distances > thresholds
    return samples * np.divide(thresholds, distances, out=np.ones_like(distances), where=clipped)


def anderson(past: list[tuple[Weights, Weights]], distances: Vector) -> Weights:
    """The combination of past steps whose combined gap, in units of distance, is smallest.  Anderson 1965; Walker & Ni 2011."""
    targets, gaps = (np.array(part) for part in zip(*past, strict=True))
    if len(past) == 1:
        return np.asarray(targets[0])
    typical = np.median(distances) or 1.0
    scale = np.minimum(distances / typical, 1e3)  # a client at 1e30 must not be all that the fit sees
    fit = np.linalg.lstsq((np.diff(gaps, axis=0) * scale).T, gaps[-1] * scale, rcond=1e-10)[0]
    mixture = np.maximum(targets[-1] - fit @ np.diff(targets, axis=0), 0)
    return normalised(mixture) if mixture.any() else np.asarray(targets[-1])


def newton(geometry: Geometry, thresholds: Vector, weights: Weights, tol: float) -> Weights:
    """The same problem, for these thresholds, by damped Newton steps in the span of the clients.

    Thresholds far below the distances make kinks, so they shrink towards their value by tens, each stage starting from
    the one before.
    """
    rays = geometry.rays(weights)
    centre = np.zeros(rays.points.shape[1])
    typical = np.median(rays.distances(centre))
    largest = thresholds[np.isfinite(thresholds)].max(initial=0.0)
    stages = int(np.ceil(np.log10(typical / largest))) if 0 < largest < typical else 0
    for stage in range(stages, -1, -1):
        centre = minimise(rays, geometry.samples, thresholds * 10.0**stage, centre, tol / 10)
    return normalised(pulls_at(geometry.samples, thresholds, rays.distances(centre)))


def minimise(rays: Rays, samples: Weights, thresholds: Vector, centre: Vector, tol: float) -> Vector:
    """argmin_s sum_i n_i phi_i(|s - X_i|): Newton steps, halved until the slope along the step no longer points back.

    The slope, not the objective, decides: next to a client at 1e30 the objective's decrease is lost in rounding.
    """

    def slope_at(place: Vector) -> tuple[Vector, Vector, Vector]:
        units, distances = rays.towards(place)
        return (samples * np.minimum(thresholds, distances)) @ units, units, distances

    gradient, units, distances = slope_at(centre)
    for _ in range(NEWTON_STEPS):
        if np.linalg.norm(gradient) <= tol * (samples @ np.minimum(thresholds, distances)):
            break
        pulls = pulls_at(samples, thresholds, distances)
        clipped = distances > thresholds
        bend = (units[clipped] * pulls[clipped, None]).T @ units[clipped]
        # Along a line of clients there is no curvature between them; the ridge turns that into a long step to halve.
        step = -np.linalg.solve(pulls.sum() * (1 + RIDGE) * np.eye(len(centre)) - bend, gradient)
        slope = -float(step @ gradient)
        for _ in range(HALVINGS):
            gradient, units, distances = slope_at(centre + step)
            if step @ gradient <= slope / 10:
                break
            step, slope = step / 2, slope / 2
        centre = centre + step
    return centre
