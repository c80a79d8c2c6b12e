"""How far f liars can have moved a Huber aggregate, proven from one round's distances and angles.

g minimises sum_i n_i phi_i(|s - X_i|); a_B minimises the same sum, with the same thresholds, without a set B of at most
f clients. `Certificate.radius(f)` is a rho with |g - a_B| <= rho for every such B. The proof:

1. By convexity it is enough that, for every unit vector v, the sum without B rises along v at g + rho v. Its slope there
   is, with u_i = (g - X_i)/d_i, c_i = <v, u_i>, w_i = n_i min(d_i, T_i) and the gradient r = sum_i w_i u_i at g,

       <r, v> + sum_{i not in B} n_i H_i(c_i) - sum_{i in B} w_i c_i
       H(c) = min(1, T/D) (d c + rho) - min(d, T) c,    D = sqrt(d^2 + 2 rho d c + rho^2)

   |r| <= slack. H >= 0, because it is what the slope of a convex function gains on the way from g to g + rho v.
2. For every v, |c_i| <= 1, sum_i w_i c_i = <r, v>, and sum_i w_i c_i^2 <= lambda, the top eigenvalue of
   sqrt(w_i w_j) <u_i, u_j>. So for any mu > 0 and nu in [0, 1] we may add nu (sum_i w_i c_i - <r, v>) = 0 and
   mu (sum_i w_i c_i^2 - lambda) <= 0. Then every client's term may be minimised over a c of its own:

       slope >= sum_{i not in B} kept_i + sum_{i in B} dropped_i - mu lambda - (1 - nu) slack
       kept_i = min_c n_i H_i(c) + w_i (mu c^2 + nu c),    dropped_i = min_c w_i (mu c^2 - (1 - nu) c)

   and the worst B is the f largest kept_i - dropped_i. Cauchy-Schwarz on each sum is a special case. This bound is better:
   the pull of B and the gain of the others share one lambda, and the equation says that the others balance the pull of B.
3. `_chords` are 32 lines below H/min(d, T), one for each piece of [-1, 1]. A line plus mu c^2 + nu c has its minimum in
   closed form, so kept_i is bounded from below for all c, not only at sampled c.

The bound rises with rho and is concave in mu: two searches find nearly the smallest rho. Whatever rho they find is proven.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral

import numpy as np
from numpy.typing import NDArray

from fedhold.geometry import Geometry, Solved
from fedhold.kernels import SQUARE_RUN, Vector, distance

__all__ = ["Certificate", "Proof", "top_eigenvalue"]

EPS = float(np.finfo(np.float64).eps)
ANGLES = np.linspace(-1.0, 1.0, 33)[:, None]  # values of c, exact in binary; chords this short lose about 0.1 % of H(0)
LOWEST, HIGHEST = -200.0, 1000.0  # exponents of 2. Radii are sought between these powers, in units of a typical pull.
# The nu to try, each with the mu to begin its search at. Larger nu are better for larger f/m; twenty would gain some 1 %.
BALANCES = dict.fromkeys((0.0, 0.1, 0.2, 0.35, 0.6), 0.125)


@dataclass(frozen=True, eq=False)
class Certificate:
    """How far f liars can have moved a Huber aggregate g.

    samples     the n_i > 0
    distances   d_i = |g - X_i|
    thresholds  T_i in [0, inf]. They are taken as given: if they are automatic, what liars do to them comes on top
    eigenvalue  the top eigenvalue of sqrt(w_i w_j) <u_i, u_j>, w_i = n_i min(d_i, T_i), or more; see `top_eigenvalue`
    slack       |sum_i w_i u_i| or more; it is not 0, because a solve stops at a tolerance
    offset      how far the aggregate is from g, where a rule has corrected g. It is added to every radius, which then says how
                far the Huber centres of the clients without B are from the aggregate, and so does not contain the correction
                that the rule would have made without B

    >>> alike = np.ones(100)
    >>> [round(Certificate(alike, alike, alike, eigenvalue=2.0).radius(f), 3) for f in (5, 20, 40, 100)]
    [0.033, 0.071, 0.116, inf]
    """

    samples: Vector
    distances: Vector
    thresholds: Vector
    eigenvalue: float
    slack: float = 0.0
    offset: float = 0.0

    def __post_init__(self) -> None:
        shapes = self.samples.shape, self.distances.shape, self.thresholds.shape
        if shapes != ((self.samples.size,),) * 3 or not self.samples.size:
            raise ValueError(f"samples, distances and thresholds need one number per client each, got shapes {shapes}")
        if not self.samples.min() > 0:
            raise ValueError(f"samples must be > 0, got {self.samples.min()}; leave rejected clients out")
        for name in ("distances", "thresholds", "eigenvalue", "slack", "offset"):
            if not np.min(getattr(self, name)) >= 0:
                raise ValueError(f"{name} must be >= 0, got {np.min(getattr(self, name))}; leave rejected clients out")

    def radius(self, f: int) -> float:
        """A rho with |g - a_B| <= rho for every set B of at most f clients, plus the offset; inf when none is proven.

        It is the smallest rho for which some mu and nu prove the slope positive, to six digits and rounded up. For f = 0 it is
        the distance from the minimiser at which the solve may have stopped, as far as the slack tells.

        f  how many clients may lie
        """
        if isinstance(f, bool) or not isinstance(f, Integral):
            raise TypeError(f"f must be a whole number of clients, got {f!r}; pass an int, such as int(0.2 * m)")
        if f < 0:
            raise ValueError(f"f must be >= 0, got {f}; pass how many clients may lie")
        if f == 0 and self.slack == 0:
            return self.offset
        if f >= len(self.samples):
            return math.inf
        pulls = np.minimum(self.distances, self.thresholds)
        # With the median as the unit, scaled inputs get the same trial radii, and no outlier decides them.
        unit = float(np.median(pulls[pulls > 0])) if pulls.any() else 1.0
        # For each nu the bound rises with rho: a nu that does not prove a radius proves no smaller one either.
        low, high, proving = self._bracket(unit, int(f))
        while high - low > 1e-6:
            middle = (low + high) / 2
            found = self._proves(unit * 2.0**middle, int(f), proving)
            low, high, proving = (low, middle, found) if found else (middle, high, proving)
        return unit * 2.0**high + self.offset

    def _bracket(self, unit: float, f: int) -> tuple[float, float, dict[float, float]]:
        """Two exponents of 2 around the radius: the lower one is not proven, the higher one is, by the nu and mu given with it.

        Both are infinite where no radius is proven, and both are LOWEST where even that one is proven.
        """
        high, low, step, proving = 0.0, 0.0, 1.0, self._proves(unit, f, BALANCES)
        if not proving:
            while not proving:
                if low >= HIGHEST:
                    return math.inf, math.inf, proving
                low, high, step = high, min(high + step, HIGHEST), 8 * step
                proving = self._proves(unit * 2.0**high, f, BALANCES)
            return low, high, proving
        while high > LOWEST:
            low, step = max(high - step, LOWEST), 2 * step
            found = self._proves(unit * 2.0**low, f, proving)
            if not found:
                return low, high, proving
            high, proving = low, found
        return LOWEST, LOWEST, proving

    def _proves(self, rho: float, f: int, balances: Mapping[float, float]) -> dict[float, float]:
        """Those of the given nu for which some mu makes the bound on the slope positive; its search begins at the mu given."""
        with np.errstate(all="ignore"):  # Overflow and 0/0 end in a bound of NaN, which proves nothing.
            lines = _chords(self.distances, self.thresholds, rho)
            pulls = self.samples * np.minimum(self.distances, self.thresholds)
            still = self.samples * np.where(self.distances == 0, np.minimum(rho, self.thresholds), 0.0)  # H where w = 0

            def bound(nu: float, mu: float) -> tuple[float, float]:
                value, derivative = _bound(*lines, pulls, still, nu, mu, f)
                cost = mu * self.eigenvalue + (1 - nu) * self.slack
                return value - (1 + 1e-12) * cost, derivative - self.eigenvalue

            found = {nu: _positive_at(partial(bound, nu), mu) for nu, mu in balances.items()}
            return {nu: mu for nu, mu in found.items() if mu is not None}


def top_eigenvalue(cosines: NDArray[np.floating], pulls: Vector, *, error: float = 0.0) -> float:
    """An upper bound on the top eigenvalue of M = sqrt(w_i w_j) <u_i, u_j>, for the pulls w_i = n_i min(d_i, T_i).

    cosines  m x m numbers with |cosines_ij - <u_i, u_j>| <= error; where client i is at distance 0, and so w_i = 0, any
             finite numbers
    pulls    the w_i
    error    how much a cosine may be off: some 1e-7 when they were accumulated in float32
    """
    # Entries are off by at most error sqrt(w_i w_j), so M is off by at most error |sqrt(w) sqrt(w)'| = error sum(w) in
    # spectral norm. The products round by 4 eps of an entry, which adds 4 eps to the error. LAPACK's eigenvalues belong to a
    # matrix within p(m) eps |M| of M, where p(m) is well below m and |M| <= trace(M) = sum(w), itself a bound on lambda.
    total = float(pulls.sum()) * (1.0 + len(pulls) * EPS)
    if total == 0.0:
        return 0.0
    roots = np.sqrt(pulls / total)
    top = float(np.linalg.eigvalsh(roots[:, None] * cosines * roots)[-1])
    return min(top + error + (len(pulls) + 8) * EPS, 1.0) * total


def _chords(distances: Vector, thresholds: Vector, radius: float) -> tuple[Vector, Vector]:
    """Lines below H / min(d, T) between each two neighbouring ANGLES: their slopes, and their values at c = 0.

    H = R - min(d, T) c. With P = (d c + rho)/D, R = min(d c + rho, T P) where the path from g has passed the client
    (d c + rho >= 0), and max(d c + rho, T P) before. P'' has the sign of rho^2 - rho d c - 2 d^2, so P is concave for rho <= d,
    and otherwise convex up to c0 = rho/d - 2d/rho and concave beyond. Chords lie below a concave function, and the minimum of
    concave functions is concave. Two cases are not concave:
      - rho > d: the tangent of P at min(c0, 0) lies below P where P is convex, so we take min(P, tangent), which is concave;
      - before the client, R turns up from d c + rho to T P where the path leaves the threshold: we stay on d c + rho.
    """
    scale = np.maximum(distances, radius)  # the unit of length, so that nothing overflows
    t = np.minimum(thresholds / scale, 2.0)  # D <= 2, so a larger T changes nothing.
    d, rho = distances / scale, radius / scale
    # Written in terms of 1 + c, D and d c + rho lose no digits where the path meets the client (rho = d, c = -1).
    bend = np.where(rho > d, np.minimum((rho + 2 * d) * (rho - d) / (d * rho), 1.0), 1.0)
    reach = np.sqrt((d - rho) ** 2 + 2 * d * rho * bend)
    tangent = (rho - d + d * bend) / reach + d**2 * (d - rho + rho * bend) / reach**3 * (1 + ANGLES - bend)
    distance = np.maximum(np.sqrt((d - rho) ** 2 + 2 * d * rho * (1 + ANGLES)), 16 * EPS)
    past = rho - d + d * (1 + ANGLES)
    clipped = t * np.minimum(past / distance, tangent)
    slope = np.where(past >= 0, np.minimum(past, clipped), np.maximum(past, clipped))
    # Rounding moves g + rho v by a few eps of max(d, rho), R by min(1, T/D) times that, and a chord by 16 times more.
    pull, rounding = np.minimum(d, t), 256 * EPS * np.minimum(1.0, t / distance)
    start = (slope - rounding)[:-1] / pull - ANGLES[:-1]
    end = (np.where((distance[:-1] < t) & (past[1:] < 0), past[1:], slope[1:]) - rounding[1:]) / pull - ANGLES[1:]
    sound = pull > 1e-280  # Quotients of subnormal numbers prove nothing; the line 0 stays, because H >= 0.
    steepness = np.where(sound, (end - start) / (ANGLES[1] - ANGLES[0]), 0.0)
    return steepness, np.where(sound, start - steepness * ANGLES[:-1], 0.0)


def _bound(
    steepness: Vector, intercept: Vector, pulls: Vector, still: Vector, nu: float, mu: float, f: int
) -> tuple[float, float]:
    """The bound of step 2 of the proof, without the terms in lambda and slack, and its derivative in mu, sum_i w_i c_i^2."""
    tilted = steepness + nu
    c = np.minimum(np.maximum(tilted / (-2 * mu), ANGLES[:-1]), ANGLES[1:])
    least = intercept + c * (tilted + mu * c)
    cell = least.argmin(axis=0), np.arange(len(pulls))
    terms, angles = pulls * least[cell] + still, c[cell]
    angle = min(1.0, (1 - nu) / (2 * mu))
    dropped = pulls * (mu * angle - (1 - nu)) * angle
    worst = np.argpartition(dropped - terms, f)[:f]
    worst = worst[dropped[worst] < terms[worst]]
    terms[worst], angles[worst] = dropped[worst], angle
    # NumPy adds pairwise, so 1e-12 covers the rounding of sums of any length.
    return float(terms.sum() - 1e-12 * np.abs(terms).sum()), float((pulls * angles**2).sum())


def _positive_at(concave: Callable[[float], tuple[float, float]], mu: float) -> float | None:
    """A place in (2^-40, 2^20) at which a concave function is positive, found by cutting planes that start at mu; or None.

    concave  gives the value and the derivative at a place

    A place that is returned has been evaluated. None means that the bracket has shrunk to its tolerance without one, or that
    the tangents on both sides cross below zero, so that there is none.
    """
    left, right = (2.0**-40, math.nan, math.nan), (2.0**20, math.nan, math.nan)  # place, value, derivative
    stride = 1.25
    while right[0] > 1.0001 * left[0]:
        value, derivative = concave(mu)
        if value > 0:
            return mu
        left, right = (left, (mu, value, derivative)) if derivative < 0 else ((mu, value, derivative), right)
        (a, value_a, rise), (b, value_b, fall) = left, right
        cross = (value_b - value_a + rise * a - fall * b) / (rise - fall)
        if value_a + rise * (cross - a) < 0:
            return None
        if math.isnan(value_a + value_b):  # One side is unknown. The top is there, and not far if mu was well chosen.
            mu = max(mu / stride, math.sqrt(a * mu)) if derivative < 0 else min(mu * stride, math.sqrt(b * mu))
            stride *= stride
        else:
            inset = (b / a) ** 0.2  # keeps mu off the ends, where a kink could stall the search
            mu = min(max(cross, a * inset), b / inset) if cross > 0 else math.sqrt(a * b)
    return None


@dataclass(frozen=True)
class Proof:
    """What a certificate is made from, kept until it is asked for: the m x m matrix can cost more than the aggregate itself.

    geometry   the admitted clients
    value      the aggregate
    distances  the distance of every client to it
    solved     its weights, thresholds and stationarity; and the Huber centre that it corrects, where it is not one itself
    """

    geometry: Geometry
    value: Vector
    distances: Vector
    solved: Solved

    def certificate(self) -> Certificate:
        """The certificate, from the residuals to the value and from all that rounding can have done to them.

        Raises a RuntimeError where the updates have changed since they were aggregated.
        """
        huber = self.solved.huber
        if huber is None:
            return self._of_centre()
        centre = huber.geometry.measure(huber.weights).centre
        solved = Solved(huber.weights, huber.thresholds, stationarity=huber.stationarity)
        offset = distance(self.value, centre) + huber.geometry.rounding_of(centre)
        proven = Proof(huber.geometry, centre, huber.distances, solved)._of_centre()
        return replace(proven, offset=float(huber.geometry.real(offset)))

    def _of_centre(self) -> Certificate:
        geometry, shares = self.geometry, self.geometry.shares
        found = geometry.residual_pairs(self.value, self.distances)
        norms = found.lengths
        rounding = geometry.rounding_of(self.value)
        if not np.allclose(norms, self.distances, rtol=1e-3, atol=32 * rounding):
            raise RuntimeError(
                "the updates have changed since they were aggregated, so nothing can be proven about the result. Ask for "
                "result.certificate before you change them, or aggregate a copy."
            )
        distances = np.where(self.distances > 0, norms, 0.0)
        inverse = np.divide(1.0, norms, out=np.zeros_like(norms), where=distances > 0)
        cosines = found.products
        cosines *= inverse[:, None]
        cosines *= inverse
        assert self.solved.thresholds is not None
        thresholds = self.solved.thresholds
        # `off` is what rounding can have changed: the force of each client (its distance or its threshold), and the value.
        forces, before = np.minimum(distances, thresholds), np.minimum(self.distances, thresholds)
        doubt = geometry.resolution * SQUARE_RUN  # relative error of the lengths
        off = float(shares @ (np.abs(forces - before) + doubt * forces)) + rounding * float(shares.sum())
        eigenvalue = top_eigenvalue(cosines, shares * forces, error=found.error)
        slack = self.solved.stationarity + off
        return Certificate(
            samples=geometry.shares,
            distances=geometry.real(distances),
            thresholds=np.where(np.isinf(thresholds), np.inf, geometry.real(thresholds)),
            eigenvalue=float(geometry.real(eigenvalue)),
            slack=float(geometry.real(slack)),
        )
