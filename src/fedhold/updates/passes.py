"""Passes over the matrix of updates: each reads the data once, and gives a value with a name for every number it found.

Rules see these values and never the data: only this package and `fedhold.kernels` touch arrays of d numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedhold.kernels import (
    RUN,
    SQUARE_RUN,
    TILE,
    Block,
    Matrix,
    NumpyKernels,
    Pairs,
    Portion,
    Products,
    Residuals,
    Signs,
    Squares,
    Sums,
    Swept,
    Vector,
    Weights,
    is_narrow,
    middle,
    shared,
    thread_count,
    wide,
)
from fedhold.updates.matrix import SINGLE_ROOM, Updates

__all__ = [
    "ALL_PAIRS",
    "AllPairs",
    "Centre",
    "Columnwise",
    "FirstLook",
    "Measured",
    "ResidualPairs",
    "Sample",
    "Wanted",
    "centre_of",
    "column_row",
    "coordinates",
    "first_look",
    "gram_around",
    "images",
    "measured",
    "over_pairs",
    "places_on_a_line",
    "product_error",
    "products_with",
    "residual_pairs",
    "sample_of",
    "sampled_gram",
    "signs_of",
    "squared_distances_to",
    "summed",
    "swept",
]

SAMPLED = 256  # columns of a sample. Distances over this many are right to some percent.
# A sample of much data has more columns, which foretell steps of a solve: up to so many numbers, and this part of the data.
FORETELLING, SMALL_PART = 2**17, 1 / 128
# Numbers of a sample, from which on it has fewer columns; and the fewest columns. Twice as many save no pass, and the medians
# of these columns are the largest part of what many clients cost beside the passes.
MOST_SAMPLED, LEAST_SAMPLED = 2**17, 16
FEWER_SAMPLED = 64  # columns that tell whether all clients are far from 0
ROWS_OF_PAIRS = 2**22  # distances of some clients to all that a thread has at a time: 32 MB
STRAIGHT = 1e-4  # Points off a line by less than this, relatively, are on it.
NEAR = 2  # An origin within this many times the clients' distances to their median costs no digits that matter.


Anchor = Vector | int | None
"""What is subtracted from every client: a place, one of the clients (its index, so that nothing is copied), or nothing."""


def _place(anchor: Anchor, block: Block, at: slice) -> Block | None:
    """The anchor point in the columns of a block."""
    if anchor is None:
        return None
    return cast(Block, block[anchor] if isinstance(anchor, int) else anchor[at])


def _room(row: Vector, at: slice) -> Vector:
    """Where a kernel writes some numbers of a row: in the row, or beside it where it is narrow. `_write` is to follow."""
    return np.empty(at.stop - at.start, np.float32) if is_narrow(row.dtype) else row[at]


def _write(kernels: NumpyKernels, numbers: Vector, row: Vector, at: slice) -> None:
    """Write numbers to a row, rounded to its dtype."""
    if is_narrow(row.dtype):
        row[at] = kernels.narrowed(numbers.astype(np.float32, copy=False), row.dtype)
    elif numbers.base is not row:
        row[at] = numbers


# The second view: one block of columns -> one row.


@dataclass(frozen=True)
class Columnwise:
    """What a column rule asks for.

    row_of   (kernels, block of columns) -> one number per column, such as `kernels.median(block)`. The block may be `Rows`,
             which kernels take, and which np.asarray makes an array of
    clients  the clients whose rows are in the block (None: all of them)
    """

    row_of: Callable[[NumpyKernels, Block], Vector]
    clients: NDArray[np.intp] | None = None


def column_row(updates: Updates, rule: Columnwise) -> Vector:
    """The row that a column rule makes from the updates."""
    plain = replace(updates, wide=False)
    chosen = plain if rule.clients is None else plain.take(rule.clients)
    row, kernels = chosen.zeros(), updates.ordering

    def write(block: Block, at: slice) -> None:
        row[at] = rule.row_of(kernels, block)

    chosen.run(write, kernels.ordering(chosen.m, copied=chosen.mixture is not None))
    return row


# The first look at the data.


@dataclass(frozen=True)
class AllPairs:
    """Asks the first look for the products of all pairs of clients."""


ALL_PAIRS = AllPairs()


@dataclass(frozen=True, eq=False)
class Centre:
    """Asks the first look for a weighted centre, and every client's products with it.

    weights  the centre is weights @ X; they sum to 1
    sample   the columns that the weights were found from; None where they follow from the samples n_i alone
    """

    weights: Weights
    sample: Sample | None = None


Wanted = Columnwise | AllPairs | Centre | None
"""What the pass that looks for numbers that are not finite should find as well; None: only the clients' lengths."""


