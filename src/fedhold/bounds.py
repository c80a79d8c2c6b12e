"""The paper's finite-sample bounds and convergence lemmas (its appendix), as functions.

F(w) is the expected loss of the model w, W the set of models that training may visit, and g(w) the Huber minimiser of
the clients' gradients. With probability 1 - delta (1 - 2 delta for Theorem 3), |g - grad F| <= Delta on all of W:

    Theorem 1  balanced clients       T   = threshold_theorem_1(setting)        Delta = delta_a(setting, ...)
    Theorem 2  unbalanced clients     T_i = thresholds_theorem_2(setting, ...)  Delta = delta_b(setting, ...)
    Theorem 3  heterogeneous clients  T_i = thresholds_theorem_3(setting, ...)  Delta = delta_c(setting, ...)

strongly_convex_error, convex_error and nonconvex_error say what such a Delta means for the trained model.
A condition that fails raises an InfeasibleError with its remedy. "Slip" marks a place where the paper's print and its proof
disagree and the code follows the proof; docs/theory.md has them all, with the arguments. Examples use the names of this module.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedhold.errors import require
from fedhold.kernels import Vector

__all__ = [
    "Setting",
    "big_r",
    "byzantine_fraction",
    "convex_error",
    "convex_radius",
    "convex_rounds",
    "delta_0",
    "delta_a",
    "delta_b",
    "delta_c",
    "delta_mu",
    "least_t_0_theorem_2",
    "least_t_0_theorem_3",
    "n_0",
    "nonconvex_error",
    "nonconvex_radius",
    "nonconvex_rounds",
    "r_0",
    "r_0i",
    "r_mu",
    "strongly_convex_error",
    "threshold_theorem_1",
    "thresholds_theorem_2",
    "thresholds_theorem_3",
]


def __dir__() -> list[str]:
    """The public names, for help() and for the completion of names."""
    return sorted(__all__)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all bounds share: m clients, N samples in all, d parameters, confidence 1 - delta.

    sigma     the scale of one sample's gradient grad f around grad F, which must be sub-exponential:
              E exp(lambda <v, grad f - grad F>) <= exp(sigma^2 lambda^2 / 2) for |v| = 1, |lambda| <= 1/sigma
    d         how many parameters the model has
    N         how many samples all clients have together
    m         how many clients there are
    delta     the probability with which a bound may fail
    ln_c_w    ln C_W, where at most C_W / r^d balls of any radius r < r_d cover W; a ball W of radius rho has
              C_W = (3 rho)^d and r_d = rho. It is the logarithm, because (3 rho)^d overflows for the d of any network
    L         a bound on the curvature (the smoothness constant) of every sample's loss
    r_d       the radius below which the covers of W obey that bound; infinity means any radius
    sigma_mu  the scale of the clients' own expected gradients mu_i around grad F, sub-exponential as above; 0 means that
              all clients draw from one distribution. Only Theorem 3 uses it

    Needs N > 1/(r_d L), C_W (N L)^d >= 1.

    >>> Setting(sigma=1.0, d=5, N=20_000, m=20, delta=0.05).sigma_mu
    0.0

    Slip: the paper lets L bound the curvature of F alone; its proof needs it for every sample's loss.
    """

    sigma: float
    d: int
    N: float
    m: int
    delta: float
    ln_c_w: float = 0.0
    L: float = 1.0
    r_d: float = math.inf
    sigma_mu: float = 0.0

    def __post_init__(self) -> None:
        scales = {"sigma": self.sigma, "L": self.L, "sigma_mu": self.sigma_mu}
        positive = min(self.sigma, self.L) > 0 and self.sigma_mu >= 0 and sum(scales.values()) < math.inf
        sizes, enough = {"d": self.d, "m": self.m, "N": self.N}, self.d >= 1 and 1 <= self.m <= self.N < math.inf
        cell = {"N": self.N, "r_d": self.r_d, "L": self.L}
        require(0 < self.delta < 1, "Setting", needs="0 < delta < 1", remedy="Choose 0.05, say.", delta=self.delta)
        needs, remedy = "sigma > 0, L > 0, sigma_mu >= 0", "Give finite, positive scales."
        require(positive, "Setting", needs=needs, remedy=remedy, **scales)
        require(enough, "Setting", needs="d >= 1, 1 <= m <= N", remedy="Give every client a sample.", **sizes)
        require(self.N * self.r_d * self.L > 1, "Setting", needs="N > 1/(r_d L)", remedy="Raise N.", **cell)
        _at_least("Setting", "C_W (N L)^d >= 1", "ln_c_w", self.ln_c_w, -self.d * math.log(self.N * self.L), **cell)


