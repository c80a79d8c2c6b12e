"""Rows made of the clients' rows: buckets, neighbourhoods, batches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedhold.kernels import Block

__all__ = ["Mixture"]

FEW = 4  # rows whose sum is as exact as they are


@dataclass(frozen=True, eq=False)
class Mixture:
    """Rows made of rows: matrix @ rows. Where no row is used twice, the matrix is groups of rows to add up."""

    matrix: NDArray[np.float64]

    @cached_property
    def _groups(self) -> list[tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float64]]] | None:
        """The rows with as many members each: which rows, their members (one row each), their shares."""
        used = self.matrix != 0
        sizes, shares = used.sum(axis=1), self.matrix.max(axis=1)
        if used.sum(axis=0).max() > 1 or (sizes == 0).any() or (self.matrix[used] != np.repeat(shares, sizes)).any():
            return None
        alike = [(size, np.flatnonzero(sizes == size)) for size in np.unique(sizes)]
        return [(rows, np.nonzero(used[rows])[1].reshape(-1, size), shares[rows]) for size, rows in alike]

    @cached_property
    def _common(self) -> tuple[int, NDArray[np.float32], list[int]] | None:
        """The row that most are made of, the distinct rows of the matrix in float32, and which of them each row is: neighbours
        tend to have the same neighbourhood. None unless the new rows are means of old ones.
        """
        if not np.allclose(self.matrix.sum(axis=1), 1, rtol=0, atol=1e-9):
            return None
        single = self.matrix.astype(np.float32)
        numbers = dict[bytes, int]()
        which = [numbers.setdefault(row.tobytes(), len(numbers)) for row in single]
        first = [which.index(number) for number in range(len(numbers))]
        return int(self.matrix.sum(axis=0).argmax()), single[first], which

    @np.errstate(over="ignore", invalid="ignore")
    def of(self, rows: Block, *, fast: bool = False) -> Block:
        """Sums of many in float64, or in float32 after a common row came off: else the offset of all drowns the differences.

        fast  by compiled code
        """
        if self._groups is None and rows.dtype == np.float32 and self._common is not None:
            common, matrix, which = self._common
            distinct = _compiled(matrix, rows, common) if fast else matrix @ (rows - rows[common]) + rows[common]
            if np.isfinite(distinct).all():
                return distinct if len(distinct) == len(which) else distinct[which]
        if self._groups is None:
            return (self.matrix @ rows.astype(np.float64)).astype(rows.dtype, copy=False)
        mixed = np.empty((len(self.matrix), rows.shape[1]), rows.dtype)
        for places, members, shares in self._groups:
            kind = rows.dtype if members.shape[1] <= FEW else np.dtype(np.float64)
            share = shares[:, None].astype(kind)  # comes first: two numbers near the largest float have no sum
            total = rows[members[:, 0]] * share
            for column in members.T[1:]:
                total += rows[column] * share
            mixed[places] = total
        return mixed


def _compiled(matrix: NDArray[np.float32], rows: Block, common: int) -> Block:
    from fedhold.kernels.compiled_mixture import mixed

    return mixed(matrix, rows, common)