@dataclass(frozen=True, eq=False)
class FirstLook:
    """What the first pass over the data found out about the clients.

    magnitudes    |X_i|; or max_j |x_ij| for a client whose squares overflow or vanish. It is not finite exactly where some
                  number of the client is not
    lengths       True for the clients whose magnitude is |X_i|
    reference     the client r whose update was subtracted from all, because all are far from 0; None where 0 was as good
    around        |X_i - r| for all clients, where there is a reference
    pairs         <X_i - r, X_j - r> for all pairs, if pairs were wanted
    row           the row of the column rule, or the weighted centre, if one was wanted
    row_products  the products of every client with that row, around r
    centre        what the weighted centre was made from, if one was wanted
    """

    magnitudes: Vector
    lengths: NDArray[np.bool_]
    reference: int | None = None
    around: Vector | None = None
    pairs: Matrix | None = None
    row: Vector | None = None
    row_products: Products | None = None
    centre: Centre | None = None

    def of(self, admitted: NDArray[np.bool_]) -> FirstLook:
        """What is known about the admitted clients alone. The matrix of pairs is cut down in its own memory."""
        lengths = self.lengths[admitted]
        usual = lengths.all()  # Otherwise the sums over columns have overflowed or lost their digits.
        everyone = usual and admitted.all()
        # Once r is rejected, nobody subtracts it any more.
        there = self.reference is None or bool(admitted[self.reference])
        before = None if self.reference is None else admitted[: self.reference]
        pairs = self.pairs if usual and there else None
        return FirstLook(
            magnitudes=self.magnitudes[admitted],
            lengths=lengths,
            reference=int(np.count_nonzero(before)) if before is not None and there else None,
            around=self.around[admitted] if self.around is not None and there else None,
            pairs=None if pairs is None else _cut(pairs, np.flatnonzero(admitted)),
            row=self.row if everyone else None,
            row_products=self.row_products if everyone else None,
            centre=self.centre if everyone else None,
        )

    @cached_property
    def norms(self) -> Vector | None:
        """|X_i| of all clients; None where squares of some overflow or vanish."""
        return self.magnitudes if self.lengths.all() else None


@dataclass(frozen=True, eq=False)
class _Looked(Sums):
    """The sums over columns from which a first look is made."""

    squares: Squares
    pairs: Matrix | None = None
    row_products: Products | None = None


@np.errstate(over="ignore", invalid="ignore")  # The numbers have not been checked yet, and may be anything.
def first_look(updates: Updates, wanted: Wanted) -> FirstLook:
    """The first pass over the data. It assumes that all clients will be admitted; see `FirstLook.of`."""
    kernels, m = updates.ordering if isinstance(wanted, Columnwise) else updates.kernels, updates.m
    centre = wanted if isinstance(wanted, Centre) else None
    row = None
    if wanted is not None and not isinstance(wanted, AllPairs):
        # A row that no sample has led to is the value of the call.
        row = updates.blank() if centre is None or centre.sample is None else updates.zeros()
    client = _central_client(updates, wanted)
    if isinstance(wanted, Columnwise):
        look, portion = _row_look(kernels, wanted, row, client), kernels.ordering(m, copied=False)
    elif isinstance(wanted, AllPairs):
        look, portion = _pairs_look(kernels, client), kernels.pairing(m)
    elif isinstance(wanted, Centre):
        look, portion = (
            _centre_look(kernels, wanted.weights, row, client),
            kernels.first_sweeping(around=client is not None),
        )
    else:
        look, portion = _plain_look(kernels, client), kernels.squaring(around=client is not None)
    found = updates.sum(look, portion)
    magnitudes = np.sqrt(found.squares.own)
    around = None if found.squares.around is None else np.sqrt(found.squares.around)
    lengths = magnitudes < 2.0**SINGLE_ROOM
    usual = bool(lengths.all())
    some = magnitudes if usual else magnitudes[lengths]
    if not some.size or middle(some) <= 2.0 ** (-SINGLE_ROOM / 2):
        lengths[:], usual = False, False
    if not usual:
        odd = np.flatnonzero(~lengths)
        parts = updates.take(odd).map(lambda block, _: kernels.largest(block), kernels.looking())
        magnitudes[odd] = np.maximum.reduce(list(parts), axis=0)  # This propagates NaN.
    return FirstLook(magnitudes, lengths, client, around, found.pairs, row, found.row_products, centre)