def r_0(setting: Setting) -> float:
    """No honest client is farther than this from grad F, where all clients have n = N/m samples.

    r_0 = max{sqrt(8 sigma^2 l / n), 4 sigma l / n} + 2/N,  l = ln(2 6^d m C_W (N L)^d / delta).  Eq. (r0).

    setting  the clients and the confidence

    >>> round(r_0(Setting(sigma=1.0, d=5, N=20_000, m=20, delta=0.05)), 3)
    0.722
    """
    n = setting.N / setting.m
    return _deviation(setting.sigma, _log_count(setting, setting.m), 1 / n, 1 / n) + 2 / setting.N


def delta_0(setting: Setting) -> float:
    """The mean gradient over all samples is no farther than this from grad F.

    Delta_0 = max{sqrt(8 sigma^2 l / N), 4 sigma l / N} + 2/N,  l = ln(2 6^d C_W (N L)^d / delta).  Eq. (delta0).

    setting  the clients and the confidence

    >>> round(delta_0(Setting(sigma=1.0, d=5, N=20_000, m=20, delta=0.05)), 3)
    0.158
    """
    return _deviation(setting.sigma, _log_count(setting, 1), 1 / setting.N, 1 / setting.N) + 2 / setting.N


def threshold_theorem_1(setting: Setting) -> float:
    """The least threshold T for which `delta_a` holds, whatever epsilon is: 3 r_0. Theorem 1.

    setting  the clients and the confidence

    >>> round(threshold_theorem_1(Setting(sigma=1.0, d=5, N=20_000, m=20, delta=0.05)), 3)
    2.166
    """
    return 3 * r_0(setting)


def delta_a(setting: Setting, *, epsilon: float, T: float) -> float:
    """Theorem 1: |g - grad F| <= Delta_A with one threshold T, for clients of n_i = N/m samples each.

    Delta_A = 2 epsilon T + Delta_0                          if epsilon <= 1/4,
              (1 - epsilon) / sqrt(1 - 2 epsilon) r_0 + T    if 1/4 < epsilon < 1/2.

    setting  the clients and the confidence
    epsilon  the share of the clients that are Byzantine
    T        the threshold of all clients

    Needs epsilon < 1/2, T >= 3 r_0.

    >>> setting = Setting(sigma=1.0, d=5, N=20_000, m=20, delta=0.05)
    >>> T = threshold_theorem_1(setting)
    >>> [round(delta_a(setting, epsilon=share, T=T), 2) for share in (0.1, 0.2, 0.4)]
    [0.59, 1.02, 3.14]
    """
    _minority("delta_a", epsilon)
    radius = r_0(setting)
    _at_least("delta_a", "T >= 3 r_0", "T", T, 3 * radius, r_0=radius)
    if epsilon <= 1 / 4:
        return 2 * epsilon * T + delta_0(setting)
    return (1 - epsilon) / math.sqrt(1 - 2 * epsilon) * radius + T


