"""The bounds Delta_A, Delta_B, Delta_C against measured errors, over n, m and epsilon: how loose they are.

Gradients at one w: samples are Gaussian with sigma = 1 in d = 5 dimensions, grad F = 0, delta = 0.05, and the thresholds are
the least that each theorem allows. The measured error is the largest |g| over draws and attacks; the theorems bound it on all
of W at once, so some of the looseness is the price of that. `automatic` is the same error of Huber with the automatic
threshold, which no theorem covers.

    theorem 1  n samples for every client
    theorem 2  n_i between n/2 and 3n/2, in even steps
    theorem 3  the same, and every client's own mean gradient is off by N(0, 0.1^2) in each coordinate
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedhold import bounds
from fedhold.aggregation import aggregate
from fedhold.kernels import Matrix, Vector
from fedhold.lab import Knowledge, liars, sign_flip, trimmed_mean_attack

D, SIGMA_MU, DELTA = 5, 0.1, 0.05
DRAWS, QUICK_DRAWS = 10, 2
FAR = 1e6


@dataclass(frozen=True)
class Case:
    """One setting: the theorem, samples per client (on average), clients, the share of liars, and coordinates."""

    theorem: int
    n: int
    m: int
    epsilon: float
    d: int = D


CASES = tuple(
    Case(theorem, n, m, epsilon)
    for theorem in (1, 2, 3)
    for n, m, epsilon in (
        *((n, 100, 0.2) for n in (400, 1600, 6400)),
        *((800, m, 0.2) for m in (20, 100, 400)),
        *((800, 100, epsilon) for epsilon in (0.05, 0.1, 0.25, 0.3, 0.4, 0.45)),
    )
)


@dataclass(frozen=True)
class Looseness:
    """What the theorem promises, what was met, and the same for the automatic threshold."""

    case: Case
    threshold: float
    bound: float
    error: float
    automatic: float

    @property
    def ratio(self) -> float:
        """1 would be exact, below 1 a broken theorem."""
        return self.bound / self.error


def loosest(rows: Sequence[Looseness]) -> dict[int, tuple[float, float]]:
    """Theorem -> least and largest bound / error."""
    ratios = {theorem: [row.ratio for row in rows if row.case.theorem == theorem] for theorem in (1, 2, 3)}
    return {theorem: (min(found), max(found)) for theorem, found in ratios.items() if found}


def measure(case: Case, draws: int) -> Looseness:
    """One case, with the largest errors over so many draws."""
    spread = np.zeros(case.m) if case.theorem == 1 else np.linspace(-0.5, 0.5, case.m)
    samples = np.round(case.n * (1 + spread))
    setting = bounds.Setting(
        sigma=1.0,
        d=case.d,
        N=float(samples.sum()),
        m=case.m,
        delta=DELTA,
        sigma_mu=SIGMA_MU if case.theorem == 3 else 0.0,
    )
    rng = np.random.default_rng([case.theorem, case.n, case.m, round(1000 * case.epsilon)])
    errors, automatic = [], []
    # Liars of all sizes: the theorems' epsilon counts their samples as well, and is then close to their share of clients.
    lying = np.linspace(0, case.m - 1, liars(case.epsilon, case.m)).round().astype(np.intp)
    byzantine = np.isin(np.arange(case.m), lying)
    epsilon = bounds.byzantine_fraction(samples=samples, byzantine=lying.tolist())
    thresholds, bound = _promise(case.theorem, setting, epsilon, samples)
    for _ in range(draws):
        own = setting.sigma_mu * rng.standard_normal((case.m, case.d))
        honest = own + rng.standard_normal((case.m, case.d)) / np.sqrt(samples)[:, None]
        for sent in _attacked(honest, samples, byzantine, rng):
            errors.append(_error(sent, samples, thresholds))
            automatic.append(_error(sent, samples, "automatic"))
    return Looseness(case, float(np.median(thresholds)), bound, max(errors), max(automatic))


def _promise(theorem: int, setting: bounds.Setting, epsilon: float, samples: Vector) -> tuple[Vector, float]:
    """The least thresholds of a theorem, and its Delta with them."""
    if theorem == 1:
        T = bounds.threshold_theorem_1(setting)
        return np.full(setting.m, T), bounds.delta_a(setting, epsilon=epsilon, T=T)
    least, delta, thresholds = {
        2: (bounds.least_t_0_theorem_2, bounds.delta_b, bounds.thresholds_theorem_2),
        3: (bounds.least_t_0_theorem_3, bounds.delta_c, bounds.thresholds_theorem_3),
    }[theorem]
    M = 2 * bounds.big_r(setting)
    T_0 = least(setting, epsilon=epsilon, M=M)
    bound = delta(setting, epsilon=epsilon, T_0=T_0, M=M, samples=samples)
    return thresholds(setting, epsilon=epsilon, samples=samples), bound


def _attacked(
    honest: Matrix, samples: Vector, byzantine: NDArray[np.bool_], rng: np.random.Generator
) -> Iterator[Matrix]:
    """What the server receives under each attack: far away behind the honest mean, and two of the paper's."""
    mean = np.where(byzantine, 0.0, samples) @ honest
    knowledge = Knowledge(honest, byzantine, rng)
    for lies in (FAR * mean / np.linalg.norm(mean), sign_flip(knowledge), trimmed_mean_attack(knowledge)):
        sent = honest.copy()
        sent[byzantine] = lies
        yield sent


def _error(sent: Matrix, samples: Vector, threshold: Vector | str) -> float:
    result = aggregate(sent, "huber", samples=samples, sample_cap=None, threshold=threshold)
    return float(np.linalg.norm(result.value))
