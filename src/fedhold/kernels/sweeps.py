"""What one look at a block of rows tells: squares, a weighted sum, products of every row with it.

Where it is worth it, `compiled_sweeps` does the same without the interpreter, so that threads share the work: memory is then
the limit, not a core.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedhold.kernels.arrays import Block, Vector
from fedhold.kernels.native import RUN, worth_compiling

__all__ = ["INTERPRETED", "Sweeps", "products", "row_squares", "sweep", "sweeps_for"]


@dataclass(frozen=True)
class Sweeps:
    """The means to look at blocks.

    row_squares  block -> sum_j x_ij^2 of every row, added up in float64 after short runs
    products     block, delta, place -> <X_i, delta> of every row, <place, delta> (0 without one) and |delta|^2
    sweep        block, rows, place, centre -> with c = rows[0] @ X, which goes to `centre`, the products of c - place; with a
                 second row also |rows[1] @ X|^2
    tile         numbers to hand over at a time; `threads`: whether these can share the work
    """

    row_squares: Callable[[Block], Vector]
    products: Callable[[Block, Block, Vector | None], Vector]
    sweep: Callable[[Block, NDArray[np.float64], Vector | None, Vector | None], Vector]
    tile: int
    threads: bool


def row_squares(block: Block) -> Vector:
    m, width = block.shape
    runs, rest = block[:, : width - width % RUN].reshape(m, -1, RUN), block[:, width - width % RUN :]
    total: Vector = np.vecdot(runs, runs).sum(axis=1, dtype=np.float64) + np.vecdot(rest, rest)
    return total


def products(block: Block, delta: Block, place: Vector | None = None) -> Vector:
    found = np.empty(len(block) + 2)
    found[:-2] = block @ delta
    found[-2] = 0.0 if place is None else place @ delta
    found[-1] = np.dot(delta, delta)
    return found


def sweep(block: Block, rows: NDArray[np.float64], place: Vector | None, centre: Vector | None) -> Vector:
    sums = (rows[0] if len(rows) == 1 else rows).astype(block.dtype) @ block  # one row by itself is twice as fast
    middle = sums if len(rows) == 1 else sums[0]
    if centre is not None:
        centre[:] = middle
    delta = middle if place is None else (middle - place).astype(block.dtype)
    found = products(block, delta, place)
    return found if len(rows) == 1 else np.append(found, np.dot(sums[1], sums[1]))


INTERPRETED = Sweeps(row_squares, products, sweep, tile=2**19, threads=False)


def sweeps_for(numbers: int) -> Sweeps:
    """The best means for so many numbers."""
    if not worth_compiling(numbers):
        return INTERPRETED
    from fedhold.kernels import compiled_sweeps as fast

    return Sweeps(fast.row_squares, fast.products, fast.sweep, tile=2**22, threads=True)
