"""Mixtures of rows, compiled by numba: four new rows from four old ones at a time, in tiles that stay in cache."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedhold.kernels.compiled_sweeps import compiled
from fedhold.kernels.native import line_of

__all__ = ["mixed"]

COLUMNS = 256  # of a tile: 500 rows of them are half of L2


def mixed(matrix: NDArray[np.float32], rows: NDArray[np.float32], common: int) -> NDArray[np.float32]:
    """matrix @ (rows - rows[common]) + rows[common]."""
    p, (m, width) = len(matrix), rows.shape
    whole = np.zeros((-(-p // 4) * 4, -(-m // 4) * 4), np.float32)
    whole[:p, :m] = matrix
    out, tile = np.empty((p, width), np.float32), np.zeros((whole.shape[1], COLUMNS), np.float32)
    _mixed(*line_of(rows), m, whole, np.ascontiguousarray(rows[common]), tile, np.empty((4, COLUMNS), np.float32), out)
    return out


@compiled
def _mixed(line, apart, m, matrix, place, tile, sums, out):
    p, width = out.shape
    for start in range(0, width, COLUMNS):
        n = min(COLUMNS, width - start)
        here = place[start : start + n]
        for i in range(m):
            row, residual = line[i * apart + start : i * apart + start + n], tile[i, :n]
            for j in range(n):
                residual[j] = row[j] - here[j]
        for i in range(0, len(matrix), 4):
            a, b, c, d = sums[0, :n], sums[1, :n], sums[2, :n], sums[3, :n]
            sums[:, :n] = 0
            for k in range(0, len(tile), 4):
                e, f, g, h = tile[k, :n], tile[k + 1, :n], tile[k + 2, :n], tile[k + 3, :n]
                _add(a, b, c, d, e, f, g, h, matrix[i : i + 4, k : k + 4])
            for row in range(min(4, p - i)):
                for j in range(n):
                    out[i + row, start + j] = sums[row, j] + here[j]


@compiled
def _add(a, b, c, d, e, f, g, h, w):
    """Four weighted rows to each of four sums; the weights stay in registers."""
    ae, af, ag, ah = w[0, 0], w[0, 1], w[0, 2], w[0, 3]
    be, bf, bg, bh = w[1, 0], w[1, 1], w[1, 2], w[1, 3]
    ce, cf, cg, ch = w[2, 0], w[2, 1], w[2, 2], w[2, 3]
    de, df, dg, dh = w[3, 0], w[3, 1], w[3, 2], w[3, 3]
    for j in range(a.size):
        x, y, z, v = e[j], f[j], g[j], h[j]
        a[j] += (ae * x + af * y) + (ag * z + ah * v)
        b[j] += (be * x + bf * y) + (bg * z + bh * v)
        c[j] += (ce * x + cf * y) + (cg * z + ch * v)
        d[j] += (de * x + df * y) + (dg * z + dh * v)