def byzantine_fraction(*, samples: ArrayLike, byzantine: Sequence[int]) -> float:
    """The epsilon of Theorems 2 and 3: the liars' share of the clients or of the samples, whichever is larger. Eq. (eps).

    samples    the n_i, one per client
    byzantine  the indices of the liars

    >>> byzantine_fraction(samples=[100, 100, 100, 700], byzantine=[3])
    0.7
    """
    n = np.asarray(samples, dtype=np.float64)
    return max(len(byzantine) / n.size, float(n[list(byzantine)].sum() / n.sum()))


def big_r(setting: Setting) -> float:
    """The scale of an honest client's deviation: client i is within R / sqrt(n_i) + 2/N of grad F from `n_0` samples on.

    R = sqrt(8 sigma^2 ln(2 6^d m C_W (N L)^d / delta)).  Eq. (Rdef).

    setting  the clients and the confidence

    >>> round(big_r(Setting(sigma=1.0, d=5, N=20_000, m=20, delta=0.05)), 2)
    22.83
    """
    return setting.sigma * math.sqrt(8 * _log_count(setting, setting.m))


def n_0(setting: Setting) -> float:
    """The samples from which an honest client's deviation shrinks as 1/sqrt(n_i): the first term of `r_0i` is then the larger.

    n_0 = 2 ln(2 6^d m C_W (N L)^d / delta).

    setting  the clients and the confidence

    >>> round(n_0(Setting(sigma=1.0, d=5, N=20_000, m=20, delta=0.05)), 1)
    130.3

    Slip: the paper prints 2 sigma ln(...), but sigma cancels when the two terms are compared.
    """
    return 2 * _log_count(setting, setting.m)


def r_0i(setting: Setting, *, samples: ArrayLike) -> Vector:
    """Honest client i is no farther than r_0i from grad F (Theorem 2), or from its own expected gradient mu_i (Theorem 3).

    r_0i = max{sqrt(8 sigma^2 l / n_i), 4 sigma l / n_i} + 2/N,  l = ln(2 6^d m C_W (N L)^d / delta).  Eq. (r0i).

    setting  the clients and the confidence
    samples  the n_i, one per client; their sum is N

    >>> r_0i(Setting(sigma=1.0, d=5, N=2_000, m=2, delta=0.05), samples=[500, 1500]).round(2)
    array([0.91, 0.52])
    """
    n, log_count = _client_sizes("r_0i", setting, samples), _log_count(setting, setting.m)
    return np.maximum(setting.sigma * np.sqrt(8 * log_count / n), 4 * setting.sigma * log_count / n) + 2 / setting.N


def least_t_0_theorem_2(setting: Setting, *, epsilon: float, M: float) -> float:
    """The least T_0 of Theorem 2: epsilon (M + 2R) / (1 - 2 epsilon) sqrt(m/N). Eq. (mint0).

    setting  the clients and the confidence
    epsilon  an upper bound on `byzantine_fraction`
    M        the part of the thresholds T_i = T_0 + M / sqrt(n_i) that depends on the samples

    Needs epsilon < 1/2, M >= 2R.

    >>> setting = Setting(sigma=1.0, d=5, N=20_000, m=20, delta=0.05)
    >>> round(least_t_0_theorem_2(setting, epsilon=0.2, M=2 * big_r(setting)), 3)
    0.963
    """
    return _least_t_0("delta_b", setting, epsilon, M)


def thresholds_theorem_2(setting: Setting, *, epsilon: float, samples: ArrayLike) -> Vector:
    """The least T_i = T_0 + M / sqrt(n_i) for which `delta_b` holds: M = 2R, T_0 = `least_t_0_theorem_2`. Theorem 2.

    setting  the clients and the confidence
    epsilon  an upper bound on `byzantine_fraction`
    samples  the n_i, one per client; their sum is N

    Needs what `delta_b` needs of epsilon and of the n_i.

    >>> setting = Setting(sigma=1.0, d=5, N=2_000, m=2, delta=0.05)
    >>> thresholds_theorem_2(setting, epsilon=0.2, samples=[500, 1500]).round(2)
    array([2.67, 1.9 ])
    """
    return _thresholds("delta_b", setting, epsilon, samples)


