"""Order statistics of the columns of a tile: median, trimmed mean, mean around either.

Few clients run through a sorting network whose comparators are np.minimum and np.maximum of whole rows, cut down to what the
ranks in question depend on. Many are transposed, so that every column is a row, and sorted by SIMD.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhold.kernels import compiled
from fedhold.kernels.arrays import Block
from fedhold.sizes import CACHE, COMPILED_NETWORK, NETWORK

__all__ = ["mean_around_median", "mean_around_trimmed_mean", "median", "trimmed_mean"]


def median(tile: Block) -> Block:
    """The middle value of every column, or the mean of the two middle ones."""
    m = len(tile)
    return _in_parts(tile, lambda part: _centre(_ranked(part, (m - 1) // 2, m // 2)))


def trimmed_mean(tile: Block, f: int) -> Block:
    """The mean of every column without its f smallest and f largest values."""
    m = len(tile)
    if _has_twin(tile):
        return compiled.trimmed_mean(tile, _comparators(m, f, m - 1 - f), f)
    return _in_parts(tile, lambda part: _mean(_ranked(part, f, m - 1 - f)))


def mean_around_median(tile: Block, keep: int) -> Block:
    """The mean of the `keep` values of every column nearest to its median; of two equally near ones, the lower counts."""
    m = len(tile)
    rows = _ranked(tile, 0, m - 1)
    return _mean_around(_centre(_wide(rows[(m - 1) // 2 : m // 2 + 1])), rows, keep)


def mean_around_trimmed_mean(tile: Block, f: int) -> Block:
    """The mean of the m - f values nearest to the mean without the f smallest and the f largest values."""
    m = len(tile)
    rows = _ranked(tile, 0, m - 1)
    return _mean_around(_mean(_wide(rows[f : m - f])), rows, m - f)


def _in_parts(tile: Block, row_of: Callable[[Block], Block]) -> Block:
    """row_of(tile), by parts that stay in cache where many clients are sorted."""
    m, width = tile.shape
    if m <= NETWORK or _has_twin(tile):
        return row_of(tile)
    step = max(CACHE // m, 1)
    return np.concatenate([row_of(tile[:, low : low + step]) for low in range(0, width, step)])


def _has_twin(tile: Block) -> bool:
    """Whether compiled code sorts the columns of a tile."""
    return len(tile) <= COMPILED_NETWORK and compiled.takes(tile)


def _wide(rows: Sequence[Block]) -> list[Block]:
    """The rows in float64, so that two values that are equally far from a centre stay so."""
    return [row.astype(np.float64) for row in rows]


def _centre(rows: Sequence[Block]) -> Block:
    """The mean of one row or two; each is halved first, because a sum near the largest float overflows."""
    half = rows[0].dtype.type(0.5)
    return rows[0] * half + rows[-1] * half


def _mean(rows: Sequence[Block]) -> Block:
    """The mean of sorted rows: differences to the lowest are added up, which loses no digits to a common offset."""
    lowest = rows[0]
    if isinstance(rows, np.ndarray):  # Its columns are contiguous: a product adds them up.
        away = rows.T - lowest[:, None]
        return lowest + away @ np.full(len(rows), 1 / len(rows), rows.dtype)
    total = np.zeros_like(lowest)
    for row in rows[1:]:
        total += row - lowest
    return lowest + total / lowest.dtype.type(len(rows))


def _mean_around(centre: Block, rows: Sequence[Block], keep: int) -> Block:
    """The mean of the `keep` values nearest to the centre, which are consecutive among the sorted ones."""
    m, away = len(rows), [row - centre for row in rows]
    # The window begins one row later for every row that comes in nearer than the one that goes.
    low = np.zeros(len(centre), np.intp)
    for first, after in zip(away, away[keep:], strict=False):
        low += after < -first
    total = np.zeros(len(centre))
    for k, row in enumerate(away):  # Rows outside the window may be huge, and are not to be added and taken off again.
        outside = (low > k) if k < m - keep else False
        outside = outside | (low + keep <= k) if k >= keep else outside
        total += row if outside is False else np.where(outside, 0.0, row)
    mean: Block = centre + total / keep
    return mean


def _ranked(tile: Block, first: int, last: int) -> Any:
    """The rows of ranks first to last, in order, of a tile whose columns are sorted."""
    m = len(tile)
    if _has_twin(tile):
        return list(compiled.ranked(tile, _comparators(m, first, last), first, last))
    if m > NETWORK:
        turned = np.array(tile.T, order="C")
        turned.sort(axis=1)
        ranked: Block = turned.T[first : last + 1]
        return ranked
    copy = np.empty((m + 1, tile.shape[1]), tile.dtype)  # in the order of rows, whatever that of the tile
    copy[:m] = tile
    *rows, spare = copy
    for a, b in _network(m, first, last):
        low, high = rows[a], rows[b]
        np.minimum(low, high, out=spare)
        np.maximum(low, high, out=high)
        rows[a], spare = spare, low
    return rows[first : last + 1]


@cache
def _network(m: int, first: int, last: int) -> list[tuple[int, int]]:
    """The comparators of Batcher's odd-even merge sort of m rows that the ranks first to last depend on.  Batcher 1968."""
    comparators, p = list[tuple[int, int]](), 1
    while p < m:
        k = p
        while k >= 1:
            for j in range(k % p, m - k, 2 * k):
                for i in range(j, j + min(k, m - j - k)):
                    if i // (2 * p) == (i + k) // (2 * p):
                        comparators.append((i, i + k))
            k //= 2
        p *= 2
    needed, kept = set(range(first, last + 1)), list[tuple[int, int]]()
    for a, b in reversed(comparators):
        if a in needed or b in needed:
            kept.append((a, b))
            needed |= {a, b}
    return kept[::-1]


@cache
def _comparators(m: int, first: int, last: int) -> NDArray[np.int64]:
    """The same as an array."""
    return np.array(_network(m, first, last), np.int64).reshape(-1, 2)
