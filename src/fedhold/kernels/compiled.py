"""Twins of the loops that numba makes faster, where it is installed: the extra `fast`. Nothing else knows of it.

A twin takes and returns what the part of the loop that it stands for does, and releases the interpreter lock throughout. numba
is imported, and a twin is compiled, when the first tile asks for it that is large enough; compiled code is kept on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, wraps
from threading import Lock
from typing import Any, TypeVar, cast

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from fedhold.kernels.arrays import Block, Matrix, Vector
from fedhold.kernels.half import BFLOAT16, is_half
from fedhold.sizes import ALONE, CACHE, NEAR_CACHE

__all__ = ["fill", "joined", "looked", "pairs", "ranked", "takes", "trimmed_mean"]

LANES = 64  # columns that a few vector instructions compare at once
RUN = 1024  # numbers that are added up in the tile's own precision before float64 takes over

Function = TypeVar("Function", bound=Callable[..., None])
ASKING = Lock()  # Two threads that asked at once would compile twice.
U = np.uint64  # Checks for negative indices would prevent vectorising.


@cache
def _numba() -> Any:
    """numba, imported when it is first asked for; None where it is missing, or too old for this NumPy."""
    try:
        import numba
    except ImportError:
        return None
    return numba


def takes(tile: Block) -> bool:
    """Whether the twins read a tile: numba is there, the tile is large, and its rows are contiguous."""
    apart, step = tile.strides
    whole = step == tile.itemsize <= apart and apart % step == 0 and tile.flags.aligned
    return tile.size >= ALONE and whole and tile.dtype.kind == "f" and tile.itemsize in (4, 8) and _numba() is not None


def _compiled(*, reorder: bool = False) -> Callable[[Function], Function]:
    """The function compiled at its first call; `reorder`: with sums in whatever order is fast."""

    def compiled(function: Function) -> Function:
        @cache
        def code() -> Callable[..., None]:
            how = {"nogil": True, "error_model": "numpy", "fastmath": {"reassoc", "contract"} if reorder else False}
            try:
                return _numba().njit(cache=True, **how)(function)
            except RuntimeError:  # There is no folder to keep compiled code in.
                return _numba().njit(**how)(function)

        @wraps(function)
        def called(*arguments: Any) -> None:
            with ASKING:
                twin = code()
            twin(*arguments)

        return cast(Function, called)

    return compiled


def _line(rows: Block, *, writeable: bool = False) -> tuple[Block, int]:
    """All memory from the first row to the last one as one array, and how far apart rows begin in it.

    Compiled code for arrays of any strides would be slower, and that for contiguous ones would be compiled beside it.
    """
    apart = rows.strides[0] // rows.itemsize
    length = (len(rows) - 1) * apart + rows.shape[1]
    return as_strided(rows, (length,), (rows.itemsize,), writeable=writeable), apart


# Products. Four rows are read at a time, so that what they have in common is seldom loaded; where fewer are left, the last one
# is read again.


def looked(tile: Block, weights: Vector) -> tuple[Block, Vector, Vector]:
    """weights @ X, the products of every row with it, and the squares of every row, from one reading of memory."""
    m, width = tile.shape
    row, along, squares = np.empty(width, tile.dtype), np.zeros(m + 3), np.zeros(m + 3)
    padded = np.concatenate([weights, np.zeros(3)]).astype(tile.dtype)
    run = min(max(CACHE // (m * LANES), 1) * LANES, RUN)
    _looked(*_line(tile), m, run, padded, row, along, squares)
    return row, along[:m], squares[:m]


@_compiled(reorder=True)
def _looked(line: Any, apart: int, m: int, run: int, weights: Any, row: Any, along: Any, squares: Any) -> None:
    one, zero = U(1), line.dtype.type(0)
    for start in range(0, len(row), run):
        first, stop = U(start), U(min(start + run, len(row)))
        for k in range(first, stop, one):
            row[k] = zero
        for i in range(0, m, 4):
            a, b = U(i * apart), U(min(i + 1, m - 1) * apart)
            c, d = U(min(i + 2, m - 1) * apart), U(min(i + 3, m - 1) * apart)
            e, f, g, h = weights[i], weights[i + 1], weights[i + 2], weights[i + 3]
            for k in range(first, stop, one):
                row[k] += (e * line[a + k] + f * line[b + k]) + (g * line[c + k] + h * line[d + k])
        for i in range(0, m, 4):
            a, b = U(i * apart), U(min(i + 1, m - 1) * apart)
            c, d = U(min(i + 2, m - 1) * apart), U(min(i + 3, m - 1) * apart)
            p, q, r, s, e, f, g, h = zero, zero, zero, zero, zero, zero, zero, zero
            for k in range(first, stop, one):
                centre, x, y, z, v = row[k], line[a + k], line[b + k], line[c + k], line[d + k]
                p, q, r, s = p + x * centre, q + y * centre, r + z * centre, s + v * centre
                e, f, g, h = e + x * x, f + y * y, g + z * z, h + v * v
            for j, product, square in ((i, p, e), (i + 1, q, f), (i + 2, r, g), (i + 3, s, h)):
                along[j] += product
                squares[j] += square


def pairs(tile: Block) -> Matrix:
    """<X_i, X_j> of all pairs of rows, in runs of RUN columns."""
    m = len(tile)
    found = np.zeros((m + 3, m + 3))
    _pairs(*_line(tile), m, tile.shape[1], found)
    upper = np.triu(found[:m, :m])
    return upper + np.triu(upper, 1).T


@_compiled(reorder=True)
def _pairs(line: Any, apart: int, m: int, width: int, found: Any) -> None:
    one, zero = U(1), line.dtype.type(0)
    for start in range(0, width, RUN):
        n = U(min(RUN, width - start))
        for i in range(0, m, 4):
            a, b = U(i * apart + start), U(min(i + 1, m - 1) * apart + start)
            c, d = U(min(i + 2, m - 1) * apart + start), U(min(i + 3, m - 1) * apart + start)
            for j in range(i, m, 4):
                e, f = U(j * apart + start), U(min(j + 1, m - 1) * apart + start)
                g, h = U(min(j + 2, m - 1) * apart + start), U(min(j + 3, m - 1) * apart + start)
                ae = af = ag = ah = be = bf = bg = bh = ce = cf = cg = ch = de = df = dg = dh = zero
                for k in range(U(0), n, one):
                    p, q, r, s = line[e + k], line[f + k], line[g + k], line[h + k]
                    x, y = line[a + k], line[b + k]
                    ae, af, ag, ah = ae + x * p, af + x * q, ag + x * r, ah + x * s
                    be, bf, bg, bh = be + y * p, bf + y * q, bg + y * r, bh + y * s
                    x, y = line[c + k], line[d + k]
                    ce, cf, cg, ch = ce + x * p, cf + x * q, cg + x * r, ch + x * s
                    de, df, dg, dh = de + y * p, df + y * q, dg + y * r, dh + y * s
                rows = ((i, ae, af, ag, ah), (i + 1, be, bf, bg, bh), (i + 2, ce, cf, cg, ch), (i + 3, de, df, dg, dh))
                for row, t, u, v, w in rows:
                    found[row, j] += t
                    found[row, j + 1] += u
                    found[row, j + 2] += v
                    found[row, j + 3] += w


# Order statistics.


def ranked(tile: Block, network: NDArray[np.int64], first: int, last: int) -> Block:
    """The rows of ranks first to last of a tile whose columns are sorted by a network of comparators."""
    out = np.empty((last - first + 1, tile.shape[1]), tile.dtype)
    _sort(tile, network, first, last, out, mean=False)
    return out


def trimmed_mean(tile: Block, network: NDArray[np.int64], f: int) -> Block:
    """The mean of every column without its f smallest and f largest values."""
    out = np.zeros((1, tile.shape[1]), tile.dtype)
    _sort(tile, network, f, len(tile) - 1 - f, out, mean=True)
    return out[0]


def _sort(tile: Block, network: NDArray[np.int64], first: int, last: int, out: Block, *, mean: bool) -> None:
    m, (line, apart) = len(tile), _line(tile)
    lanes = min(max(NEAR_CACHE // (m * LANES), 1), 8) * LANES
    values = np.empty(m * lanes, tile.dtype)
    bits = np.int32 if tile.dtype == np.float32 else np.int64
    keys, sign, digits = values.view(bits), bits(8 * tile.itemsize - 1), bits(np.iinfo(bits).max)
    size = (apart, m, lanes, tile.shape[1])
    _sorted(line.view(bits), *size, network, first, last, mean, sign, digits, keys, values, out.reshape(-1))


@_compiled()
def _sorted(
    line: Any,
    apart: int,
    m: int,
    lanes: int,
    width: int,
    network: Any,
    first: int,
    last: int,
    mean: bool,
    sign: Any,
    digits: Any,
    keys: Any,
    values: Any,
    out: Any,
) -> None:
    # As integers, floats have the order of their values once the digits of negative ones are inverted. Processors compare
    # integers faster, and what is not a number has its place, too.
    zero, one = U(0), U(1)
    for start in range(0, width, lanes):
        n = U(min(lanes, width - start))
        for i in range(m):
            a, b = U(i * apart + start), U(i * lanes)
            for k in range(zero, n, one):
                x = line[a + k]
                keys[b + k] = x ^ ((x >> sign) & digits)
        for c in range(len(network)):
            a, b = U(network[c, 0] * lanes), U(network[c, 1] * lanes)
            for k in range(zero, U(lanes), one):
                x, y = keys[a + k], keys[b + k]
                keys[a + k] = min(x, y)
                keys[b + k] = max(x, y)
        lowest = U(first * lanes)
        for i in range(first, last + 1):
            a, b = U(i * lanes), U(start if mean else (i - first) * width + start)
            for k in range(zero, n, one):
                x = keys[a + k]
                keys[a + k] = x ^ ((x >> sign) & digits)
            if not mean:
                for k in range(zero, n, one):
                    out[b + k] = values[a + k]
            elif i > first:  # Differences to the lowest are added up, which loses no digits to a common offset.
                for k in range(zero, n, one):
                    out[b + k] += values[a + k] - values[lowest + k]
        if mean:
            for k in range(zero, n, one):
                a = U(start) + k
                out[a] = values[lowest + k] + out[a] / values.dtype.type(last + 1 - first)


# Rows of a list of arrays.


def joined(arrays: Sequence[Any], dtype: type) -> tuple[Block, NDArray[np.int64]] | None:
    """All memory from the first array to the last one as one array, and where each begins; None if `fill` cannot read them."""
    first = arrays[0]
    if not all(type(a) is np.ndarray and a.ndim == 1 and a.dtype == first.dtype for a in arrays):
        return None
    if first.dtype != dtype and not (is_half(first.dtype) and dtype is np.float32):
        return None
    if not all(a.flags.c_contiguous and a.flags.aligned for a in arrays):
        return None
    places = np.array([array.ctypes.data for array in arrays])
    starts, askew = np.divmod(places - places.min(), first.itemsize)
    if askew.any():
        return None
    lowest, length = arrays[int(starts.argmin())], int(starts.max()) + len(first)
    return as_strided(lowest, (length,), (first.itemsize,), writeable=False), starts


def fill(line: Block, starts: NDArray[np.int64], out: Block) -> None:
    """Copy rows that begin at `starts` to `out`; float16 and bfloat16 become float32."""
    to, apart = _line(out, writeable=True)
    if is_half(line.dtype):
        _widened(line.view(np.int16), starts, to, to.view(np.int32), apart, out.shape[1], line.dtype == BFLOAT16)
    else:
        bits = np.int32 if out.itemsize == 4 else np.int64
        _copied(line.view(bits), starts, to.view(bits), apart, out.shape[1])


@_compiled()
def _copied(line: Any, starts: Any, out: Any, apart: Any, width: Any) -> None:
    for i in range(len(starts)):
        a, b = U(starts[i]), U(i * apart)
        for k in range(width):
            out[b + U(k)] = line[a + U(k)]


@_compiled()
def _widened(line: Any, starts: Any, out: Any, bits: Any, apart: Any, width: Any, has_exponent: Any) -> None:
    kept, exponent, infinite = np.int32(-0x70000001), np.int32(0x7F800000), np.int16(0x7C00)
    scale = np.float32(2.0**112)
    for i in range(len(starts)):
        for low in range(0, width, RUN):
            a, b, n = U(starts[i] + low), U(i * apart + low), min(RUN, width - low)
            if has_exponent:  # as bfloat16 has that of float32
                for k in range(n):
                    bits[b + U(k)] = np.int32(line[a + U(k)]) << np.int32(16)
                continue
            for k in range(n):  # Every step is that of `half.widened`.
                bits[b + U(k)] = (np.int32(line[a + U(k)]) << np.int32(13)) & kept
            for k in range(n):
                out[b + U(k)] *= scale
            for k in range(n):
                beyond = line[a + U(k)] & infinite == infinite
                bits[b + U(k)] |= exponent if beyond else np.int32(0)