def delta_b(setting: Setting, *, epsilon: float, T_0: float, M: float, samples: ArrayLike) -> float:
    """Theorem 2: |g - grad F| <= Delta_B with T_i = T_0 + M / sqrt(n_i).

    Delta_B = epsilon/(1 - epsilon) (T_0 + (M + 2R) sqrt(m/N)) + Delta_0.

    setting  the clients and the confidence
    epsilon  an upper bound on `byzantine_fraction`
    T_0      the part of the thresholds that all clients share
    M        the part of the thresholds that depends on the samples
    samples  the n_i, one per client; their sum is N

    Needs epsilon < 1/2, M >= 2R, T_0 >= `least_t_0_theorem_2`, n_i >= n_0 and Delta_0 + 2/N <= R / sqrt(n_i) for all i.

    >>> setting, samples = Setting(sigma=1.0, d=5, N=20_000, m=20, delta=0.05), [500, 1500] * 10
    >>> M = 2 * big_r(setting)
    >>> T_0 = least_t_0_theorem_2(setting, epsilon=0.2, M=M)
    >>> round(delta_b(setting, epsilon=0.2, T_0=T_0, M=M, samples=samples), 2)
    1.12

    Slip: the proof's r_0i = R / sqrt(n_i) lacks + 2/N and fails for small n_i; hence the last two needs.
    """
    return _pulled("delta_b", setting, epsilon, T_0, M, samples) + delta_0(setting)


def r_mu(setting: Setting) -> float:
    """No client's expected gradient mu_i is farther than this from grad F.

    r_mu = 4 sigma_mu ln(2 6^d m C_W (N L)^d / delta) + 2/N.  Eq. (rmu).

    setting  the clients and the confidence, with a `sigma_mu`

    >>> round(r_mu(Setting(sigma=1.0, d=5, N=20_000, m=20, delta=0.05, sigma_mu=0.01)), 2)
    2.61
    """
    return 4 * setting.sigma_mu * _log_count(setting, setting.m) + 2 / setting.N


def delta_mu(setting: Setting, *, samples: ArrayLike) -> float:
    """The mean of the clients' expected gradients mu_i, weighted with the n_i, is no farther than this from grad F.

    Delta_mu = max{sqrt(8 s^2 l sum n_i^2) / N, 4 s l max n_i / N} + 2/N,  s = sigma_mu, l as in `delta_0`.

    setting  the clients and the confidence, with a `sigma_mu`
    samples  the n_i, one per client; their sum is N

    >>> round(delta_mu(Setting(sigma=1.0, d=5, N=20_000, m=20, delta=0.05, sigma_mu=0.01), samples=[500, 1500] * 10), 3)
    0.187

    Eq. (deltamu).
    """
    share = _client_sizes("delta_mu", setting, samples) / setting.N
    squares, largest = float(share @ share), float(share.max())
    return _deviation(setting.sigma_mu, _log_count(setting, 1), squares, largest) + 2 / setting.N


def least_t_0_theorem_3(setting: Setting, *, epsilon: float, M: float) -> float:
    """The least T_0 of Theorem 3: (2 r_mu + epsilon (M + 2R) sqrt(m/N)) / (1 - 2 epsilon).

    setting  the clients and the confidence, with a `sigma_mu`
    epsilon  an upper bound on `byzantine_fraction`
    M        the part of the thresholds T_i = T_0 + M / sqrt(n_i) that depends on the samples

    Needs epsilon < 1/2, M >= 2R.

    >>> setting = Setting(sigma=1.0, d=5, N=20_000, m=20, delta=0.05, sigma_mu=0.01)
    >>> round(least_t_0_theorem_3(setting, epsilon=0.2, M=2 * big_r(setting)), 2)
    9.65

    Eq. (t0).  Slip: the main text wants T_0b ~ sigma sqrt(d/N ln(N/delta)), which ignores sigma_mu; the proof needs this one.
    """
    return _least_t_0("delta_c", setting, epsilon, M, r_mu(setting))


