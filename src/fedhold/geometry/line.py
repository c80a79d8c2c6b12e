"""The Huber location of numbers: the same problem as in d dimensions, solved exactly, without steps towards it."""

from __future__ import annotations

import numpy as np

from fedhold.kernels import Vector, Weights

__all__ = ["location"]


def location(points: Vector, samples: Weights, thresholds: Vector) -> float:
    """argmin_x sum_i n_i phi_i(|x - p_i|); of several minimisers the mean of the first and the last.

    points      the p_i; 0 is within the largest T_i of a minimiser, as a median is in which clients count n_i T_i
    samples     the n_i
    thresholds  the T_i

    >>> round(location(np.array([-1.0, 0.0, 0.5, 99.0]), np.ones(4), np.ones(4)), 6)
    0.25
    """
    # The pull on x falls along straight lines between the places p_i - T_i and p_i + T_i, and a minimiser is where it is 0.
    # Places farther than 2 max T_i from 0 count as at that end.
    end = 2 * float(thresholds.max())
    places = np.concatenate([points - thresholds, points + thresholds])
    places = np.minimum(np.maximum(places, -end), end)
    order = np.argsort(places)
    places, steepness = places[order], np.cumsum(np.concatenate([samples, -samples])[order])[:-1]
    pulls = np.empty_like(places)
    pulls[0] = samples @ np.minimum(np.maximum(points - places[0], -thresholds), thresholds)
    pulls[1:] = pulls[0] - np.cumsum(steepness * (places[1:] - places[:-1]))
    rounding = 1e-12 * float(samples @ thresholds)  # Pulls that cancel leave a little, with either sign.
    after, before = int(np.argmax(pulls <= rounding)), len(pulls) - 1 - int(np.argmax(pulls[::-1] >= -rounding))
    first, last = places[after], places[before]
    if after > 0:
        first = places[after - 1] + (pulls[after - 1] - rounding) / steepness[after - 1]
    if before < len(pulls) - 1:
        last = places[before] + (pulls[before] + rounding) / steepness[before]
    return float(first + last) / 2
