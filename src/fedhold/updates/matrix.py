"""The admitted clients' updates as an m x d matrix that is never built: it is read block by block, by several threads.

Nothing large is concatenated: a block is a view where the clients came as one array. Where they came as a list, it is their
rows where they lie, if the kernel takes such, and otherwise a few megabytes gathered from their arrays. Arrays that are not
contiguous are read in the order in which most of them lie in memory; the others are copied, a few megabytes at a time. A matrix
in Fortran order is a view where the kernel takes contiguous columns, and otherwise turned. Results of blocks come back in the
order of the columns, so the same input gives the same bits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from itertools import groupby
from operator import attrgetter
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fedhold.kernels import (
    BFLOAT16,
    ENOUGH,
    TILE,
    Block,
    Matrix,
    NumpyKernels,
    Portion,
    Rows,
    Strided,
    Sums,
    Vector,
    added,
    between,
    bits_of,
    compute_dtype,
    dtype_name,
    is_narrow,
    kernels_for,
    largest,
    length,
    middle,
    shared,
    thread_count,
    to_host,
    unscaled,
    upright,
)
from fedhold.updates.files import StoredArray
from fedhold.updates.structure import Leaf, Path, flatten, rebuild

__all__ = ["Kernel", "Mixture", "Source", "Updates"]

Result = TypeVar("Result")
Gathered = TypeVar("Gathered")
Found = TypeVar("Found", bound="Vector | Sums")
Kernel = Callable[[Block, slice], Result]
"""(block of m rows, the slice of the d columns that it holds) -> what it finds there."""

# Where clients came as a list, this many numbers are gathered at a time, but no more than 1/PART of all: copies are then long.
SLAB, PART = 2**20, 32
# Clients of narrow floats. Of so few, a thread gathers an eighth of an update at a time, or TILE numbers.
FEW_NARROW = 8
STORED = 2**28  # bytes that all threads gather at a time where clients came as files: 256 KiB from each of 500
LINE = 64  # columns: whole cache lines
LONG = 5  # clients, from which on contiguous columns are read faster as they lie than as rows that are copied first
TURNED = 64  # clients, from which on columns are turned faster than rows whose numbers lie apart are read
# Columns of a block per row, where its result has m x m numbers of 8 bytes: all results then take a twelfth of the data.
BULK, MOST_PARTS = 24, 16
MOST_PAIRED = 4096  # clients, of which all pairs are 134 MB
SAMPLE_RUN = 32  # columns per run of a sample, or fewer if there are not as many: whole cache lines
SINGLE_ROOM = 40  # exponent of 2. Hundreds of thousands of squares of float32 numbers within 2**+-40 can be added up.
DOUBLE_ROOM = 400  # the same for float64
SINGLE, DOUBLE = 2.0**-23, 2.0**-52  # the relative rounding errors of float32 and float64
MIXED = 2**17  # numbers of all clients that are added up to new rows at a time
FEW_ROWS = 4  # A sum of up to this many rows is about as exact in their own precision as in float64.


@dataclass(frozen=True)
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
        alike = len(set(map(attrgetter("dtype"), rows))) == 1
        names = {dtype_name(rows[0])} if alike else {dtype_name(row) for row in rows}
        wide = any(compute_dtype(name) is np.float64 for name in names)
        axes = _axes_in_memory(rows)
        rows = rows if axes is None else [row.transpose(axes) for row in rows]
        return Source(rows, size, np.float64 if wide else np.float32, axes)

    def flattened(self, array: NDArray[Any]) -> NDArray[Any]:
        """One client's array as `size` numbers, in the order in which they are read."""
        return array.reshape(-1) if self.axes is None else array.transpose(self.axes).reshape(-1)

    def unflattened(self, numbers: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        """Numbers in the order in which they are read, as a view of an array of this shape."""
        if self.axes is None:
            return numbers.reshape(shape)
        return numbers.reshape([shape[axis] for axis in self.axes]).transpose(np.argsort(self.axes))

    @cached_property
    def lying(self) -> Lying | None:
        """The clients' arrays where they lie; None where they have to be converted, fetched or turned."""
        if _is_upright(self.rows) and len(self.rows) >= TURNED:
            return None
        if isinstance(self.rows, np.ndarray) and self.rows.dtype == self.dtype:
            matrix = Rows.of_matrix(self.rows)
            return Lying.of(list(self.rows)) if matrix is None else Lying.contiguous(matrix)
        if not isinstance(self.rows, list) or not _are_arrays(self.rows):
            return None
        as_it_is = set(map(attrgetter("dtype"), self.rows)) == {np.dtype(self.dtype)}
        return Lying.of(self.rows) if as_it_is else None

    @cached_property
    def narrow(self) -> Narrow | None:
        """The clients' arrays, where all are float16 or all bfloat16, in memory."""
        if isinstance(self.rows, np.ndarray):
            return Narrow(bits_of(self.rows), self.rows.dtype == BFLOAT16) if is_narrow(self.rows.dtype) else None
        if not isinstance(self.rows, list) or not isinstance(self.rows[0], np.ndarray):
            return None
        kind = self.rows[0].dtype
        if not is_narrow(kind) or not _are_arrays(self.rows) or any(row.dtype != kind for row in self.rows):
            return None
        lying = Lying.of([bits_of(row) for row in self.rows])
        return None if lying is None else Narrow(lying, kind == BFLOAT16)

    def read(
        self,
        start: int,
        stop: int,
        clients: NDArray[np.intp] | None,
        kernels: NumpyKernels,
        out: Block | None = None,
    ) -> Block:
        """Columns start to stop of the given clients (None: all of them): in `out`, or as a view where that is possible."""
        block = self._read_at_once(start, stop, clients, kernels)
        if block is not None:
            if out is None:
                return block
            out[:] = block
            return out
        chosen: Sequence[Any] = self.rows if clients is None else [self.rows[i] for i in clients]
        out = np.empty((len(chosen), stop - start), self.dtype) if out is None else out
        with np.errstate(over="ignore"):  # A longdouble beyond float64 becomes infinite, and its client is rejected.
            for row, array in zip(out, chosen, strict=True):
                if isinstance(array, StoredArray):
                    array.read(start, row)
                else:
                    row[:] = to_host(between(array, start, stop), None)
        return out

    def _read_at_once(
        self, start: int, stop: int, clients: NDArray[np.intp] | None, kernels: NumpyKernels
    ) -> Block | None:
        """The same, in one step for all clients; None where their arrays have to be read one by one."""
        if self.narrow is not None:
            return kernels.widened(self.narrow.part(start, stop, clients, kernels), brain=self.narrow.brain)
        if hasattr(self.rows, "dtype"):
            view = self.rows[:, start:stop] if clients is None else self.rows[:, start:stop][clients]
            if kernels.compiled and isinstance(view, np.ndarray) and view.dtype == self.dtype and _in_columns(view):
                return _turned(view, kernels)
            with np.errstate(over="ignore"):
                return to_host(view, self.dtype)
        return None if self.lying is None else np.asarray(self.lying.part(start, stop, clients, kernels))

    @property
    def costly_to_read(self) -> bool:
        """Whether every pass reads files."""
        return isinstance(self.rows, list) and isinstance(self.rows[0], StoredArray)


@dataclass(frozen=True, eq=False)
class Lying:
    """The clients' arrays where they lie in memory: of one size and dtype, but not of one layout.

    rows   the contiguous ones as rows; those of the others mean nothing. None where there is no contiguous one
    odd    the others, one entry for each layout. They are copied some columns at a time, and again in every pass: a copy of all
           their numbers could be as large as the data
    kind   for every client the index of its layout in `odd`; -1 where it is contiguous
    place  for every client its index among those of its layout
    dtype  the dtype of all
    """

    rows: Rows | None
    odd: tuple[Strided, ...]
    kind: NDArray[np.intp]
    place: NDArray[np.intp]
    dtype: np.dtype[Any]

    @staticmethod
    def contiguous(rows: Rows) -> Lying:
        """Rows that are all contiguous."""
        return Lying(rows, (), np.full(len(rows), -1), np.zeros(len(rows), np.intp), rows.dtype)

    @staticmethod
    def of(arrays: list[NDArray[Any]]) -> Lying | None:
        """The arrays, with axes in the order in which they are read; None where some lie askew in memory."""
        m = len(arrays)
        if all(map(attrgetter("flags.c_contiguous"), arrays)):
            rows = Rows.of(arrays)
            return None if rows is None else Lying.contiguous(rows)
        if not all(array.flags.aligned for array in arrays):
            return None
        alike = dict[tuple[int, ...] | None, list[int]]()
        for client, array in enumerate(arrays):
            alike.setdefault(None if array.flags.c_contiguous else array.strides, []).append(client)
        contiguous = alike.pop(None, [])
        kind, place, starts = np.full(m, -1), np.zeros(m, np.intp), np.zeros(m, np.int64)
        for number, clients in enumerate(alike.values()):
            kind[clients], place[clients] = number, np.arange(len(clients))
        odd = tuple(Strided.of([arrays[client] for client in clients]) for clients in alike.values())
        rows = Rows.of([arrays[client] for client in contiguous]) if contiguous else None
        if rows is not None:
            starts[contiguous] = rows.starts
            rows = replace(rows, starts=starts)
        return None if contiguous and rows is None else Lying(rows, odd, kind, place, arrays[0].dtype)

    def part(self, start: int, stop: int, clients: NDArray[np.intp] | None, kernels: NumpyKernels) -> Block | Rows:
        """Columns start to stop of the given clients (None: all of them)."""
        if self.rows is not None and not self.odd:
            part = self.rows.part(start, stop)
            return part if clients is None else part.taken(clients)
        chosen = np.arange(len(self.kind)) if clients is None else clients
        rows = None if self.rows is None else self.rows.part(start, stop).taken(chosen)
        odd = np.flatnonzero(self.kind[chosen] >= 0)
        if rows is not None and not odd.size:
            return rows
        copies, kinds, places = (
            np.empty((len(odd), stop - start), self.dtype),
            self.kind[chosen[odd]],
            self.place[chosen[odd]],
        )
        for number, arrays in enumerate(self.odd):
            here = np.flatnonzero(kinds == number)
            if here.size:
                kernels.flattened(arrays.taken(places[here]), start, copies, here)
        return copies if rows is None else rows.replaced(odd, copies)


@dataclass(frozen=True, eq=False)
class Narrow:
    """The clients' float16 or bfloat16 numbers.

    bits   an (m, size) array of their bits, or the arrays of their bits where they lie
    brain  whether they are bfloat16
    """

    bits: Block | Lying
    brain: bool

    def part(self, start: int, stop: int, clients: NDArray[np.intp] | None, kernels: NumpyKernels) -> Block:
        """The bits of columns start to stop of the given clients (None: all of them)."""
        if isinstance(self.bits, Lying):
            return cast(Block, self.bits.part(start, stop, clients, kernels))
        block = self.bits[:, start:stop]
        return block if clients is None else block[clients]


def _are_arrays(rows: Sequence[Any]) -> bool:
    """Whether all are arrays of NumPy. Most often none is of a class of its own, which is found out fast."""
    return set(map(type, rows)) == {np.ndarray} or all(isinstance(row, np.ndarray) for row in rows)


def _in_columns(matrix: NDArray[Any]) -> bool:
    """Whether a column lies together in memory, and a row apart: most compiled kernels would copy a block of it."""
    return bool(matrix.flags.aligned and 0 < matrix.strides[0] < matrix.strides[1])


def _is_upright(rows: Any) -> bool:
    """Whether compiled code reads these rows column by column: those of a matrix that has long columns of floats."""
    in_columns = isinstance(rows, np.ndarray) and rows.dtype in (np.float32, np.float64) and upright(rows)
    return in_columns and len(rows) >= LONG


def _turned(block: Block, kernels: NumpyKernels) -> Block:
    """A copy of the block whose rows are contiguous."""
    copy = np.empty(block.shape, block.dtype)
    kernels.flattened(Strided.of([block]), 0, copy.reshape(1, -1), np.zeros(1, np.intp))
    return copy


def _axes_in_memory(arrays: Sequence[Any]) -> tuple[int, ...] | None:
    """The order of axes in which most of these arrays are contiguous in memory; None where it is that of the axes."""
    if not _are_arrays(arrays) or arrays[0].ndim < 2 or all(map(attrgetter("flags.c_contiguous"), arrays)):
        return None
    as_they_come = tuple(range(arrays[0].ndim))
    orders = Counter(as_they_come if array.flags.c_contiguous else _order(array.strides) for array in arrays)
    order, often = orders.most_common(1)[0]
    return None if orders[as_they_come] == often else order


def _order(strides: tuple[int, ...]) -> tuple[int, ...]:
    """The axes from the largest stride to the smallest."""
    return tuple(sorted(range(len(strides)), key=lambda axis: -abs(strides[axis])))


@dataclass(frozen=True, eq=False)
class Mixture:
    """New rows made from the clients' rows, matrix @ rows: buckets, neighbourhoods, batches."""

    matrix: Matrix

    @cached_property
    def _groups(self) -> list[_Group] | None:
        """The new rows as sums over groups; None unless each client is in one row at most, and members of a row share alike."""
        used = self.matrix != 0
        sizes, shares = used.sum(axis=1), self.matrix.max(axis=1)
        if used.sum(axis=0).max() > 1 or (sizes == 0).any() or (self.matrix[used] != np.repeat(shares, sizes)).any():
            return None
        alike = [(size, np.flatnonzero(sizes == size)) for size in np.unique(sizes)]
        return [_Group(rows, np.nonzero(used[rows])[1].reshape(-1, size), shares[rows]) for size, rows in alike]

    @cached_property
    def _distinct(self) -> _Distinct | None:
        """The distinct new rows, as near clients often share a neighbourhood; None unless new rows are weighted means."""
        if not np.allclose(self.matrix.sum(axis=1), 1, rtol=0, atol=1e-9):
            return None
        single = self.matrix.astype(np.float32)
        numbers = dict[bytes, int]()
        which = [numbers.setdefault(row.tobytes(), len(numbers)) for row in single]
        first = [which.index(number) for number in range(len(numbers))]
        return _Distinct(int(self.matrix.sum(axis=0).argmax()), single[first], which)

    @np.errstate(over="ignore", invalid="ignore")
    def of(self, rows: Block, kernels: NumpyKernels) -> Block:
        """The new rows, in the precision of the old ones.

        Sums of many rows are made in float64; or in float32 after one common row has been subtracted, because otherwise the
        rounding of the offset that all rows share would hide their differences.
        """
        if self._groups is None and rows.dtype == np.float32 and self._distinct is not None:
            distinct = kernels.mixed(self._distinct.matrix, rows, self._distinct.common)
            if np.isfinite(distinct).all():
                which = self._distinct.which
                return distinct if len(distinct) == len(which) else distinct[which]
        if self._groups is None:
            return (self.matrix @ rows.astype(np.float64)).astype(rows.dtype, copy=False)
        mixed = np.empty((len(self.matrix), rows.shape[1]), rows.dtype)
        # Some columns at a time take half of the time of small data: 1.6 ms and not 3.2 ms for a call on 50 x 7,850 numbers.
        # Large data took a fifth more time so, 500 x 25,450 and 100 x 1,000,000 numbers alike.
        width = rows.shape[1] if kernels.compiled else max(MIXED // len(rows), LINE)
        for group in self._groups:
            single = group.members.shape[1] <= FEW_ROWS and np.abs(np.log2(group.shares)).max() <= SINGLE_ROOM
            kind = rows.dtype if single else np.dtype(np.float64)
            # Rows are multiplied by the share before they are added: a sum of numbers near the largest float overflows. Shares
            # that float32 does not hold belong to rows that are made very much longer or shorter.
            share = group.shares[:, None].astype(kind)
            for start in range(0, rows.shape[1], width):
                part = rows[:, start : start + width]
                sums = part[group.members[:, 0]] * share
                for column in group.members.T[1:]:
                    sums += part[column] * share
                mixed[group.rows, start : start + width] = sums
        return mixed


@dataclass(frozen=True, eq=False)
class _Group:
    """New rows that have equally many members.

    rows     which of the new rows they are
    members  the indices of their members, one row for each
    shares   the share that every member has in each
    """

    rows: NDArray[np.intp]
    members: NDArray[np.intp]
    shares: Vector


@dataclass(frozen=True, eq=False)
class _Distinct:
    """The distinct rows of a mixing matrix.

    common  the old row with the largest share in the new ones
    matrix  the distinct rows
    which   for every new row, the index of its distinct row
    """

    common: int
    matrix: NDArray[np.float32]
    which: list[int]


class MixedRow:
    """d numbers, some of them in float32 and some in float64, as the arrays of a model are read. It stands for a `Vector`.

    The counters of a model are integers, and need float64; all its other numbers would take twice the memory in it.
    """

    dtype = None

    def __init__(self, parts: Iterable[NDArray[Any]]) -> None:
        """The parts are in the order of the columns."""
        self.parts = list(parts)
        self.ends = np.cumsum([len(part) for part in self.parts])

    def __getitem__(self, at: slice) -> NDArray[Any]:
        """Columns of one part, as a view: blocks of columns have one dtype, and so have the arrays of a model."""
        number = int(np.searchsorted(self.ends, at.start, side="right"))
        number = min(number, len(self.parts) - 1)  # An empty array of a model may stand at the very end.
        part = self.parts[number]
        first = int(self.ends[number]) - len(part)
        assert at.stop <= self.ends[number]
        return part[at.start - first : at.stop - first]

    def __setitem__(self, at: slice, numbers: NDArray[Any]) -> None:
        self[at][:] = numbers

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """All numbers in one array, which is a copy."""
        return np.concatenate(self.parts, dtype=np.float64)

    def length(self) -> float:
        """The Euclidean norm, from the norms of the parts."""
        return length(np.array([length(part) for part in self.parts]))


@dataclass(frozen=True)
class Span:
    """Columns start to stop of all clients.

    lying   the arrays that hold them, where they are to be read as rows where they lie; None elsewhere
    offset  the column of their first number
    matrix  the matrix that holds them, where its columns are contiguous and are to be read as they are; None elsewhere
    """

    start: int
    stop: int
    lying: Lying | None = None
    offset: int = 0
    matrix: Block | None = None

    @property
    def width(self) -> int:
        return self.stop - self.start

    def parts(self, width: int) -> Iterator[Span]:
        """The span in parts of at most this many columns."""
        for a in range(self.start, self.stop, width):
            yield replace(self, start=a, stop=min(a + width, self.stop))

    def rows(self, clients: NDArray[np.intp] | None, kernels: NumpyKernels) -> Block:
        """The given clients' rows (None: those of all), as kernels take them that take `Rows`."""
        assert self.lying is not None
        return cast(Block, self.lying.part(self.start - self.offset, self.stop - self.offset, clients, kernels))


@dataclass(frozen=True)
class Updates:
    """The updates of m clients, or m rows that a mixture makes from them.

    sources   one per array of the model
    m         how many rows there are
    clients   which rows of the sources are read (None: all of them)
    wide      whether float32 data is read as float64
    base      every number is read times 2**base, so that numbers too large or too small to be squared come near 1
    mixture   how new rows are made from the clients' (None: the rows are the clients themselves)
    """

    sources: tuple[Source, ...]
    m: int
    clients: NDArray[np.intp] | None = None
    wide: bool = False
    base: int = 0
    mixture: Mixture | None = None

    @cached_property
    def d(self) -> int:
        """How many numbers an update has."""
        return sum(source.size for source in self.sources)

    @property
    def costly_to_read(self) -> bool:
        """Whether a pass over the data costs more than any computation with it, because it reads files or a cluster."""
        return self.sources[0].costly_to_read

    @property
    def few_pairs(self) -> bool:
        """Whether the products of all pairs of clients take little memory, or save passes that cost more than memory."""
        return self.m <= MOST_PAIRED or self.costly_to_read

    @cached_property
    def kernels(self) -> NumpyKernels:
        """The kernels to use for data of this size."""
        return kernels_for(self.m * self.d)

    @cached_property
    def ordering(self) -> NumpyKernels:
        """The kernels to use for order statistics of data of this size, whatever a mixture makes of it."""
        # Compiled code orders as many columns at a time as a line has, and would take longer than NumPy for very few. It needs
        # rows that are contiguous, and where columns are, a copy of each block would take what it saves.
        rows = self.sources[0].rows
        in_columns = isinstance(rows, np.ndarray) and _in_columns(rows)
        return self.kernels if self.d < LINE or in_columns else kernels_for(self._rows * self.d, ordering=True)

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
        if abs(typical) <= SINGLE_ROOM and exponents.max() <= SINGLE_ROOM:
            return self
        fits = abs(typical) <= DOUBLE_ROOM and exponents.max() <= DOUBLE_ROOM
        return replace(self, wide=True, base=0 if fits else -typical)

    def take(self, clients: NDArray[np.intp]) -> Updates:
        """Only the given rows."""
        if self.mixture is not None:
            return replace(self, m=len(clients), mixture=Mixture(self.mixture.matrix[clients]))
        return replace(self, m=len(clients), clients=clients if self.clients is None else self.clients[clients])

    def mixed(self, matrix: Matrix) -> Updates:
        """The rows matrix @ X."""
        combined = matrix if self.mixture is None else matrix @ self.mixture.matrix
        return replace(self, m=len(matrix), mixture=Mixture(combined))

    def materialised(self) -> Updates:
        """The rows as one array in memory, for mixtures that are read many times."""
        wide = self.base != 0 or any(source.dtype is np.float64 for source in self.sources)
        rows = np.empty((self.m, self.d), np.float64 if wide else np.float32)

        def copy(block: Block, columns: slice) -> None:
            rows[:, columns] = block

        replace(self, wide=False).run(copy, Portion(TILE, parallel=True))
        return replace(self, sources=(Source.of(rows, self.d),), clients=None, base=0, mixture=None)

    # Vectors of d numbers.

    @cached_property
    def narrow(self) -> np.dtype[Any] | None:
        """float16 or BFLOAT16, where all numbers are, and are read as they are; None elsewhere."""
        first = None if self.wide or self.base else self.sources[0].narrow
        if first is None or any(one.narrow is None or one.narrow.brain != first.brain for one in self.sources):
            return None
        return BFLOAT16 if first.brain else np.dtype(np.float16)

    def zeros(self) -> Vector:
        """A vector of d zeros that kernels may write to, block by block.

        Beside narrow floats it is float32, which has twice their digits: float64 would be as large as four updates.
        """
        return np.zeros(self.d, np.float64 if self.narrow is None else np.float32)

    def blank(self) -> Vector:
        """A vector of d numbers for the value of a call: in the clients' own dtype where that is narrow, else as they are read.

        In float64 it would take a pass more to convert it: a third of what the mean of ten clients costs.
        """
        if self.narrow is not None:
            return np.empty(self.d, self.narrow)
        if self.wide or self.base:
            return self.zeros()
        runs = [(dtype, sum(one.size for one in run)) for dtype, run in groupby(self.sources, attrgetter("dtype"))]
        if len(runs) == 1:
            return np.empty(self.d, runs[0][0])
        return self.zeros() if self._turned else cast(Vector, MixedRow(np.empty(size, dtype) for dtype, size in runs))

    @property
    def _turned(self) -> bool:
        """Whether some arrays are read in another order than that of their axes."""
        return any(source.axes is not None for source in self.sources)

    def kept(self, row: Vector) -> Vector | None:
        """What a proof keeps of a row of `blank` that becomes the value, and so the caller's; None for a narrow one.

        It is a copy, because the value shares the memory of the row. A narrow row is made again when it is asked for: a copy
        would be one update more in memory.
        """
        if isinstance(row, np.ndarray):
            return None if is_narrow(row.dtype) else row.copy()
        return np.asarray(row) if isinstance(row, MixedRow) else row

    def vector(self, arrays: list[Any]) -> Vector:
        """The arrays of one update as a vector of d numbers."""
        return np.concatenate(self._flat([to_host(array, None) for array in arrays]), dtype=np.float64)

    def received(self, arrays: list[Any]) -> Vector:
        """The arrays of an update with the dtypes of a value as a vector: it is narrow where the value is."""
        if self.narrow is None or any(getattr(array, "dtype", None) != self.narrow for array in arrays):
            return self.vector(arrays)
        flat = self._flat(arrays)
        return flat[0] if len(flat) == 1 else np.concatenate(flat)

    def _flat(self, arrays: list[Any]) -> list[Any]:
        """Each array of an update as one row of numbers, in the order in which they are read."""
        if not self._turned:  # One source may hold several arrays.
            return [array.reshape(-1) for array in arrays]
        return [source.flattened(array) for source, array in zip(self.sources, arrays, strict=True)]

    def rounded(self, vector: Vector) -> Vector:
        """The vector in the dtypes in which updates are read, so that reading it beside them changes nothing more."""
        if self.wide or self.base or vector.dtype == np.float32:
            return vector
        ends = np.cumsum([source.size for source in self.sources])[:-1]
        parts = zip(np.split(vector, ends), self.sources, strict=True)
        return np.concatenate([part.astype(source.dtype).astype(np.float64) for part, source in parts])

    def row(self, client: int) -> Vector:
        """One client's update."""
        # A client's own numbers lose nothing in their own dtype, mixed ones would.
        dtype, row = (self.narrow, self.blank()) if self.mixture is None else (None, self.zeros())
        if self._views:
            row[:] = self.sources[0].rows[client]
            return row

        def copy(block: Block, columns: slice) -> None:
            row[columns] = block[0] if dtype is None else self.kernels.narrowed(block[0], dtype)

        self.take(np.array([client])).run(copy, Portion(TILE, parallel=True))
        return row

    def shaped(self, vector: Vector, template: Any, dtypes: list[str], known: Mapping[Path, NDArray[Any]]) -> Any:
        """A vector of d numbers, in the units in which updates are read, as an update like the template with these dtypes.

        known  the numbers of the arrays that are not read, by path
        """
        numbers = unscaled(vector, self.base) if self.base else vector
        leaves = [leaf for leaf in flatten(template) if leaf.path not in known] if self._turned else []
        return rebuild(template, self._in_order(numbers, leaves), dtypes, known)

    def _in_order(self, vector: Vector, leaves: list[Leaf]) -> Vector:
        """A vector of d numbers, from the order in which they are read to that of the template's arrays."""
        if not self._turned:
            return vector
        # Compiled code knows no narrow floats, but their bits.
        numbers = bits_of(vector) if is_narrow(vector.dtype) else vector
        ordered, offset = np.empty_like(numbers), 0
        for source, leaf in zip(self.sources, leaves, strict=True):
            end = offset + source.size
            there = ordered[offset:end]
            read = Strided.of([source.unflattened(numbers[offset:end], tuple(leaf.array.shape))])

            def copy(start: int, there: NDArray[Any] = there, read: Strided = read) -> None:
                self.kernels.flattened(read, start, there[None, start : start + SLAB], np.zeros(1, np.intp))

            for _ in shared(copy, range(0, source.size, SLAB), thread_count()):
                pass
            offset = end
        return ordered.view(vector.dtype)

    # Reading.

    def read(self, start: int, stop: int) -> Block:
        """Columns start to stop of every row, in the dtype to compute in. The block may be a view: never write to it."""
        if self._views:
            return cast(Block, self.sources[0].rows[:, start:stop])
        parts, offset = [], 0
        for source in self.sources:
            low, high = max(start - offset, 0), min(stop - offset, source.size)
            if low < high:
                parts.append((source, low, high))
            offset += source.size
        if len(parts) == 1:
            source, low, high = parts[0]
            block = source.read(low, high, self.clients, self.kernels)
        else:
            wide = any(source.dtype is np.float64 for source, *_ in parts)
            block = np.empty((self._rows, stop - start), np.float64 if wide else np.float32)
            place = 0
            for source, low, high in parts:
                source.read(low, high, self.clients, self.kernels, block[:, place : place + high - low])
                place += high - low
        if self.base:
            block = np.ldexp(block.astype(np.float64), self.base)
        if self.mixture is not None:
            block = self.mixture.of(block, self.kernels)
        if self.wide:
            block = block.astype(np.float64, copy=False)
        return block

    def columns(self, chosen: NDArray[np.intp]) -> Block:
        """The chosen columns (in rising order), in float64."""
        wide, parts = self.widened(), []
        for span in wide.spans(Portion(TILE, parallel=False)):
            inside = chosen[(chosen >= span.start) & (chosen < span.stop)]
            if len(inside):
                parts.append(wide.read(span.start, span.stop)[:, inside - span.start])
        return np.concatenate(parts, axis=1)

    def sample(self, columns: int) -> Block:
        """About this many columns, in short runs spread evenly over all of them."""
        if self.d <= 2 * columns:
            return self.read(0, self.d)
        run = min(SAMPLE_RUN, columns)
        runs, last = columns // run, self.d - run
        starts = [k * last // max(runs - 1, 1) for k in range(runs)]
        return self.joined([(a, a + run) for a in starts])

    def joined(self, spans: list[tuple[int, int]]) -> Block:
        """The columns of several spans, side by side."""
        return np.concatenate([self.read(*span) for span in spans], axis=1)

    # Passes.

    def map(self, kernel: Kernel[Result], portion: Portion) -> Iterator[Result]:
        """The kernel's results over all blocks, in the order of the columns, one at a time."""
        for results in self._over_spans(kernel, portion, list):
            yield from results

    def _over_spans(
        self, kernel: Kernel[Result], portion: Portion, gathered: Callable[[Iterator[Result]], Gathered]
    ) -> Iterator[Gathered]:
        """What is gathered from the kernel's results, for each range of columns that is read at a time."""
        width = self._width(portion)

        def run(span: Span) -> Gathered:
            with np.errstate(over="ignore", invalid="ignore"):  # It is set here because threads do not inherit it.
                if span.matrix is not None:
                    block = span.matrix[:, span.start : span.stop]
                    return gathered(iter([kernel(block, slice(span.start, span.stop))]))
                if span.lying is not None:
                    rows = span.rows(self.clients, self.kernels)
                    return gathered(iter([kernel(rows, slice(span.start, span.stop))]))
                slab = self.read(span.start, span.stop)
                if slab.shape[1] <= width or (portion.bulky and self._views):
                    return gathered(iter([kernel(slab, slice(span.start, span.stop))]))
                return gathered(
                    kernel(slab[:, a : a + width], slice(span.start + a, span.start + min(a + width, slab.shape[1])))
                    for a in range(0, slab.shape[1], width)
                )

        spans = self.spans(portion)
        workers = thread_count() if portion.parallel and len(spans) > 1 else 1
        return map(run, spans) if workers == 1 else shared(run, spans, workers)

    def run(self, kernel: Kernel[None], portion: Portion) -> None:
        """Run a kernel that writes its results somewhere over all blocks."""
        for _ in self.map(kernel, portion):
            pass

    def sum(self, kernel: Kernel[Found], portion: Portion) -> Found:
        """The kernel's results, which are float64, added up in the order of the columns.

        Those of one read are added up at once: a list of m x m products could take more memory than the data.
        """
        return reduce(added, self._over_spans(kernel, portion, partial(reduce, added)))

    def spans(self, portion: Portion) -> list[Span]:
        """The column ranges to read at a time: small arrays of one dtype together, large ones in parts of whole tiles."""
        if self._views and self.m * self.d <= portion.numbers:
            return [Span(0, self.d)]
        spans = list[Span]()
        for stretch in self._stretches(portion):
            width = max(portion.numbers // self.m, 16)
            if stretch.lying is not None or stretch.matrix is not None or self._views:
                # The number of parts is even and they are equal, so that two threads finish together.
                if portion.bulky:
                    fewest = 2 if portion.parallel else 1
                    parts = min(max(stretch.width // (BULK * self.m), fewest), MOST_PARTS)
                    width = max(width, -(-stretch.width // parts))
                if stretch.lying is not None and stretch.lying.odd:
                    width = min(width, max(self._slab // int(np.count_nonzero(stretch.lying.kind >= 0)), LINE))
                pairs = -(-stretch.width // (2 * width))
                if pairs > 1 or (portion.parallel and stretch.width * self.m >= ENOUGH):
                    width = -(-stretch.width // (2 * pairs * LINE)) * LINE
            else:
                width = self._width(portion)
                width *= max(self._slab // (width * self._rows), 1)
            spans += stretch.parts(width)
        return spans

    def _stretches(self, portion: Portion) -> list[Span]:
        """The columns that can be read together: neighbouring arrays of one dtype, or one large array where it lies."""
        as_it_is = portion.anywhere and not (self.wide or self.base or self.mixture or self._views)
        matrix = self.sources[0].rows
        if portion.upright and as_it_is and len(self.sources) == 1 and self.clients is None and _is_upright(matrix):
            return [Span(0, self.d, matrix=matrix)]
        found, offset, previous = list[Span](), 0, None
        for source in self.sources:
            large = as_it_is and source.size * self.m >= TILE
            lying, end = source.lying if large else None, offset + source.size
            if lying is not None:
                found.append(Span(offset, end, lying, offset))
            elif found and found[-1].lying is None and source.dtype is previous:
                found[-1] = replace(found[-1], stop=end)
            else:
                found.append(Span(offset, end))
            offset, previous = end, source.dtype
        return found

    def _width(self, portion: Portion) -> int:
        """How many columns to hand to a kernel: no more than are gathered at a time."""
        return max((portion.numbers if self._views else min(portion.numbers, self._slab)) // self.m, 16)

    @property
    def _rows(self) -> int:
        """How many rows are read, before any mixture."""
        return self.m if self.mixture is None else self.mixture.matrix.shape[1]

    @cached_property
    def _views(self) -> bool:
        """Whether blocks are views of one array, so that none of them costs memory."""
        source, *others = self.sources
        as_it_is = isinstance(source.rows, np.ndarray) and source.rows.dtype == source.dtype and self.clients is None
        as_it_is = as_it_is and not (self.kernels.compiled and _in_columns(source.rows))
        return as_it_is and not (others or self.wide or self.base or self.mixture)

    @property
    def _slab(self) -> int:
        """How many numbers to gather at a time."""
        if not self.costly_to_read:
            numbers = max(TILE, self._rows * self.d // PART)
            few = self.narrow is not None and self._rows <= FEW_NARROW
            return min(SLAB, numbers, max(TILE, self.d // (2 * FEW_NARROW)) if few else numbers)
        narrow = self.mixture is None and not self.wide and all(source.dtype is np.float32 for source in self.sources)
        # A number takes 4 bytes, or 16 with the copies that widening and mixing make.
        return STORED // thread_count() // (4 if narrow else 16)


def exponents_of(magnitudes: Vector) -> tuple[NDArray[np.intc], int]:
    """Every row's binary exponent, and the median one. A row of zeros has none, and gets the median."""
    some = magnitudes > 0
    exponents = np.frexp(magnitudes)[1]
    typical = int(middle(exponents[some])) if some.any() else 0
    return np.where(some, exponents, typical), typical
