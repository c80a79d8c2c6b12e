"""Counters and masks: the integer and bool arrays of a model that has floating ones, too.

They have no distances, so no rule sees them. Each of their numbers becomes the weighted median of what the admitted clients
sent: a number that one of them did send, and that no minority can move.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhold.kernels import Weights, weighted_median
from fedhold.sizes import COUNTED
from fedhold.updates.files import part_of
from fedhold.updates.structure import Path, count

__all__ = ["Counters"]


@dataclass(frozen=True, eq=False)
class Counters:
    """The counters of all clients.

    paths    where each array stands in an update
    columns  for each of them, the arrays of all clients
    """

    paths: tuple[Path, ...]
    columns: tuple[Sequence[Any], ...]

    def take(self, clients: NDArray[np.intp]) -> Counters:
        """Those of some clients."""
        return Counters(self.paths, tuple([column[i] for i in clients] for column in self.columns))

    def medians(self, weights: Weights | None) -> dict[Path, NDArray[Any]]:
        """The weighted median of every number, by the path of its array; None, or weights that are all 0, count as equal."""
        m = len(self.columns[0])
        votes = np.ones(m) if weights is None or not weights.any() else weights
        found: list[list[NDArray[Any]]] = [[] for _ in self.paths]
        for pieces in self._batches():
            rows = [np.stack([part_of(array, low, high) for array in self.columns[k]]) for k, low, high in pieces]
            medians = weighted_median(np.concatenate(rows, axis=1), votes)
            ends = np.cumsum([high - low for _, low, high in pieces])
            for (k, *_), part in zip(pieces, np.split(medians, ends[:-1]), strict=True):
                found[k].append(part)
        return {path: np.concatenate(parts) for path, parts in zip(self.paths, found, strict=True)}

    def _batches(self) -> Iterator[list[tuple[int, int, int]]]:
        """Pieces of neighbouring arrays of the same dtypes, up to COUNTED numbers: (which array, from where, to where)."""
        batch, width, last = list[tuple[int, int, int]](), 0, None
        for k, column in enumerate(self.columns):
            dtypes, size = {str(array.dtype) for array in column}, count(column[0])
            for low in range(0, max(size, 1), COUNTED):
                high = min(low + COUNTED, size)
                if batch and (dtypes != last or width + high - low > COUNTED):
                    yield batch
                    batch, width = [], 0
                batch.append((k, low, high))
                width, last = width + high - low, dtypes
        yield batch
