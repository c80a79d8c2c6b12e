"""How far a Huber aggregate is from what it would be without any f clients, or with others in their place: proofs.

g minimises sum_i n_i phi_i(|s - X_i|), thresholds T_i, up to rounding and the tolerance of a solve. B is any set of at most f
clients, whoever they are. `Certificate.radius(f)` is a rho such that a_B, which minimises the same sum without B, has
|g - a_B| <= rho: leave out any f clients, and everyone else's aggregate lies within the radius. So if those who lie are at most
f, the aggregate of those who do not is there. Steps 1 and 2 prove it with the thresholds as they are. With `replaced=True`,
a_B has other updates in place of those of B (step 3); with `automatic=True`, thresholds of its own (step 4). Rounding is in
step 5. The n_i are as they are throughout, whether capped or not.

1. By convexity it is enough that, for every unit vector v, the sum without B rises along v at g + rho v. Its slope there
   is the sum of n_i R_i(c_i) over the clients not in B. With u_i = (g - X_i)/d_i and c_i = <v, u_i>,

       R(c) = min(1, T/D) (d c + rho),    D = sqrt(d^2 + 2 rho d c + rho^2)

2. For every v, |c_i| <= 1. With w_i = n_i min(d_i, T_i), sum_i w_i c_i <= slack in absolute value, because sum_i w_i u_i is the
   gradient at g, and sum_i w_i c_i^2 <= lambda, the top eigenvalue of sqrt(w_i w_j) <u_i, u_j>. So for any mu > 0 and nu in
   [0, 1] we may add mu (sum_i w_i c_i^2 - lambda) <= 0 and (nu - 1) sum_i w_i c_i <= slack. Then every client's term may be
   minimised over a c of its own:

       slope >= sum_{i not in B} kept_i + sum_{i in B} dropped_i - mu lambda - slack
       kept_i = min_c n_i H_i(c) + w_i (mu c^2 + nu c),    dropped_i = min_c w_i (mu c^2 - (1 - nu) c),    H = R - min(d, T) c

   and the worst B is the f largest kept_i - dropped_i. Cauchy-Schwarz on each sum is a special case. This bound is better:
   the pull of B and the gain of the others share one lambda, and the equation says that the others balance the pull of B.
   `_chords` are 32 lines below H/min(d, T), one for each piece of [-1, 1]. A line plus mu c^2 + nu c has its minimum in
   closed form, so kept_i is bounded from below for all c, not only at sampled c. The bound rises with rho and is concave in
   (mu, nu), as a minimum of functions that are linear in them: searches find nearly the smallest rho. Whatever rho they
   find is proven.
3. An update in place of client i's takes at most n_i T_i from the slope, wherever it is, so dropped_i is that much less.
4. The automatic rule has T_i = t/sqrt(n_i), t = kappa median_j(sqrt(n_j) D_j), with the distances D_j to the aggregate itself.
   Such an aggregate is a fixed point, and there may be several. We prove that all of them lie within rho: every place
   g + R v with R > rho fails to be one, for every v. (So does every place at which the solver can stop: with a gradient of up
   to UNSOLVED sum_i n_i T_i, and a t that is off by up to BLURRED, relatively.)
   a. For a given t the slope along v does not fall as R grows. So for R between `near` and `far`, and t between `low` and
      `high`, it is at least the slope at `near`, with R_i(c) at its least t for each client: at `low` where d c + rho >= 0
      and at `high` elsewhere. Step 2 bounds it; its w_i and slack stay those of g.
   b. t between `low` and `high`: by step 2 the clients with c_i >= c have together no more of sum_i w_i than
      (lambda + 2 a slack + a^2 sum_i w_i)/(c + a)^2, for any a >= 0 (Cantelli's inequality), and those with c_i <= -c neither.
      So they are no more than some number q, and all others have D_j^2 <= d_j^2 + 2 R d_j c + R^2, or >= with -2 R d_j c. The
      k-th smallest of numbers of which q may be anything is between the (k - q)-th and the (k + q)-th smallest of all. Without
      up to f of them it is at least the k-th and at most the (k + f)-th; where up to f are replaced, it is at least the
      (k - f)-th and at most the (k + f)-th. A median is the mean of two such numbers. The best of several c counts.
   c. The range of t is cut into pieces, for each of which a. is proven; and all R > rho are cut into pieces from `near` to
      `far`, from the largest down to the first that is not proven.
   d. The last piece has no end: a client with d_i < R adds at least min(n_i (R - d_i), sqrt(n_i) t (R - d_i)/(R + d_i)) to the
      slope, and others at least -sqrt(n_i) t; and t is at most kappa times the mean of two order statistics of
      sqrt(n_j) (d_j + R). All these, divided by t, rise with R. So where their sum is positive for one R, it is for all larger
      ones. It is checked that t > 0.
5. What is known of d_i is a number d_i/(1 + e_i), |e_i| <= `doubt`. R is homogeneous: that of d, T and rho is 1 + e times
   that of d/(1 + e), T/(1 + e) and rho/(1 + e). So step 2 uses rho (1 - doubt), and for T a range, as in 4a. The factor 1 + e
   costs doubt n_i min(T_i, d_i + rho) at most. Step 4b takes D_j to be off by doubt d_j.
   If the value that counts is not g, but at a distance of `apart`, then the radius is larger by this distance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from numbers import Integral

import numpy as np
from numpy.typing import NDArray

from fedhold.geometry import Geometry, HuberCentre, Solved, pulls_at
from fedhold.kernels import Vector, distance, middle, one_blas_thread

__all__ = ["MEANING", "Certificate", "Proof", "top_eigenvalue"]

MEANING = (
    "Leave out any f clients: with thresholds and sample caps as they are, everyone else's Huber aggregate lies within the "
    "radius. This is proven from what the server received."
)
"""What `radius(f)` says, wherever it is shown to people."""

EPS = float(np.finfo(np.float64).eps)
VANISHED = 2.0**-500  # Residuals below this have squares that vanish, so that they count as 0.
ANGLES = np.linspace(-1.0, 1.0, 33)[:, None]  # values of c, exact in binary; chords this short lose about 0.1 % of H(0)
STARTS, ENDS = ANGLES[:-1], ANGLES[1:]  # of the chords
BALANCES = (0.0, 0.1, 0.2, 0.35, 0.6, 0.8, 1.0)  # the nu to try besides f/m; twenty would gain some 1 %
# The search for a radius, among powers of two times a typical pull.
LOWEST, HIGHEST = -200.0, 1000.0  # exponents
FINEST = 1e-3  # the last step of the exponent: a radius is found to some 0.1 %
# For thresholds found anew.
TILTS = (1.0, 0.95, 0.85, 0.7, 0.5, 0.35, 0.25, 0.18, 0.12, 0.08, 0.05, 0.03)  # the c of step 4b
UNSOLVED = 1e-5  # A solve with a tolerance of this or less is covered; the default is a tenth of it.
BLURRED = 1e-3  # relative error of the distances from which a solve may have found its thresholds; rounding is less
WIDEST = 0.1  # natural logarithm of a piece of the range of t for step 4c

Balances = Mapping[float, float]
"""nu -> mu, as in step 2 of the proof; what is proven by none is not proven."""


@dataclass(frozen=True, eq=False)
class Certificate:
    """How far the aggregate g is from what it would be without any f clients, or with f others in their place.

    samples     the n_i > 0
    distances   d_i = |g - X_i|
    thresholds  T_i in [0, inf]
    eigenvalue  the top eigenvalue of sqrt(w_i w_j) <u_i, u_j>, w_i = n_i min(d_i, T_i), or more; see `top_eigenvalue`
    slack       |sum_i w_i u_i| or more; it is not 0, because a solve stops at a tolerance
    doubt       the relative error of each distance, or more
    apart       the distance from g to the value that the radius is to be about, or more; 0 where that is g itself
    kappa       of the automatic rule that found the thresholds; None where they were not found by it

    >>> alike = np.ones(100)
    >>> [round(Certificate(alike, alike, alike, eigenvalue=2.0).radius(f), 3) for f in (5, 20, 40, 100)]
    [0.032, 0.071, 0.116, inf]
    """

    samples: Vector
    distances: Vector
    thresholds: Vector
    eigenvalue: float
    slack: float = 0.0
    doubt: float = 0.0
    apart: float = 0.0
    kappa: float | None = None

    def __post_init__(self) -> None:
        shapes = self.samples.shape, self.distances.shape, self.thresholds.shape
        if shapes != ((self.samples.size,),) * 3 or not self.samples.size:
            raise ValueError(f"samples, distances and thresholds need one number per client each, got shapes {shapes}")
        if not self.samples.min() > 0:
            raise ValueError(f"samples must be > 0, got {self.samples.min()}; leave rejected clients out")
        for name in ("distances", "thresholds", "eigenvalue", "slack", "doubt", "apart"):
            if not np.min(getattr(self, name)) >= 0:
                raise ValueError(f"{name} must be >= 0, got {np.min(getattr(self, name))}; leave rejected clients out")

    def radius(self, f: int, *, replaced: bool = False, automatic: bool = False) -> float:
        """A distance from the value within which the aggregate without any f clients lies; inf where none is proven.

        f          how many clients may lie. Every set of at most f of them is covered, whoever they are
        replaced   False: they are left out. True: their updates are replaced by any others, their samples stay
        automatic  False: everybody keeps the threshold of this round. True: thresholds are found anew by the automatic rule

        The samples of the clients, capped or not, are as they are. With the thresholds as they are, the radius is the smallest
        one that some mu and nu prove, to 0.1 % and rounded up; for f = 0 it is the distance from the minimiser at which
        the solve may have stopped, as far as the slack tells. With `replaced` and `automatic`, it says how far any f clients
        can move the value by what they send.

        >>> alike = np.ones(100)
        >>> proof = Certificate(alike, alike, 0.75 * alike, eigenvalue=2.0, kappa=0.75)
        >>> round(proof.radius(10), 3), round(proof.radius(10, replaced=True), 3)
        (0.054, 0.166)
        >>> round(proof.radius(10, automatic=True), 3), round(proof.radius(10, replaced=True, automatic=True), 3)
        (0.055, 0.178)
        """
        if isinstance(f, bool) or not isinstance(f, Integral):
            raise TypeError(f"f must be a whole number of clients, got {f!r}; pass an int, such as int(0.2 * m)")
        if f < 0:
            raise ValueError(f"f must be >= 0, got {f}; pass how many clients may lie")
        if automatic and self.kappa is None:
            raise ValueError("automatic=True is for thresholds that the automatic rule found; leave it out for others")
        if f >= len(self.samples):
            return math.inf
        found = self._smallest(_Change(int(f), replaced, automatic))
        return found if self.apart == 0 else math.nextafter(found + self.apart, math.inf)

    def _smallest(self, change: _Change) -> float:
        """The smallest distance found beyond which there is no aggregate after the change; inf where none is found."""
        if change.f == 0 and self.slack == 0 and self.doubt == 0 and not change.automatic:
            return 0.0
        pulls = np.minimum(self.distances, self.thresholds)
        # With the median as the unit, scaled inputs get the same trial radii, and no outlier decides them.
        unit = middle(pulls[pulls > 0]) if pulls.any() else 1.0
        exponent, step = math.log2((change.f + 0.5) / len(self.samples)), 0.25
        while not (proving := self._nothing_beyond(unit * 2.0**exponent, change)):
            if exponent == HIGHEST:
                return math.inf
            exponent, step = min(exponent + step, HIGHEST), 2 * step
        step = 0.5
        while step >= FINEST and exponent > LOWEST:
            near = max(exponent - step, LOWEST)
            found = self._nothing_between(unit * 2.0**near, unit * 2.0**exponent, change, proving)
            if found:
                exponent, step, proving = near, 1.5 * step, found
            else:
                step /= 2
        return unit * 2.0**exponent

    def _nothing_beyond(self, distance: float, change: _Change) -> Balances:
        """The nu and mu that prove step 1 at this distance, if any. With `automatic`: all that there are, if step 4d holds."""
        m, d, roots = len(self.samples), self.distances * (1 + self.doubt), np.sqrt(self.samples)
        if not change.automatic:
            return self._proves(distance, change, change.balances(m))
        with np.errstate(all="ignore"):
            least, largest = change.ranks(m)
            inside, scale = d < distance, self._scale(roots * (d + distance), largest) * (1 + BLURRED)
            if least[0] <= m - int(inside.sum()):  # Half of the clients may be where the aggregate is, so that T = 0.
                return {}
            past = (distance - d) / (distance + d)
            terms = np.where(inside, np.minimum(self.samples * ((distance - d) / scale), roots * past), -roots)
            lost = terms + roots if change.replaced else np.maximum(terms, 0.0)
            worst = np.sort(lost)[m - change.f :].sum()
            return change.balances(m) if terms.sum() - worst - (UNSOLVED + 1e-12) * roots.sum() > 0 else {}

    def _nothing_between(self, near: float, far: float, change: _Change, proving: Balances) -> Balances:
        """The nu and mu that prove that there is no aggregate between these distances, if any; `proving` are tried first."""
        if not change.automatic:  # A nu that does not prove a radius proves no smaller one either.
            return self._proves(near, change, proving)
        low, high = self._scales(near, far, change)
        if not 0 < low < high < math.inf:
            return {}
        pieces = math.ceil(math.log(high / low) / WIDEST)
        ends = low * (high / low) ** (np.arange(pieces + 1) / pieces)
        for scales in pairwise(ends.tolist()):  # step 4c
            found = self._proves(near, change, proving, scales)
            proving = found or self._proves(near, change, change.balances(len(self.samples)), scales)
            if not proving:
                break
        return proving

    def _proves(
        self, rho: float, change: _Change, balances: Balances, scales: tuple[float, float] | None = None
    ) -> Balances:
        """Those of the given nu for which some mu makes the bound on the slope positive; its search begins at the mu given.

        scales  None for the thresholds as they are; or the least and the largest t of the thresholds t / sqrt(n_i)
        """
        with np.errstate(all="ignore"):  # Overflow and 0/0 end in a bound of NaN, which proves nothing.
            n, d, own = self.samples, self.distances, self.thresholds
            low, high = (own, own) if scales is None else (scale / np.sqrt(n) for scale in scales)
            rest = self.slack + (0.0 if scales is None else UNSOLVED * float((n * high).sum()))
            added = n * high if change.replaced else np.zeros(len(n))
            if self.doubt:  # step 5 of the proof
                rho, low, high = rho * (1 - self.doubt), low * (1 - self.doubt), high * (1 + 2 * self.doubt)
                rest += self.doubt * float((n * np.minimum(high, d + rho)).sum())
            forces = np.minimum(d, own)
            lines, pulls = _chords(d, forces, low, high, rho), n * forces
            still = n * np.where(d == 0, np.minimum(rho, low), 0.0)  # what clients at g add, where w = 0

            def bound(nu: float, mu: float) -> tuple[float, float]:
                value, derivative = _bound(*lines, pulls, still, added, nu, mu, change.f)
                return value - (1 + 1e-12) * (mu * self.eigenvalue + rest), derivative - self.eigenvalue

            found = {nu: _positive_at(partial(bound, nu), mu) for nu, mu in balances.items()}
            return {nu: mu for nu, mu in found.items() if mu is not None}

    def _scales(self, near: float, far: float, change: _Change) -> tuple[float, float]:
        """The least and the largest t of thresholds t / sqrt(n_i) at an aggregate between these distances: step 4b."""
        d, roots = self.distances, np.sqrt(self.samples)
        with np.errstate(all="ignore"):
            weights = np.cumsum(np.sort((self.samples * np.minimum(d, self.thresholds))[d > 0])) * (1 - 1e-12)
            total = weights[-1:].sum()
            lows, highs = [0.0], [math.inf]
            for c in TILTS:
                a = self.eigenvalue / (c * total)
                most = (self.eigenvalue + 2 * a * self.slack + a**2 * total) / (c + a) ** 2
                beyond = 0 if c == 1 else int(np.searchsorted(weights, (1 + 1e-9) * most, side="right"))
                least, largest = change.ranks(len(d), beyond)
                nearest = np.clip(c * d, near, far)  # where on the way a client with this c is nearest to the path
                shortest = np.hypot(d - nearest, np.sqrt(2 * (1 - c) * nearest) * np.sqrt(d))
                longest = np.hypot(d - far, np.sqrt(2 * (1 + c) * far) * np.sqrt(d))
                lows.append(self._scale(roots * np.maximum(shortest - self.doubt * d, 0.0), least))
                highs.append(self._scale(roots * (longest + self.doubt * d), largest))
            return max(lows) * (1 - BLURRED), min(highs) * (1 + BLURRED)

    def _scale(self, scaled: Vector, ranks: tuple[int, int]) -> float:
        """kappa times the mean of the numbers of these two ranks: 0 for ranks below 1, inf for ranks beyond the last."""
        assert self.kappa is not None
        padded = np.concatenate([[0.0], np.sort(scaled), [math.inf]])
        low, high = padded[np.clip(ranks, 0, len(scaled) + 1)]
        return float(self.kappa * (low / 2 + high / 2))


@dataclass(frozen=True)
class _Change:
    """What a radius allows for: any f clients are left out or replaced, with thresholds as they are or found anew."""

    f: int
    replaced: bool
    automatic: bool = False

    def balances(self, m: int) -> Balances:
        """All nu to try, each with a mu to begin with. Where clients are alike, nu = f/m is nearly the best."""
        return dict.fromkeys((self.f / m, *BALANCES), 0.125)

    def ranks(self, m: int, beyond: int = 0) -> tuple[tuple[int, int], tuple[int, int]]:
        """Step 4b of the proof: the ranks among m numbers between which the two middle numbers lie after the change.

        beyond  of how many further clients the number may be anything
        """
        kept = m if self.replaced else m - self.f
        below = self.f + beyond if self.replaced else beyond
        middle = (kept + 1) // 2, kept // 2 + 1
        return (middle[0] - below, middle[1] - below), (middle[0] + self.f + beyond, middle[1] + self.f + beyond)


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


def _chords(distances: Vector, forces: Vector, least: Vector, largest: Vector, radius: float) -> tuple[Vector, Vector]:
    """Lines below H / min(d, T) between each two neighbouring ANGLES: their slopes, and their values at c = 0.

    forces          min(d, T) at g
    least, largest  the thresholds at g + rho v are anything between these; both are T where they are as they are

    H = R - min(d, T) c. With P = (d c + rho)/D, R = min(d c + rho, T P) where the path from g has passed the client
    (d c + rho >= 0), and max(d c + rho, T P) before. P'' has the sign of rho^2 - rho d c - 2 d^2, so P is concave for rho <= d,
    and otherwise convex up to c0 = rho/d - 2d/rho and concave beyond. Chords lie below a concave function, and the minimum of
    concave functions is concave. Two cases are not concave:
      - rho > d: the tangent of P at min(c0, 0) lies below P where P is convex, so we take min(P, tangent), which is concave;
      - before the client, R turns up from d c + rho to T P where the path leaves the threshold: we stay on d c + rho.
    Of a range of thresholds, the largest makes R least before the client, and the least one after. A chord from before to after
    it lies below R, too: one that starts on d c + rho ends no higher than this line, and lies below it, so that it is below 0
    where R is 0, and from there on below the concave T P. One that starts on T P, with the largest T, lies below the chords of
    T P for both T, because P is negative at its start and positive at its end.
    """
    scale = np.maximum(distances, radius)  # the unit of length, so that nothing overflows
    low, high = np.minimum(least / scale, 2.0), np.minimum(largest / scale, 2.0)  # D <= 2: a larger T changes nothing.
    d, rho = distances / scale, radius / scale
    # Written in terms of 1 + c, D and d c + rho lose no digits where the path meets the client (rho = d, c = -1).
    bend = np.where(rho > d, np.minimum((rho + 2 * d) * (rho - d) / (d * rho), 1.0), 1.0)
    reach = np.sqrt((d - rho) ** 2 + 2 * d * rho * bend)
    tangent = (rho - d + d * bend) / reach + d**2 * (d - rho + rho * bend) / reach**3 * (1 + ANGLES - bend)
    distance = np.maximum(np.sqrt((d - rho) ** 2 + 2 * d * rho * (1 + ANGLES)), 16 * EPS)
    past = rho - d + d * (1 + ANGLES)
    cosine = np.minimum(past / distance, tangent)
    slope = np.where(past >= 0, np.minimum(past, low * cosine), np.maximum(past, high * cosine))
    # Rounding moves g + rho v by a few eps of max(d, rho), R by min(1, T/D) times that, and a chord by 16 times more.
    pull, rounding = forces / scale, 256 * EPS * np.minimum(1.0, high / distance)
    start = (slope - rounding)[:-1] / pull - STARTS
    end = (np.where((distance[:-1] < high) & (past[1:] < 0), past[1:], slope[1:]) - rounding[1:]) / pull - ENDS
    sound = pull > 1e-280  # Quotients of subnormal numbers prove nothing.
    # The line 0 stays, because H >= 0 where the threshold is the same at g and at g + rho v, and for clients at g.
    otherwise = np.where((least == largest) | (distances == 0), 0.0, -np.inf)
    steepness = np.where(sound, (end - start) / (ANGLES[1] - ANGLES[0]), 0.0)
    return steepness, np.where(sound, start - steepness * STARTS, otherwise)


def _bound(
    steepness: Vector, intercept: Vector, pulls: Vector, still: Vector, added: Vector, nu: float, mu: float, f: int
) -> tuple[float, float]:
    """The bound of step 2 of the proof, without the terms in lambda and slack, and its derivative in mu, sum_i w_i c_i^2.

    added  the most that each client can take from the slope by an update that replaces its own; 0 where it is left out
    """
    tilted = steepness + nu
    c = np.minimum(np.maximum(tilted * (-0.5 / mu), STARTS), ENDS)
    least = intercept + c * (tilted + mu * c)
    cell = least.argmin(axis=0), np.arange(len(pulls))
    terms, angles = pulls * least[cell] + still, c[cell]
    angle = min(1.0, (1 - nu) / (2 * mu))
    dropped = pulls * (mu * angle - (1 - nu)) * angle - added
    worst = np.argpartition(dropped - terms, f)[:f]
    worst = worst[dropped[worst] < terms[worst]]
    terms[worst], angles[worst] = dropped[worst], angle
    # NumPy adds pairwise, so 1e-12 covers the rounding of sums of any length.
    return float(np.add.reduce(terms) - 1e-12 * np.add.reduce(np.abs(terms))), float(pulls @ (angles * angles))


def _positive_at(concave: Callable[[float], tuple[float, float]], mu: float) -> float | None:
    """A place in (2^-40, 2^20) at which a concave function is positive, found by cutting planes that start at mu.

    concave  gives the value and the derivative at a place

    None where the tangents on both sides cross below zero, so that there is no such place, or where the bracket has shrunk to
    its tolerance without one.
    """
    left, right = (2.0**-40, math.nan, math.nan), (2.0**20, math.nan, math.nan)  # place, value, derivative
    while right[0] > 1.0001 * left[0]:
        value, derivative = concave(mu)
        if value > 0:
            return mu
        left, right = (left, (mu, value, derivative)) if derivative < 0 else ((mu, value, derivative), right)
        (a, value_a, rise), (b, value_b, fall) = left, right
        if math.isnan(value_a + value_b):  # One side is unknown. The top is there, and not far if mu was well chosen.
            mu = max(mu / 2, math.sqrt(a * mu)) if derivative < 0 else min(mu * 2, math.sqrt(b * mu))
            continue
        cross = (value_b - value_a + rise * a - fall * b) / (rise - fall)
        if value_a + rise * (cross - a) < 0:
            break
        inset = (b / a) ** 0.2  # keeps mu off the ends, where a kink could stall the search
        mu = min(max(cross, a * inset), b / inset) if cross > 0 else math.sqrt(a * b)
    return None


@dataclass(frozen=True)
class Proof:
    """What a certificate is made from, kept until it is asked for: the m x m matrix can cost more than the aggregate itself.

    geometry   the admitted clients
    centre     the value, before it was rounded to the dtype of the updates
    distances  the distance of every client to it
    solved     its weights and thresholds; and the Huber centre that it corrects, where it is not one itself
    received   the value that the caller has received, as `centre` has it; it may be any, and its distance to the centre counts
    """

    geometry: Geometry
    centre: Vector
    distances: Vector
    solved: Solved
    received: Callable[[], Vector]

    @one_blas_thread
    def certificate(self) -> Certificate:
        """The certificate of the value received, from residuals and with all that rounding can have done to them.

        Where the products of all pairs are known, no pass is needed. Otherwise the proof is about a place that the dtype of the
        updates can hold, so that X_i - place has only the rounding of a difference, however far away from 0 both are. What the
        solver measured is not relied upon.

        Raises a RuntimeError where the updates are read again, and have changed since they were aggregated.
        """
        solved = self.solved
        huber = solved.huber
        if huber is None:  # The value is one itself.
            assert solved.thresholds is not None
            huber = HuberCentre(self.geometry, solved.weights, self.distances, solved.thresholds, solved.kappa)
        geometry, thresholds = huber.geometry, huber.thresholds
        pulls = pulls_at(geometry.shares, thresholds, huber.distances)
        found = geometry.known_residuals(huber.weights, pulls)
        if found is not None:
            off = distance(self.received(), self.centre)
            off += geometry.reach_of_rounding(solved.weights, self.centre, huber.weights)
        else:
            centre = self.centre if solved.huber is None else geometry.measure(huber.weights).centre
            place = geometry.rounded(centre)
            found = geometry.residual_pairs(place, huber.distances, pulls)
            rounding = geometry.rounding_of(centre)
            if not np.allclose(found.lengths, huber.distances, rtol=1e-3, atol=32 * rounding):
                raise RuntimeError(
                    "the updates have changed since they were aggregated, so nothing can be proven about the result. Ask for "
                    "result.certificate before you change them, or aggregate a copy."
                )
            off = distance(self.received(), place)
        distances = found.lengths
        inverse = np.divide(1.0, distances, out=np.zeros_like(distances), where=distances > 0)
        cosines = found.products
        cosines *= inverse[:, None]
        cosines *= inverse
        forces, exerted = geometry.shares * np.minimum(distances, thresholds), pulls * distances
        # |sum_i w_i u_i| differs from the force by as much as each w_i from pulls_i d_i. That is little, unless the solver's
        # distances are lost in rounding. The cosines know it too, but roughly: the root of a small error is large.
        measured = found.force + float(np.abs(forces - exerted).sum() + found.doubt * exerted.sum())
        angular = math.sqrt(max(float(forces @ cosines @ forces), 0.0) + 2 * found.error * float(forces.sum()) ** 2)
        slack = min(measured, angular) + float(geometry.shares.sum()) * math.sqrt(geometry.d) * VANISHED
        return Certificate(
            samples=geometry.shares,
            distances=geometry.real(distances),
            thresholds=np.where(np.isinf(thresholds), np.inf, geometry.real(thresholds)),
            eigenvalue=float(geometry.real(top_eigenvalue(cosines, forces, error=found.error))),
            slack=float(geometry.real(slack)),
            apart=float(geometry.real(off * (1 + geometry.d * EPS))),
            doubt=found.doubt,
            kappa=huber.kappa,
        )
