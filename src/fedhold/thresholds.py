"""Thresholds: how far from the centre a client may be before Huber clips it.

A threshold is a function (distances, samples) -> T_i. The solver calls it in every step with the clients' distances to the
current centre, so a threshold that depends on the distances is finally taken at the distances to the aggregate itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedhold import bounds
from fedhold.errors import positive, unknown
from fedhold.kernels import Vector, middle

__all__ = [
    "KAPPA",
    "Threshold",
    "automatic",
    "by_samples",
    "fixed",
    "follows_distances",
    "from_theory",
    "kappa_of",
    "threshold_function",
]


def __dir__() -> list[str]:
    """The public names, for help() and for the completion of names."""
    return sorted(__all__)


Threshold = Callable[[Vector, Vector], Vector]
"""(distances of the clients to the centre, their samples n_i) -> their thresholds T_i."""


def _named(threshold: Threshold, of: Callable[..., Threshold], **given: object) -> Threshold:
    """The threshold function, named by the spec that makes it again: specs, checkpoints and reports know it by this name.

    of     the function of this module that makes it; of all, only those of `automatic` depend on the distances
    given  the parameters of `of`
    """
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in given.items()}
    threshold.__qualname__ = f"{of.__name__}({', '.join(f'{name}={value!r}' for name, value in plain.items())})"
    threshold.kappa = plain.get("kappa")  # type: ignore[attr-defined]
    return threshold


def follows_distances(threshold: Threshold) -> bool:
    """Whether the T_i may change with the distances, as those of `automatic` do; all others depend on the samples alone."""
    return not hasattr(threshold, "kappa") or kappa_of(threshold) is not None


def kappa_of(threshold: Threshold) -> float | None:
    """The kappa of a threshold function made by `automatic`; None for others."""
    return getattr(threshold, "kappa", None)


KAPPA = 0.75  # chosen from the grid of experiments in docs/threshold.md
# What a scale of earlier rounds counts for; docs/threshold.md has the experiments.
DECAY = 0.97  # the part of it that is left after a round
MOST = 3.0  # median distances of this round, which it counts for at most


def remembered(typical: float, scale: float | None) -> float:
    """max(s_t, DECAY S_(t-1)), at most MOST s_t: this round's median distance s_t, with the scale of earlier rounds."""
    return typical if scale is None else min(max(typical, DECAY * scale), MOST * typical)


def fixed(T: float | Sequence[float] | NDArray[np.float64]) -> Threshold:
    """The same T for every client, or one T_i per client.

    T  a number of at least 0, or one per client. T = inf gives the mean, T = 0 the geometric median (the limit of small T)

    >>> from fedhold import aggregate
    >>> aggregate(np.array([[1.0], [2.0], [99.0]]), "huber", threshold=fixed(2.0)).value.round(3)
    array([2.5])

    Zhao, Yu, Wan 2024, eq. (5), where the liar at 99 pulls with the force T = 2 and the others with their distances.
    """
    values = np.asarray(T, dtype=object)
    checked = np.array([positive(value, "threshold", zero=True, infinite=True) for value in values.ravel().tolist()])

    def threshold(_: Vector, samples: Vector) -> Vector:
        if checked.size not in (1, len(samples)):
            raise ValueError(
                f"threshold has {checked.size} numbers for {len(samples)} admitted clients. Pass one number, or one per "
                "client; where clients may be rejected, a function of `fedhold.thresholds` fits any number of clients."
            )
        return np.broadcast_to(checked, samples.shape).astype(np.float64)

    return _named(threshold, fixed, T=checked.tolist() if values.ndim else float(checked[0]))


