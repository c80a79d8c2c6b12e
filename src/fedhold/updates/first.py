"""The first pass over the data: whether all numbers can be used, and what the rule needs first, from one reading."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedhold.kernels import Block, Matrix, Vector, Weights, columns, loops, middle
from fedhold.sizes import CACHE, FEWER_SAMPLED, LEAST_SAMPLED, SAMPLED, SMALL
from fedhold.updates.tiles import SINGLE_ROOM, Updates

__all__ = [
    "SURPRISE",
    "AllPairs",
    "Centre",
    "Columnwise",
    "FirstLook",
    "Sample",
    "Wanted",
    "column_row",
    "first_look",
    "pair_numbers",
]

NEAR = 2  # An origin within this many times the clients' distances to their median costs no digits that matter.
SURPRISE = 10  # Clients this many times farther apart than in the sample have moved in other columns.


# What a rule may ask of the first pass.


@dataclass(frozen=True)
class Columnwise:
    """What a column rule asks for.

    row_of   a tile, an (m, w) array of some columns -> one number per column, such as `columns.median`
    clients  the clients whose rows are in the tile (None: all of them)
    """

    row_of: Callable[[Block], Block]
    clients: NDArray[np.intp] | None = None


@dataclass(frozen=True)
class AllPairs:
    """Asks for the products of all pairs of clients."""


@dataclass(frozen=True, eq=False)
class Centre:
    """Asks for a weighted centre, and every client's products with it.

    weights  the centre is weights @ X; they sum to 1
    sample   the columns that the weights were found from; None where they follow from the samples n_i alone
    """

    weights: Weights
    sample: Sample | None = None


Wanted = Columnwise | AllPairs | Centre | None
"""What the first pass is to find as well; None: only whether all numbers can be used."""


# A sample of columns.


@dataclass(frozen=True, eq=False)
class Sample:
    """Some columns of every client, which tell roughly how near clients are to each other.

    columns    how many columns there are
    residual   the clients minus the median of every column: with a large common offset, float32 would lose their differences
    reference  the client nearest to the medians; None, the origin, where 0 is about as near to most clients
    """

    columns: int
    residual: Block
    reference: int | None

    @staticmethod
    @np.errstate(over="ignore", invalid="ignore")  # The numbers have not been checked yet, and may be anything.
    def of(updates: Updates, columns: int = SAMPLED) -> Sample:
        """Columns spread evenly over all of them."""
        block = updates.sample(max(min(columns, CACHE // updates.m), LEAST_SAMPLED))
        half = updates.m // 2
        ordered = np.array(block.T, order="C")  # A row is partitioned in half of the time of a column.
        ordered.partition(half, axis=1)
        low = ordered[:, half] if updates.m % 2 else ordered[:, :half].max(axis=1)
        residual = block - (low / 2 + ordered[:, half] / 2).astype(block.dtype)
        distances = _norms(residual)
        near = middle(_norms(block)) <= NEAR * middle(distances)
        reference = None if near else int(np.argmin(np.where(np.isfinite(distances), distances, np.inf)))
        return Sample(block.shape[1], residual, reference)

    def distances(self, weights: Weights | None = None) -> Vector:
        """Every client's distance to the weighted centre; None: to the medians."""
        if weights is None:
            return _norms(self.residual)
        return _norms(self.residual - weights.astype(self.residual.dtype) @ self.residual)


def _norms(block: Block) -> Vector:
    found: Vector = np.sqrt(np.vecdot(block, block)).astype(np.float64)
    return found


# The first pass.


