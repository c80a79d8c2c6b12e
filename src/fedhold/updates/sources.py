"""One array of the model, as all clients sent it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhold.kernels import Block, compute_dtype, dtype_name, to_host
from fedhold.updates.files import StoredArray

__all__ = ["Source"]


@dataclass(frozen=True)
class Source:
    """One array of the model for all clients: an (m, size) array, or m arrays of that size."""

    rows: Any
    size: int
    dtype: type[np.float32] | type[np.float64]

    @staticmethod
    def of(rows: Any, size: int) -> Source:
        names = {dtype_name(rows)} if hasattr(rows, "dtype") else {dtype_name(row) for row in rows}
        wide = any(compute_dtype(name) is np.float64 for name in names)
        return Source(rows, size, np.float64 if wide else np.float32)

    def read(self, start: int, stop: int, clients: NDArray[np.intp] | None, out: Block | None = None) -> Block:
        """Columns start to stop of the given clients: into `out`, or as a view where that is possible."""
        if hasattr(self.rows, "dtype"):
            view = self.rows[:, start:stop]
            with np.errstate(over="ignore"):
                block = to_host(view if clients is None else view[clients], self.dtype)
            if out is None:
                return block
            out[:] = block
            return out
        chosen: Sequence[Any] = self.rows if clients is None else [self.rows[i] for i in clients]
        out = np.empty((len(chosen), stop - start), self.dtype) if out is None else out
        with np.errstate(over="ignore"):  # longdouble beyond float64 becomes infinite, and is then rejected
            for row, array in zip(out, chosen, strict=True):
                _copy_part(array, start, stop, row)
        return out

    @property
    def on_disk(self) -> bool:
        """Whether every look at it is a read of files."""
        return isinstance(self.rows, list) and isinstance(self.rows[0], StoredArray)


def _copy_part(array: Any, start: int, stop: int, out: NDArray[Any]) -> None:
    """Numbers start to stop of an array, flattened, into `out`; from disk where the array is there."""
    if isinstance(array, StoredArray):
        array.read(start, out)
    else:
        out[:] = to_host(array.reshape(-1)[start:stop], None)
