"""Loops over the columns of one tile. Each is a pure function: it returns sums in float64, or sums and a piece of a row.

A tile holds some columns of all clients, as an (m, w) array of float32 or float64. A reference may have been subtracted.

Threads share the tiles, so loops must release the interpreter lock. NumPy's `matmul` and `vecdot` do so where they make more
than 500 numbers, which is why sums over columns are made in runs: a number for every row and run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedhold.kernels import compiled
from fedhold.kernels.arrays import Block, Matrix, Vector
from fedhold.kernels.compiled import RUN
from fedhold.sizes import ALONE, SEVERAL

__all__ = [
    "RUN",
    "SQUARE_RUN",
    "Force",
    "Pairs",
    "Products",
    "Signs",
    "along",
    "centred_squares",
    "images",
    "largest",
    "looked",
    "one_row",
    "pairs",
    "products",
    "residual_pairs",
    "signs",
    "some_pairs",
    "squares",
    "weighted",
]

SQUARES = 256  # columns of a run of squares: a tile has enough runs for vecdot to release the interpreter lock
SQUARE_RUN = 32  # columns of a run of squares that a proof relies on


class Products(NamedTuple):
    """Products of every row with the weighted centre of the tile, seen from the reference.

    squares  |X_i - r|^2; None where they are known
    along    <X_i - r, c - r>
    size     |c - r|^2
    """

    squares: Vector | None
    along: Vector
    size: float


class Force(NamedTuple):
    """Residuals to a centre.

    squares  |X_i - c|^2
    force    |sum_i pulls_i (X_i - c)|^2; 0 where no pulls were given
    """

    squares: Vector
    force: float


class Pairs(NamedTuple):
    """Residuals of all pairs.

    products  <X_i - c, X_j - c>
    squares   |X_i - c|^2, of sums that are short enough to be bounded
    force     |sum_i pulls_i (X_i - c)|^2, likewise
    """

    products: Matrix
    squares: Vector
    force: float


class Signs(NamedTuple):
    """How many numbers of every row are above 0, and how many below."""

    above: Vector
    below: Vector


def squares(tile: Block) -> Vector:
    """|X_i|^2 of every row, in runs of columns."""
    m, width = tile.shape
    if 0 < tile.strides[0] < tile.strides[1]:  # Its columns are contiguous: products add up their squares.
        parts = (runs * runs @ np.ones(runs.shape[2], tile.dtype) for runs in _runs(tile, RUN))
        return sum((part.sum(axis=0, dtype=np.float64) for part in parts), np.zeros(m))
    run = SQUARES if tile.size > ALONE else RUN
    whole = width - width % run
    found: Vector = np.vecdot(tile[:, whole:], tile[:, whole:]).astype(np.float64)
    if whole:
        runs = tile[:, :whole].reshape(m, -1, run)
        found += np.vecdot(runs, runs).sum(axis=1, dtype=np.float64)
    return found


def largest(tile: Block) -> Vector:
    """max_j |x_ij| of every row; NaN where the row has one."""
    return np.maximum(tile.max(axis=1), -tile.min(axis=1)).astype(np.float64)


def signs(tile: Block) -> Signs:
    """How many numbers of every row are above 0, and how many below."""
    return Signs(*(np.count_nonzero(found, axis=1).astype(np.float64) for found in (tile > 0, tile < 0)))


def one_row(tile: Block, *, client: int) -> tuple[None, Block]:
    """Nothing but the row of one client."""
    return None, tile[client]


def weighted(tile: Block, *, weights: Vector) -> Block:
    """weights @ X."""
    row: Block = weights.astype(tile.dtype) @ tile
    return row


def products(tile: Block, *, weights: Vector) -> tuple[Products, Block]:
    """The products of every row with weights @ X, which is the piece of a row."""
    row = weighted(tile, weights=weights)
    return Products(None, along(tile, row), _square(row)), row


def looked(tile: Block, *, weights: Vector) -> tuple[Products, Block]:
    """The same, and the squares of the rows."""
    if compiled.takes(tile):
        row, along_row, squared = compiled.looked(tile, weights)
        return Products(squared, along_row, _square(row)), row
    # Products read memory faster than squares do, which then find it in cache.
    found, row = products(tile, weights=weights)
    return found._replace(squares=squares(tile)), row


def along(tile: Block, place: Block) -> Vector:
    """The products of every row with a place."""
    return _along(tile, place.astype(tile.dtype)[:, None])[:, 0]


def centred_squares(tile: Block, *, weights: Vector, pulls: Vector | None = None) -> tuple[Force, Block]:
    """The squared residuals to weights @ X, the force of the pulls on it, and this centre as the piece of a row."""
    row = weighted(tile, weights=weights)
    residual = tile - row
    force = 0.0 if pulls is None else _square(pulls.astype(tile.dtype) @ residual)
    return Force(squares(residual), force), row


def images(tile: Block, *, columns: Matrix) -> Matrix:
    """<X_i, v> of every row with every vector v of columns.T @ X, one column for each."""
    return _along(tile, (columns.T.astype(tile.dtype) @ tile).T)


def some_pairs(tile: Block, *, clients: NDArray[np.intp]) -> Matrix:
    """<X_i, X_j> of some rows with all."""
    found: Matrix = (tile[clients] @ tile.T).astype(np.float64)
    return found


def pairs(tile: Block) -> Matrix:
    """<X_i, X_j> of all pairs of rows, in runs of RUN columns."""
    m = len(tile)
    if m <= SEVERAL and compiled.takes(tile):
        return compiled.pairs(tile)
    found: Matrix = np.zeros((m, m))
    at_once = max(ALONE // (m * m), 1)
    for runs in _runs(tile, RUN):
        for first in range(0, len(runs), at_once):
            some = runs[first : first + at_once]
            products_of = np.matmul(some, some.swapaxes(1, 2))
            found += products_of[0] if len(some) == 1 else products_of.sum(axis=0, dtype=np.float64)
    return found


def residual_pairs(tile: Block, *, pulls: Vector) -> Pairs:
    """Products of all pairs in runs of RUN, and squares in runs of SQUARE_RUN columns.

    The force of the pulls is added up over runs of SQUARE_RUN rows. The error of such short sums can be bounded, in whatever
    order they are made.
    """
    lengths = np.zeros(len(tile))
    for runs in _runs(tile, SQUARE_RUN):
        lengths += np.vecdot(runs, runs).sum(axis=0, dtype=np.float64)
    shares, force = pulls.astype(tile.dtype), np.zeros(tile.shape[1])
    for first in range(0, len(tile), SQUARE_RUN):
        force += shares[first : first + SQUARE_RUN] @ tile[first : first + SQUARE_RUN]
    return Pairs(pairs(tile), lengths, _square(force))


def _along(tile: Block, vectors: Block) -> Matrix:
    """The products of every row with some vectors, one column for each, in runs of RUN where threads share large data."""
    if tile.size <= ALONE:
        return (tile @ vectors).astype(np.float64)
    found, start = np.zeros((len(tile), vectors.shape[1])), 0
    for runs in _runs(tile, RUN):
        count, _, length = runs.shape
        parts = vectors[start : start + count * length].reshape(count, length, -1)
        found += np.matmul(runs, parts).sum(axis=0, dtype=np.float64)
        start += count * length
    return found


def _square(row: Block) -> float:
    """|row|^2."""
    return float(row.dot(row))


def _runs(tile: Block, length: int) -> Iterator[Block]:
    """Views of shape (runs, m, length) of the tile's columns; the last view holds the columns that do not fill a run."""
    m, width = tile.shape
    whole = width - width % length
    if whole:
        yield tile[:, :whole].reshape(m, -1, length).transpose(1, 0, 2)
    if whole < width:
        yield tile[None, :, whole:]
