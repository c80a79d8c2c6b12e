"""The column rules for large data, by compiled code: the same numbers as `columns` gives. Needs numba (the extra `fast`)."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedhold.kernels.arrays import Block, Vector
from fedhold.kernels.compiled_columns import NETWORK, SAMPLE, means_around_medians, trimmed_means
from fedhold.kernels.native import line_of

__all__ = ["mean_around_median", "median", "network", "trimmed_mean"]


def median(block: Block) -> Vector:
    """As `columns.median`, of the block itself."""
    m = len(block)
    return _trimmed(block, (m - 1) // 2)


def trimmed_mean(block: Block, *, f: int) -> Vector:
    """As `columns.trimmed_mean`, of the block itself."""
    return _trimmed(block, f)


def _trimmed(block: Block, f: int) -> Vector:
    m, width = block.shape
    row = np.empty(width)
    trimmed_means(*line_of(block), m, f, network(m, f, m - 1 - f), row)
    return row


def mean_around_median(block: Block, *, keep: int) -> Vector:
    """As `columns.mean_around_median`, of the block itself."""
    m, width = block.shape
    row = np.empty(width)
    middle, last = network(m, (m - 1) // 2, m // 2), network(m, keep - 1, keep - 1)
    means_around_medians(*line_of(block), m, keep, middle, last, row)
    return row


@lru_cache(maxsize=64)
def network(m: int, low: int, high: int) -> NDArray[np.int64]:
    """Comparators (a, b), a < b, that put the numbers of ranks `low` and `high` in these places; or, for more than NETWORK
    clients, sort a sample.

    From the last comparator to the first: one that orders two places is of no use if both are to hold any numbers below the
    ranks, or between them, or above.
    """
    if m > NETWORK:
        return np.array(_merge_sort(SAMPLE), np.int64)
    place = [m + (i > low) + (i > high) if i not in (low, high) else i for i in range(m)]
    needed = []
    for a, b in reversed(_merge_sort(m)):
        if place[a] != place[b]:
            needed.append((a, b))
            place[a], place[b] = a, b
    return np.array(needed[::-1], np.int64).reshape(-1, 2)


def _merge_sort(m: int) -> list[tuple[int, int]]:
    """Batcher's odd-even merge sort."""
    pairs, p = [], 1
    while p < m:
        k = p
        while k:
            for j in range(k % p, m - k, 2 * k):
                run = range(j, min(j + k, m - k))
                pairs += [(i, i + k) for i in run if i // (2 * p) == (i + k) // (2 * p)]
            k //= 2
        p *= 2
    return pairs