def _plain_look(kernels: NumpyKernels, client: int | None) -> Callable[[Block, slice], _Looked]:
    return lambda block, at: _Looked(kernels.squares(block, _place(client, block, at)))


def _row_look(
    kernels: NumpyKernels, rule: Columnwise, row: Vector | None, client: int | None
) -> Callable[[Block, slice], _Looked]:
    assert row is not None

    def look(block: Block, at: slice) -> _Looked:
        numbers = rule.row_of(kernels, block)
        _write(kernels, numbers, row, at)
        place = _place(client, block, at)
        products = kernels.products_in_threads(block, _less(numbers, place, block.dtype), place)
        return _Looked(kernels.squares(block, place), row_products=products)

    return look


def _less(numbers: Vector, place: Block | None, dtype: np.dtype[Any]) -> Block:
    """numbers - place, rounded to the dtype only then."""
    if place is None:
        return numbers.astype(dtype)
    return np.subtract(numbers, place, out=np.empty(len(numbers), dtype), casting="same_kind")


def _centre_look(
    kernels: NumpyKernels, weights: Weights, row: Vector | None, client: int | None
) -> Callable[[Block, slice], _Looked]:
    assert row is not None

    def look(block: Block, at: slice) -> _Looked:
        here = _room(row, at)
        found: Swept = kernels.first_sweep(block, weights, _place(client, block, at), here)
        _write(kernels, here, row, at)
        return _Looked(found.squares, row_products=found.products)

    return look


def _pairs_look(kernels: NumpyKernels, client: int | None) -> Callable[[Block, slice], _Looked]:
    def look(block: Block, at: slice) -> _Looked:
        place = _place(client, block, at)
        found = kernels.gram(block, place)
        around = None if place is None else found.products.diagonal().copy()
        return _Looked(Squares(found.squares, around), pairs=found.products)

    return look


def _cut(matrix: Matrix, kept: NDArray[np.intp]) -> Matrix:
    """The rows and columns kept, in the matrix's own memory, because a copy could be large compared with the data."""
    if len(kept) == len(matrix):
        return matrix
    for place, row in enumerate(kept):
        matrix[place, : len(kept)] = matrix[row, kept]
    return matrix[: len(kept), : len(kept)]


# Samples of columns.


@dataclass(frozen=True, eq=False)
class Sample:
    """Some columns of every client, which tell roughly how near clients are to each other.

    columns   how many columns there are
    lengths   every client's length over them
    residual  the clients minus the median of every column: with a large common offset, float32 would lose their differences
    """

    columns: int
    lengths: Vector
    residual: Block

    def distances_to_median(self) -> Vector:
        """Every client's distance to the median of the columns."""
        return _norms(self.residual)

    def places_on_a_line(self) -> Vector | None:
        """Coordinates of the clients along the line that they lie on, as far as these columns tell; None if on none."""
        return places_on_a_line(lambda client: _norms(self.residual - self.residual[client]).astype(np.float64))

    def distances(self, weights: Weights) -> Vector:
        """Every client's distance to the weighted centre."""
        return _norms(self._around(weights))

    def cosines(self, weights: Weights) -> Matrix:
        """The cosines of the angles between the clients' residuals to the weighted centre, as far as these columns tell.

        Those of independent clients would be 1 / sqrt(columns) by chance. As much as that explains is taken off all of them.
        """
        away = self._around(weights)
        lengths = _norms(away)[:, None]
        units = np.divide(away, lengths, out=np.zeros_like(away), where=lengths > 0)
        cosines: Matrix = (units @ units.T).astype(np.float64)
        np.fill_diagonal(cosines, 0.0)
        found, chance = float(np.square(cosines).sum()), len(away) * (len(away) - 1) / self.columns
        cosines *= max(1 - chance / found, 0.0) if found > 0 else 0.0
        np.fill_diagonal(cosines, 1.0)
        return cosines

    def _around(self, weights: Weights) -> Block:
        return self.residual - weights.astype(self.residual.dtype) @ self.residual


