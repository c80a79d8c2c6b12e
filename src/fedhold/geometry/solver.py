"""The minimiser of eq. (5): a fixed point in the space of m weights, one pass over the data per step.

Anderson mixing ends most solves after a few steps; Newton's method takes over where the fixed point converges slowly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import numpy as np

from fedhold.geometry.geometry import Geometry, Measurement, normalised
from fedhold.kernels import Matrix, Vector, Weights, middle

__all__ = ["HuberCentre", "Rescaled", "Solved", "pulls_at", "solve"]

MEMORY = 5  # past steps that Anderson mixing combines; docs/solver.md says what it and Newton's method save
ALIKE = 1e-6  # A change of the gap that differs from earlier ones by a smaller part tells nothing new.
FAR = 1e3  # typical distances. A client at 1e30 must not outweigh all others in the fit of past steps.
FORESIGHT = 3  # steps that are foretold from one measurement
CAUTION = 4.0  # The estimate must be this many times below the bound before a pass is spent on verifying it.
PATIENCE = 20  # passes before Newton's method takes over

# Newton's method.
STEPS = 200  # the most steps; most solves take fewer than ten
HALVINGS = 60  # the most halvings of a step. It is then below the rounding of the centre.
RIDGE = 1e-9  # relative curvature that is added, because the loss may have none along a line of clients
TINY = np.finfo(np.float64).tiny


@dataclass(frozen=True)
class HuberCentre:
    """A Huber centre that a rule has found on its way: what is proven about the rule's value is proven about this centre.

    geometry      the clients, with the samples that counted for it
    weights       one per client; the centre is weights @ X
    distances     the clients' distances to it
    thresholds    T_i at the centre
    kappa         of the automatic rule that found the thresholds; None where they were not found by it
    """

    geometry: Geometry
    weights: Weights
    distances: Vector
    thresholds: Vector
    kappa: float | None


@dataclass(frozen=True)
class Solved:
    """Weights of a centre, and how well it solves the problem.

    weights       one per client; the centre is weights @ X
    thresholds    T_i at the centre; None for rules without thresholds
    converged     whether the solver has reached its tolerance
    iterations    how many steps it made
    stationarity  an upper bound on |sum_i n_i psi_i| at the centre
    measured      the centre and the distances to it, where a pass has measured them already
    origin        with weights that sum to less than 1, the point that gets the rest; None where they sum to 1
    kappa         of the automatic rule that found the thresholds; None where they were not found by it
    huber         the Huber centre that these weights correct; None where they are a Huber centre, or no centre is known
    scale         the typical distance behind the thresholds, for later rounds; None where they follow no distances
    """

    weights: Weights
    thresholds: Vector | None = None
    converged: bool = True
    iterations: int = 0
    stationarity: float = 0.0
    measured: Measurement | None = None
    origin: Vector | None = None
    kappa: float | None = None
    huber: HuberCentre | None = None
    scale: float | None = None


@dataclass(frozen=True, eq=False)
class Rescaled:
    """What a rule returns that changes lengths before it averages: the value is sum_i weights_i factors_i X_i.

    factors  what every client's update is multiplied by
    weights  of the multiplied updates; they sum to 1
    """

    factors: Vector
    weights: Weights


def solve(
    geometry: Geometry, thresholds_at: Callable[[Vector], Vector], start: Weights, *, tol: float, max_iterations: int
) -> Solved:
    """Weights w with w_i proportional to n_i min(1, T_i / d_i), d_i the distance of client i to the centre w @ X.

    geometry        the clients
    thresholds_at   distances of all clients -> their T_i
    start           weights to start from
    tol             the solver stops when |sum_i n_i psi_i| <= tol * sum_i n_i min(T_i, d_i): a client can raise the right side
                    by no more than its n_i T_i. In every step, the left side is bounded by the sum of all clients' parts in
                    it, and estimated; where the estimate is small enough but the bound is not, a pass of its own verifies it
    max_iterations  the most steps to make
    """
    weights, caution, missed = start, CAUTION, np.inf
    past = _Past(geometry.m)
    # With few clients, a step takes the time of its calls of NumPy: `dot` and `reduce` take half as long as `@` and `sum`.
    for iteration in range(1, max_iterations + 1):
        distances = geometry.distances(weights)
        thresholds = thresholds_at(distances)
        pulls = pulls_at(geometry.shares, thresholds, distances)
        bound = tol * float(pulls.dot(distances))  # A pull times its distance is n_i min(T_i, d_i).
        total = float(np.add.reduce(pulls))
        target = pulls / total
        gap = target - weights
        # At its own centre c, w leaves no force: sum_i w_i (X_i - c) = 0. So the force of the pulls is that of their
        # differences to it, which is at most the sum of their lengths.
        most = total * float(np.abs(gap).dot(distances))
        if most <= bound:
            return Solved(weights, thresholds, True, iteration, most, geometry.measured(weights))
        # Residuals of different clients are nearly orthogonal in many dimensions, so this is close to the left side. Where
        # they are not, the estimate is too small, and `caution` is raised accordingly.
        away = gap * distances
        estimate = total * sqrt(away.dot(away))
        known = geometry.known_force(weights, pulls) if estimate <= bound else None
        if known is not None and known <= bound:
            return Solved(weights, thresholds, True, iteration, known)
        # With a bound of 0, most clients lie on the centre, and mixing with earlier steps would move away from it.
        mixed = target
        if bound > 0:
            if geometry.in_many_dimensions:
                target = _foreseen(geometry.shares, thresholds_at, weights, distances, target)
            mixed = past.mixed(target, (target - weights) * _nearer(distances))
        if caution * estimate <= bound or iteration == max_iterations:
            found = _verified(geometry, thresholds_at, weights, thresholds, pulls, bound, tol, iteration)
            if found.converged or iteration == max_iterations:
                return found
            if found.stationarity > missed / 2:  # It is hardly better than last time, so the rest of it is rounding.
                geometry = geometry.widened()
            caution, missed = max(caution, found.stationarity / estimate if estimate > 0 else 1.0), found.stationarity
            weights = target
        elif iteration % PATIENCE == 0 and bound > 0:
            geometry = geometry.widened()
            weights, past = newton(geometry, thresholds, weights, tol), _Past(geometry.m)
        else:
            weights = mixed
    raise AssertionError("max_iterations is at least 1")


def _foreseen(
    shares: Weights, thresholds_at: Callable[[Vector], Vector], weights: Weights, distances: Vector, target: Weights
) -> Weights:
    """Where some more steps from the target would lead, if residuals of different clients were orthogonal.

    They nearly are in many dimensions. Where they are not, this is worse than the target, and more steps follow.
    """
    squares = np.square(distances)
    for _ in range(FORESIGHT):
        change = target - weights
        foreseen = np.sqrt(np.maximum(squares * (1 - 2 * change) + np.square(change) @ squares, squares / 4))
        target = normalised(pulls_at(shares, thresholds_at(foreseen), foreseen))
    return target


def _verified(
    geometry: Geometry,
    thresholds_at: Callable[[Vector], Vector],
    weights: Weights,
    thresholds: Vector,
    pulls: Weights,
    bound: float,
    tol: float,
    iteration: int,
) -> Solved:
    """|sum_i n_i psi_i|, in a pass of its own.

    It is at most the force of the pulls, plus |change| d_i for each changed pull.
    """
    measured = geometry.measure(weights, pulls=pulls)
    thresholds = thresholds_at(measured.distances)
    changes = np.abs(pulls_at(geometry.shares, thresholds, measured.distances) - pulls)
    stationarity = measured.force + float(changes @ measured.distances)
    bound = tol * float(geometry.shares @ np.minimum(thresholds, measured.distances))
    if bound == 0:  # The centre is a client, up to its own rounding.
        bound = 8 * geometry.rounding_of(measured.centre) * float(pulls.sum())
    return Solved(weights, thresholds, stationarity <= bound, iteration, stationarity, measured)


def _nearer(distances: Vector) -> Vector:
    """The distances, none larger than FAR typical ones."""
    if np.maximum.reduce(distances) <= FAR * np.minimum.reduce(distances):
        return distances  # Of very many clients, to find the typical one would take longer than this look.
    return np.minimum(distances, FAR * (middle(distances) or 1.0))


class _Past:
    """The last steps of the fixed point, which Anderson mixing combines.  Anderson 1965; Walker & Ni 2011.

    A step leads to a target, and has a gap: how far the target is from the weights before, times distances. Changes of the gap
    from step to step are kept as orthogonal directions of length 1, each with the change of the target that belongs to it: the
    best combination then takes no system of equations. Rows that no step has filled are 0 and change nothing.
    """

    def __init__(self, m: int) -> None:
        self.steps, self.target, self.gap = 0, np.empty(0), np.empty(0)
        self.directions, self.moves = np.zeros((MEMORY, m)), np.zeros((MEMORY, m))

    def mixed(self, target: Weights, gap: Vector) -> Weights:
        """The combination of this step and those before it with the smallest gap."""
        if self.steps:
            oldest = self.steps % MEMORY
            self.directions[oldest] = self.moves[oldest] = 0
            change, move = gap - self.gap, target - self.target
            size = sqrt(change.dot(change))
            along = self.directions.dot(change)
            change -= along.dot(self.directions)
            left = sqrt(change.dot(change))
            if left > ALIKE * size:
                self.directions[oldest] = change / left
                self.moves[oldest] = (move - along.dot(self.moves)) / left
        self.steps, self.target, self.gap = self.steps + 1, target, gap
        mixture = np.maximum(target - self.directions.dot(gap).dot(self.moves), 0)
        total = float(np.add.reduce(mixture))
        if total > 0:
            return mixture / total
        # Changes within rounding foretell nothing, and a combination of such steps may leave nobody any weight.
        self.steps, self.directions[:], self.moves[:] = 0, 0, 0
        return target


# Newton's method in the span of the clients, for centres to which the fixed point converges slowly: on a client, or on a line
# through clients.


@dataclass(frozen=True)
class _Rays:
    """Clients as scaled points around an origin: client i lies at points[i] / scales[i], which may be very far away."""

    points: Matrix
    scales: Vector

    def towards(self, place: Vector) -> tuple[Matrix, Vector]:
        """Unit vectors from the clients to `place` (0 where a client is there), and the distances."""
        residuals = self.scales[:, None] * place - self.points
        norms = np.linalg.norm(residuals, axis=1)
        return residuals / np.maximum(norms, TINY)[:, None], norms / self.scales


def pulls_at(samples: Weights, thresholds: Vector, distances: Vector) -> Weights:
    """The pulls n_i min(1, T_i / d_i)."""
    clipped = distances > thresholds
    return samples * np.divide(thresholds, distances, out=np.ones(len(distances)), where=clipped)


def newton(geometry: Geometry, thresholds: Vector, weights: Weights, tol: float) -> Weights:
    """Weights of argmin_s sum_i n_i phi_i(|s - X_i|) for these thresholds, starting from the centre of `weights`.

    Thresholds far below the distances make kinks in the loss. They are therefore approached from above, a factor of ten at a
    time, and each stage starts from the solution of the one before. `geometry` must read float64.
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
    measured = geometry.measure(weights)
    some = measured.distances[measured.distances > 0]  # Far from 0, most distances may be within the centre's rounding.
    typical = middle(measured.distances) or middle(some) if len(some) else 1.0
    scales = 1 / np.maximum(measured.distances / typical, 1.0)
    return _Rays(geometry.coordinates(measured.centre, scales), scales)


def _minimise(rays: _Rays, samples: Weights, thresholds: Vector, centre: Vector, tol: float) -> Vector:
    """argmin_s sum_i n_i phi_i(|s - X_i|) by Newton steps, each halved until the slope at its end no longer points back.

    The slope decides and not the objective: with a client at 1e30, the decrease of the objective is lost in rounding.
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
        # Where there is no curvature, the small ridge makes the step long; it is then halved.
        step = -np.linalg.solve(pulls.sum() * (1 + RIDGE) * np.eye(len(centre)) - bend, gradient)
        slope = -float(step @ gradient)
        for _ in range(HALVINGS):
            gradient, units, distances = slope_at(centre + step)
            if step @ gradient <= slope / 10:
                break
            step, slope = step / 2, slope / 2
        centre = centre + step
    return centre
