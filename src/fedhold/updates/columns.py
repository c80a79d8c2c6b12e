"""Column rules: one block of columns in, one row out.

Each column is sorted once, in cache, transposed and by SIMD. Where it is worth it, `fast_columns` gives the same numbers,
several times faster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedhold.kernels import Block, Sweeps, Vector, worth_compiling
from fedhold.updates.matrix import TILE, Kernel, Updates

__all__ = [
    "ColumnKernel",
    "Columnwise",
    "apply",
    "columns_tile",
    "mean_around_median",
    "median",
    "surveying",
    "trimmed_mean",
]

ColumnKernel = Callable[[Block], Vector]
"""(sorted columns, one per row, to be overwritten) -> one number per column."""

GROUP = 64  # columns that `fast_columns` takes at a time: blocks of whole groups leave no lane idle


@dataclass(frozen=True)
class Columnwise:
    """What a column rule asks for: this kernel, over these clients (None: all of them)."""

    kernel: ColumnKernel
    clients: NDArray[np.intp] | None = None


def apply(updates: Updates, rule: Columnwise) -> Vector:
    """The row that the rule makes of the updates."""
    plain = replace(updates, wide=False)
    chosen = plain if rule.clients is None else plain.take(rule.clients)
    row = chosen.zeros()
    for _ in chosen.map(_row_kernel(rule, row), tile=columns_tile(chosen), scratch=not chosen.sweeps.threads):
        pass
    return row


def columns_tile(updates: Updates) -> int:
    """Numbers to sort at a time: as many as stay in a core's cache; compiled code looks after that itself, and takes GROUPs."""
    tile = TILE if updates.mixture is not None else 4 * TILE  # mixed rows are copies, for every thread
    return max(tile // updates.m // GROUP, 1) * GROUP * updates.m if updates.sweeps.threads else TILE


def surveying(rule: Columnwise, row: Vector, sweeps: Sweeps) -> Kernel[Block]:
    """For the first pass over the data: writes the rule's row; gives the clients' squares, and products that tell distances."""
    write = _row_kernel(rule, row)

    def kernel(block: Block, at: slice, scratch: Block) -> Block:
        write(block, at, scratch)
        return np.append(sweeps.row_squares(block), _products(block, row[at].astype(block.dtype), sweeps))

    return kernel


def _products(block: Block, delta: Block, sweeps: Sweeps) -> Vector:
    if sweeps.threads:
        return sweeps.products(block, delta, None)
    # Not a matrix product: BLAS would bring threads of its own to every one of ours.
    return np.append(np.vecdot(block, delta), (0.0, np.vecdot(delta, delta)))


def _row_kernel(rule: Columnwise, row: Vector) -> Kernel[None]:
    chosen = rule.kernel if isinstance(rule.kernel, partial) else partial(rule.kernel)

    def kernel(block: Block, at: slice, scratch: Block) -> None:
        if chosen.func in COMPILED and worth_compiling(len(block) * len(row)):
            from fedhold.kernels import fast_columns

            row[at] = getattr(fast_columns, chosen.func.__name__)(block, **chosen.keywords)
            return
        ordered = scratch.reshape(block.shape[::-1])
        np.copyto(ordered, block.T)
        ordered.sort(axis=1)
        row[at] = chosen(ordered)

    return kernel


def median(ordered: Block) -> Vector:
    """The middle value, or the mean of the two middle ones."""
    m = ordered.shape[1]
    low, high = ordered[:, (m - 1) // 2].astype(np.float64), ordered[:, m // 2].astype(np.float64)
    return low / 2 + high / 2  # halves first: two numbers near the largest float have no sum


def trimmed_mean(ordered: Block, *, f: int) -> Vector:
    """The mean of what is left without the f smallest and the f largest values."""
    kept = ordered[:, f : ordered.shape[1] - f]
    lowest = kept[:, 0].copy()
    if not max(-lowest.min(), kept[:, -1].max()) < np.finfo(kept.dtype).max / 2:
        return np.asarray(kept.mean(axis=1, dtype=np.float64))
    kept -= lowest[:, None]  # small numbers then, which a product adds up as well as a sum in float64, and faster
    return lowest + np.dot(kept, np.full(kept.shape[1], 1 / kept.shape[1], kept.dtype)).astype(np.float64)


def mean_around_median(ordered: Block, *, keep: int) -> Vector:
    """The mean of the `keep` values nearest to the median; of two as near, the lower."""
    rows, m = ordered.shape
    if not max(-ordered[:, 0].min(), ordered[:, -1].max()) < np.finfo(ordered.dtype).max / 2:
        ordered = ordered.astype(np.float64)  # two numbers near the largest float have no difference
    middle = median(ordered)
    # The nearest values are neighbours in order: find where their window starts by bisection, all columns at once.
    low, high, line = np.zeros(rows, np.intp), np.full(rows, m - keep), np.arange(rows)
    while (low < high).any():
        probe = (low + high) // 2
        after = np.minimum(probe + keep, m - 1)
        right = (middle - ordered[line, probe] > ordered[line, after] - middle) & (low < high)
        low, high = np.where(right, probe + 1, low), np.where(right, high, np.minimum(probe, high))
    places, kind = np.arange(m), ordered.dtype.type
    inside = (places >= low[:, None]) & (places < low[:, None] + keep)
    row: Vector = middle + np.vecdot(ordered - middle[:, None].astype(kind), inside.astype(kind)) / keep
    return row


COMPILED = (median, trimmed_mean, mean_around_median)
