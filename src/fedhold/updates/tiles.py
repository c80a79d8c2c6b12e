"""The admitted clients' updates as an m x d matrix that is never built: it is read tile by tile, by several threads.

A tile is some columns of all clients, as an (m, w) array of float32 or float64 that stays in cache while a loop works on it. It
is a view where the clients came as one matrix, and gathered from their arrays otherwise. Sums are added up in the order of the
columns, so the same input gives the same bits, however many threads there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import pairwise
from math import prod
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fedhold.kernels import (
    Block,
    Matrix,
    Vector,
    between,
    compiled,
    compute_dtype,
    dtype_name,
    is_half,
    largest,
    shared,
    thread_count,
    to_host,
    widened,
)
from fedhold.sizes import CACHE, FILES, PARTS, SMALL, TILE, TILES, TURNED
from fedhold.updates.files import StoredArray

__all__ = [
    "DOUBLE_ROOM",
    "SINGLE_ROOM",
    "Columns",
    "Source",
    "Updates",
    "axes_in_memory",
    "exponents_of",
    "read_dtype",
]

FEW_ROWS = 4  # A sum of up to this many rows is made in their own precision.
SAMPLE_RUN = 32  # columns per run of a sample: whole cache lines
SINGLE_ROOM = 40  # exponent of 2. Hundreds of thousands of squares of float32 numbers within 2**+-40 can be added up.
DOUBLE_ROOM = 400  # the same for float64
SINGLE, DOUBLE = 2.0**-23, 2.0**-52  # the relative rounding errors of float32 and float64


@dataclass(frozen=True, eq=False)
class Source:
    """One array of the model for all clients.

    rows   an (m, size) array, or m arrays of that size
    size   how many numbers the array has for one client
    dtype  what it is read as
    axes   the order of its axes in which it is read; None: as they come. A rule does not care in which order columns come, and
           where most clients' arrays lie in memory in another order than that of their axes, they are read in that order
    """

    rows: Any
    size: int
    dtype: type[np.float32] | type[np.float64]
    axes: tuple[int, ...] | None = None

    @staticmethod
    def of(rows: Any, size: int) -> Source:
        """A source that is read in float32 where no client's dtype has more digits."""
        if hasattr(rows, "dtype"):
            return Source(rows, size, compute_dtype(dtype_name(rows)))
        axes = axes_in_memory(rows)
        ordered = rows if axes is None else [row.transpose(axes) for row in rows]
        return Source([_flat(row) for row in ordered], size, read_dtype(rows), axes)

    def fill(self, out: Block, start: int, stop: int, clients: NDArray[np.intp] | None) -> None:
        """Copy columns start to stop of the given clients (None: all of them) to `out`."""
        if hasattr(self.rows, "dtype"):
            step = TURNED if _in_columns(self.rows) else stop - start
            for low in range(start, stop, step):
                part = self.rows[:, low : min(low + step, stop)]
                part = part if clients is None else part[clients]
                out[:, low - start : low - start + part.shape[1]] = to_host(part, None)
            return
        if out.dtype == self.dtype and compiled.takes(out) and self._line is not None:
            line, starts = self._line
            compiled.fill(line, start + (starts if clients is None else starts[clients]), out)
            return
        chosen: Iterable[Any] = self.rows if clients is None else [self.rows[i] for i in clients]
        for row, array in zip(out, chosen, strict=True):
            if isinstance(array, StoredArray):
                array.read(start, row)
            elif type(array) is np.ndarray and array.ndim == 1:
                if is_half(array.dtype) and row.dtype == np.float32:
                    widened(array[start:stop], out=row)
                else:
                    row[:] = widened(array[start:stop])
            else:
                row[:] = to_host(between(array, start, stop), None)

    @cached_property
    def _line(self) -> tuple[Block, NDArray[np.int64]] | None:
        """What compiled code reads of a list of arrays."""
        return compiled.joined(self.rows, self.dtype)

    def in_order(self, numbers: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        """Numbers in the order in which they are read, in that of the axes of an array of this shape."""
        if self.axes is None:
            return numbers
        as_read = numbers.reshape([shape[axis] for axis in self.axes])
        return as_read.transpose(np.argsort(self.axes)).reshape(-1)

    def as_read(self, array: NDArray[Any]) -> NDArray[Any]:
        """One client's array in the order in which its numbers are read."""
        return array.reshape(-1) if self.axes is None else array.transpose(self.axes).reshape(-1)


def read_dtype(arrays: Sequence[Any]) -> type[np.float32] | type[np.float64]:
    """What these arrays are read as: float32 where none of them has more digits."""
    dtypes = set(map(attrgetter("dtype"), arrays)) if isinstance(arrays, list) else ()
    names = {dtype_name(array) for array in (arrays if len(dtypes) > 1 else arrays[:1])}
    return np.float64 if any(compute_dtype(name) is np.float64 for name in names) else np.float32


def _flat(array: Any) -> Any:
    """An array as one row where that takes no copy; otherwise as it is."""
    return array.reshape(-1) if isinstance(array, np.ndarray) and array.flags.c_contiguous else array


def _in_columns(matrix: Any) -> bool:
    """Whether a column lies together in memory, and a row apart."""
    return isinstance(matrix, np.ndarray) and 0 < matrix.strides[0] < matrix.strides[1]


def axes_in_memory(arrays: Sequence[Any]) -> tuple[int, ...] | None:
    """The order of axes in which most of these arrays are contiguous in memory; None where it is that of the axes."""
    if not all(isinstance(array, np.ndarray) for array in arrays) or arrays[0].ndim < 2:
        return None
    if all(map(attrgetter("flags.c_contiguous"), arrays)):
        return None
    as_they_come = tuple(range(arrays[0].ndim))
    orders = Counter(
        as_they_come if array.flags.c_contiguous else tuple(np.argsort([-abs(s) for s in array.strides], kind="stable"))
        for array in arrays
    )
    order, often = orders.most_common(1)[0]
    return None if orders[as_they_come] == often else tuple(map(int, order))


@dataclass(frozen=True)
class Columns:
    """Stands for the numbers of columns, from the first one on."""

    first: int = 0

    def __getitem__(self, at: slice) -> slice:
        return slice(self.first + at.start, self.first + at.stop)

    def part(self, at: slice) -> Columns:
        """Those from the start of a slice on."""
        return Columns(self.first + at.start)


@dataclass(frozen=True)
class Span:
    """Columns start to stop of all clients, and the pieces of sources that they consist of: (source, from, to)."""

    start: int
    stop: int
    pieces: tuple[tuple[Source, int, int], ...]


@dataclass(frozen=True)
class Updates:
    """The updates of m clients, or m rows that a mixture makes from them.

    sources   one per array of the model
    m         how many rows there are
    clients   which rows of the sources are read (None: all of them)
    wide      whether float32 data is read as float64
    base      every number is read times 2**base, so that numbers too large or too small to be squared come near 1
    mixture   the rows are mixture @ X (None: they are the clients themselves)
    """

    sources: tuple[Source, ...]
    m: int
    clients: NDArray[np.intp] | None = None
    wide: bool = False
    base: int = 0
    mixture: Matrix | None = None

    @cached_property
    def d(self) -> int:
        """How many numbers an update has."""
        return sum(source.size for source in self.sources)

    @property
    def costly_to_read(self) -> bool:
        """Whether a pass over the data costs more than any computation with it, because it reads files or a cluster."""
        rows = self.sources[0].rows
        return isinstance(rows, list) and isinstance(rows[0], StoredArray)

    @cached_property
    def dtype(self) -> type[np.float32] | type[np.float64]:
        """That of a row of d numbers."""
        single = not self.wide and not self.base and all(source.dtype is np.float32 for source in self.sources)
        return np.float32 if single else np.float64

    @property
    def resolution(self) -> float:
        """The relative rounding error of one number as it is read."""
        return SINGLE if not self.wide and any(source.dtype is np.float32 for source in self.sources) else DOUBLE

    # The same updates, read in another way.

    def widened(self) -> Updates:
        """The same updates, read as float64."""
        return replace(self, wide=True)

    def reaching(self, *places: Vector) -> Updates:
        """The same updates, read as float64 where distances to one of the places would overflow float32."""
        return self.widened() if any(largest(place) > 2.0**SINGLE_ROOM for place in places) else self

    def scaled(self, magnitudes: Vector) -> Updates:
        """The same updates, read so that sums of squares neither overflow nor vanish, given the rows' magnitudes.

        Numbers that float32 cannot square are read as float64. Where float64 cannot square them either, all are read times
        one power of two, chosen by the median magnitude, which no minority can move.
        """
        exponents, typical = exponents_of(magnitudes)
        room = SINGLE_ROOM if self.resolution == SINGLE else DOUBLE_ROOM
        if abs(typical) <= room and exponents.max() <= room:
            return self
        fits = abs(typical) <= DOUBLE_ROOM and exponents.max() <= DOUBLE_ROOM
        return replace(self, wide=True, base=0 if fits else -typical)

    def take(self, clients: NDArray[np.intp]) -> Updates:
        """Only the given rows."""
        if self.mixture is not None:
            return replace(self, m=len(clients), mixture=self.mixture[clients])
        return replace(self, m=len(clients), clients=clients if self.clients is None else self.clients[clients])

    def mixed(self, mixture: Matrix) -> Updates:
        """The rows mixture @ X."""
        return replace(self, m=len(mixture), mixture=mixture if self.mixture is None else mixture @ self.mixture)

    def materialised(self) -> Updates:
        """The rows as one array in memory, for mixtures that are read many times."""
        rows = np.empty((self.m, self.d), self.dtype)
        for span in self.spans(TILE):
            rows[:, span.start : span.stop] = self.tile(span)
        return replace(self, sources=(Source.of(rows, self.d),), clients=None, base=0, mixture=None)

    # Vectors of d numbers.

    def zeros(self) -> Vector:
        """A vector of d zeros."""
        return np.zeros(self.d)

    def vector(self, arrays: list[Any], dtype: DTypeLike = np.float64) -> Vector:
        """The arrays of one update as a vector of d numbers."""
        flat = [to_host(array, None) for array in arrays]
        if self.has_other_order:
            flat = [source.as_read(array) for source, array in zip(self.sources, flat, strict=True)]
        return np.concatenate([array.reshape(-1) for array in flat], dtype=dtype, casting="same_kind")

    def in_order(self, vector: Vector, shapes: list[tuple[int, ...]]) -> Vector:
        """A vector of d numbers, from the order in which they are read to that of the arrays with these shapes."""
        ends = np.cumsum([source.size for source in self.sources])[:-1]
        parts = zip(self.sources, np.split(vector, ends), shapes, strict=True)
        return np.concatenate([source.in_order(part, shape) for source, part, shape in parts])

    @cached_property
    def has_other_order(self) -> bool:
        """Whether some arrays are read in another order than that of their axes. Then no source holds several of them."""
        return any(source.axes is not None for source in self.sources)

    def rounded(self, vector: Vector) -> Vector:
        """The vector in the dtypes in which updates are read, so that reading it beside them changes nothing more."""
        if self.wide or self.base or vector.dtype == np.float32:
            return vector
        ends = np.cumsum([source.size for source in self.sources])[:-1]
        parts = zip(np.split(vector, ends), self.sources, strict=True)
        return np.concatenate([part.astype(source.dtype).astype(np.float64) for part, source in parts])

    def row(self, client: int) -> Vector:
        """One client's update."""
        row: Vector = np.empty(self.d, self.dtype)
        alone = self.take(np.array([client]))
        for span in alone.spans(TILE):
            row[span.start : span.stop] = alone.tile(span)[0]
        return row

    # Reading.

    def read(
        self,
        loop: Callable[..., Any],
        *vectors: Vector | Columns,
        minus: Vector | int | None = None,
        numbers: int = TILE,
        row: bool = False,
        join: Callable[[Any, Any], Any] | None = None,
        threads: int | None = None,
    ) -> tuple[Any, Vector]:
        """The sum of loop(tile, *pieces) over all tiles, and the row that the loop's second results make, where it has such.

        loop     a pure function of a tile and of the pieces of the vectors in its columns. It returns float64 arrays, alone or
                 in a named tuple, which are added up; with `row`, a pair of these and of a piece of the row
        vectors  of d numbers; `Columns` stands for the numbers of the columns, of which a loop gets a slice
        minus    what is subtracted from every client first, and added to the row again: a vector, or one of the clients (its
                 index); None: nothing
        numbers  how many numbers a tile has
        join     how the results of two tiles make one; None: they are added up
        threads  how many threads share the tiles; None: one per core

        No other function touches d numbers of all clients, or knows threads.
        """
        spans = self.spans(numbers)
        written: Vector = np.empty(self.d if row else 0, self.dtype)
        join = join or added

        def part(some: Sequence[Span]) -> Any:
            # To ask for memory for every tile takes as long as to fill it.
            total, buffer = None, None if self._is_view else np.empty(self._most_bytes(some), np.uint8)
            with np.errstate(over="ignore", invalid="ignore"):  # It is set here because threads do not inherit it.
                for span in some:
                    tile, at = self.tile(span, buffer), slice(span.start, span.stop)
                    place = None if minus is None else tile[minus] if isinstance(minus, int) else minus[at]
                    if place is not None:
                        tile = np.subtract(tile, place, dtype=tile.dtype, casting="same_kind")
                    found = loop(tile, *[vector[at] for vector in vectors])
                    if row:  # The piece, as seen from 0.
                        found, piece = found
                        written[at] = piece if place is None else piece + place
                    total = found if total is None else join(total, found)
            return total

        if len(spans) == 1 or self.m * self.d <= SMALL:
            return part(spans), written
        cuts = [len(spans) * k // PARTS for k in range(PARTS + 1)]
        parts = [spans[low:high] for low, high in pairwise(cuts) if low < high]
        return reduce(join, shared(part, parts, threads or thread_count())), written

    def sum(self, loop: Callable[..., Any], *vectors: Vector | Columns, **how: Any) -> Any:
        """The sum alone."""
        return self.read(loop, *vectors, **how)[0]

    def tile(self, span: Span, buffer: Block | None = None) -> Block:
        """The columns of a span. They may be a view: never write to them.

        buffer  an array of bytes to gather them in; None makes one
        """
        if self._is_view:
            rows: Block = self.sources[0].rows[:, span.start : span.stop]
            return rows if self.mixture is None else _mixed(rows, self.mixture)
        wide = any(source.dtype is np.float64 for source, *_ in span.pieces)
        count = self.m if self.mixture is None else self.mixture.shape[1]
        shape, dtype = (count, span.stop - span.start), np.dtype(np.float64 if wide else np.float32)
        memory = np.empty(prod(shape), dtype) if buffer is None else buffer[: prod(shape) * dtype.itemsize].view(dtype)
        tile, place = memory.reshape(shape), 0
        with np.errstate(over="ignore"):  # A longdouble beyond float64 becomes infinite, and its client is rejected.
            for source, low, high in span.pieces:
                source.fill(tile[:, place : place + high - low], low, high, self.clients)
                place += high - low
        if self.base:
            tile = np.ldexp(tile.astype(np.float64), self.base)
        if self.wide:
            tile = tile.astype(np.float64, copy=False)
        return tile if self.mixture is None else _mixed(tile, self.mixture)

    def _most_bytes(self, spans: Sequence[Span]) -> int:
        """How many bytes the largest of some tiles takes where it is gathered."""
        count = self.m if self.mixture is None else self.mixture.shape[1]
        return max(
            count * (span.stop - span.start) * max(np.dtype(s.dtype).itemsize for s, *_ in span.pieces)
            for span in spans
        )

    def spans(self, numbers: int) -> list[Span]:
        """The columns to read at a time: large arrays in parts of equal width, small neighbours of one dtype together."""
        count = self.m if self.mixture is None else max(self.mixture.shape)
        if self.costly_to_read:
            numbers = FILES // thread_count() // (4 if self.dtype is np.float32 and self.mixture is None else 16)
        else:
            numbers = min(numbers, max(count * self.d // TILES, SMALL), TILE if self.mixture is None else SMALL)
        width = max(numbers // count, 16)
        spans, offset = list[Span](), 0
        for source in self.sources:
            step = -(-source.size // max(-(-source.size // width), 1) // 16) * 16 or 1
            for low in range(0, source.size, step):
                high, last = min(low + step, source.size), spans[-1] if spans else None
                piece = (source, low, high)
                if (
                    last is not None
                    and last.pieces[-1][0].dtype is source.dtype
                    and offset + high - last.start <= width
                ):
                    spans[-1] = Span(last.start, offset + high, (*last.pieces, piece))
                else:
                    spans.append(Span(offset + low, offset + high, (piece,)))
            offset += source.size
        return spans

    def sample(self, columns: int) -> Block:
        """About this many columns, in short runs spread evenly over all of them."""
        width = min(SAMPLE_RUN, columns)
        runs, last = columns // width, self.d - width
        starts = [k * last // max(runs - 1, 1) for k in range(runs)]
        return self._joined([(0, self.d)] if self.d <= 2 * columns else [(start, start + width) for start in starts])

    def columns(self, chosen: NDArray[np.intp]) -> Block:
        """The chosen columns (in rising order), in float64."""
        wide, parts = self.widened(), []
        for span in wide.spans(TILE):
            inside = chosen[(chosen >= span.start) & (chosen < span.stop)]
            if len(inside):
                parts.append(wide.tile(span)[:, inside - span.start])
        return np.concatenate(parts, axis=1)

    def _joined(self, spans: list[tuple[int, int]]) -> Block:
        """The columns of several spans, side by side."""
        return np.concatenate([self.tile(self._span(*span)) for span in spans], axis=1)

    def _span(self, start: int, stop: int) -> Span:
        pieces, offset = list[tuple[Source, int, int]](), 0
        for source in self.sources:
            low, high = max(start - offset, 0), min(stop - offset, source.size)
            if low < high:
                pieces.append((source, low, high))
            offset += source.size
        return Span(start, stop, tuple(pieces))

    @cached_property
    def _is_view(self) -> bool:
        """Whether tiles are views of one matrix, or mixed from such, so that none of them is gathered."""
        source, *others = self.sources
        rows = source.rows
        as_it_is = isinstance(rows, np.ndarray) and rows.dtype == source.dtype and rows.flags.aligned
        as_it_is = as_it_is and rows.itemsize in rows.strides and self.clients is None
        return as_it_is and not (others or self.wide or self.base)


@np.errstate(over="ignore", invalid="ignore")
def _mixed(tile: Block, mixture: Matrix) -> Block:
    """mixture @ tile, in the precision of the tile.

    Where every client is in one row at most (buckets, batches, shortened updates), rows are sums of their members: a huge
    client costs only its own row its digits. Otherwise the row with the largest share is subtracted first, because
    rounding an offset that all share would hide what they differ by.
    """
    used = mixture != 0
    sizes = used.sum(axis=1)
    if used.sum(axis=0).max() <= 1 and sizes.all():
        mixed: Block = np.empty((len(mixture), tile.shape[1]), tile.dtype)
        step = max(CACHE // len(tile), 64)
        for size in np.unique(sizes):
            rows = np.flatnonzero(sizes == size)
            members = np.nonzero(used[rows])[1].reshape(-1, size).T
            # Sums of a few rows are about as exact in their own precision.
            kind = tile.dtype if size <= FEW_ROWS else np.dtype(np.float64)
            shares = [mixture[rows, some, None].astype(kind) for some in members]
            for low in range(0, tile.shape[1], step):
                part = tile[:, low : low + step]
                sums = part[members[0]] * shares[0]
                for some, share in zip(members[1:], shares[1:], strict=True):
                    sums += part[some] * share
                mixed[rows, low : low + step] = sums
        return mixed
    if tile.dtype == np.float32 and np.allclose(mixture.sum(axis=1), 1, rtol=0, atol=1e-9):
        common = tile[int(mixture.sum(axis=0).argmax())]
        mixed = mixture.astype(tile.dtype) @ (tile - common) + common
        if np.isfinite(mixed).all():
            return mixed
    return (mixture @ tile.astype(np.float64)).astype(tile.dtype, copy=False)


def added(mine: Any, other: Any) -> Any:
    """The sum, field by field. The arrays of `mine` are overwritten."""
    if isinstance(mine, tuple):
        return mine._make(map(added, mine, other))  # type: ignore[attr-defined]
    return None if mine is None else np.add(mine, other, out=mine) if isinstance(mine, np.ndarray) else mine + other


def _lower_median(values: NDArray[np.intc]) -> int:
    return int(np.sort(values)[(len(values) - 1) // 2])


def exponents_of(magnitudes: Vector) -> tuple[NDArray[np.intc], int]:
    """Every row's binary exponent, and the typical one, their lower median. A row of zeros has none, and gets the typical one.

    Zeros fit any scale. Where they and the rows far from the typical one are most rows, either scale may be that of the
    majority. The one nearer to 1 is taken, so that a few tiny or huge numbers beside zeros decide nothing.
    """
    some = magnitudes > 0
    exponents = np.frexp(magnitudes)[1]
    typical = _lower_median(exponents[some]) if some.any() else 0
    apart = some & (abs(exponents - typical) > DOUBLE_ROOM)
    if apart.any() and 2 * np.count_nonzero(apart | ~some) > len(some):
        typical = min(typical, _lower_median(exponents[apart]), key=abs)
    return np.where(some, exponents, typical), typical
