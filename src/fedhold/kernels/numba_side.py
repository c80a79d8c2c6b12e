"""The loops over columns, compiled by numba. They release the interpreter lock, so that several cores work at a time.

Numba keeps its machine code on disk, and compiles anew when this file has changed; it looks at no other file. So every
constant that compiled code reads stands here, and numbers from elsewhere (RUN) are passed as arguments.
"""

from __future__ import annotations

import logging
import math
import os
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numba
import numpy as np
from numba.core.caching import FunctionCache
from numba.core.runtime import rtsys
from numpy.typing import DTypeLike, NDArray

from fedhold.kernels.arrays import Block, Matrix, Rows, Strided, Vector, upright
from fedhold.kernels.narrow import BFLOAT16
from fedhold.kernels.numpy_side import RUN, TILE, NumpyKernels, Portion
from fedhold.kernels.sums import Pairs, Products, Residuals, Squares, Swept

__all__ = ["NumbaKernels"]

# Sweeps.
CACHED = 2**18  # numbers of a tile that two loops read one after the other, the second one from cache
SHORTEST, LONGEST = 1024, 4096  # columns of a tile. Long rows are read faster, short sums in float32 are more exact.

# Products of all pairs.
NEAR = 64  # rows of a run that stay in the L2 cache while they are multiplied with all others
MANY = 256  # clients, from which on BLAS is faster than compiled code shared by threads

# Mixtures.
MIXED_COLUMNS = 256  # columns of a tile: 500 rows of them fill half of the L2 cache

# Copies of arrays whose numbers do not lie in the order of their axes.
SIDE = 64  # numbers of a run. Eight of them are read side by side, and turned in the L1 cache.
FEWEST = 16  # numbers of a run: a cache line
MOST_RUNS = 2**16  # runs that the table of a layout may have: half a megabyte
STRIP = 8192  # columns of arrays whose numbers lie apart that are copied at a time
SHORT = 512  # numbers. NumPy copies so few before compiled code has been called.

# Order statistics.
LANES = 64  # columns at a time, a constant for the compiler; 100 rows of them fit in the L1 cache, 500 in L2
LOADED = 2048  # rows of lanes loaded at a time. They fill half of L2, and longer runs of memory are read faster.
# The most clients for a sorting network. With so many, it is a third slower than counting for a median, and a sixth faster for
# two ranks.
NETWORK = 128
SAMPLE = 31  # rows that are sorted for the first pivots. Liars cannot move these as far as they can move the extremes.
PROBES, JUMP = 3, 4  # pivots from the sample: at the rank's place in it, JUMP places beyond, and between the two
CLOSER = 12  # steps after which we look at the numbers left. Counts alone do not show that they are all equal.
STEPS = 200  # the most steps. Every third one bisects: a float64 takes 11 of these for its exponent, 53 for its digits.


