"""Updates on a Dask cluster: the same passes over the data, each block of columns where it lies.

A pass sends its kernel to every block. Its results, m or m x m numbers per block, are added up on the workers, a few at a
time, and only the last sum travels to the calling process. Vectors of d numbers (a centre, the row of a column rule) stay on
the cluster, cut as the updates are, each piece where its block is.

Kernels are closures over such vectors: they read a place, or write a centre, block by block. A kernel is sent as bytes
without these vectors (pickle's "persistent objects"); a worker puts the pieces that belong to its block in their place.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from typing import Any, TypeVar, cast

import cloudpickle
import dask
import dask.array as da
import numpy as np
from numpy.typing import DTypeLike, NDArray

from fedhold.kernels import (
    NUMPY,
    Block,
    NumpyKernels,
    Portion,
    Sums,
    Vector,
    added,
    from_host,
    largest,
    length,
    unscaled,
)
from fedhold.updates.matrix import Kernel, Source, Updates
from fedhold.updates.structure import Path

__all__ = ["ClusterUpdates", "Spread", "require_blocks", "source_of"]

Result = TypeVar("Result")
Found = TypeVar("Found", bound="Vector | Sums")

BLOCK = 2**26  # bytes of a block of columns, where we cut the blocks
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


class Spread:
    """d numbers on the cluster, in pieces; 0 until a pass has written to them. It stands for a `Vector`."""

    def __init__(self, widths: Sequence[int], array: Any = None) -> None:
        """`array` is a Dask array with chunks of these widths; None where nothing has been written yet."""
        self.widths, self.written = tuple(widths), array

    @property
    def array(self) -> Any:
        """The numbers as a Dask array."""
        return da.zeros(sum(self.widths), chunks=(self.widths,)) if self.written is None else self.written

    def pieces(self) -> list[Any]:
        """One delayed piece for each block; None for each where nothing has been written yet."""
        return [None] * len(self.widths) if self.written is None else list(self.written.to_delayed())

    def write(self, pieces: Sequence[Any]) -> None:
        """Take the pieces that a pass has made, in the order of the columns."""
        parts = [da.from_delayed(p, (w,), np.float64) for p, w in zip(pieces, self.widths, strict=True)]
        self.written = da.concatenate(parts)

    def each(self, function: Callable[[Vector], NDArray[Any]], dtype: DTypeLike = np.float64) -> Spread:
        """The vector of function(number) for every number; the function takes and returns arrays."""
        return Spread(self.widths, self.array.map_blocks(function, dtype=dtype, meta=np.empty(0, dtype)))

    def length(self) -> float:
        """The Euclidean norm, from the norms of the pieces."""
        return length(np.array(dask.compute(*map(dask.delayed(length), self.array.to_delayed()))))

    def __sub__(self, other: Spread) -> Spread:
        return Spread(self.widths, self.array - other.array)

    def largest(self) -> float:
        """The largest magnitude."""
        return largest(np.array(dask.compute(*map(dask.delayed(largest), self.array.to_delayed()))))

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """All numbers in this process, for callers that need them."""
        if copy is False:
            raise ValueError("These numbers are on a cluster: an array of them is a copy. Leave copy=False out.")
        return np.asarray(self.array.compute(), dtype)


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

    @cached_property
    def kernels(self) -> NumpyKernels:
        """NumPy's kernels, because a worker might lack numba, and has only one thread for them."""
        return NUMPY

    @cached_property
    def ordering(self) -> NumpyKernels:
        return self.kernels

    def zeros(self) -> Vector:
        return cast(Vector, Spread(self._array.chunks[1]))

    def blank(self) -> Vector:
        return self.zeros()

    def vector(self, arrays: list[Any]) -> Vector:
        """The vector is kept on the cluster: one that came from this process is sent there once."""
        (array,), widths = arrays, self._array.chunks[1]
        spread = da.asarray(array).reshape(-1).rechunk((widths,)).astype(np.float64)
        return cast(Vector, Spread(widths, spread.persist()))

    def rounded(self, vector: Vector) -> Vector:
        dtype = np.float64 if self.wide or self.base else self.sources[0].dtype
        return cast(Vector, cast(Spread, vector).each(lambda part: part.astype(dtype).astype(np.float64)))

    def shaped(self, vector: Vector, template: Any, dtypes: list[str], known: Mapping[Path, NDArray[Any]]) -> Any:  # noqa: ARG002
        """A Dask array of what the last pass left on the cluster; it is converted block by block when it is computed."""
        finish = partial(_finished, base=self.base, dtype=template.dtype, name=dtypes[0])
        return cast(Spread, vector).each(finish, template.dtype).array

    def materialised(self) -> Updates:
        """The updates as they are: on the cluster, rows are mixed anew in every pass, which takes no memory."""
        return self

    def read(self, start: int, stop: int) -> Block:
        return self.joined([(start, stop)])

    def joined(self, spans: list[tuple[int, int]]) -> Block:
        return self._here(dask.compute(*(self._array[:, start:stop] for start, stop in spans)))

    def columns(self, chosen: NDArray[np.intp]) -> Block:
        return replace(self, wide=True)._here(dask.compute(self._array[:, chosen]))

    def _here(self, blocks: Sequence[Block]) -> Block:
        """Blocks that have come to this process, joined and read as the updates are (scaled, mixed, widened)."""
        block = np.concatenate(blocks, axis=1)
        return self._plan.at(block).read(0, block.shape[1])

    @property
    def _plan(self) -> _Plan:
        return _Plan(Updates((), self.m, self.clients, self.wide, self.base, self.mixture))

    def map(self, kernel: Kernel[Result], portion: Portion) -> Iterator[Result]:
        """The results of all blocks come to this process; the vectors that the kernel wrote to stay on the cluster."""
        results, pieces = self._sent(partial(_mapped, kernel=kernel, portion=portion))
        for part in _computed(results, pieces):
            yield from part

    def sum(self, kernel: Kernel[Found], portion: Portion) -> Found:
        """The results are added up on the workers, in an order that does not depend on which of them finishes first."""
        parts, pieces = self._sent(partial(_summed, kernel=kernel, portion=portion))
        while len(parts) > 1:
            parts = [_ADDED(parts[a : a + AT_ONCE]) for a in range(0, len(parts), AT_ONCE)]
        return _computed(parts, pieces)[0]

    def _sent(self, job: Callable[[Updates], Any]) -> tuple[list[Any], list[tuple[Spread, list[Any]]]]:
        """The job's delayed results for every block, and the delayed pieces of each vector that it writes to."""
        packed, vectors = _pack((self._plan, job), Spread)
        given = [vector.pieces() for vector in vectors]
        blocks = self._array.to_delayed()[0]
        # The bytes are an argument of every task, not a task of their own: the scheduler would prefer the worker that held its
        # result over the workers that hold the blocks.
        done = [_AT_BLOCK(block, packed, *pieces) for block, *pieces in zip(blocks, *given, strict=True)]
        new = [vector for vector in vectors if vector.written is None]
        return [part[0] for part in done], [(vector, [part[k + 1] for part in done]) for k, vector in enumerate(new)]


