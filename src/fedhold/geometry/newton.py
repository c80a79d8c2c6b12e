"""Newton in the span of the clients: for where the fixed point creeps, on top of a client or along a line of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedhold.geometry.view import Geometry, Matrix, Weights, normalised
from fedhold.kernels import Vector

__all__ = ["newton", "pulls_at"]

STEPS = 200
HALVINGS = 60
RIDGE = 1e-9
TINY = np.finfo(np.float64).tiny


@dataclass(frozen=True)
class _Rays:
    """Clients as scaled points around an origin: client i lies at points[i] / scales[i], however far that is."""

    points: Matrix
    scales: Vector

    def towards(self, place: Vector) -> tuple[Matrix, Vector]:
        """Unit vectors from the clients to `place` (0 where a client is there), and the distances."""
        residuals = self.scales[:, None] * place - self.points
        norms = np.linalg.norm(residuals, axis=1)
        return residuals / np.maximum(norms, TINY)[:, None], norms / self.scales


def pulls_at(samples: Weights, thresholds: Vector, distances: Vector) -> Weights:
    """n_i min(1, T_i / d_i)."""
    clipped = distances > thresholds
    return samples * np.divide(thresholds, distances, out=np.ones_like(distances), where=clipped)


def newton(geometry: Geometry, thresholds: Vector, weights: Weights, tol: float) -> Weights:
    """Weights of argmin_s sum_i n_i phi_i(|s - X_i|) for these thresholds, starting from the centre of `weights`.

    Thresholds far below the distances make kinks, so they shrink towards their value by tens, each stage starting from
    the one before. `geometry` must read float64.
    """
    rays = _rays(geometry, weights)
    centre = np.zeros(rays.points.shape[1])
    typical = np.median(rays.towards(centre)[1])
    largest = thresholds[np.isfinite(thresholds)].max(initial=0.0)
    stages = int(np.ceil(np.log10(typical / largest))) if 0 < largest < typical else 0
    for stage in range(stages, -1, -1):
        centre = _minimise(rays, geometry.shares, thresholds * 10.0**stage, centre, tol / 10)
    return normalised(pulls_at(geometry.shares, thresholds, rays.towards(centre)[1]))


def _rays(geometry: Geometry, weights: Weights) -> _Rays:
    """The clients around the centre of `weights`, in a space of at most m dimensions."""
    updates = geometry.updates
    measured = geometry.measure(weights)
    far = measured.distances / max(float(np.median(measured.distances)), TINY)
    scales = 1 / np.maximum(far, 1.0)
    if updates.d <= geometry.m:
        return _Rays(updates.read(0, updates.d) * scales[:, None] - scales[:, None] * measured.centre, scales)
    values, vectors = np.linalg.eigh(geometry.gram_around(measured.centre) * scales[:, None] * scales)
    return _Rays(vectors * np.sqrt(np.maximum(values, 0)), scales)


def _minimise(rays: _Rays, samples: Weights, thresholds: Vector, centre: Vector, tol: float) -> Vector:
    """argmin_s sum_i n_i phi_i(|s - X_i|): Newton steps, halved until the slope along the step no longer points back.

    The slope, not the objective, decides: next to a client at 1e30 the objective's decrease is lost in rounding.
    """

    def slope_at(place: Vector) -> tuple[Vector, Matrix, Vector]:
        units, distances = rays.towards(place)
        return (samples * np.minimum(thresholds, distances)) @ units, units, distances

    gradient, units, distances = slope_at(centre)
    for _ in range(STEPS):
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
