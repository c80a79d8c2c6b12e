"""Thresholds: how far from the centre a client may be before Huber clips it.

A threshold is a function (distances, samples) -> T_i, called with every client's distance to the current centre. Those
that look at the distances are thereby measured at the answer itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedhold import bounds
from fedhold.errors import positive, unknown
from fedhold.kernels import Vector

__all__ = [
    "KAPPA",
    "Threshold",
    "automatic",
    "by_samples",
    "fixed",
    "follows_distances",
    "from_theory",
    "threshold_function",
]

Threshold = Callable[[Vector, Vector], Vector]


def _of_samples_alone(threshold: Threshold) -> Threshold:
    """Declare that these thresholds do not look at the distances."""
    threshold.of_samples_alone = True  # type: ignore[attr-defined]
    return threshold


def follows_distances(threshold: Threshold) -> bool:
    """Whether the T_i may change with the distances, as those of `automatic` do; the samples alone decide the others."""
    return not getattr(threshold, "of_samples_alone", False)


KAPPA = 0.75  # docs/threshold.md: the grid behind this number


def fixed(T: float | Sequence[float] | NDArray[np.float64]) -> Threshold:
    """The same T for every client, or one T_i per client.

    T = inf is the mean, T = 0 the geometric median (the limit of small T).
    """
    values = np.asarray(T, dtype=object)
    checked = np.array([positive(value, "threshold", zero=True, infinite=True) for value in values.ravel().tolist()])

    @_of_samples_alone
    def threshold(distances: Vector, samples: Vector) -> Vector:  # noqa: ARG001
        if checked.size not in (1, len(samples)):
            raise ValueError(
                f"threshold has {checked.size} numbers for {len(samples)} admitted clients. Pass one number, or one per "
                "client; where clients may be rejected, a function of `fedhold.thresholds` fits whoever is left."
            )
        return np.broadcast_to(checked, samples.shape).astype(np.float64)

    return threshold


def by_samples(T0: float, M: float) -> Threshold:
    """T_i = T0 + M / sqrt(n_i): larger for clients with few samples.  Paper, eq. (adaptiveT)."""
    base, slope = positive(T0, "T0", zero=True), positive(M, "M", zero=True)

    @_of_samples_alone
    def threshold(_: Vector, samples: Vector) -> Vector:
        result: Vector = base + slope / np.sqrt(samples)
        return result

    return threshold


def automatic(kappa: float = KAPPA) -> Threshold:
    """T_i = kappa * median_j(sqrt(n_j) d_j) / sqrt(n_i): no scale to tune and no f to know.

    d_j is client j's distance to the aggregate itself, so anyone can check a result against its own report. The median
    cannot be moved without bound by fewer than half of the clients, and the rule is equivariant under scaling.
    """
    factor = positive(kappa, "kappa")

    def threshold(distances: Vector, samples: Vector) -> Vector:
        roots = np.sqrt(samples)
        result: Vector = factor * np.median(roots * distances) / roots
        return result

    return threshold


def from_theory(
    sigma: float, d: int, N: int, delta: float, *, theorem: int = 1, epsilon: float = 0.0, **setting: float
) -> Threshold:
    """The smallest thresholds under which the paper's Theorem 1, 2 or 3 holds.

    Theorem 1 (balanced data) needs no epsilon; 2 (unbalanced) and 3 (heterogeneous, with `sigma_mu`) need an upper bound
    on it. Further keywords are those of `fedhold.bounds.Setting`. They are safe rather than sharp: docs/theory.md.
    """
    if theorem not in (1, 2, 3):
        raise ValueError(f"theorem must be 1, 2 or 3, got {theorem!r}. Pass theorem=1 for balanced data.")

    @_of_samples_alone
    def threshold(_: Vector, samples: Vector) -> Vector:
        at = bounds.Setting(sigma=sigma, d=d, N=N, m=len(samples), delta=delta, **setting)
        if theorem == 1:
            return np.full(len(samples), bounds.threshold_theorem_1(at))
        smallest = bounds.thresholds_theorem_2 if theorem == 2 else bounds.thresholds_theorem_3
        return smallest(at, epsilon=epsilon, samples=samples)

    return threshold


def threshold_function(threshold: str | Threshold | ArrayLike) -> Threshold:
    """What a user may pass as `threshold`: 'automatic', a number, m numbers, or a function."""
    if isinstance(threshold, str):
        if threshold != "automatic":
            raise ValueError(
                unknown("threshold", threshold, ["automatic"]) + " Or pass a number, or a function of them."
            )
        return automatic()
    if threshold is automatic:  # type: ignore[comparison-overlap]  # named, not called: it needs nothing
        return automatic()
    if callable(threshold):
        return threshold
    return fixed(threshold)  # type: ignore[arg-type]