@dataclass(frozen=True, eq=False)
class FirstLook:
    """What the first pass over the data found out about the clients.

    reference  the client r whose update was subtracted from all, because all are far from 0; None where 0 was as good
    squares    |X_i - r|^2; for a column rule |X_i - row|^2
    pairs      <X_i - r, X_j - r> for all pairs, if pairs were wanted
    products   the products of every client with the weighted centre, if one was wanted
    row        that centre, or the row of the column rule, if one was wanted
    wanted     what was wanted
    """

    reference: int | None
    squares: Vector
    pairs: Matrix | None = None
    products: loops.Products | None = None
    row: Vector | None = None
    wanted: Wanted = None

    @property
    def usable(self) -> bool:
        """Whether all squares are finite and neither overflow nor vanish, so that nothing needs a closer look."""
        squares = self.squares
        most, low = 4.0**SINGLE_ROOM, 2.0**-SINGLE_ROOM
        return bool(np.isfinite(squares).all() and squares.max() <= most and middle(squares) >= low)

    @property
    def is_finite(self) -> bool:
        """Whether all that was found is finite."""
        return bool(np.isfinite(self.squares).all())

    def of(self, admitted: NDArray[np.bool_]) -> FirstLook | None:
        """What is known about the admitted clients alone; None where it takes another pass to find it."""
        if isinstance(self.wanted, Columnwise) or not np.isfinite(self.squares[admitted]).all():
            return None
        if self.reference is not None and not admitted[self.reference]:
            return None
        reference = None if self.reference is None else int(np.count_nonzero(admitted[: self.reference]))
        pairs = None if self.pairs is None else _cut(self.pairs, np.flatnonzero(admitted))
        return FirstLook(reference, self.squares[admitted], pairs)


def first_look(updates: Updates, wanted: Wanted, *, around_zero: bool = False) -> FirstLook:
    """The first pass over the data. It assumes that all clients will be admitted; see `FirstLook.of`.

    around_zero  whether the rule looks from 0, so that nothing is to be subtracted
    """
    if isinstance(wanted, Columnwise):
        row, squares = column_row(updates, wanted)
        return FirstLook(None, squares, row=row, wanted=wanted)
    if around_zero:
        return _look(updates, wanted, None)
    known = wanted.sample if isinstance(wanted, Centre) else None
    sample = known or Sample.of(updates, FEWER_SAMPLED)
    look = _look(updates, wanted, sample.reference)
    if sample.reference is None or not look.is_finite:
        return look
    expected = middle(sample.distances(np.eye(1, updates.m, sample.reference)[0])) * np.sqrt(updates.d / sample.columns)
    if middle(np.sqrt(look.squares)) <= SURPRISE * expected:
        return look
    # The reference is a liar who hides outside the sample.
    return _look(updates, wanted, int(column_row(updates, Columnwise(columns.median))[1].argmin()))


def _look(updates: Updates, wanted: Wanted, reference: int | None) -> FirstLook:
    """The first pass around a reference."""
    if isinstance(wanted, AllPairs):
        pairs = updates.sum(loops.pairs, minus=reference, numbers=pair_numbers(updates.m))
        return FirstLook(reference, np.maximum(pairs.diagonal(), 0), pairs, wanted=wanted)
    if not isinstance(wanted, Centre):
        return FirstLook(reference, updates.sum(loops.squares, minus=reference))
    found, row = updates.read(partial(loops.looked, weights=wanted.weights), minus=reference, row=True)
    return FirstLook(reference, found.squares, None, found, row, wanted)


def column_row(updates: Updates, rule: Columnwise) -> tuple[Vector, Vector]:
    """The row that a column rule makes from the updates, and their squared distances to it, from one reading."""
    row_of, chosen = rule.row_of, rule.clients

    def loop(tile: Block) -> tuple[Vector, Block]:
        row = row_of(tile if chosen is None else tile[chosen])
        return loops.squares(tile - row.astype(tile.dtype)), row

    squares, row = updates.read(loop, row=True)
    return row, squares


def pair_numbers(m: int) -> int:
    """How many numbers a tile has for products of all pairs: at least two runs of columns."""
    return max(SMALL, 2 * m * loops.RUN)


def _cut(matrix: Matrix, kept: NDArray[np.intp]) -> Matrix:
    """The rows and columns kept, in the matrix's own memory, because a copy could be large compared with the data."""
    if len(kept) == len(matrix):
        return matrix
    for place, row in enumerate(kept):
        matrix[place, : len(kept)] = matrix[row, kept]
    return matrix[: len(kept), : len(kept)]
