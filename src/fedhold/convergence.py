"""The convergence lemmas of the paper's appendix: from the error Delta of the aggregate to that of the model."""

import math

from fedhold.errors import condition

__all__ = [
    "convex_error",
    "convex_radius",
    "convex_rounds",
    "nonconvex_error",
    "nonconvex_radius",
    "nonconvex_rounds",
    "strongly_convex_error",
]


# The convergence lemmas: w <- Proj_W(w - eta g(w)) with |g - grad F| <= Delta everywhere on W. F is L-smooth and w* is
# its unconstrained minimiser; `start` is |w_0 - w*|, `gap` is F(w_0) - F(w*).
def strongly_convex_error(*, Delta: float, mu: float, L: float, eta: float, start: float, t: int) -> float:
    """|w_t - w*| <= (1 - rho)^t start + 2 Delta / mu,  rho = eta mu / 2, for a mu-strongly convex F.  Lemma (strong).

    Needs 0 < mu <= L, 0 < eta <= 1/L, W convex and w* in W.  One step contracts by sqrt(1 - eta mu) <= 1 - rho.
    """
    holds, needs = 0 < mu <= L and 0 < eta * L <= 1, "0 < mu <= L and 0 < eta <= 1/L"
    condition(holds, "strongly_convex_error", needs, "lower mu or eta", mu=mu, L=L, eta=eta)
    return float((1 - eta * mu / 2) ** t * start + 2 * Delta / mu)


def convex_radius(*, start: float) -> float:
    """The radius of W around w* that Lemma (convex) prescribes: 2 start. None of its rounds leaves it."""
    return 2 * start


def convex_rounds(*, Delta: float, L: float, start: float) -> int:
    """t_m = L start / Delta, rounded down: one round more could leave W, and the 16 has room for one less."""
    condition(Delta > 0, "convex_rounds", "Delta > 0", "without error, every further round helps", Delta=Delta)
    return math.floor(L * start / Delta)


def convex_error(*, Delta: float, start: float) -> float:
    """F(w_t) - F(w*) <= 16 start Delta after t = `convex_rounds`, for a convex F and eta = 1/L.  Lemma (convex).

    Slip: case 2 of the proof misses a step of at most Delta^2/(2L) uphill; the 16 has room for it.
    """
    return 16 * start * Delta


def nonconvex_radius(*, Delta: float, gap: float, gradient_bound: float) -> float:
    """The radius of W around w_0 that Lemma (nonconvex) prescribes: 2 (gradient_bound + Delta) gap / Delta^2.

    Slip: the paper centres W at w*, and drops |w_0 - w*| from the sum of the steps; such a W need not hold w_0.
    """
    condition(Delta > 0, "nonconvex_radius", "Delta > 0", "without error, no radius is needed", Delta=Delta)
    return 2 * (gradient_bound + Delta) * gap / Delta**2


def nonconvex_rounds(*, Delta: float, L: float, gap: float) -> int:
    """t_m = 2 L gap / Delta^2, rounded up: one round less, and |grad F|^2 may not average 2 Delta^2 yet."""
    condition(Delta > 0, "nonconvex_rounds", "Delta > 0", "without error, every further round helps", Delta=Delta)
    return math.ceil(2 * L * gap / Delta**2)


def nonconvex_error(*, Delta: float) -> float:
    """The least |grad F(w_t)|, t <= `nonconvex_rounds`, is at most sqrt(2) Delta; eta = 1/L.  Lemma (nonconvex).

    Slip: the proof adds Delta^2/(2L) once instead of once a round; the sum is then 2 t_m Delta^2 and the claim stands.
    """
    return math.sqrt(2) * Delta