def sample_of(updates: Updates) -> Sample:
    """SAMPLED columns of every client, spread evenly over all of them; more of much data."""
    columns = max(SAMPLED, min(FORETELLING // updates.m, int(updates.d * SMALL_PART)))
    block = updates.sample(_sampled(updates, columns))
    half, halved = updates.m // 2, _halved(block)
    low = halved[:, half] if updates.m % 2 else halved[:, :half].max(axis=1)
    median = (low / 2 + halved[:, half] / 2).astype(block.dtype)
    return Sample(block.shape[1], _norms(block), block - median)


def _halved(block: Block) -> Block:
    """Every column as a row, the lower half of its numbers before the upper half, which begins with its smallest number."""
    turned = np.array(block.T, order="C")  # A row is partitioned in half of the time of a column.
    turned.partition(len(block) // 2, axis=1)
    return turned


def places_on_a_line(distances_to: Callable[[int], Vector], error: Vector | float = 0.0) -> Vector | None:
    """Coordinates of points along the line that they lie on; None where they lie on none, or on one point.

    distances_to  point -> the distances of all points to it
    error         how far those distances may be off
    """
    from_first = distances_to(0)
    end = int(from_first.argmax())
    places = distances_to(end)  # The point farthest from another one is an end of the line.
    off = np.abs(np.abs(places - places[0]) - from_first)
    return places if places.any() and (off <= STRAIGHT * from_first + 4 * error).all() else None


def _norms(block: Block) -> Vector:
    return np.sqrt(np.vecdot(block, block))


def _central_client(updates: Updates, wanted: Wanted) -> int | None:
    """A client near the middle of most others, as far as a sample tells; None where 0 is about as near to them.

    The numbers have not been checked yet, and may be anything. A sample of files would cost more than the pass that it might
    save, unless it has been read already, or the pass makes the products of all pairs.
    """
    sample = wanted.sample if isinstance(wanted, Centre) else None
    if sample is None and updates.costly_to_read and not isinstance(wanted, AllPairs):
        return None
    if sample is None:
        block = updates.sample(_sampled(updates, FEWER_SAMPLED))
        # The upper one of two middle numbers is as good here as the point between them.
        distances, lengths = _norms(block - _halved(block)[:, updates.m // 2]), _norms(block)
    else:
        distances, lengths = sample.distances_to_median(), sample.lengths
    near = middle(lengths) <= NEAR * middle(distances)
    return None if near else int(np.argmin(np.where(np.isfinite(distances), distances, np.inf)))


def _sampled(updates: Updates, columns: int) -> int:
    """How many columns a sample of that many has: fewer of very many clients, whose errors average out."""
    return max(min(columns, MOST_SAMPLED // updates.m), LEAST_SAMPLED)


def sampled_gram(updates: Updates, columns: NDArray[np.intp]) -> Matrix:
    """<X_i - mean, X_j - mean> over the chosen columns, up to a factor: the data is scaled so that its largest number is 1."""
    block = updates.columns(columns)
    block = block / (np.abs(block).max() or 1.0)
    centred = block - block.mean(axis=0)
    gram: Matrix = centred @ centred.T
    return gram


def signs_of(updates: Updates) -> Signs:
    """How many numbers of every client are above 0, and how many below."""
    kernels = updates.kernels
    return updates.sum(lambda block, _: kernels.signs(block), kernels.looking())


# Distances.


@dataclass(frozen=True, eq=False)
class Measured:
    """A centre, every client's residual to it, and the force of pulls on it."""

    centre: Vector
    residuals: Residuals


def measured(updates: Updates, weights: Weights, pulls: Weights | None, origin: Vector | None) -> Measured:
    """The centre weights @ X, and the residuals to it, by subtraction.

    pulls   the pulls whose force on the centre is to be found (None: 0)
    origin  with weights that sum to less than 1, the point that gets the rest of the weight
    """
    centre, kernels = updates.zeros(), updates.kernels
    forces = np.zeros(updates.m) if pulls is None else pulls

    def kernel(block: Block, at: slice) -> Residuals:
        return kernels.residuals(block, weights, forces, None if origin is None else origin[at], centre[at])

    return Measured(centre, updates.sum(kernel, kernels.measuring()))


def swept(updates: Updates, weights: Weights, pulls: Weights | None, anchor: Anchor, centre: Vector | None) -> Products:
    """The products that give distances to the centre weights @ X from those to an anchor point (None: the origin).

    pulls   the pulls whose force |pulls @ X| is to be found
    centre  where to write the centre; None if it is not needed
    """
    rows = np.stack([weights] if pulls is None else [weights, pulls])
    kernels = updates.kernels

    def kernel(block: Block, at: slice) -> Products:
        return kernels.sweep(block, rows, _place(anchor, block, at), None if centre is None else centre[at])

    return updates.sum(kernel, kernels.sweeping())


def centre_of(updates: Updates, weights: Weights, anchor: Anchor, *, final: bool) -> Vector:
    """The centre weights @ X, by residuals to an anchor point (None: the origin); the weights sum to 1.

    final  whether it is the value of the call, and may be rounded to its dtype
    """
    centre, kernels = updates.blank() if final else updates.zeros(), updates.kernels

    def kernel(block: Block, at: slice) -> None:
        here = _room(centre, at)
        kernels.centre(block, weights, _place(anchor, block, at), here)
        _write(kernels, here, centre, at)

    updates.run(kernel, kernels.sweeping())
    return centre


def products_with(updates: Updates, place: Vector, anchor: Anchor) -> Products:
    """The products that give distances to a place from those to an anchor point (None: the origin)."""
    kernels = updates.kernels

    def kernel(block: Block, at: slice) -> Products:
        here = _place(anchor, block, at)
        return kernels.products(block, _less(wide(place[at]), here, block.dtype), here)

    return updates.sum(kernel, kernels.sweeping())


def squared_distances_to(updates: Updates, place: Vector) -> Vector:
    """|X_i - place|^2 of every client, by subtraction."""
    kernels = updates.kernels
    return updates.sum(lambda block, at: kernels.squared_distances(block, wide(place[at])), kernels.measuring())


def summed(updates: Updates, measure: Callable[[Block, slice], Any]) -> NDArray[np.float64]:
    """The sum of measure(block, columns) over all blocks; `measure` comes from a caller, so that its answers are checked."""

    def kernel(block: Block, at: slice) -> NDArray[np.float64]:
        found = np.array(measure(block, at), dtype=np.float64)  # A copy: the sum is made in place.
        if not np.isfinite(found).all():
            raise ValueError(
                f"measure gave numbers that are not finite for {block.shape[1]} columns. Sum finite numbers."
            )
        return found

    return replace(updates, wide=False).sum(kernel, updates.kernels.looking())


def images(updates: Updates, rows: Matrix, anchor: Anchor) -> Matrix:
    """<X_i - r, v> of every client i with every vector v of rows @ (X - r), one column for each, r the anchor (None: 0).

    The vectors v live one block at a time.
    """
    kernels = updates.kernels

    def kernel(block: Block, at: slice) -> Matrix:
        here = _place(anchor, block, at)
        return kernels.images(block if here is None else block - here.astype(block.dtype, copy=False), rows)

    # Around an anchor point a block is copied, so that it must be small.
    portion = kernels.imaging() if anchor is None else replace(kernels.imaging(), numbers=TILE)
    return updates.sum(kernel, portion)


def gram_around(updates: Updates, place: Vector) -> Matrix:
    """<X_i - place, X_j - place> for all pairs."""
    kernels = updates.kernels

    def kernel(block: Block, at: slice) -> Pairs:
        return kernels.gram(block, wide(place[at]).astype(block.dtype))

    return updates.sum(kernel, kernels.pairing(updates.m)).products


def over_pairs(updates: Updates, place: Vector, measure: Callable[[Matrix], Vector]) -> Vector:
    """measure(rows of the m x m squared distances), one number for each row; some rows at a time, by several threads.

    place    a place near the clients: products are made around it
    measure  may be called in several threads
    """
    own, m = squared_distances_to(updates, place), updates.m
    spans = updates.spans(Portion(m * RUN, parallel=False))

    @np.errstate(over="ignore", invalid="ignore")  # It is set here because threads do not inherit it.
    def measured(clients: NDArray[np.intp]) -> Vector:
        squares = np.zeros((len(clients), m))
        for span in spans:
            block = updates.read(span.start, span.stop)
            residual = block - wide(place[span.start : span.stop]).astype(block.dtype)
            squares -= residual[clients] @ residual.T
        squares *= 2
        squares += own
        squares += own[clients, None]
        np.maximum(squares, 0, out=squares)
        squares[np.arange(len(clients)), clients] = 0
        return measure(squares)

    parts = np.array_split(np.arange(m), -(-m * m // ROWS_OF_PAIRS))
    return np.concatenate(list(shared(measured, parts, thread_count())))


def coordinates(updates: Updates, centre: Vector, scales: Vector) -> Matrix:
    """The points scales_i (X_i - centre) in at most m dimensions: the columns, or coordinates from the Gram matrix."""
    if updates.d <= updates.m:
        return updates.read(0, updates.d) * scales[:, None] - scales[:, None] * centre
    values, vectors = np.linalg.eigh(gram_around(updates, centre) * scales[:, None] * scales)
    points: Matrix = vectors * np.sqrt(np.maximum(values, 0))
    return points


@dataclass(frozen=True, eq=False)
class ResidualPairs:
    """The residuals X_i - place of all clients.

    products  <X_i - place, X_j - place> for all pairs
    lengths   |X_i - place|
    force     |sum_i pulls_i (X_i - place)|, or more
    error     the most that a cosine, a product over two lengths, can be off
    doubt     the relative error of the lengths, or more
    """

    products: Matrix
    lengths: Vector
    force: float
    error: float
    doubt: float


def product_error(resolution: float) -> float:
    """How much <x, y> can be off, in units of |x| |y|: it is added up over runs of RUN columns, and then in float64.

    A sum of n products is off by n roundings of half the resolution each, in whatever order it is made. The 64 cover two
    lengths, which are off by half of SQUARE_RUN roundings each, the rounding of the differences, and the sum over runs.
    """
    return (RUN + 64) * resolution / 2


def residual_pairs(updates: Updates, place: Vector, distances: Vector, pulls: Weights) -> ResidualPairs:
    """Residuals with a proven error: n products added up in any order are off by n roundings of |x| |y| at most.

    place      a place that the dtype in which updates are read can hold
    distances  about the lengths of the residuals: where squares would vanish in float32, float64 is read
    pulls      the pulls whose force on the place is to be found
    """
    if np.square(distances.min()) < updates.d * 2.0**-80:
        updates = updates.widened()
    kernels = updates.kernels

    def kernel(block: Block, at: slice) -> Pairs:
        return kernels.residual_gram(block, place[at].astype(block.dtype), pulls)

    found = updates.sum(kernel, kernels.pairing(updates.m))
    lengths, doubt = np.sqrt(found.squares), SQUARE_RUN * updates.resolution
    return ResidualPairs(
        products=found.products,
        lengths=lengths,
        force=float(np.sqrt(found.force) + doubt * (pulls @ lengths)),  # It is added up over as many rows at a time.
        error=product_error(updates.resolution),
        doubt=doubt,
    )