@dataclass(frozen=True)
class _Plan:
    """How blocks are to be read: the fields of updates without their source."""

    updates: Updates

    def at(self, block: Block) -> Updates:
        return replace(self.updates, sources=(Source.of(block, block.shape[1]),))


class _Packer(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, file: io.BytesIO, kind: type) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.kind, self.holes = kind, list[Any]()

    def persistent_id(self, thing: object) -> int | None:
        if not isinstance(thing, self.kind):
            return None
        for number, known in enumerate(self.holes):
            if known is thing:
                return number
        self.holes.append(thing)
        return len(self.holes) - 1


class _Unpacker(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, fillings: Sequence[Any]) -> None:
        super().__init__(file)
        self.fillings = fillings

    def persistent_load(self, number: int) -> Any:
        return self.fillings[number]


def _pack(thing: object, kind: type) -> tuple[bytes, list[Any]]:
    """`thing` without the objects of this kind in it, and those objects."""
    file = io.BytesIO()
    packer = _Packer(file, kind)
    packer.dump(thing)
    return file.getvalue(), packer.holes


def _unpack(packed: bytes, fillings: Sequence[Any]) -> Any:
    """The packed thing, with `fillings` in place of the objects that were left out."""
    return _Unpacker(io.BytesIO(packed), fillings).load()


def _computed(results: list[Any], written: list[tuple[Spread, list[Any]]]) -> Any:
    """The results in this process; what the same pass has written stays on the cluster."""
    flat = [piece for _, pieces in written for piece in pieces]
    kept = dask.persist(*results, *flat)
    for k, (vector, pieces) in enumerate(written):
        first = len(results) + k * len(pieces)
        vector.write(kept[first : first + len(pieces)])
    return dask.compute(*kept[: len(results)])


# What follows runs on the workers.


def _at_block(block: Block, packed: bytes, *given: Vector | None) -> tuple[Any, ...]:
    """The job's result for this block, and its pieces of the vectors that were not given."""
    pieces = [np.zeros(block.shape[1]) if piece is None else _read_only(piece) for piece in given]
    plan, job = _unpack(packed, pieces)
    result = job(plan.at(block))
    return result, *(piece for piece, known in zip(pieces, given, strict=True) if known is None)


def _read_only(piece: Vector) -> Vector:
    """A view of a piece from an earlier pass that cannot be written to: Dask would not notice the change."""
    view = piece.view()
    view.flags.writeable = False
    return view


def _mapped(updates: Updates, kernel: Kernel[Any], portion: Portion) -> list[Any]:
    return list(updates.map(kernel, replace(portion, parallel=False)))


def _summed(updates: Updates, kernel: Kernel[Any], portion: Portion) -> Any:
    return updates.sum(kernel, replace(portion, parallel=False))


def _added(parts: list[Any]) -> Any:
    with np.errstate(over="ignore", invalid="ignore"):
        return reduce(added, parts[1:], deepcopy(parts[0]))  # Dask's own results must not be overwritten.


def _finished(piece: Vector, base: int, dtype: DTypeLike, name: str) -> NDArray[Any]:
    return cast(NDArray[Any], from_host(unscaled(piece, base), np.empty(len(piece), dtype), name))


_AT_BLOCK, _ADDED = dask.delayed(_at_block), dask.delayed(_added)
