"""The loops over columns by NumPy. This class is also the interface: `NumbaKernels` inherits the loops it does not compile.

A kernel gets a block: some columns of all rows, a float32 or float64 array of any layout, which it must not modify.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhold.kernels.arrays import Block, Matrix, Rows, Strided, Vector, between
from fedhold.kernels.narrow import narrowed, widened
from fedhold.kernels.sums import Pairs, Products, Residuals, Signs, Squares, Swept

__all__ = ["NUMPY", "RUN", "SQUARE_RUN", "TILE", "NumpyKernels", "Portion"]

TILE = 2**18  # numbers that stay in a core's cache together with a copy of them
RUN = 1024  # squares or products added up in the block's own precision before float64 takes over
SQUARE_RUN = 32  # the same, for squares that a proof relies on
# Numbers of a run of all rows that is multiplied with itself. With twice as many, small calls would take two megabytes, which
# the C library gives back to the system after each: page faults would be a third of the time.
CACHED = 2**16
# The same where nothing is copied. In parts of a quarter of this size, all pairs of 10 to 200 rows took 5 to 10 % more time.
UNCOPIED = 2**20
# The fewest columns of it: to add up the products of shorter runs takes more than a tenth of the time of making them.
SHORTEST = 512
SMALL = 10**6  # rows times rows times columns, up to which OpenBLAS takes a product for a small one
NARROWEST, WIDEST = 4, 8  # rows of a strip of such products: more or fewer are slower
# Rows. Beyond this, even two matrices of all pairs at a time, one for each thread, take too much memory.
MOST_PARALLEL = 2048


@dataclass(frozen=True)
class Portion:
    """How the data is handed to a kernel.

    numbers   how many numbers a block has
    parallel  whether several threads run the kernel at a time, on different blocks
    anywhere  whether the kernel also takes `Rows` for a block, whose rows may lie anywhere in memory
    upright   whether it also takes a block whose columns are contiguous, and not its rows, without a copy
    bulky     whether the result has m x m numbers. There are then few blocks, however large, where nothing has to be gathered:
              all of their results may wait for the first one at a time
    """

    numbers: int
    parallel: bool
    anywhere: bool = False
    upright: bool = False
    bulky: bool = False


class NumpyKernels:
    """Every loop, for one block at a time.

    Kernels run in several threads where their portion says `parallel`. BLAS has one thread then, see `one_blas_thread`.
    """

    compiled = False

    # How much to hand over at a time.

    def looking(self) -> Portion:
        """For largest, signs and the functions of users. They take arrays alone, in compiled passes, too, and never `Rows`."""
        return Portion(2**20, parallel=True)

    def squaring(self, *, around: bool = False) -> Portion:
        """For squares, which look at every number once; squares `around` a place make a copy of the block."""
        return self.measuring() if around else self.sweeping()

    def sweeping(self) -> Portion:
        """For products, sweep and centre. Smaller blocks would stay in a core's own cache, but calls would cost more."""
        return Portion(2**20, parallel=True)

    def first_sweeping(self, *, around: bool) -> Portion:
        """For first_sweep, `around` a place or not."""
        return self.squaring(around=around)

    def imaging(self) -> Portion:
        """For images."""
        return self.sweeping()

    def measuring(self) -> Portion:
        """For residuals and squared_distances, which make a copy of the block."""
        return Portion(TILE, parallel=True)

    def pairing(self, m: int) -> Portion:
        """For gram and residual_gram of m rows."""
        return Portion(max(2**20, m * RUN), parallel=m <= MOST_PARALLEL, anywhere=True, bulky=True)

    def ordering(self, m: int, *, copied: bool) -> Portion:  # noqa: ARG002
        """For the order statistics of m rows; `copied` says that blocks are copies, one for every thread."""
        return Portion(TILE, parallel=True)

    # Sums over the columns.

    def row_squares(self, block: Block) -> Vector:
        """|X_i|^2 of every row, in runs of RUN."""
        m, width = block.shape
        runs, rest = block[:, : width - width % RUN].reshape(m, -1, RUN), block[:, width - width % RUN :]
        squares: Vector = np.vecdot(runs, runs).sum(axis=1, dtype=np.float64) + np.vecdot(rest, rest)
        return squares

    def squares(self, block: Block, place: Block | None) -> Squares:
        """The rows' squares, and those around a place (None: not needed), which has the block's precision."""
        own = self.row_squares(block)
        return Squares(own) if place is None else Squares(own, self.row_squares(block - place))

    def largest(self, block: Block) -> Vector:
        """max_j |x_ij| of every row; NaN where the row has one."""
        return np.maximum(block.max(axis=1), -block.min(axis=1))

    def signs(self, block: Block) -> Signs:
        """How many numbers of every row are above 0, and how many below."""
        return Signs(*(np.count_nonzero(found, axis=1).astype(np.float64) for found in (block > 0, block < 0)))

    def products(self, block: Block, delta: Block, anchor: Vector | None) -> Products:
        """The products of every row with delta; an anchor point of None is the origin."""
        residual = _around(block, anchor)
        return Products((residual @ delta).astype(np.float64), float(np.dot(delta, delta)))

    def products_in_threads(self, block: Block, delta: Block, anchor: Vector | None) -> Products:
        """The same without BLAS, which would start threads of its own in each of ours."""
        along = np.vecdot(_around(block, anchor), delta)
        return Products(along.astype(np.float64), float(np.vecdot(delta, delta)))

    def sweep(self, block: Block, rows: Matrix, anchor: Vector | None, centre: Vector | None) -> Products:
        """The products of every row with c - anchor, where c = rows[0] @ X.

        rows    the weights, which sum to 1; in a second row, if there is one, the pulls whose force is to be found
        anchor  the anchor point in these columns; None for the origin
        centre  where to write c; None if it is not needed
        """
        residual = _around(block, anchor)
        # A single row as a vector is twice as fast.
        sums = (rows[0] if len(rows) == 1 else rows).astype(block.dtype) @ residual
        delta = sums if len(rows) == 1 else sums[0]
        if centre is not None:
            _write(anchor, delta, centre)
        found = self.products(residual, delta, None)
        return found if len(rows) == 1 else Products(found.along, found.size, float(np.dot(sums[1], sums[1])))

    def first_sweep(self, block: Block, weights: Vector, place: Block | None, centre: Vector) -> Swept:
        """The rows' squares, and a sweep around the place (None: the origin), which has the block's precision."""
        # The products of BLAS read memory faster than the squares do, which then find the block in cache.
        products = self.sweep(block, weights[None], place, centre)
        return Swept(self.squares(block, place), products)

    def centre(self, block: Block, weights: Vector, anchor: Vector | None, centre: Vector) -> None:
        """Write weights @ X to `centre`, by residuals to an anchor point; the weights sum to 1."""
        shares = weights.astype(block.dtype)
        if anchor is None:
            centre[:] = shares @ block
            return
        # A copy of the whole block costs more than all else, where memory has to be asked for.
        for at in _cached(block):
            _write(anchor[at], shares @ _around(block[:, at], anchor[at]), centre[at])

    def images(self, block: Block, rows: Matrix) -> Matrix:
        """The products of every row of the block with every vector of rows @ X, one column for each of them."""
        sums = rows.astype(block.dtype) @ block
        return (block @ sums.T).astype(np.float64)

    def residuals(
        self, block: Block, weights: Vector, pulls: Vector, origin: Vector | None, centre: Vector
    ) -> Residuals:
        """Residuals to the centre weights @ X, which is written to `centre`, and the force of the pulls on it.

        If the weights sum to less than 1, the origin gets the rest. The centre is first rounded to the block's precision; the
        weighted mean of the residuals, which are small, then corrects it.
        """
        total, rest = (weights.sum(), 0.0) if origin is None else (1.0, 1.0 - weights.sum())
        both = np.stack([weights, pulls]).astype(block.dtype)
        away = 0.0 if origin is None else rest * origin
        middle = (both[0] @ block + away).astype(block.dtype)
        residual = block - middle
        means = both @ residual
        correction = (means[0] + away - rest * middle) / total
        centre[:] = middle + correction
        force = means[1] - pulls.sum() * correction
        return Residuals(np.vecdot(residual, residual).astype(np.float64), float(force @ force))

    def squared_distances(self, block: Block, place: Vector) -> Vector:
        """|X_i - place|^2 of every row."""
        residual = block - place.astype(block.dtype)
        return np.vecdot(residual, residual).astype(np.float64)

    def gram(self, block: Block, place: Block | None) -> Pairs:
        """Products of all pairs of rows around a place (None: the origin), and the squares |X_i|^2 of the rows themselves.

        Both are added up in runs of RUN columns at most.
        """
        products, squares = np.zeros((len(block), len(block))), np.zeros(len(block))
        # Without a place, the squares are among the products, and nothing is copied unless rows lie anywhere.
        at_a_time = CACHED if place is not None else TILE if isinstance(block, Rows) else UNCOPIED
        for at in _cached(block, at_a_time):
            part = self.columns(block, at)
            _add_pairs(products, part if place is None else part - place[at])
            if place is not None:
                for runs in _runs(part, RUN):
                    squares += np.vecdot(runs, runs).sum(axis=0, dtype=np.float64)
        _mirror(products)
        return Pairs(products, products.diagonal().copy() if place is None else squares)

    def residual_gram(self, block: Block, place: Block, pulls: Vector) -> Pairs:
        """Products of all pairs of rows around a place, in runs of RUN at most, and |X_i - place|^2, in runs of SQUARE_RUN.

        The force of the pulls on the place is added up over runs of SQUARE_RUN rows. The error of such short sums can be
        bounded, in whatever order they are made.
        """
        m = len(block)
        products, squares, force = np.zeros((m, m)), np.zeros(m), 0.0
        for at in _cached(block):
            residual = self.columns(block, at) - place[at]
            _add_pairs(products, residual)
            found = self.short_sums(residual, pulls)
            squares += found.squares
            force += found.force
        _mirror(products)
        return Pairs(products, squares, force)

    def short_sums(self, residual: Block, pulls: Vector) -> Residuals:
        """The squares of residuals in runs of SQUARE_RUN columns, and the force of pulls on them, in as many rows at a time."""
        squares = np.zeros(len(residual))
        for pieces in _runs(residual, SQUARE_RUN):
            squares += np.vecdot(pieces, pieces).sum(axis=0, dtype=np.float64)
        pulls, force = pulls.astype(residual.dtype), np.zeros(residual.shape[1])
        for first in range(0, len(residual), SQUARE_RUN):
            force += pulls[first : first + SQUARE_RUN] @ residual[first : first + SQUARE_RUN]
        return Residuals(squares, float(force @ force))

    # Conversion.

    def widened(self, bits: Block, *, brain: bool) -> Block:
        """The float16 numbers with these bits, or the bfloat16 ones (`brain`), as float32; the block may be `Rows`."""
        return widened(np.asarray(bits), brain=brain)

    def narrowed(self, numbers: NDArray[np.float32], dtype: np.dtype[Any]) -> Block:
        """The nearest numbers of a narrow dtype; what is too large becomes the largest one."""
        return narrowed(numbers, dtype)

    # Copies.

    def columns(self, block: Block | Rows, at: slice) -> Block:
        """Some columns of a block; a copy where its rows lie anywhere."""
        return np.asarray(block.part(at.start, at.stop)) if isinstance(block, Rows) else block[:, at]

    def flattened(self, arrays: Strided, start: int, out: Block, rows: NDArray[np.intp]) -> None:
        """Write to each of these rows of `out` one array's numbers from `start` on, in the order of its axes."""
        for row, array in zip(rows, arrays.arrays, strict=True):
            out[row] = between(array, start, start + out.shape[1])

    # New rows.

    def mixed(self, matrix: Block, rows: Block, common: int) -> Block:
        """matrix @ (rows - rows[common]) + rows[common], all in float32."""
        mixture: Block = matrix @ (rows - rows[common]) + rows[common]
        return mixture

    # Order statistics: one number for every column.

    def median(self, block: Block) -> Vector:
        """The middle value, or the mean of the two middle ones."""
        return _middle(_ordered(block))

    def trimmed_mean(self, block: Block, f: int) -> Vector:
        """The mean without the f smallest and the f largest values."""
        kept = _ordered(block)[:, f : len(block) - f]
        lowest = kept[:, 0].copy()
        if not max(-lowest.min(), kept[:, -1].max()) < np.finfo(kept.dtype).max / 2:
            return np.asarray(kept.mean(axis=1, dtype=np.float64))
        kept -= lowest[
            :, None
        ]  # These numbers are small: a product adds them up as exactly as float64 would, and faster.
        return lowest + np.dot(kept, np.full(kept.shape[1], 1 / kept.shape[1], kept.dtype)).astype(np.float64)

    def mean_around_median(self, block: Block, keep: int) -> Vector:
        """The mean of the `keep` values nearest to the median; if two are equally near, the lower one counts first."""
        ordered = _roomy(_ordered(block))
        return _mean_around(_middle(ordered), ordered, keep)

    def mean_around_trimmed_mean(self, block: Block, f: int) -> Vector:
        """The mean of the m - f values nearest to the mean without the f smallest and the f largest values."""
        ordered = _roomy(_ordered(block))
        m = ordered.shape[1]
        lowest = ordered[:, f].astype(np.float64)
        # Differences are added up, because the sum of numbers near the largest float overflows.
        middle = lowest + (ordered[:, f : m - f] - lowest[:, None]).mean(axis=1, dtype=np.float64)
        return _mean_around(middle, ordered, m - f)


