"""Updates on a Dask cluster: the same passes over the data, each block of columns where it lies.

A pass sends its kernel to every block. What comes back, m or m x m numbers, is added up on the workers, a few at a time, and
only the last sum travels to whoever called. Vectors of d numbers (a centre, the row of a column rule) stay on the cluster,
cut as the updates are, each piece where its block is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any, TypeVar, cast

import dask
import dask.array as da
import numpy as np
from numpy.typing import DTypeLike, NDArray

from fedhold.kernels import INTERPRETED, Block, Sweeps, Vector, from_host, largest, length, unscaled
from fedhold.updates.matrix import TILE, Kernel, Updates
from fedhold.updates.shipping import pack, unpack
from fedhold.updates.sources import Source

__all__ = ["ClusterUpdates", "Spread", "require_blocks", "source_of"]

Result = TypeVar("Result")

BLOCK = 2**26  # bytes of a block of columns where we are the ones to cut it
NARROW = 2  # columns per client: the m x m products of a block with fewer are more to move than the block itself
AT_ONCE = 8  # partial sums that one task adds up


def require_blocks(updates: Any) -> None:
    """An error unless this Dask array can be read in blocks of columns."""
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
    """The array, cut so that every block has a few columns of all clients. As it is, if it can be: to cut anew is to move."""
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
    cut = updates.rechunk(((m,), tuple(joined)), method="tasks")  # itself where the chunks are those already
    return Source.of(cut, d)


def _parts(width: int, count: int) -> list[int]:
    """As equal as they can be."""
    return [width * (k + 1) // count - width * k // count for k in range(count)]


class Spread:
    """d numbers on the cluster, in pieces; 0 until a pass has written to them. Stands for a `Vector`."""

    def __init__(self, widths: Sequence[int], array: Any = None) -> None:
        """`array` is a Dask array of these chunks, None where nothing has been written yet."""
        self.widths, self.written = tuple(widths), array

    @property
    def array(self) -> Any:
        """As a Dask array."""
        return da.zeros(sum(self.widths), chunks=(self.widths,)) if self.written is None else self.written

    def pieces(self) -> list[Any]:
        """One for each block, as what Dask will compute; None where nothing has been written yet."""
        return [None] * len(self.widths) if self.written is None else list(self.written.to_delayed())

    def write(self, pieces: Sequence[Any]) -> None:
        """What a pass has made, in the order of the columns."""
        parts = [da.from_delayed(p, (w,), np.float64) for p, w in zip(pieces, self.widths, strict=True)]
        self.written = da.concatenate(parts)

    def each(self, function: Callable[[Vector], NDArray[Any]], dtype: DTypeLike = np.float64) -> Spread:
        """A function of every number on its own."""
        return Spread(self.widths, self.array.map_blocks(function, dtype=dtype, meta=np.empty(0, dtype)))

    def length(self) -> float:
        """The Euclidean norm, from those of the pieces."""
        return length(np.array(dask.compute(*map(dask.delayed(length), self.array.to_delayed()))))

    def largest(self) -> float:
        """The largest magnitude."""
        return largest(np.array(dask.compute(*map(dask.delayed(largest), self.array.to_delayed()))))

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """All of it in this process, where somebody asks for that."""
        if copy is False:
            raise ValueError("These numbers are on a cluster: an array of them is a copy. Leave copy=False out.")
        return np.asarray(self.array.compute(), dtype)


@dataclass(frozen=True)
class ClusterUpdates(Updates):
    """Updates whose source is a Dask array with all clients in every block."""

    @property
    def on_disk(self) -> bool:
        """Every look at the data is a pass over the cluster, to be as rare as if it were a read of files."""
        return True

    @property
    def _array(self) -> Any:
        return self.sources[0].rows

    @property
    def sweeps(self) -> Sweeps:
        """Those that need nothing a worker might lack; a worker has one thread for them anyway."""
        return INTERPRETED

    def zeros(self) -> Vector:
        return cast(Vector, Spread(self._array.chunks[1]))

    def vector(self, arrays: list[Any]) -> Vector:
        """Kept on the cluster from now on: where it came from this process, it goes there once."""
        (array,), widths = arrays, self._array.chunks[1]
        spread = da.asarray(array).reshape(-1).rechunk((widths,)).astype(np.float64)
        return cast(Vector, Spread(widths, spread.persist()))

    def shaped(self, vector: Vector, template: Any, dtypes: list[str]) -> Any:
        """A Dask array: made from what the last pass left on the cluster, block by block, when it is computed."""
        finish = partial(_finished, base=self.base, dtype=template.dtype, name=dtypes[0])
        return cast(Spread, vector).each(finish, template.dtype).array

    def materialised(self) -> Updates:
        """As they are: on the cluster, rows are mixed anew in every pass, which takes no memory."""
        return self

    def read(self, start: int, stop: int) -> Block:
        return self.runs([(start, stop)])

    def runs(self, spans: list[tuple[int, int]]) -> Block:
        return self._here(dask.compute(*(self._array[:, start:stop] for start, stop in spans)))

    def gather(self, columns: NDArray[np.intp]) -> Block:
        return replace(self, wide=True)._here(dask.compute(self._array[:, columns]))

    def _here(self, blocks: Sequence[Block]) -> Block:
        """Blocks that have come to this process, as they are read."""
        block = np.concatenate(blocks, axis=1)
        return self._plan.at(block).read(0, block.shape[1])

    @property
    def _plan(self) -> _Plan:
        return _Plan(Updates((), self.m, self.clients, self.wide, self.base, self.mixture))

    def map(
        self,
        kernel: Kernel[Result],
        *,
        tile: int = TILE,
        threads: bool = True,  # noqa: ARG002
        scratch: bool = True,  # noqa: ARG002
    ) -> Iterator[Result]:
        """As ever; whatever vectors the kernel wrote to are on the cluster afterwards."""
        results, pieces = self._sent(partial(_mapped, kernel=kernel, tile=tile))
        for part in _computed(results, pieces):
            yield from part

    def sum(
        self,
        kernel: Kernel[Block],
        *,
        tile: int = TILE,
        threads: bool = False,  # noqa: ARG002
        scratch: bool = True,  # noqa: ARG002
    ) -> NDArray[np.float64]:
        """As ever; added up on the workers, in an order that does not depend on who is done first."""
        parts, pieces = self._sent(partial(_summed, kernel=kernel, tile=tile))
        while len(parts) > 1:
            parts = [_ADDED(parts[a : a + AT_ONCE]) for a in range(0, len(parts), AT_ONCE)]
        return _computed(parts, pieces)[0]

    def _sent(self, job: Callable[[Updates], Any]) -> tuple[list[Any], list[tuple[Spread, list[Any]]]]:
        """The job's results at every block, and the pieces of the vectors it writes to; all yet to be computed."""
        packed, vectors = pack((self._plan, job), Spread)
        given = [vector.pieces() for vector in vectors]
        blocks = self._array.to_delayed()[0]
        # The bytes go with every task, not as a task of their own: a worker that had them would count as a place to be.
        done = [_AT_BLOCK(block, packed, *pieces) for block, *pieces in zip(blocks, *given, strict=True)]
        new = [vector for vector in vectors if vector.written is None]
        return [part[0] for part in done], [(vector, [part[k + 1] for part in done]) for k, vector in enumerate(new)]


