"""What weights tell: which clients a round held down, and how well that finds the liars of an experiment."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedhold.kernels import Vector

LOW = 0.5  # of the median weight: a client below this is held down


def held_down(
    weights: NDArray[np.floating],
    samples: NDArray[np.floating] | None = None,
    *,
    present: NDArray[np.bool_] | None = None,
) -> NDArray[np.bool_]:
    """Whether each client was held down in its round, by its weight.

    A client is held down when its weight is below LOW times the median weight of those present and, where samples are
    given, its weight per sample is below LOW times the median of that, too. It takes both because some rules weigh by
    samples and some do not: few or many samples alone are no reason to suspect a client.

    weights   (..., m) one row per round; NaN for clients that had no weight
    samples   (..., m) the positive sample counts, or None where they are not known or are alike
    present   (..., m) the clients that count; all that have a weight by default

    Clients that are not present are never held down here. A rejected client has no weight: callers count it by itself.

    >>> held_down(np.array([0.3, 0.3, 0.3, 0.1])).tolist()
    [False, False, False, True]
    >>> held_down(np.array([0.3, 0.3, 0.3, 0.1]), np.array([90, 90, 90, 30])).tolist()
    [False, False, False, False]
    """
    shares = np.asarray(weights, np.float64)
    there = ~np.isnan(shares) if present is None else present & ~np.isnan(shares)
    low = _below_median(shares, there)
    return low if samples is None else low & _below_median(shares / samples, there)


def weighs(weights: NDArray[np.floating], samples: NDArray[np.floating] | None = None) -> bool:
    """Whether a rule tells clients apart by their weights in any round: neither these nor those per sample are all alike.

    weights, samples  as for `held_down`

    >>> weighs(np.array([[0.3, 0.3, 0.4]])), weighs(np.array([[0.3, 0.3, 0.4]]), np.array([30, 30, 40]))
    (True, False)
    """
    each = [np.asarray(weights, np.float64)]
    each += [] if samples is None else [each[0] / samples]
    return all(_differ(values) for values in each)


def detection(
    weights: NDArray[np.floating], byzantine: NDArray[np.bool_], samples: NDArray[np.floating] | None = None
) -> tuple[Vector, Vector]:
    """Precision and recall of `held_down` against the truth, for each round, among the clients that took part.

    precision = liars held down / clients held down,  recall = liars held down / liars;  NaN where that is 0 / 0, and in rounds
    in which at least half of the clients had no weight: a median of 0 judges nobody

    weights     (rounds, m) NaN for clients that did not take part
    byzantine   (m,) whether a client lies
    samples     (m,) the sample counts, or None where they are not known or are alike
    """
    held = held_down(weights, samples)
    there = ~np.isnan(weights)
    judged = 2 * (weights > 0).sum(axis=1) > there.sum(axis=1)
    caught = (held & byzantine).sum(axis=1).astype(np.float64)
    return ratio(caught, held.sum(axis=1) * judged), ratio(caught, (byzantine & there).sum(axis=1) * judged)


def ratio(part: NDArray[np.float64], whole: NDArray[np.integer]) -> NDArray[np.float64]:
    """part / whole, and NaN where `whole` is 0."""
    return np.divide(part, whole, out=np.full(part.shape, np.nan), where=whole > 0)


def _below_median(values: NDArray[np.float64], there: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether each value that is there is below LOW times the median of those in its row that are."""
    low = np.zeros(values.shape, np.bool_)
    for row in np.ndindex(values.shape[:-1]):
        known = values[row][there[row]]
        low[row][there[row]] = known < LOW * np.median(known) if known.size else False
    return low


def _differ(values: NDArray[np.float64]) -> bool:
    """Whether the values of any row differ by more than the hundredth part, which stored weights are rounded by less than."""
    known = values[~np.isnan(values).all(axis=-1)]
    return bool(known.size) and bool((np.nanmin(known, axis=-1) < 0.99 * np.nanmax(known, axis=-1)).any())