NUMPY = NumpyKernels()


def _around(block: Block, anchor: Vector | None) -> Block:
    """The rows around an anchor point."""
    return block if anchor is None else block - anchor.astype(block.dtype, copy=False)


def _write(anchor: Vector | None, delta: Block, centre: Vector) -> None:
    """Write anchor + delta to `centre`; in float64, because both may be float32, and delta is the smaller one."""
    if anchor is None:
        centre[:] = delta
    else:
        np.add(anchor, delta, out=centre, dtype=np.float64, casting="same_kind")


def _cached(block: Block, numbers: int = CACHED) -> Iterator[slice]:
    """The columns of a block, as many at a time as stay in cache: whole runs of RUN, or parts of one where rows are many."""
    m, width = block.shape
    length = max(numbers // m, SHORTEST)
    length -= length % RUN if length > RUN else 0
    return (slice(start, min(start + length, width)) for start in range(0, width, length))


def _add_pairs(products: Matrix, block: Block) -> None:
    """Add <x_i, x_j> of all pairs of rows to `products`, in runs of RUN columns; `_mirror` fills in what is below the strips.

    BLAS has a fast way with small products, but not with a matrix times itself. So a strip of few rows is multiplied with
    itself and the rows after it, and with one row before it, so that the last strip is no such product. Against the products
    of two halves, or of all rows at once, all pairs of 10 to 64 rows took half of the time, those of 100 rows two thirds, and
    those of 200 rows four fifths.
    """
    m = len(block)
    strip = _strip(m)
    for runs in _runs(block, RUN):
        found, turned = np.zeros((len(runs), m, m), block.dtype), runs.swapaxes(1, 2)
        for first in range(0, m, strip):
            last, before = first + strip, max(first - 1, 0)
            np.matmul(runs[:, first:last], turned[:, :, before:], out=found[:, first:last, before:])
        products += found[0] if len(found) == 1 else found.sum(axis=0, dtype=np.float64)


def _strip(m: int) -> int:
    """How many of m rows to multiply at a time: so few that BLAS takes the product for a small one, or else all."""
    fitting = SMALL // (m * RUN)
    return m if fitting < NARROWEST else max(min(fitting, WIDEST, m // 2), 1)


def _mirror(products: Matrix) -> None:
    """Copy what is right of every strip to below it."""
    strip = _strip(len(products))
    for first in range(0, len(products) - strip, strip):
        last = first + strip
        products[last:, first:last] = products[first:last, last:].T


def _runs(block: Block, length: int) -> Iterator[Block]:
    """Views of shape (runs, m, length) of the block's columns; the last view holds the columns that do not fill a run."""
    m, width = block.shape
    whole = width - width % length
    if whole:
        yield block[:, :whole].reshape(m, -1, length).transpose(1, 0, 2)
    if whole < width:
        yield block[None, :, whole:]


def _ordered(block: Block) -> Block:
    """Every column sorted, as a row of a copy, so that each is sorted in cache and by SIMD."""
    ordered = np.array(np.asarray(block).T, order="C")
    ordered.sort(axis=1)
    return ordered


def _roomy(ordered: Block) -> Block:
    """The same numbers, in float64 where a difference of two of them would overflow float32."""
    fits = max(-ordered[:, 0].min(), ordered[:, -1].max()) < np.finfo(ordered.dtype).max / 2
    return ordered if fits else ordered.astype(np.float64)


def _mean_around(middle: Vector, ordered: Block, keep: int) -> Vector:
    """For every sorted column, the mean of the `keep` values nearest to its middle; of two equally near ones, the lower."""
    width, m = ordered.shape
    # The nearest values are consecutive: bisection finds where their window starts, in all columns at once.
    low, high, line = np.zeros(width, np.intp), np.full(width, m - keep), np.arange(width)
    while (low < high).any():
        probe = (low + high) // 2
        after = np.minimum(probe + keep, m - 1)
        right = (middle - ordered[line, probe] > ordered[line, after] - middle) & (low < high)
        low, high = np.where(right, probe + 1, low), np.where(right, high, np.minimum(probe, high))
    places, kind = np.arange(m), ordered.dtype.type
    inside = (places >= low[:, None]) & (places < low[:, None] + keep)
    row: Vector = middle + np.vecdot(ordered - middle[:, None].astype(kind), inside.astype(kind)) / keep
    return row


def _middle(ordered: Block) -> Vector:
    m = ordered.shape[1]
    low, high = ordered[:, (m - 1) // 2].astype(np.float64), ordered[:, m // 2].astype(np.float64)
    return low / 2 + high / 2  # They are halved first, because a sum of numbers near the largest float overflows.
