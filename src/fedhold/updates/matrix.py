"""Updates: what m clients sent, read as column blocks; the only place, with `columns`, that touches d-sized data.

Nothing is concatenated: a block is a view where the clients came as one array, and a few megabytes gathered from the
clients' own arrays where they came as a list. Blocks are read by a few threads and their results come back in order, so
the same input gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedhold.kernels import Block, Sweeps, Vector, largest, shared, sweeps_for, to_host, unscaled
from fedhold.kernels import threads as threads_to_use
from fedhold.updates.magnitudes import DOUBLE_ROOM, SINGLE_ROOM, exponents_of
from fedhold.updates.mixture import Mixture
from fedhold.updates.sources import Source
from fedhold.updates.structure import rebuild

__all__ = ["Kernel", "Pass", "Updates"]

Result = TypeVar("Result")
Kernel = Callable[[Block, slice, Block], Result]
"""(block of m rows, its columns in the whole, scratch of the block's size as a flat array) -> anything."""

TILE = 2**18  # numbers handed to a kernel that makes as many of its own: both stay in a core's cache
SLAB, PART = 2**20, 32  # gathered at once where clients came as a list: fewer, longer copies; or 1/PART of all, if less
WHOLE = 2**24  # to a kernel that looks at every number once
STORED = 2**28  # bytes gathered at once, by all threads, where they came as files: from 500 of them 256 KiB a time
LINE = 64  # columns: whole cache lines
SAMPLE_RUN = 32  # columns per run of a sample: whole cache lines


@dataclass(frozen=True)
class Pass:
    """A kernel, how many numbers to hand it at a time, whether threads share the work, and whether it asks for scratch."""

    kernel: Kernel[Block]
    tile: int
    threads: bool
    scratch: bool


@dataclass(frozen=True)
class Updates:
    """The admitted clients' updates as an m x d matrix that is never built.

    clients    which rows of the sources are admitted (None: all of them)
    wide       float32 data is read as float64
    base       every number is read times 2**base: what is too large or too small to be squared is brought near 1
    mixture    what is made of the rows: buckets, neighbourhoods, batches (None: the clients themselves)
    """

    sources: tuple[Source, ...]
    m: int
    clients: NDArray[np.intp] | None = None
    wide: bool = False
    base: int = 0
    mixture: Mixture | None = None

    @property
    def d(self) -> int:
        return sum(source.size for source in self.sources)

    @property
    def _rows(self) -> int:
        """Rows that are read, before any mixture."""
        return self.m if self.mixture is None else self.mixture.matrix.shape[1]

    @property
    def on_disk(self) -> bool:
        """Whether every look at the data is a read of files."""
        return self.sources[0].on_disk

    @property
    def _slab(self) -> int:
        """Numbers to gather at once."""
        if not self.on_disk:
            return min(SLAB, max(TILE, self._rows * self.d // PART))
        narrow = self.mixture is None and not self.wide and all(source.dtype is np.float32 for source in self.sources)
        return STORED // threads_to_use() // (4 if narrow else 16)  # to widen or to mix takes copies

    @property
    def sweeps(self) -> Sweeps:
        """How to look at blocks of so much data."""
        return sweeps_for(self.m * self.d)

    def zeros(self) -> Vector:
        """d numbers; whatever kernels write to, part by part."""
        return np.zeros(self.d)

    def vector(self, arrays: list[Any]) -> Vector:
        """d numbers that came as the arrays of one update."""
        return np.concatenate([to_host(array, np.float64).reshape(-1) for array in arrays])

    def row(self, client: int) -> Vector:
        """One row."""
        row = self.zeros()

        def kernel(block: Block, at: slice, _: Block) -> None:
            row[at] = block[0]

        for _ in self.take(np.array([client])).map(kernel):
            pass
        return row

    def shaped(self, vector: Vector, template: Any, dtypes: list[str]) -> Any:
        """d numbers, as they were read, as one update."""
        return rebuild(template, unscaled(vector, self.base), dtypes)

    def materialised(self) -> Updates:
        """The rows as one array, for mixtures that will be read many times."""
        wide = self.base != 0 or any(source.dtype is np.float64 for source in self.sources)
        rows = np.empty((self.m, self.d), np.float64 if wide else np.float32)

        def kernel(block: Block, columns: slice, _: Block) -> None:
            rows[:, columns] = block

        for _ in replace(self, wide=False).map(kernel):
            pass
        return replace(self, sources=(Source.of(rows, self.d),), clients=None, base=0, mixture=None)

    def reaching(self, place: NDArray[np.float64] | None) -> Updates:
        """The same updates, read as float64 where distances to `place` would overflow float32."""
        far = place is not None and largest(place) > 2.0**SINGLE_ROOM
        return replace(self, wide=True) if far else self

    def take(self, clients: NDArray[np.intp]) -> Updates:
        """Only the given rows."""
        if self.mixture is not None:
            return replace(self, m=len(clients), mixture=Mixture(self.mixture.matrix[clients]))
        return replace(self, m=len(clients), clients=clients if self.clients is None else self.clients[clients])

    def read(self, start: int, stop: int) -> Block:
        """Columns start to stop of every row, in the dtype we reckon in. May be a view: never write to it."""
        parts, offset = [], 0
        for source in self.sources:
            low, high = max(start - offset, 0), min(stop - offset, source.size)
            if low < high:
                parts.append((source, low, high))
            offset += source.size
        if len(parts) == 1:
            source, low, high = parts[0]
            block = source.read(low, high, self.clients)
        else:
            wide = any(source.dtype is np.float64 for source, *_ in parts)
            block = np.empty((self._rows, stop - start), np.float64 if wide else np.float32)
            place = 0
            for source, low, high in parts:
                source.read(low, high, self.clients, block[:, place : place + high - low])
                place += high - low
        if self.base:
            block = np.ldexp(block.astype(np.float64), self.base)
        if self.mixture is not None:
            block = self.mixture.of(block, fast=self.sweeps.threads)
        if self.wide:
            block = block.astype(np.float64, copy=False)
        return block

    @property
    def long_tile(self) -> int:
        """For products of all pairs of rows, which are made fastest from rows of a thousand numbers or more."""
        return max(SLAB, self.m * 2048)

    def _width(self, tile: int) -> int:
        """Columns of a tile: no more than are gathered at once."""
        return max((tile if self._views else min(tile, self._slab)) // self.m, 16)

    @property
    def _views(self) -> bool:
        """Whether blocks are views of one array, so that none of them costs memory."""
        source, *others = self.sources
        as_it_is = isinstance(source.rows, np.ndarray) and source.rows.dtype == source.dtype and self.clients is None
        return as_it_is and not (others or self.wide or self.base or self.mixture)

    def spans(self, tile: int = TILE) -> list[tuple[int, int]]:
        """Column ranges to read at once: small arrays of one dtype together, large ones in parts of whole tiles."""
        width = self._width(tile)
        if self._views:  # an even number of equal parts: two threads then end together
            pairs = -(-self.d // (2 * width))
            width = -(-self.d // (2 * pairs * LINE)) * LINE if pairs > 1 else width
        else:
            width *= max(self._slab // (width * self._rows), 1)
        cuts, offset, previous = [0], 0, None
        for source in self.sources:
            if previous is not None and source.dtype is not previous:
                cuts.append(offset)
            offset, previous = offset + source.size, source.dtype
        cuts.append(offset)
        return [(a, min(a + width, hi)) for lo, hi in pairwise(cuts) for a in range(lo, hi, width)]

    def map(
        self, kernel: Kernel[Result], *, tile: int = TILE, threads: bool = True, scratch: bool = True
    ) -> Iterator[Result]:
        """The kernel's results over all blocks, in the order of the columns, one at a time.

        scratch  whether it asks for room to work in
        """
        spans = self.spans(tile)
        width = self._width(tile)

        @np.errstate(over="ignore", invalid="ignore")  # here: threads do not inherit it
        def run(span: tuple[int, int]) -> list[Result]:
            slab = self.read(*span)
            room = np.empty(self.m * min(width, slab.shape[1]) if scratch else 0, slab.dtype)
            out = []
            for a in range(0, slab.shape[1], width):
                part = slab[:, a : a + width]
                out.append(kernel(part, slice(span[0] + a, span[0] + a + part.shape[1]), room[: part.size]))
            return out

        workers = threads_to_use() if threads else 1
        if workers == 1:
            for span in spans:
                yield from run(span)
        else:
            for results in shared(run, spans, workers):
                yield from results

    def sum(
        self, kernel: Kernel[Block], *, tile: int = TILE, threads: bool = False, scratch: bool = True
    ) -> NDArray[np.float64]:
        """The kernel's results added up in float64, in the order of the columns.

        On one thread unless told otherwise: one core's products are nearly as fast as memory is, and NumPy holds the
        interpreter while it makes them.
        """
        total: NDArray[np.float64] | None = None
        for part in self.map(kernel, tile=tile, threads=threads, scratch=scratch):
            total = part.astype(np.float64) if total is None else np.add(total, part, out=total)
        assert total is not None
        return total

    def sample(self, columns: int) -> Block:
        """About `columns` columns, in short runs spread evenly over all of them."""
        if self.d <= 2 * columns:
            return self.read(0, self.d)
        starts = np.linspace(0, self.d - SAMPLE_RUN, columns // SAMPLE_RUN).astype(int)
        return self.runs([(a, a + SAMPLE_RUN) for a in starts])

    def runs(self, spans: list[tuple[int, int]]) -> Block:
        """The columns of several spans."""
        return np.concatenate([self.read(*span) for span in spans], axis=1)

    def gather(self, columns: NDArray[np.intp]) -> Block:
        """The given columns (in rising order), in float64."""
        wide = replace(self, wide=True)
        parts = []
        for start, stop in wide.spans():
            inside = columns[(columns >= start) & (columns < stop)]
            if len(inside):
                parts.append(wide.read(start, stop)[:, inside - start])
        return np.concatenate(parts, axis=1)

    def magnitudes(
        self, first: Pass | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.float64]]:
        """Every row's |x_i|, and true; or max_j |x_ij|, and false, where squares overflow or vanish. Then what else the first
        pass over the data found out: its kernel gives the rows' squares, and more.

        Magnitudes are not finite exactly where some number of the row is not.
        """
        sweeps = self.sweeps
        tile = sweeps.tile if sweeps.threads else WHOLE
        first = first or Pass(lambda block, *_: sweeps.row_squares(block), tile, sweeps.threads, scratch=False)

        def extremes(block: Block, _: slice, __: Block) -> Block:
            return np.maximum(block.max(axis=1), -block.min(axis=1))

        with np.errstate(over="ignore", invalid="ignore"):
            sums = self.sum(first.kernel, tile=first.tile, threads=first.threads, scratch=first.scratch)
            norms = np.sqrt(sums[: self.m])
        ordinary = norms < 2.0**SINGLE_ROOM
        if not ordinary.any() or np.median(norms[ordinary]) <= 2.0 ** (-SINGLE_ROOM / 2):
            ordinary[:] = False
        if not ordinary.all():
            # Look at every number. maximum propagates NaN, so one bad number shows in its row.
            odd = np.flatnonzero(~ordinary)
            norms[odd] = np.maximum.reduce(list(self.take(odd).map(extremes)), axis=0)
        return norms, ordinary, sums[self.m :]

    def scaled(self, magnitudes: NDArray[np.float64]) -> Updates:
        """The same updates, read so that sums of squares neither overflow nor vanish.

        Numbers that float32 cannot square are read as float64. Where float64 cannot square them either, all are read times
        one power of two, chosen by the median magnitude, which no minority can move.
        """
        exponents, typical = exponents_of(magnitudes)
        if abs(typical) <= SINGLE_ROOM and exponents.max() <= SINGLE_ROOM:
            return self
        fits = abs(typical) <= DOUBLE_ROOM and exponents.max() <= DOUBLE_ROOM
        return replace(self, wide=True, base=0 if fits else -typical)