def by_samples(T0: float, M: float) -> Threshold:
    """T_i = T0 + M / sqrt(n_i): the threshold is larger for clients with few samples, whose updates are noisier.

    T0  the part that all clients share, at least 0
    M   the part that shrinks with the samples, at least 0

    >>> by_samples(T0=0.5, M=10.0)(np.zeros(2), np.array([25.0, 100.0]))
    array([2.5, 1.5])

    Zhao, Yu, Wan 2024, eq. (adaptiveT).
    """
    base, slope = positive(T0, "T0", zero=True), positive(M, "M", zero=True)

    def threshold(_: Vector, samples: Vector) -> Vector:
        return np.asarray(base + slope / np.sqrt(samples))

    return _named(threshold, by_samples, T0=base, M=slope)


def automatic(kappa: float = KAPPA) -> Threshold:
    """T_i = kappa * median_j(sqrt(n_j) d_j) / sqrt(n_i): there is no scale to tune, and f need not be known.

    d_j is client j's distance to the aggregate itself, so anyone can check the thresholds against the result's own report.
    Fewer than half of the clients cannot move the median without bound, and scaling all updates scales the thresholds.

    kappa  the threshold in units of the median distance; docs/threshold.md has the experiments behind its default of 0.75

    >>> automatic()(np.array([1.0, 2.0, 1e9]), np.ones(3))
    array([1.5, 1.5, 1.5])

    The rule is ours; its dependence on n_i is that of eq. (adaptiveT) in Zhao, Yu, Wan 2024 with T0 = 0.
    """
    factor = positive(kappa, "kappa")

    def threshold(distances: Vector, samples: Vector) -> Vector:
        roots = np.sqrt(samples)
        return np.asarray(factor * middle(roots * distances) / roots)

    return _named(threshold, automatic, kappa=factor)


def from_theory(
    sigma: float, d: int, N: int, delta: float, *, theorem: int = 1, epsilon: float = 0.0, **setting: float
) -> Threshold:
    """The smallest thresholds under which the paper's Theorem 1, 2 or 3 holds.

    They are safe rather than sharp: docs/theory.md says by how much.

    sigma    the scale of one sample's gradient, as in `fedhold.bounds.Setting`
    d        how many parameters the model has
    N        how many samples all clients have together
    delta    the probability with which the theorem may fail
    theorem  1 for balanced data, 2 for unbalanced data, 3 for heterogeneous data (which needs `sigma_mu`)
    epsilon  an upper bound on the liars' share of clients and samples; Theorem 1 does not use it
    setting  further fields of `fedhold.bounds.Setting`: ln_c_w, L, r_d, sigma_mu

    >>> from_theory(sigma=1.0, d=5, N=20_000, delta=0.05)(np.zeros(20), np.full(20, 1000.0)).round(2)[:2]
    array([2.17, 2.17])

    Zhao, Yu, Wan 2024, Theorems 1 to 3.
    """
    if theorem not in (1, 2, 3):
        raise ValueError(f"theorem must be 1, 2 or 3, got {theorem!r}. Pass theorem=1 for balanced data.")
    given: dict[str, Any] = {"sigma": sigma, "d": d, "N": N, "delta": delta, **setting}

    def threshold(_: Vector, samples: Vector) -> Vector:
        at = bounds.Setting(m=len(samples), **given)
        if theorem == 1:
            return np.full(len(samples), bounds.threshold_theorem_1(at))
        smallest = bounds.thresholds_theorem_2 if theorem == 2 else bounds.thresholds_theorem_3
        return smallest(at, epsilon=epsilon, samples=samples)

    return _named(threshold, from_theory, **given, theorem=theorem, epsilon=epsilon)


def threshold_function(threshold: str | Threshold | ArrayLike) -> Threshold:
    """The function for what a user may pass as `threshold`: 'automatic', a number, one number per client, or a function."""
    if isinstance(threshold, str) and threshold != "automatic":
        raise ValueError(unknown("threshold", threshold, ["automatic"]) + " Or pass a number, or a function of them.")
    if isinstance(threshold, str) or threshold is automatic:  # type: ignore[comparison-overlap]  # not called by the user
        return automatic()
    if callable(threshold):
        return threshold
    return fixed(threshold)  # type: ignore[arg-type]