def thresholds_theorem_3(setting: Setting, *, epsilon: float, samples: ArrayLike) -> Vector:
    """The least T_i = T_0 + M / sqrt(n_i) for which `delta_c` holds: M = 2R, T_0 = `least_t_0_theorem_3`. Theorem 3.

    setting  the clients and the confidence, with a `sigma_mu`
    epsilon  an upper bound on `byzantine_fraction`
    samples  the n_i, one per client; their sum is N

    Needs what `delta_c` needs of epsilon and of the n_i.

    >>> setting = Setting(sigma=1.0, d=5, N=2_000, m=2, delta=0.05, sigma_mu=0.01)
    >>> thresholds_theorem_3(setting, epsilon=0.2, samples=[500, 1500]).round(2)
    array([9.52, 8.75])
    """
    return _thresholds("delta_c", setting, epsilon, samples, r_mu(setting))


def delta_c(setting: Setting, *, epsilon: float, T_0: float, M: float, samples: ArrayLike) -> float:
    """Theorem 3: |g - grad F| <= Delta_C with T_i = T_0 + M / sqrt(n_i), with probability 1 - 2 delta.

    Delta_C = epsilon/(1 - epsilon) (T_0 + 2 r_mu + (M + 2R) sqrt(m/N)) + Delta_0 + Delta_mu.

    setting  the clients and the confidence, with a `sigma_mu`
    epsilon  an upper bound on `byzantine_fraction`
    T_0      the part of the thresholds that all clients share
    M        the part of the thresholds that depends on the samples
    samples  the n_i, one per client; their sum is N

    Needs epsilon < 1/2, M >= 2R, T_0 >= `least_t_0_theorem_3`, and what `delta_b` needs of the n_i.

    >>> samples = [500, 1500] * 10
    >>> setting = Setting(sigma=1.0, d=5, N=20_000, m=20, delta=0.05, sigma_mu=0.01)
    >>> M = 2 * big_r(setting)
    >>> T_0 = least_t_0_theorem_3(setting, epsilon=0.2, M=M)
    >>> round(delta_c(setting, epsilon=0.2, T_0=T_0, M=M, samples=samples), 2)
    4.78
    """
    pulled = _pulled("delta_c", setting, epsilon, T_0, M, samples, r_mu(setting))
    return pulled + delta_0(setting) + delta_mu(setting, samples=samples)


def _log_count(setting: Setting, clients: int) -> float:
    """ln(2 6^d clients C_W (N L)^d / delta), summed term by term, because the number itself has more than d digits."""
    cover = setting.ln_c_w + setting.d * math.log(setting.N * setting.L)
    return math.log(2) + setting.d * math.log(6) + math.log(clients) + cover - math.log(setting.delta)


def _deviation(sigma: float, log_count: float, squares: float, largest: float) -> float:
    """How far a weighted mean can be off, given the sum of the squared weights and the largest weight (Bernstein)."""
    return sigma * max(math.sqrt(8 * squares * log_count), 4 * largest * log_count)


# Theorem 2 is Theorem 3 for clients whose expected gradients are no farther than r_mu = 0 from grad F.
def _least_t_0(bound: str, setting: Setting, epsilon: float, M: float, r_mu: float = 0.0) -> float:
    _minority(bound, epsilon)
    _at_least(bound, "M >= 2R", "M", M, 2 * big_r(setting), R=big_r(setting))
    return (2 * r_mu + epsilon * _reach(setting, M)) / (1 - 2 * epsilon)


def _thresholds(bound: str, setting: Setting, epsilon: float, samples: ArrayLike, r_mu: float = 0.0) -> Vector:
    n, M = _large_clients(bound, setting, samples), 2 * big_r(setting)
    return _least_t_0(bound, setting, epsilon, M, r_mu) + M / np.sqrt(n)


