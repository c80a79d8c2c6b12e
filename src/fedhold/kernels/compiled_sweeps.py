"""The sweeps of `sweeps`, compiled by numba: rows in groups, in tiles that stay in cache, other threads running meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from fedhold.kernels.arrays import Block, Vector
from fedhold.kernels.native import RUN, line_of

__all__ = ["compiled", "products", "row_squares", "sweep"]

TILE = 2**18  # numbers that two loops read one after the other, the second time from cache
SHORTEST, LONGEST = 512, 4096  # columns of such a tile: runs of memory read fast, sums of float32 stay exact
NOWHERE = np.empty(0)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Machine code on first use, kept on disk where there is a place for it. Sums may be reordered; NaN stays NaN."""
    options = {"nogil": True, "error_model": "numpy", "fastmath": {"reassoc", "contract", "nsz"}}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # neither here nor in the user's cache
        return numba.njit(**options)(function)


def row_squares(block: Block) -> Vector:
    found = np.zeros(len(block))
    _row_squares(*line_of(block), block.shape[1], found)
    return found


def products(block: Block, delta: Block, place: Vector | None = None) -> Vector:
    found = np.zeros(len(block) + 2)
    found[-2] = 0.0 if place is None else place @ delta
    found[-1] = np.dot(delta, delta)
    line, apart = line_of(block)
    width = _columns(len(block))
    for start in range(0, len(delta), width):
        _dots(line[start:], apart, np.ascontiguousarray(delta[start : start + width]), found[:-2])
    return found


def sweep(block: Block, rows: NDArray[np.float64], place: Vector | None, centre: Vector | None) -> Vector:
    m, width = block.shape
    found = np.zeros(m + 1 + len(rows))
    rounded = rows.astype(block.dtype)
    line, apart = line_of(block)
    tile = _columns(m)
    centre = np.empty(width) if centre is None else centre
    _sweep(line, apart, rounded, NOWHERE if place is None else place, centre, tile, found)
    return found


def _columns(m: int) -> int:
    return min(max(TILE // m, SHORTEST), LONGEST)


@compiled
def _row_squares(line, apart, width, found):
    for i in range(found.size):
        for start in range(0, width, RUN):
            row = line[i * apart + start : i * apart + min(start + RUN, width)]
            total = line.dtype.type(0)
            for j in range(row.size):
                total += row[j] * row[j]
            found[i] += total


@compiled
def _sweep(line, apart, rows, place, centre, tile, found):
    count, m = rows.shape
    middle, force = np.empty(tile, line.dtype), np.empty(tile, line.dtype)
    for start in range(0, centre.size, tile):
        width = min(tile, centre.size - start)
        part, there = line[start:], centre[start : start + width]
        sums, pulled = middle[:width], force[:width]
        _weighted(part, apart, rows[0], sums)
        there[:] = sums
        if count == 2:
            _weighted(part, apart, rows[1], pulled)
            total = line.dtype.type(0)
            for j in range(width):
                total += pulled[j] * pulled[j]
            found[m + 2] += total
        if place.size:
            here = place[start : start + width]
            for j in range(width):
                sums[j] = line.dtype.type(sums[j] - here[j])
                found[m] += here[j] * sums[j]
        total = line.dtype.type(0)
        for j in range(width):
            total += sums[j] * sums[j]
        found[m + 1] += total
        _dots(part, apart, sums, found[:m])


@compiled
def _weighted(line, apart, weights, sums):
    """weights @ X, eight rows at a time."""
    n, m = sums.size, weights.size
    sums[:] = 0
    for i in range(0, m - 7, 8):
        at = i * apart
        _add8(
            sums,
            line[at : at + n],
            line[at + apart : at + apart + n],
            line[at + 2 * apart : at + 2 * apart + n],
            line[at + 3 * apart : at + 3 * apart + n],
            line[at + 4 * apart : at + 4 * apart + n],
            line[at + 5 * apart : at + 5 * apart + n],
            line[at + 6 * apart : at + 6 * apart + n],
            line[at + 7 * apart : at + 7 * apart + n],
            weights[i : i + 8],
        )
    for i in range(m - m % 8, m):
        row, weight = line[i * apart : i * apart + n], weights[i]
        for j in range(n):
            sums[j] += weight * row[j]


@compiled
def _add8(sums, a, b, c, d, e, f, g, h, w):
    s, t, u, v, x, y, z, q = w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]
    for j in range(sums.size):
        near = (s * a[j] + t * b[j]) + (u * c[j] + v * d[j])
        sums[j] += near + ((x * e[j] + y * f[j]) + (z * g[j] + q * h[j]))


@compiled
def _dots(line, apart, delta, found):
    """Adds <X_i, delta> to every row's number, four rows at a time."""
    n, m = delta.size, found.size
    for i in range(0, m - 3, 4):
        at = i * apart
        a, b = line[at : at + n], line[at + apart : at + apart + n]
        c, d = line[at + 2 * apart : at + 2 * apart + n], line[at + 3 * apart : at + 3 * apart + n]
        s, t, u, v = line.dtype.type(0), line.dtype.type(0), line.dtype.type(0), line.dtype.type(0)
        for j in range(n):
            x = delta[j]
            s += a[j] * x
            t += b[j] * x
            u += c[j] * x
            v += d[j] * x
        found[i] += s
        found[i + 1] += t
        found[i + 2] += u
        found[i + 3] += v
    for i in range(m - m % 4, m):
        row, total = line[i * apart : i * apart + n], line.dtype.type(0)
        for j in range(n):
            total += row[j] * delta[j]
        found[i] += total
