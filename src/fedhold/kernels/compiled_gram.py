"""Products of all pairs of rows, compiled by numba: four rows with four others at a time, in tiles that stay in cache.

For some hundred rows BLAS is no faster by itself, and slower for fewer; here threads share the work as well.
"""

from __future__ import annotations

import numpy as np

from fedhold.kernels.arrays import Block, Vector
from fedhold.kernels.compiled_sweeps import compiled
from fedhold.kernels.native import RUN, line_of

__all__ = ["gram"]

NEAR = 64  # rows of RUN columns that stay in L2 while all others pass by


def gram(block: Block, place: Block, *, exactly: bool = False) -> tuple[Vector, Vector]:
    """<X_i - place, X_j - place> for all pairs, and |X_i|^2; or, exactly, |X_i - place|^2 summed in float64."""
    m, width = block.shape
    whole = -(-m // 4) * 4
    products, squares = np.zeros((whole, whole)), np.zeros(m)
    tile = np.zeros((whole, RUN), block.dtype)  # fewer columns would stay in L2, but then the sums are most of the work
    _gram(*line_of(block), width, np.ascontiguousarray(place), tile, products, squares, exactly)
    products = products[:m, :m]
    return np.triu(products) + np.triu(products, 1).T, squares


@compiled
def _gram(line, apart, width, place, tile, products, squares, exactly):
    whole = len(tile)
    for start in range(0, width, RUN):
        n = min(RUN, width - start)
        here = place[start : start + n]
        for i in range(squares.size):
            row, residual = line[i * apart + start : i * apart + start + n], tile[i, :n]
            for j in range(n):
                residual[j] = row[j] - here[j]
            if exactly:
                for j in range(n):
                    squares[i] += np.float64(residual[j]) * np.float64(residual[j])
            else:
                square = line.dtype.type(0)
                for j in range(n):
                    square += row[j] * row[j]
                squares[i] += square
        for first in range(0, whole, NEAR):
            last = min(first + NEAR, whole)
            for i in range(0, last, 4):
                a, b, c, d = tile[i, :n], tile[i + 1, :n], tile[i + 2, :n], tile[i + 3, :n]
                for k in range(max(first, i), last, 4):
                    e, f, g, h = tile[k, :n], tile[k + 1, :n], tile[k + 2, :n], tile[k + 3, :n]
                    _pairs(a, b, c, d, e, f, g, h, products[i : i + 4], k)


@compiled
def _pairs(a, b, c, d, e, f, g, h, products, k):
    """Sixteen sums that stay in registers."""
    zero = a.dtype.type(0)
    ae, af, ag, ah = zero, zero, zero, zero
    be, bf, bg, bh = zero, zero, zero, zero
    ce, cf, cg, ch = zero, zero, zero, zero
    de, df, dg, dh = zero, zero, zero, zero
    for j in range(a.size):
        p, q, r, s = a[j], b[j], c[j], d[j]
        x, y, z, w = e[j], f[j], g[j], h[j]
        ae += p * x
        af += p * y
        ag += p * z
        ah += p * w
        be += q * x
        bf += q * y
        bg += q * z
        bh += q * w
        ce += r * x
        cf += r * y
        cg += r * z
        ch += r * w
        de += s * x
        df += s * y
        dg += s * z
        dh += s * w
    for row, found in enumerate(((ae, af, ag, ah), (be, bf, bg, bh), (ce, cf, cg, ch), (de, df, dg, dh))):
        for column in range(4):
            products[row, k + column] += found[column]