class NumbaKernels(NumpyKernels):
    """The loops that numba makes faster by more than a tenth; the others are NumPy's."""

    compiled = True

    def squaring(self, *, around: bool = False) -> Portion:  # noqa: ARG002
        return self.imaging()

    def sweeping(self) -> Portion:
        return Portion(2**23, parallel=True, anywhere=True, upright=True)

    def first_sweeping(self, *, around: bool) -> Portion:  # noqa: ARG002
        return self.sweeping()

    def imaging(self) -> Portion:
        return Portion(2**23, parallel=True, anywhere=True)

    def pairing(self, m: int) -> Portion:
        if m > MANY:
            return super().pairing(m)
        return Portion(
            max(2**22, 32 * m**2), parallel=True, anywhere=True
        )  # A block is then much larger than its m x m products.

    def ordering(self, m: int, *, copied: bool) -> Portion:
        """Whole groups of LANES columns, so that no lane is idle."""
        numbers = TILE if copied else 4 * TILE
        return Portion(max(numbers // m // LANES, 1) * LANES * m, parallel=True, anywhere=True)

    def row_squares(self, block: Block) -> Vector:
        return self.squares(block, None).own

    def squares(self, block: Block, place: Block | None) -> Squares:
        own, around = np.zeros(len(block)), np.zeros(len(block) if place is not None else 0)
        _squares(*_line_of(block), block.shape[1], _place(block, place), RUN, own, around)
        return Squares(own, None if place is None else around)

    def products(self, block: Block, delta: Block, anchor: Vector | None) -> Products:
        along = np.zeros(len(block))
        if not isinstance(block, Rows) and upright(block):
            _upright_dots(*_columns_of(block), _place(block, anchor), _place(block, delta), RUN, along)
            return Products(along, float(np.dot(delta, delta)))
        line, starts = _line_of(block)
        width = _columns(len(block))
        place, nowhere = _place(block, anchor), np.zeros(width, block.dtype)
        for start in range(0, len(delta), width):
            part = _place(block, delta[start : start + width])
            here = nowhere[: len(part)] if anchor is None else place[start : start + width]
            _dots(line, starts, start, here, part, along)
        return Products(along, float(np.dot(delta, delta)))

    def products_in_threads(self, block: Block, delta: Block, anchor: Vector | None) -> Products:
        return self.products(block, delta, anchor)

    def sweep(self, block: Block, rows: Matrix, anchor: Vector | None, centre: Vector | None) -> Products:
        centre = np.empty(block.shape[1]) if centre is None else centre
        along, none = np.zeros(len(block)), np.empty(0)
        size, force = self._swept(block, rows, anchor, centre, along, none, none)
        return Products(along, size, force)

    def _swept(
        self,
        block: Block,
        rows: Matrix,
        place: Vector | None,
        centre: Vector,
        along: Vector,
        own: Vector,
        around: Vector,
    ) -> tuple[float, float]:
        """`_sweep`, or what does the same where columns are contiguous."""
        found: tuple[float, float]
        if not isinstance(block, Rows) and upright(block):
            weights, here = rows.astype(block.dtype), _place(block, place)
            found = _upright_sweep(*_columns_of(block), weights, here, RUN, centre, along, own, around)
        else:
            found = _sweep(*_line_of(block), *_weights(block, rows, place), centre, along, own, around)
        return found

    def first_sweep(self, block: Block, weights: Vector, place: Block | None, centre: Vector) -> Swept:
        along, own, around = np.zeros((3, len(block)))
        size, _ = self._swept(block, weights[None], place, centre, along, own, around)
        return Swept(Squares(own, None if place is None else around), Products(along, size))

    def centre(self, block: Block, weights: Vector, anchor: Vector | None, centre: Vector) -> None:
        if not isinstance(block, Rows) and upright(block):
            none = np.empty(0)
            self._swept(block, weights[None], anchor, centre, none, none, none)
        else:
            _centre(*_line_of(block), *_weights(block, weights[None], anchor), centre)

    def images(self, block: Block, rows: Matrix) -> Matrix:
        (k, m), width = rows.shape, block.shape[1]
        whole = np.zeros((-(-k // 4) * 4, m), block.dtype)
        whole[:k] = rows
        found, sums = np.zeros((m, len(whole))), np.empty((4, _columns(m)), block.dtype)
        for first in range(0, k, 4):
            _images(*_line_of(block), width, whole[first : first + 4], sums, found[:, first : first + 4])
        return found[:, :k]

    def gram(self, block: Block, place: Block | None) -> Pairs:
        if len(block) > MANY:
            return super().gram(block, place)
        return self._pairs(block, np.zeros_like(block[0]) if place is None else place, np.empty(0))

    def residual_gram(self, block: Block, place: Block, pulls: Vector) -> Pairs:
        if len(block) > MANY:
            return super().residual_gram(block, place, pulls)
        return self._pairs(block, place, pulls)

    def short_sums(self, residual: Block, pulls: Vector) -> Residuals:
        """All sums are in float64, and so as exact as short ones."""
        squares = np.zeros(len(residual))
        force = _residual_sums(np.ascontiguousarray(residual), residual.shape[1], pulls, squares)
        return Residuals(squares, force)

    def _pairs(self, block: Block, place: Block, pulls: Vector) -> Pairs:
        """The products of all pairs around `place`, and |X_i|^2; or, with pulls, |X_i - place|^2 and the force of the pulls."""
        m, width = block.shape
        whole = -(-m // 4) * 4
        products, squares = np.zeros((whole, whole)), np.zeros(m)
        # Shorter runs would stay in the L2 cache, but adding their sums up would then be most of the work.
        tile = np.zeros((whole, RUN), block.dtype)
        force = _gram(*_line_of(block), width, _place(block, place), RUN, tile, products, squares, pulls)
        products = products[:m, :m]
        return Pairs(np.triu(products) + np.triu(products, 1).T, squares, force)

    def widened(self, bits: Block, *, brain: bool) -> Block:
        wide = np.empty(bits.shape, np.uint32)
        _widen(*_line_of(bits), brain, wide)
        return wide.view(np.float32)

    def narrowed(self, numbers: NDArray[np.float32], dtype: np.dtype[Any]) -> Block:
        bits = np.empty(len(numbers), np.uint16)
        _shorten(numbers.view(np.uint32), dtype == BFLOAT16, bits)
        return bits.view(dtype)

    def columns(self, block: Block | Rows, at: slice) -> Block:
        if not isinstance(block, Rows):
            return super().columns(block, at)
        part = np.empty((len(block), at.stop - at.start), block.dtype)
        _gather(block.line, block.starts, at.start, part)
        return part

    def flattened(self, arrays: Strided, start: int, out: Block, rows: NDArray[np.intp]) -> None:
        first = arrays.arrays[0]
        layout = _layout(first.shape, first.strides, first.itemsize) if out.shape[1] > SHORT else None
        if layout is None:
            super().flattened(arrays, start, out, rows)
            return
        places = layout.before, layout.count, layout.step, layout.after
        _flatten(arrays.line, arrays.starts, *places, start, rows, out)

    def mixed(self, matrix: Block, rows: Block, common: int) -> Block:
        p, (m, width) = len(matrix), rows.shape
        whole = np.zeros((-(-p // 4) * 4, -(-m // 4) * 4), np.float32)
        whole[:p, :m] = matrix
        out, tile = np.empty((p, width), np.float32), np.zeros((whole.shape[1], MIXED_COLUMNS), np.float32)
        sums = np.empty((4, MIXED_COLUMNS), np.float32)
        _mixed(*_line_of(rows), m, whole, _place(rows, rows[common]), tile, sums, out)
        return out

    def median(self, block: Block) -> Vector:
        m, width = block.shape
        row = np.empty(width)
        _medians(*_line_of(block), m, network(m, (m - 1) // 2, m // 2), _sample(m, block.dtype), row)
        return row

    def trimmed_mean(self, block: Block, f: int) -> Vector:
        m, width = block.shape
        if m - 2 * f <= 2:
            return self.median(block)
        row = np.empty(width)
        _trimmed_means(*_line_of(block), m, f, network(m, f, m - 1 - f), _sample(m, block.dtype), row)
        return row

    def mean_around_median(self, block: Block, keep: int) -> Vector:
        m, width = block.shape
        row = np.empty(width)
        middle, last = network(m, (m - 1) // 2, m // 2), network(m, keep - 1, keep - 1)
        samples = _sample(m, block.dtype), _sample(m, np.float64)
        _means_around_medians(*_line_of(block), m, keep, middle, last, *samples, row)
        return row


def _line_of(block: Block | Rows) -> tuple[Block, NDArray[np.int64]]:
    """The block's memory as one array, and where every row starts in it.

    Where the numbers of a row are not contiguous, it is the memory of a copy.
    """
    rows = block if isinstance(block, Rows) else Rows.of_matrix(block) or Rows.of_matrix(np.array(block, order="C"))
    assert rows is not None
    return rows.line, rows.starts


def _columns_of(block: Block) -> tuple[Block, int]:
    """The memory of a block whose columns are contiguous as one array, and how far the columns lie apart in it."""
    rows = Rows.of_matrix(block.T)
    assert rows is not None
    return rows.line, block.strides[1] // block.itemsize


@dataclass(frozen=True, eq=False)
class _Layout:
    """How the numbers of an array lie in memory, beside one of its axes.

    count   how many numbers that axis has
    step    how far they lie apart
    before  the places of all entries of the axes before it
    after   the places of all entries of the axes after it
    """

    count: int
    step: int
    before: NDArray[np.int64]
    after: NDArray[np.int64]


@lru_cache(maxsize=32)  # A model has as many layouts as layers, and every block of columns asks for them again.
def _layout(shape: tuple[int, ...], strides: tuple[int, ...], size: int) -> _Layout | None:
    """The layout beside the axis whose numbers lie nearest to each other; None where NumPy is to copy the array."""
    if any(stride <= 0 or stride % size for stride in strides):
        return None
    axes = list[tuple[int, int]]()
    for count, stride in zip(shape, strides, strict=True):
        step = stride // size
        if axes and axes[-1][1] == count * step:  # These two lie one in the other, as one axis.
            axes[-1] = (axes[-1][0] * count, step)
        elif count > 1:
            axes.append((count, step))
    long = [k for k, (count, _) in enumerate(axes) if count >= FEWEST]
    if not long:
        return None
    nearest = min(long, key=lambda k: axes[k][1])
    before, after = axes[:nearest], axes[nearest + 1 :]
    if max(math.prod(count for count, _ in others) for others in (before, after)) > MOST_RUNS:
        return None
    return _Layout(*axes[nearest], _places(before), _places(after))


def _places(axes: list[tuple[int, int]]) -> NDArray[np.int64]:
    """The places of all entries of some axes, in their order."""
    places = np.zeros(1, np.int64)
    for count, step in axes:
        places = (places[:, None] + step * np.arange(count)).reshape(-1)
    return places


def _place(block: Block, place: Vector | None) -> Block:
    """A place in the block's precision, of one layout, so that compiled code sees one type; empty for the origin."""
    return np.empty(0, block.dtype) if place is None else np.array(place, block.dtype)


def _weights(block: Block, rows: Matrix, place: Vector | None) -> tuple[Block, Block, Block]:
    """Weights and a place in the block's precision, and room for the sums of one tile; the origin has one tile of zeros."""
    kind, tile = block.dtype, _columns(len(block))
    here = np.zeros(tile, kind) if place is None else _place(block, place)
    return rows.astype(kind), here, np.empty((len(rows), tile), kind)


def _columns(m: int) -> int:
    """How many columns a tile of m rows has, so that it stays in cache."""
    return min(max(CACHED // m, SHORTEST), LONGEST)


@lru_cache(maxsize=64)
def network(m: int, low: int, high: int) -> NDArray[np.int64]:
    """The comparators (a, b), a < b, of a network that puts the numbers of ranks `low` and `high` in these places.

    It is Batcher's sorting network without the comparators that these ranks do not depend on. They are found from the last to
    the first: a comparator is of no use if both of its places need only hold some numbers below the ranks, between them, or
    above them. For more than NETWORK clients, ranks are found by counting, and the network sorts the sample that gives the
    first pivots.
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


def _sample(m: int, kind: DTypeLike) -> Block | None:
    """Room for the sample that gives the first pivots; None where a network sorts all clients.

    Compiled code asks whether it is None, and numba leaves out the branch that is not taken: the network alone is compiled in a
    third of the time.
    """
    return np.empty((SAMPLE, LANES), kind) if m > NETWORK else None


def _merge_sort(m: int) -> list[tuple[int, int]]:
    """The comparators of Batcher's odd-even merge sort."""
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


class _ForgivingCache(FunctionCache):
    """Numba's cache of machine code, which costs time and nothing else where the disk is full or its files are damaged.

    A function whose code cannot be read is compiled anew.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The machine code on disk, or None.

        Numba's own method first loads all that its compiler knows, SciPy included, which takes a third of a second. Machine
        code needs the runtime alone; the compiler loads the rest itself where there is something to compile.
        """
        found = None
        try:
            rtsys.initialize(target_context)
            with self._guard_against_spurious_io_errors():
                found = self._load_overload(sig, target_context)
        except Exception as problem:  # The files are pickles, and a damaged one may raise anything.
            self._give_up(problem)
        if found is None:
            _announce_compiling()
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except Exception as problem:
            self._give_up(problem)

    def _give_up(self, problem: Exception) -> None:
        """Remove the index: numba writes it first, so that it may name a file of code that was not written, or of old code."""
        _warn_of_the_cache(problem)
        with suppress(OSError):
            os.unlink(self._cache_file._index_path)


@cache
def _announce_compiling() -> None:
    """Say once why this call takes longer than others."""
    logging.getLogger("fedhold").warning(
        "compiling kernels for this machine, which takes a few seconds once; fedhold.warm_up() does it ahead of the first call"
    )


_warned = list[Exception]()  # One warning is enough: the problem is the same for all functions.


def _warn_of_the_cache(problem: Exception) -> None:
    if not _warned:
        _warned.append(problem)
        warnings.warn(
            f"numba cannot keep machine code on disk, or not read what is there ({type(problem).__name__}: {problem}); "
            "what is missing is compiled in this process, which takes seconds. Free space, or set NUMBA_CACHE_DIR to a "
            "folder that can be written to.",
            stacklevel=2,
        )


def _compiled(*, reorder: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile on first use, and keep the machine code on disk where there is a place for it.

    reorder  whether sums may be made in another order, which lets the compiler use vector instructions; NaN stays NaN
    """
    options = {
        "nogil": True,
        "no_cfunc_wrapper": True,  # Nobody calls these from C.
        "error_model": "numpy",
        "fastmath": {"reassoc", "contract", "nsz"} if reorder else False,
    }

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        dispatcher = numba.njit(**options)(function)
        try:
            dispatcher._cache = _ForgivingCache(function)  # what njit(cache=True) does, with a cache of its own
        except Exception as problem:  # Neither the folder of this file nor the user's cache can be written to.
            _warn_of_the_cache(problem)
        return dispatcher

    return mark


# Sweeps: several rows at a time, in tiles that stay in cache. Numbers are found by their index in the line: slices of it for
# every row would take twice as long to compile.


@_compiled(reorder=True)
def _squares(line, starts, width, place, run, own, around):
    """Add |X_i|^2 to `own`, and |X_i - place|^2 to `around` unless it is empty."""
    for i in range(own.size):
        for start in range(0, width, run):
            row = line[starts[i] + start : starts[i] + min(start + run, width)]
            here = place[start : start + row.size]
            total, apart_total = line.dtype.type(0), line.dtype.type(0)
            for j in range(row.size):
                total += row[j] * row[j]
            own[i] += total
            if around.size:
                for j in range(row.size):
                    apart_total += (row[j] - here[j]) * (row[j] - here[j])
                around[i] += apart_total


@_compiled(reorder=True)
def _sweep(line, starts, rows, place, sums, centre, along, own, around):
    """Write the centre rows[0] @ X; add <X_i - place, delta> to `along`; return |delta|^2 and the squared force of rows[1].

    The place may have one tile of zeros, for the origin. Unless it is empty, |X_i|^2 is added to `own`, and |X_i - place|^2 to
    `around`: most of the time is that of reading, so both cost little.
    """
    size, force, tile = 0.0, 0.0, sums.shape[1]
    for start in range(0, centre.size, tile):
        width = min(tile, centre.size - start)
        here = place[start : start + width] if place.size == centre.size else place[:width]
        for row in range(len(rows)):
            square = _weighted(line, starts, start, rows[row], here, sums[row])
            size, force = (size, force + square) if row else (size + square, force)
        for j in range(width):
            centre[start + j] = np.float64(here[j]) + np.float64(sums[0, j])
        if own.size:
            _dots_and_squares(line, starts, start, here, sums[0], along, own, around)
        else:
            _dots(line, starts, start, here, sums[0], along)
    return size, force


@_compiled(reorder=True)
def _centre(line, starts, rows, place, sums, centre):
    """Write place + rows[0] @ (X - place) to `centre`; the place may have one tile of zeros, for the origin."""
    tile = sums.shape[1]
    for start in range(0, centre.size, tile):
        width = min(tile, centre.size - start)
        here = place[start : start + width] if place.size == centre.size else place[:width]
        _weighted(line, starts, start, rows[0], here, sums[0])
        for j in range(width):
            centre[start + j] = np.float64(here[j]) + np.float64(sums[0, j])


@_compiled(reorder=True)
def _weighted(line, starts, start, weights, place, sums):
    """Write weights @ (X - place) to `sums`, from the column `start` on, eight clients at a time; return its square."""
    m, n, square = weights.size, place.size, line.dtype.type(0)
    for j in range(n):
        sums[j] = 0
    for i in range(0, m - 7, 8):
        # Indices have no sign: checks for negative ones would prevent vectorising.
        a, b = np.uint64(starts[i] + start), np.uint64(starts[i + 1] + start)
        c, d = np.uint64(starts[i + 2] + start), np.uint64(starts[i + 3] + start)
        e, f = np.uint64(starts[i + 4] + start), np.uint64(starts[i + 5] + start)
        g, h = np.uint64(starts[i + 6] + start), np.uint64(starts[i + 7] + start)
        s, t, u, v = weights[i], weights[i + 1], weights[i + 2], weights[i + 3]
        w, x, y, z = weights[i + 4], weights[i + 5], weights[i + 6], weights[i + 7]
        for j in range(n):
            k, p = np.uint64(j), place[j]
            near = (s * (line[a + k] - p) + t * (line[b + k] - p)) + (u * (line[c + k] - p) + v * (line[d + k] - p))
            far = (w * (line[e + k] - p) + x * (line[f + k] - p)) + (y * (line[g + k] - p) + z * (line[h + k] - p))
            sums[j] += near + far
    for i in range(m - m % 8, m):
        a, s = np.uint64(starts[i] + start), weights[i]
        for j in range(n):
            sums[j] += s * (line[a + np.uint64(j)] - place[j])
    for j in range(n):
        square += sums[j] * sums[j]
    return square


@_compiled(reorder=True)
def _dots(line, starts, start, place, delta, found):
    """Add <X_i - place, delta> to every row's number, from the column `start` on, four rows at a time.

    The last rows come first: where a tile of many rows outgrows the cache, they are what is left there of an earlier loop.
    """
    m, zero = starts.size, line.dtype.type(0)
    for i in range(m - m % 4, m):
        a, s = np.uint64(starts[i] + start), zero
        for j in range(place.size):
            s += (line[a + np.uint64(j)] - place[j]) * delta[j]
        found[i] += s
    for i in range(m - m % 4 - 4, -1, -4):
        a, b = np.uint64(starts[i] + start), np.uint64(starts[i + 1] + start)
        c, d = np.uint64(starts[i + 2] + start), np.uint64(starts[i + 3] + start)
        s, t, u, v = zero, zero, zero, zero
        for j in range(place.size):
            k, x, p = np.uint64(j), delta[j], place[j]
            s += (line[a + k] - p) * x
            t += (line[b + k] - p) * x
            u += (line[c + k] - p) * x
            v += (line[d + k] - p) * x
        found[i] += s
        found[i + 1] += t
        found[i + 2] += u
        found[i + 3] += v


@_compiled(reorder=True)
def _dots_and_squares(line, starts, start, place, delta, along, own, around):
    """Add <X_i - place, delta>, |X_i|^2 and |X_i - place|^2 to every row's numbers, in the order of `_dots`."""
    zero = line.dtype.type(0)
    for i in range(starts.size - 1, -1, -1):
        a, dot, square, apart = np.uint64(starts[i] + start), zero, zero, zero
        for j in range(place.size):
            x = line[a + np.uint64(j)]
            residual = x - place[j]
            dot += residual * delta[j]
            square += x * x
            apart += residual * residual
        along[i] += dot
        own[i] += square
        around[i] += apart


# The same where the numbers of a column are contiguous: what every client gets is added up in RUN columns at a time.


@_compiled(reorder=True)
def _upright_sweep(line, apart, rows, place, run, centre, along, own, around):
    """What `_sweep` does; nothing is added up for clients where `along` is empty, and an empty place is the origin."""
    m, zero, size, force = rows.shape[1], line.dtype.type(0), 0.0, 0.0
    sums = np.zeros((3, m), line.dtype)
    dots, squares, aparts = sums[0], sums[1], sums[2]
    for start in range(0, centre.size, run):
        sums[:] = 0
        for j in range(start, min(start + run, centre.size)):
            a, p, delta, pulled = np.uint64(j * apart), place[j] if place.size else zero, zero, zero
            for i in range(m):
                delta += rows[0, i] * (line[a + np.uint64(i)] - p)
            for i in range(m if len(rows) > 1 else 0):
                pulled += rows[1, i] * (line[a + np.uint64(i)] - p)
            centre[j] = np.float64(p) + np.float64(delta)
            size += np.float64(delta) * delta
            force += np.float64(pulled) * pulled
            if own.size:
                for i in range(m):
                    x = line[a + np.uint64(i)]
                    residual = x - p
                    dots[i] += residual * delta
                    squares[i] += x * x
                    aparts[i] += residual * residual
            elif along.size:
                for i in range(m):
                    dots[i] += (line[a + np.uint64(i)] - p) * delta
        for i in range(along.size):
            along[i] += dots[i]
        for i in range(own.size):
            own[i] += squares[i]
            around[i] += aparts[i]
    return size, force


@_compiled(reorder=True)
def _upright_dots(line, apart, place, delta, run, found):
    """Add <X_i - place, delta> to every row's number."""
    dots, zero = np.zeros(found.size, line.dtype), line.dtype.type(0)
    for start in range(0, delta.size, run):
        dots[:] = 0
        for j in range(start, min(start + run, delta.size)):
            a, p, x = np.uint64(j * apart), place[j] if place.size else zero, delta[j]
            for i in range(found.size):
                dots[i] += (line[a + np.uint64(i)] - p) * x
        for i in range(found.size):
            found[i] += dots[i]


@_compiled(reorder=True)
def _images(line, starts, width, rows, sums, found):
    """Add <X_i, v> to every row's numbers, for the four vectors v of rows @ X. Rows of X are read four at a time, twice."""
    m, tile = rows.shape[1], sums.shape[1]
    nowhere = np.zeros_like(sums[0])
    for start in range(0, width, tile):
        n = min(tile, width - start)
        part = line[start:]
        p, q, r, s = sums[0, :n], sums[1, :n], sums[2, :n], sums[3, :n]
        sums[:, :n] = 0
        for i in range(0, m - 3, 4):
            a, b, c, d = _four(part, starts, i, n)
            _add_rows(p, q, r, s, a, b, c, d, rows[:, i : i + 4])
        for i in range(m - m % 4, m):
            row = part[starts[i] : starts[i] + n]
            for k in range(4):
                weight, total = rows[k, i], sums[k, :n]
                for j in range(n):
                    total[j] += weight * row[j]
        for i in range(0, m - 3, 4):
            a, b, c, d = _four(part, starts, i, n)
            _pairs(a, b, c, d, p, q, r, s, found[i : i + 4], 0)
        for k in range(4):
            _dots(line, starts[m - m % 4 :], start, nowhere[:n], sums[k, :n], found[m - m % 4 :, k])


@_compiled(reorder=True)
def _four(line, starts, i, n):
    """The rows i to i + 3."""
    a, b, c, d = starts[i], starts[i + 1], starts[i + 2], starts[i + 3]
    return line[a : a + n], line[b : b + n], line[c : c + n], line[d : d + n]


# Products of all pairs: four rows times four others at a time.


@_compiled(reorder=True)
def _gram(line, starts, width, place, run, tile, products, squares, pulls):
    """Add <X_i - place, X_j - place> to the products, and |X_i|^2 to the squares.

    With pulls that are not empty, |X_i - place|^2 is added to the squares, in float64; return the squared force of the pulls.
    """
    whole, force = len(tile), 0.0
    for start in range(0, width, run):
        n = min(run, width - start)
        here = place[start : start + n]
        for i in range(squares.size):
            row, residual = line[starts[i] + start : starts[i] + start + n], tile[i, :n]
            for j in range(n):
                residual[j] = row[j] - here[j]
            if not pulls.size:
                square = line.dtype.type(0)
                for j in range(n):
                    square += row[j] * row[j]
                squares[i] += square
        if pulls.size:
            force += _residual_sums(tile, n, pulls, squares)
        for first in range(0, whole, NEAR):
            last = min(first + NEAR, whole)
            for i in range(0, last, 4):
                a, b, c, d = tile[i, :n], tile[i + 1, :n], tile[i + 2, :n], tile[i + 3, :n]
                for k in range(max(first, i), last, 4):
                    e, f, g, h = tile[k, :n], tile[k + 1, :n], tile[k + 2, :n], tile[k + 3, :n]
                    _pairs(a, b, c, d, e, f, g, h, products[i : i + 4], k)
    return force


@_compiled(reorder=True)
def _residual_sums(residuals, width, pulls, squares):
    """Add |r_i|^2 to the squares, and return |sum_i pulls_i r_i|^2, in float64."""
    pulled, force = np.zeros(width), 0.0
    for i in range(squares.size):
        row, pull, square = residuals[i, :width], pulls[i], 0.0
        for j in range(width):
            number = np.float64(row[j])
            square += number * number
            pulled[j] += pull * number
        squares[i] += square
    for j in range(width):
        force += pulled[j] * pulled[j]
    return force


@_compiled(reorder=True)
def _pairs(a, b, c, d, e, f, g, h, products, k):
    """Sixteen products, whose sums stay in registers."""
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


# Conversion: `narrow.widened` and `narrow.narrowed` say how it works.


@_compiled(reorder=False)
def _widen(line, starts, brain, wide):
    """Write the bits of float32 numbers to `wide`, given those of float16 or bfloat16 ones."""
    m, width = wide.shape
    for i in range(m):
        row, bits = line[starts[i] : starts[i] + width], wide[i]
        if brain:
            for j in range(width):
                bits[j] = np.uint32(row[j]) << np.uint32(16)
        else:
            for j in range(width):
                sign, digits = np.uint32(row[j] & 0x8000) << 16, np.uint32(np.uint32(row[j] & 0x7FFF) << 13)
                number = np.float32(np.uint32(digits).view(np.float32) * np.float32(2.0**112))
                odd = np.uint32(0x7F800000) if digits >= np.uint32(0x0F800000) else np.uint32(0)  # not finite
                bits[j] = np.uint32(number.view(np.uint32) | odd | sign)


@_compiled(reorder=False)
def _shorten(wide, brain, bits):
    """Write the bits of the nearest float16 or bfloat16 numbers to `bits`, given those of finite float32 ones."""
    for j in range(bits.size):
        sign, size = np.uint32(wide[j] >> 16) & 0x8000, np.uint32(wide[j] & 0x7FFFFFFF)
        # Half of the last digit is added before the rest is cut off: of two equally near numbers, the even one counts.
        if brain:
            size = min(size, np.uint32(0x7F7F0000))
            found = np.uint32(size + 0x7FFF + (np.uint32(size >> 16) & 1)) >> 16
        else:
            size = min(size, np.uint32(0x477FE000))
            normal = np.uint32(size - (112 << 23) + 0x0FFF + (np.uint32(size >> 13) & 1)) >> 13
            # Below the least normal number, a sum with 1/2 rounds: its last digit is that of a float16.
            small = np.float32(np.uint32(size).view(np.float32) + np.float32(0.5))
            found = normal if size >= np.uint32(0x38800000) else small.view(np.uint32) - np.uint32(0x3F000000)
        bits[j] = np.uint16(found | sign)


# Copies of rows, and of arrays of other layouts.


@_compiled(reorder=False)
def _gather(line, starts, start, part):
    """Write the rows, from the column `start` on, to the part."""
    for i in range(len(part)):
        a = np.uint64(starts[i] + start)
        for j in range(part.shape[1]):
            part[i, j] = line[a + np.uint64(j)]


@_compiled(reorder=False)
def _flatten(line, starts, before, count, step, after, start, rows, out):
    """Write to these rows of `out` the numbers of some arrays, one for each, from the one at `start` on.

    The number at (i, j, k) of an array lies at before[i] + j * step + after[k] from its first one. Arrays whose numbers only
    lie apart are copied in short parts: they may lie among each other, and one finds in cache what another has read.
    """
    tile, width = np.empty(8 * SIDE, line.dtype), out.shape[1]
    part = STRIP if after.size == 1 and step > 1 else width
    for done in range(0, width, part):
        for i in range(rows.size):
            there = out[rows[i], done : min(done + part, width)]
            _flatten_one(line, starts[i], before, count, step, after, start + done, tile, there)


@_compiled(reorder=False)
def _flatten_one(line, origin, before, count, step, after, start, tile, out):
    inner, done = after.size, 0
    while done < out.size:
        outer, rest = divmod(start + done, count * inner)
        j, k = divmod(rest, inner)
        first, left = origin + before[outer] + j * step, out.size - done
        if inner == 1:
            n = min(count - j, left)
            if step == 1:  # To assign one slice to another would take nearly twice as long.
                for i in range(n):
                    out[np.uint64(done + i)] = line[np.uint64(first + i)]
            else:
                for i in range(n):
                    out[done + i] = line[np.uint64(first + i * step)]
        elif k or left < inner:  # part of the numbers beside one j
            n = min(inner - k, left)
            for i in range(n):
                out[done + i] = line[np.uint64(first + after[k + i])]
        else:
            whole = min(count - j, left // inner)
            n = whole * inner
            _turn(line, first, whole, step, after, tile, out[done : done + n])
        done += n


@_compiled(reorder=False)
def _turn(line, first, count, step, after, tile, out):
    """Write the number at first + j * step + after[k] to out[j, k].

    Eight runs along j are read side by side to a tile, whose rows of eight numbers are then written.
    """
    inner = after.size
    for k in range(0, inner - 7, 8):
        for j in range(0, count, SIDE):
            high, away = min(SIDE, count - j), first + j * step
            a, b = np.uint64(away + after[k]), np.uint64(away + after[k + 1])
            c, d = np.uint64(away + after[k + 2]), np.uint64(away + after[k + 3])
            e, f = np.uint64(away + after[k + 4]), np.uint64(away + after[k + 5])
            g, h = np.uint64(away + after[k + 6]), np.uint64(away + after[k + 7])
            if step == 1:  # The compiler then uses vector instructions.
                for q in range(high):
                    n, p = np.uint64(q), np.uint64(8) * np.uint64(q)
                    tile[p], tile[p + np.uint64(1)] = line[a + n], line[b + n]
                    tile[p + np.uint64(2)], tile[p + np.uint64(3)] = line[c + n], line[d + n]
                    tile[p + np.uint64(4)], tile[p + np.uint64(5)] = line[e + n], line[f + n]
                    tile[p + np.uint64(6)], tile[p + np.uint64(7)] = line[g + n], line[h + n]
            else:
                for q in range(high):
                    n, p = np.uint64(q * step), np.uint64(8) * np.uint64(q)
                    tile[p], tile[p + np.uint64(1)] = line[a + n], line[b + n]
                    tile[p + np.uint64(2)], tile[p + np.uint64(3)] = line[c + n], line[d + n]
                    tile[p + np.uint64(4)], tile[p + np.uint64(5)] = line[e + n], line[f + n]
                    tile[p + np.uint64(6)], tile[p + np.uint64(7)] = line[g + n], line[h + n]
            for q in range(high):
                n, p = np.uint64((j + q) * inner + k), np.uint64(8) * np.uint64(q)
                for i in range(8):
                    out[n + np.uint64(i)] = tile[p + np.uint64(i)]
    for k in range(inner - inner % 8, inner):
        for j in range(count):
            out[np.uint64(j * inner + k)] = line[np.uint64(first + after[k] + j * step)]


# Mixtures: four new rows from four old ones at a time.


@_compiled(reorder=True)
def _mixed(line, starts, m, matrix, place, tile, sums, out):
    p, width = out.shape
    for start in range(0, width, MIXED_COLUMNS):
        n = min(MIXED_COLUMNS, width - start)
        here = place[start : start + n]
        for i in range(m):
            row, residual = line[starts[i] + start : starts[i] + start + n], tile[i, :n]
            for j in range(n):
                residual[j] = row[j] - here[j]
        for i in range(0, len(matrix), 4):
            a, b, c, d = sums[0, :n], sums[1, :n], sums[2, :n], sums[3, :n]
            sums[:, :n] = 0
            for k in range(0, len(tile), 4):
                e, f, g, h = tile[k, :n], tile[k + 1, :n], tile[k + 2, :n], tile[k + 3, :n]
                _add_rows(a, b, c, d, e, f, g, h, matrix[i : i + 4, k : k + 4])
            for row in range(min(4, p - i)):
                for j in range(n):
                    out[i + row, start + j] = sums[row, j] + here[j]


@_compiled(reorder=True)
def _add_rows(a, b, c, d, e, f, g, h, w):
    """Add four weighted rows to each of four sums; the weights stay in registers."""
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


# Order statistics of LANES columns at a time, without sorting any of them. Rows of LANES numbers are compared lane by lane, so
# that every loop is a few vector instructions. The numbers of up to NETWORK clients run through a sorting network, cut down to
# what the wanted ranks depend on. For more clients we count: the count of numbers up to a pivot tells on which side of it a
# rank lies, and pivots chosen by such counts soon close in on it. Numbers that are not finite give nonsense, in bounded time.


@_compiled(reorder=False)
def _medians(line, starts, m, comparators, sample, row):
    """The median of every column."""
    loaded = np.empty((max(LOADED // m, 1), m, LANES), line.dtype)
    low, high = np.empty(LANES, line.dtype), np.empty(LANES, line.dtype)
    for group in range((len(row) + LANES - 1) // LANES):
        if group % len(loaded) == 0:
            _load(line, starts, group * LANES, len(row), loaded)
        _ranks(loaded[group % len(loaded)], (m - 1) // 2, m // 2, comparators, sample, low, high)
        for j in range(min(LANES, len(row) - group * LANES)):
            row[group * LANES + j] = np.float64(low[j]) / 2 + np.float64(high[j]) / 2  # A sum of both might overflow.


@_compiled(reorder=False)
def _trimmed_means(line, starts, m, f, comparators, sample, row):
    """The mean of every column without its f lowest and f highest numbers."""
    loaded, means = np.empty((max(LOADED // m, 1), m, LANES), line.dtype), np.empty(LANES)
    low, high = np.empty(LANES, line.dtype), np.empty(LANES, line.dtype)
    for group in range((len(row) + LANES - 1) // LANES):
        if group % len(loaded) == 0:
            _load(line, starts, group * LANES, len(row), loaded)
        keys = loaded[group % len(loaded)]
        _ranks(keys, f, m - 1 - f, comparators, sample, low, high)
        _clipped_sums(keys, low, high, m - 2 * f, means)
        for j in range(LANES):
            means[j] += low[j] - f * ((np.float64(high[j]) - np.float64(low[j])) / (m - 2 * f))
        for j in range(min(LANES, len(row) - group * LANES)):
            row[group * LANES + j] = means[j]


@_compiled(reorder=False)
def _clipped_sums(keys, low, high, count, sums):
    """sum_i (x_i - low) / count, with all numbers clipped to [low, high]: f of them count as `low` and f as `high`."""
    share, m = 1.0 / count, len(keys)
    for j in range(LANES):
        sums[j] = 0.0
    for i in range(m % 4):
        for j in range(LANES):
            sums[j] += (np.float64(min(max(keys[i, j], low[j]), high[j])) - low[j]) * share
    for i in range(m % 4, m, 4):
        for j in range(LANES):
            a, b, base = low[j], high[j], np.float64(low[j])
            total = np.float64(min(max(keys[i, j], a), b)) - base
            total += np.float64(min(max(keys[i + 1, j], a), b)) - base
            total += np.float64(min(max(keys[i + 2, j], a), b)) - base
            total += np.float64(min(max(keys[i + 3, j], a), b)) - base
            sums[j] += total * share


@_compiled(reorder=False)
def _means_around_medians(line, starts, m, keep, middle, last, sample, wide_sample, row):
    """The mean of the `keep` numbers of every column nearest to its median."""
    loaded, away = np.empty((max(LOADED // m, 1), m, LANES), line.dtype), np.empty((m, LANES))
    low, high = np.empty(LANES, line.dtype), np.empty(LANES, line.dtype)
    centre, reach, means = np.empty(LANES), np.empty(LANES), np.empty(LANES)
    for group in range((len(row) + LANES - 1) // LANES):
        if group % len(loaded) == 0:
            _load(line, starts, group * LANES, len(row), loaded)
        keys = loaded[group % len(loaded)]
        _ranks(keys, (m - 1) // 2, m // 2, middle, sample, low, high)
        for j in range(LANES):
            centre[j] = np.float64(low[j]) / 2 + np.float64(high[j]) / 2
        for i in range(m):
            for j in range(LANES):
                away[i, j] = abs(keys[i, j] - centre[j])
        _ranks(away, keep - 1, keep - 1, last, wide_sample, reach, reach)
        _near_means(keys, centre, reach, keep, means)
        for j in range(min(LANES, len(row) - group * LANES)):
            row[group * LANES + j] = means[j]


@_compiled(reorder=False)
def _near_means(keys, centre, reach, keep, means):
    """The mean of the `keep` numbers within reach of the centre; of those exactly at reach, the lower ones count first."""
    inside, lower = np.empty(LANES, np.int64), np.empty(LANES, np.int64)
    for j in range(LANES):
        means[j], inside[j], lower[j] = 0.0, 0, 0
    for i in range(len(keys)):
        for j in range(LANES):
            way = keys[i, j] - centre[j]
            near = abs(way) < reach[j]
            means[j] += way if near else 0.0
            inside[j] += near
            lower[j] += way == -reach[j]
    for j in range(LANES):
        edge = keep - inside[j]
        down = min(edge, lower[j])
        means[j] = centre[j] + (means[j] + (edge - 2 * down) * reach[j]) / keep


@_compiled(reorder=False)
def _load(line, starts, start, stop, loaded):
    """Load the columns from `start` on, LANES by LANES; lanes past the last column repeat it."""
    for i in range(loaded.shape[1]):
        for group in range(len(loaded)):
            first, width = start + group * LANES, min(LANES, stop - start - group * LANES)
            place = np.uint64(starts[i] + first)  # Checks for negative indices would prevent vectorising.
            for j in range(width):
                loaded[group, i, j] = line[place + np.uint64(j)]
            for j in range(max(width, 0), LANES if width > 0 else 0):
                loaded[group, i, j] = line[np.uint64(starts[i] + stop - 1)]


@_compiled(reorder=False)
def _ranks(keys, low, high, comparators, sample, lows, highs):
    """Every lane's numbers of ranks `low` <= `high`, counted from 0. It may reorder a lane's numbers."""
    m = len(keys)
    if sample is None:
        _sort(keys, comparators)
        for j in range(LANES):
            lows[j], highs[j] = keys[low, j], keys[high, j]
        return
    for i in range(SAMPLE):
        for j in range(LANES):
            sample[i, j] = keys[(2 * i + 1) * m // (2 * SAMPLE), j]
    _sort(sample, comparators)
    for second in range(2 if high > low + 1 else 1):  # It is a loop so that the search is compiled once.
        _select(keys, sample, high if second else low, highs if second else lows)
    if high == low + 1:
        _next(keys, low, lows, highs)
    elif high == low:
        for j in range(LANES):
            highs[j] = lows[j]


@_compiled(reorder=False)
def _sort(keys, comparators):
    for c in range(len(comparators)):
        a, b = comparators[c, 0], comparators[c, 1]
        for j in range(LANES):
            x, y = keys[a, j], keys[b, j]
            keys[a, j] = x if x < y else y
            keys[b, j] = y if x < y else x


@_compiled(reorder=False)
def _select(keys, sample, k, found):
    """Find every lane's number of rank k, and return the number of steps.

    It lies in (lo, hi], where `under` numbers are at most lo, and `upto` > k numbers are at most hi.
    """
    values, counts = np.empty((5, LANES), keys.dtype), np.empty((6, LANES), np.int32)
    lo, hi, start, end, pivot = values[0], values[1], values[2], values[3], values[4]  # Pivots are in [start, hi).
    under, upto, count, first, after, probe = counts[0], counts[1], counts[2], counts[3], counts[4], counts[5]
    for j in range(LANES):
        lo[j], start[j], hi[j], under[j], upto[j] = -np.inf, -np.inf, np.inf, 0, len(keys)
        first[j], after[j], probe[j] = -1, SAMPLE, k * SAMPLE // len(keys)
    busy = 1
    for step in range(STEPS):
        outside = 0
        if step == PROBES:
            for j in range(LANES):
                outside += (first[j] < 0) | (after[j] == SAMPLE)
        if outside or not busy or (step and step % CLOSER == 0):
            _look(keys, lo, hi, start, end)
            left = 0
            for j in range(LANES):
                hi[j] = end[j]
                found[j] = start[j] if under[j] == k else end[j]
                left += (under[j] != k) & (upto[j] != k + 1) & (start[j] < end[j])
            if not left:
                return step
        if step < PROBES:
            for j in range(LANES):
                pivot[j] = sample[probe[j], j]
        elif step % 3 == 2:
            _bisect(start, hi, pivot)
        else:
            _interpolate(start, hi, under, upto, k, pivot)
        _count(keys, pivot, count)
        busy = _narrow(lo, hi, start, under, upto, pivot, count, k)
        for j in range(LANES if step < PROBES else 0):
            place, high = probe[j], count[j] > k
            after[j] = place if high else after[j]
            first[j] = first[j] if high else place
            place += -JUMP if high else JUMP
            middle = max((first[j] + after[j]) >> 1, 0)
            probe[j] = place if (step == 0) & (place > first[j]) & (place < after[j]) else middle
    return STEPS


@_compiled(reorder=False)
def _count(keys, pivot, count):
    """How many numbers are at most the pivot. Eight rows are counted at a time, so that counts are seldom loaded and stored."""
    m = len(keys)
    for j in range(LANES):
        count[j] = 0
    for i in range(m % 8):
        for j in range(LANES):
            count[j] += np.int32(keys[i, j] <= pivot[j])
    for i in range(m % 8, m, 8):
        for j in range(LANES):
            p = pivot[j]
            four = np.int32(keys[i, j] <= p) + np.int32(keys[i + 1, j] <= p)
            four += np.int32(keys[i + 2, j] <= p) + np.int32(keys[i + 3, j] <= p)
            more = np.int32(keys[i + 4, j] <= p) + np.int32(keys[i + 5, j] <= p)
            more += np.int32(keys[i + 6, j] <= p) + np.int32(keys[i + 7, j] <= p)
            count[j] += four + more


@_compiled(reorder=False)
def _narrow(lo, hi, start, under, upto, pivot, count, k):
    """Move the ends to the pivots; return how many lanes still have several candidates."""
    busy = np.int32(0)
    for j in range(LANES):
        c, p = count[j], pivot[j]
        high = c > k
        hi[j] = p if high else hi[j]
        lo[j] = lo[j] if high else p
        start[j] = start[j] if high else p
        a, b = under[j] if high else c, c if high else upto[j]
        under[j], upto[j] = a, b
        busy += np.int32((a != k) & (b != k + 1))
    return busy


@_compiled(reorder=False)
def _look(keys, lo, hi, least, most):
    """The least and the greatest number in (lo, hi]."""
    m, inf = len(keys), keys.dtype.type(np.inf)
    for j in range(LANES):
        least[j], most[j] = inf, -inf
    for i in range(m % 2):
        for j in range(LANES):
            x = keys[i, j]
            least[j] = x if (x > lo[j]) & (x < least[j]) else least[j]
            most[j] = x if (x <= hi[j]) & (x > most[j]) else most[j]
    for i in range(m % 2, m, 2):
        for j in range(LANES):
            x, y = keys[i, j], keys[i + 1, j]
            x, y = (x if x > lo[j] else inf), (y if y > lo[j] else inf)
            x = x if x < y else y
            least[j] = x if x < least[j] else least[j]
        for j in range(LANES):
            x, y = keys[i, j], keys[i + 1, j]
            x, y = (x if x <= hi[j] else -inf), (y if y <= hi[j] else -inf)
            x = x if x > y else y
            most[j] = x if x > most[j] else most[j]


@_compiled(reorder=False)
def _interpolate(start, hi, under, upto, k, pivot):
    """Choose as the pivot the place a little past the rank, towards the larger side, if the numbers left were spread evenly."""
    # All constants have this dtype: a pivot of more digits could round to hi, and narrow nothing.
    kind = start.dtype.type
    for j in range(LANES):
        left, rank = kind(upto[j] - under[j]), kind(k - under[j]) + kind(0.5)
        past = kind(0.3) * np.sqrt(left)
        part = (rank - past if rank + rank > left else rank + past) / left
        p = start[j] * (kind(1) - part) + hi[j] * part
        p = p if p > start[j] else start[j]
        pivot[j] = p if p < hi[j] else start[j]


@_compiled(reorder=False)
def _bisect(start, hi, pivot):
    """Choose a pivot halfway: between the exponents if these differ much, and between the numbers otherwise."""
    kind = start.dtype.type
    for j in range(LANES):
        a, b = start[j], hi[j]
        near, far = min(abs(a), abs(b)), max(abs(a), abs(b))
        near = near if near > 0 else kind(np.finfo(start.dtype).tiny)
        wide = np.sqrt(near) * np.sqrt(far)
        p = a * kind(0.5) + b * kind(0.5) if far <= kind(4) * near else wide if b > 0 else -wide
        p = kind(0) if (a < 0) & (b > 0) else p
        p = p if p > a else a
        pivot[j] = p if p < b else a


@_compiled(reorder=False)
def _next(keys, k, low, high):
    """The number of rank k + 1, given that of rank k."""
    count, most = np.empty(LANES, np.int32), np.empty(LANES, keys.dtype)
    _count(keys, low, count)
    _look(keys, low, low, high, most)
    for j in range(LANES):
        high[j] = low[j] if count[j] > k + 1 else high[j]