@dataclass(frozen=True)
class _Plan:
    """How blocks are to be read: updates without a source."""

    updates: Updates

    def at(self, block: Block) -> Updates:
        return replace(self.updates, sources=(Source.of(block, block.shape[1]),))


def _computed(results: list[Any], written: list[tuple[Spread, list[Any]]]) -> Any:
    """The results, here; what was written in the same pass stays where it is."""
    flat = [piece for _, pieces in written for piece in pieces]
    kept = dask.persist(*results, *flat)
    for k, (vector, pieces) in enumerate(written):
        first = len(results) + k * len(pieces)
        vector.write(kept[first : first + len(pieces)])
    return dask.compute(*kept[: len(results)])


# What follows runs on the workers.


def _at_block(block: Block, packed: bytes, *given: Vector | None) -> tuple[Any, ...]:
    """The job's result at this block, and its pieces of the vectors that were not given."""
    pieces = [np.zeros(block.shape[1]) if piece is None else _read_only(piece) for piece in given]
    plan, job = unpack(packed, pieces)
    result = job(plan.at(block))
    return result, *(piece for piece, known in zip(pieces, given, strict=True) if known is None)


def _read_only(piece: Vector) -> Vector:
    """What was written in an earlier pass is there to be read: to write it again would go unnoticed by the others."""
    view = piece.view()
    view.flags.writeable = False
    return view


def _mapped(updates: Updates, kernel: Kernel[Any], tile: int) -> list[Any]:
    return list(updates.map(kernel, tile=tile, threads=False))


def _summed(updates: Updates, kernel: Kernel[Block], tile: int) -> NDArray[np.float64]:
    return updates.sum(kernel, tile=tile)


def _added(parts: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    with np.errstate(over="ignore", invalid="ignore"):
        return reduce(np.add, parts)


def _finished(piece: Vector, base: int, dtype: DTypeLike, name: str) -> NDArray[Any]:
    return cast(NDArray[Any], from_host(unscaled(piece, base), np.empty(len(piece), dtype), name))


_AT_BLOCK, _ADDED = dask.delayed(_at_block), dask.delayed(_added)