def _pulled(
    bound: str, setting: Setting, epsilon: float, T_0: float, M: float, samples: ArrayLike, r_mu: float = 0.0
) -> float:
    """How far liars pull the minimiser from the mean of the honest clients."""
    _large_clients(bound, setting, samples)
    least = _least_t_0(bound, setting, epsilon, M, r_mu)
    _at_least(bound, "T_0 >= least_t_0", "T_0", T_0, least, epsilon=epsilon, M=M, R=big_r(setting), r_mu=r_mu)
    return epsilon / (1 - epsilon) * (T_0 + 2 * r_mu + _reach(setting, M))


def _reach(setting: Setting, M: float) -> float:
    return (M + 2 * big_r(setting)) * math.sqrt(setting.m / setting.N)


def _client_sizes(bound: str, setting: Setting, samples: ArrayLike) -> Vector:
    n, met = np.asarray(samples, dtype=np.float64), {"m": setting.m, "N": setting.N}
    require(n.shape == (setting.m,), bound, needs="one n_i per client", remedy="Pass m samples.", samples=n.size, **met)
    require(bool((n > 0).all()), bound, needs="n_i > 0", remedy="Leave empty clients out.", smallest=float(n.min()))
    require(math.isclose(n.sum(), setting.N), bound, needs="sum n_i = N", remedy=f"Set N to {n.sum():.17g}.", **met)
    return n


def _large_clients(bound: str, setting: Setting, samples: ArrayLike) -> Vector:
    """The n_i, after a check that |mean - G_i| <= Delta_0 + r_0i <= 2R / sqrt(n_i) for every honest i, which the proofs use."""
    n = _client_sizes(bound, setting, samples)
    _at_least(bound, "n_i >= n_0", "the smallest n_i", float(n.min()), n_0(setting))
    most, needs = (big_r(setting) / (delta_0(setting) + 2 / setting.N)) ** 2, "Delta_0 + 2/N <= R / sqrt(n_i)"
    remedy = f"Split clients with more than {math.floor(most)} samples."
    require(n.max() <= math.floor(most), bound, needs=needs, remedy=remedy, largest=float(n.max()), N=setting.N)
    return n


def _minority(bound: str, epsilon: float) -> None:
    holds, remedy = 0 <= epsilon < 1 / 2, "Keep more than half of the clients and samples honest."
    require(holds, bound, needs="0 <= epsilon < 1/2", remedy=remedy, epsilon=epsilon)


def _at_least(bound: str, needs: str, name: str, value: float, least: float, **met: float) -> None:
    # A T computed as 3 r_0 must pass in spite of its rounding, and so must the value that the remedy names: it is rounded up.
    step = 10.0 ** (math.floor(math.log10(abs(least))) - 5) if least else 1.0
    holds, remedy = math.isfinite(value) and value >= least - 1e-12 * abs(least), math.ceil(least / step) * step
    require(holds, bound, needs=needs, remedy=f"Raise {name} to at least {remedy:.6g}.", **{name: value}, **met)


# The convergence lemmas. Training steps are w <- Proj_W(w - eta g(w)) with |g - grad F| <= Delta everywhere on W; F is
# L-smooth, and w* is its unconstrained minimiser.
def strongly_convex_error(*, Delta: float, mu: float, L: float, eta: float, start: float, t: int) -> float:
    """How far the model is from the minimiser after t rounds, for a mu-strongly convex F.

    |w_t - w*| <= (1 - rho)^t start + 2 Delta / mu,  rho = eta mu / 2.  Lemma (strong).

    Delta  a bound on |g - grad F|, such as `delta_a`
    mu     the strong convexity of F
    L      the smoothness of F
    eta    the learning rate
    start  |w_0 - w*|
    t      the number of rounds

    Needs 0 < mu <= L, 0 < eta <= 1/L, W convex and w* in W.  One step contracts by sqrt(1 - eta mu) <= 1 - rho.

    >>> [round(strongly_convex_error(Delta=0.1, mu=1.0, L=2.0, eta=0.5, start=10.0, t=t), 3) for t in (0, 10, 100)]
    [10.2, 0.763, 0.2]
    """
    holds, needs = 0 < mu <= L and 0 < eta * L <= 1, "0 < mu <= L and 0 < eta <= 1/L"
    require(holds, "strongly_convex_error", needs=needs, remedy="Lower mu or eta.", mu=mu, L=L, eta=eta)
    return float((1 - eta * mu / 2) ** t * start + 2 * Delta / mu)


