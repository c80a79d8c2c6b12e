"""Rows made of the clients' rows: buckets, neighbourhoods, batches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Block", "Mixture"]

Block = NDArray[Any]


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

    def of(self, rows: Block) -> Block:
        """In float64: the offset all clients share would drown their differences in a float32 sum."""
        if self._groups is None:
            return (self.matrix @ rows.astype(np.float64)).astype(rows.dtype, copy=False)
        mixed = np.empty((len(self.matrix), rows.shape[1]), rows.dtype)
        for places, members, shares in self._groups:
            total = rows[members[:, 0]].astype(np.float64)
            for column in members.T[1:]:
                total += rows[column]
            mixed[places] = np.multiply(total, shares[:, None], out=total)
        return mixed
