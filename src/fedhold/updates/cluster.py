"""Updates on a Dask cluster: the same loops, each where its block of columns lies.

A pass sends its loop to every block. The sums, m or m x m numbers per block, are added up on the workers, a few at a time, and
only the last one travels to the calling process. Vectors of d numbers (a centre, the row of a column rule) are Dask arrays cut
as the updates are: each piece stays where its block is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any, cast

import dask
import dask.array as da
import numpy as np
from numpy.typing import DTypeLike, NDArray

from fedhold.kernels import Block, Vector, loops
from fedhold.sizes import BLOCK, TILE
from fedhold.updates.tiles import Columns, Source, Updates, added

__all__ = ["ClusterUpdates", "require_blocks", "source_of"]

NARROW = 2  # columns per client. In a narrower block, the m x m products would be larger than the block itself.
AT_ONCE = 8  # partial sums that one task adds up


def require_blocks(updates: Any) -> None:
    """Raise an error unless this Dask array can be read in blocks of columns."""
    if np.isnan(updates.shape).any():
        raise ValueError(
            "updates are a Dask array whose chunks have unknown sizes. Pass updates.compute_chunk_sizes(), which finds them."
        )
    if updates.ndim != 2:
        raise ValueError(
            f"updates as a Dask array must have one row per client and two axes, got shape {updates.shape}. Pass "
            "updates.reshape(m, -1), or updates.reshape(-1, 1) for one number per client."
        )
    if not isinstance(updates._meta, np.ndarray):
        raise TypeError(
            f"updates are a Dask array with chunks of {type(updates._meta).__name__}. Pass "
            "updates.map_blocks(to_numpy), with a function that makes NumPy arrays of them."
        )


def source_of(updates: Any) -> Source:
    """The array, cut so that every block has a few columns of all clients. Chunks that fit are kept, for cutting moves data."""
    (rows, widths), (m, d) = updates.chunks, updates.shape
    least, whole = min(NARROW * m, d), len(rows) == 1
    most = max(BLOCK // (m * updates.dtype.itemsize), least)
    if not whole:
        widths = [part for width in widths for part in _parts(width, -(-width // most))]
    joined = [0]
    for width in widths:
        if joined[-1] < least or (not whole and joined[-1] + width <= most):
            joined[-1] += width
        else:
            joined.append(width)
    if joined[-1] < least:
        joined[-2:] = [sum(joined[-2:])]
    cut = updates.rechunk(((m,), tuple(joined)), method="tasks")  # This is the array itself if its chunks are these.
    return Source.of(cut, d)


def _parts(width: int, count: int) -> list[int]:
    """A width cut into `count` parts, as equal as they can be."""
    return [width * (k + 1) // count - width * k // count for k in range(count)]


@dataclass(frozen=True)
class ClusterUpdates(Updates):
    """Updates whose source is a Dask array with all clients in every block."""

    @property
    def costly_to_read(self) -> bool:
        """True: passes over a cluster are to be as few as reads of files."""
        return True

    @property
    def _array(self) -> Any:
        return self.sources[0].rows

    def read(
        self,
        loop: Callable[..., Any],
        *vectors: Any,
        minus: Any = None,
        numbers: int = TILE,
        row: bool = False,
        join: Callable[[Any, Any], Any] | None = None,
        threads: int | None = None,  # noqa: ARG002
    ) -> tuple[Any, Vector]:
        """As `Updates.read`, block by block; the row is a Dask array whose pieces stay where they were made."""
        widths = self._array.chunks[1]
        ends = np.cumsum(widths).tolist()
        at = [slice(end - width, end) for end, width in zip(ends, widths, strict=True)]
        columns = [self._pieces(vector, at) for vector in vectors]
        places = [minus] * len(at) if minus is None or isinstance(minus, int) else self._pieces(minus, at)
        how = {"numbers": numbers, "row": row, "join": join, "threads": 1}
        rows = replace(self, sources=())
        done = [
            _AT_BLOCK(block, rows, loop, how, place, *pieces)
            for block, place, *pieces in zip(self._array.to_delayed()[0], places, *columns, strict=True)
        ]
        parts, made = [one[0] for one in done], [one[1] for one in done] if row else []
        while len(parts) > 1:
            parts = [_JOINED(parts[a : a + AT_ONCE], join or added) for a in range(0, len(parts), AT_ONCE)]
        found, *kept = dask.persist(*parts, *made)
        pieces = [da.from_delayed(piece, (width,), self.dtype) for piece, width in zip(kept, widths, strict=False)]
        return found.compute(), cast(Vector, da.concatenate(pieces) if row else np.empty(0))

    def _pieces(self, vector: Any, at: list[slice]) -> list[Any]:
        """The piece of a vector for every block."""
        if isinstance(vector, Columns):
            return [vector.part(columns) for columns in at]
        return list(vector.rechunk((self._array.chunks[1],)).to_delayed())

    # Vectors of d numbers.

    def zeros(self) -> Vector:
        return cast(Vector, da.zeros(self.d, chunks=(self._array.chunks[1],)))

    def vector(self, arrays: list[Any], dtype: DTypeLike = np.float64) -> Vector:
        """The vector is kept on the cluster: one that came from this process is sent there once."""
        (array,) = arrays
        spread = da.asarray(array).reshape(-1).rechunk((self._array.chunks[1],)).astype(dtype)
        return cast(Vector, spread.persist())

    def rounded(self, vector: Vector) -> Vector:
        dtype = np.float64 if self.wide or self.base else self.sources[0].dtype
        return cast(Vector, vector.astype(dtype).astype(np.float64))

    def row(self, client: int) -> Vector:
        return self.read(partial(loops.one_row, client=client), row=True)[1]

    def materialised(self) -> Updates:
        """The updates as they are: on the cluster, rows are mixed anew in every pass, which takes no memory."""
        return self

    # Some columns, in this process.

    def columns(self, chosen: NDArray[np.intp]) -> Block:
        return self.widened()._here(self._array[:, chosen])  # type: ignore[attr-defined]

    def _joined(self, spans: list[tuple[int, int]]) -> Block:
        return self._here(da.concatenate([self._array[:, start:stop] for start, stop in spans], axis=1))

    def _here(self, columns: Any) -> Block:
        """Columns that come to this process, read as the updates are (scaled, mixed, widened)."""
        here = _local(self, columns.compute())
        return np.concatenate([here.tile(span) for span in here.spans(TILE)], axis=1)


# What follows runs on the workers.


def _local(rows: ClusterUpdates, block: Block) -> Updates:
    """A block, read as these updates are, which have no source."""
    source = Source.of(block, block.shape[1])
    return Updates((source,), rows.m, rows.clients, rows.wide, rows.base, rows.mixture)


def _at_block(
    block: Block, rows: ClusterUpdates, loop: Callable[..., Any], how: dict[str, Any], place: Any, *pieces: Any
) -> tuple[Any, Block]:
    """What the loop finds in this block, and its piece of the row."""
    return _local(rows, block).read(loop, *pieces, minus=place, **how)


def _joined(parts: Sequence[Any], join: Callable[[Any, Any], Any]) -> Any:
    with np.errstate(over="ignore", invalid="ignore"):
        return reduce(join, parts[1:], deepcopy(parts[0]))  # Dask's own results must not be overwritten.


_AT_BLOCK, _JOINED = dask.delayed(_at_block, traverse=False, nout=2), dask.delayed(_joined)