def convex_radius(*, start: float) -> float:
    """The radius of W around w* that Lemma (convex) prescribes: 2 start. None of its rounds leaves this ball.

    start  |w_0 - w*|

    >>> convex_radius(start=10.0)
    20.0
    """
    return 2 * start


def convex_rounds(*, Delta: float, L: float, start: float) -> int:
    """After how many rounds `convex_error` holds, for a convex F: t_m = L start / Delta, rounded down.

    Delta  a bound on |g - grad F|, such as `delta_a`
    L      the smoothness of F
    start  |w_0 - w*|

    Needs Delta > 0.

    >>> convex_rounds(Delta=0.3, L=2.0, start=10.0)
    66

    Lemma (convex). It is rounded down because one more round could leave W; the factor 16 of the error has room for one less.
    """
    _some_error("convex_rounds", Delta)
    return math.floor(L * start / Delta)


def convex_error(*, Delta: float, start: float) -> float:
    """F(w_t) - F(w*) <= 16 start Delta after t = `convex_rounds`, for a convex F and the learning rate eta = 1/L.

    Lemma (convex).

    Delta  a bound on |g - grad F|, such as `delta_a`
    start  |w_0 - w*|

    >>> convex_error(Delta=0.25, start=10.0)
    40.0
    """
    return 16 * start * Delta


def nonconvex_radius(*, Delta: float, gap: float, gradient_bound: float) -> float:
    """The radius of W around w_0 that Lemma (nonconvex) prescribes: 2 (gradient_bound + Delta) gap / Delta^2.

    Delta           a bound on |g - grad F|, such as `delta_a`
    gap             F(w_0) - F(w*)
    gradient_bound  a bound on |grad F| on W

    Needs Delta > 0.

    >>> nonconvex_radius(Delta=0.5, gap=3.0, gradient_bound=2.0)
    60.0

    Slip: the paper centres W at w* and drops |w_0 - w*| from the sum of the steps; such a W need not contain w_0.
    """
    _some_error("nonconvex_radius", Delta)
    return 2 * (gradient_bound + Delta) * gap / Delta**2


def nonconvex_rounds(*, Delta: float, L: float, gap: float) -> int:
    """After how many rounds `nonconvex_error` holds: t_m = 2 L gap / Delta^2, rounded up.

    Delta  a bound on |g - grad F|, such as `delta_a`
    L      the smoothness of F
    gap    F(w_0) - F(w*)

    Needs Delta > 0.

    >>> nonconvex_rounds(Delta=0.5, L=2.0, gap=3.0)
    48

    Lemma (nonconvex). It is rounded up because after one round less, the mean of |grad F|^2 may still exceed 2 Delta^2.
    """
    _some_error("nonconvex_rounds", Delta)
    return math.ceil(2 * L * gap / Delta**2)


def nonconvex_error(*, Delta: float) -> float:
    """The least |grad F(w_t)| over t <= `nonconvex_rounds` is at most sqrt(2) Delta, for the learning rate eta = 1/L.

    Lemma (nonconvex).

    Delta  a bound on |g - grad F|, such as `delta_a`

    >>> round(nonconvex_error(Delta=0.5), 4)
    0.7071
    """
    return math.sqrt(2) * Delta


def _some_error(bound: str, Delta: float) -> None:
    remedy = "Without error, every further round helps, and no radius is needed."
    require(Delta > 0, bound, needs="Delta > 0", remedy=remedy, Delta=Delta)
