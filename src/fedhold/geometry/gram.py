"""The Gram matrix: m x m products that answer every question about distances without another look at the data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedhold.kernels import RUN, Block, Vector
from fedhold.updates import SLAB, Pass, Updates

__all__ = ["Gram", "Residuals", "central_client", "gram_pass", "residuals"]

CENTRAL_COLUMNS = 256
NEAR = 4  # times the clients' squared distances to the middle: then no digits are lost that matter
SQUARE_RUN = 32  # squares to add up in float32 where lengths must be nearly exact
MANY = 256  # clients, from which BLAS is faster by itself than compiled code shared by threads


@dataclass(frozen=True, eq=False)
class Gram:
    """<X_i - r, X_j - r> for all pairs, r one of the clients, or 0 where that is near: what all of them share has come off."""

    base: NDArray[np.float64]
    mixture: NDArray[np.float64] | None = None

    @cached_property
    def matrix(self) -> NDArray[np.float64]:
        """Of the clients, or of the points that the mixture makes of them."""
        return self.base if self.mixture is None else self.mixture @ self.base @ self.mixture.T

    def distances(self, weights: Vector, resolution: float) -> Vector | None:
        """|X_i - sum_j weights_j X_j| of every client; None where that would lose too many digits."""
        towards = self.matrix @ weights
        own, size = self.matrix.diagonal(), float(weights @ towards)
        squares = own - 2 * towards + size
        doubt = resolution * (own + size + 2 * np.sqrt(own) * np.sqrt(abs(size)))
        return np.sqrt(squares) if (squares > 1e5 * doubt).all() else None

    def fine(self, resolution: float) -> bool:
        """Whether the client that came off is near enough to most others for their distances to keep their digits."""
        half = len(self.matrix) // 2
        typical = np.median(np.partition(self.squared_distances, half, axis=1)[:, half])
        return bool(np.isfinite(self.matrix).all() and typical > 1e5 * resolution * np.median(self.matrix.diagonal()))

    @cached_property
    def squared_distances(self) -> NDArray[np.float64]:
        """|X_i - X_j|^2 for all pairs, exactly 0 on the diagonal."""
        own = self.matrix.diagonal()
        squares = np.maximum(own[:, None] + own - 2 * self.matrix, 0)
        np.fill_diagonal(squares, 0)
        return squares

    def mixed(self, mixture: NDArray[np.float64]) -> Gram | None:
        """Of the points mixture @ X; None unless the rows of the mixture sum to 1."""
        whole = np.allclose(mixture.sum(axis=1), 1, rtol=0, atol=1e-9)
        return Gram(self.matrix, mixture) if whole else None


def central_client(updates: Updates) -> int | None:
    """A client near the middle of most others, as far as a sample of columns tells; numbers may be anything. None where 0 is
    about as near to them as they are to each other.
    """
    sample = updates.sample(CENTRAL_COLUMNS)
    with np.errstate(over="ignore", invalid="ignore"):
        middle = np.sort(sample, axis=0)[updates.m // 2]
        squares = np.square(sample - middle).sum(axis=1)
        near = np.median(np.square(sample).sum(axis=1)) <= NEAR * np.median(squares)
    return None if near else int(np.argmin(np.where(np.isfinite(squares), squares, np.inf)))


def gram_pass(updates: Updates, client: int | None) -> Pass:
    """For the first pass over the data: the rows' squares, and the matrix around this client, or 0, flat."""
    fast, sweeps = _compiled(updates), updates.sweeps

    def interpreted(block: Block, _: slice, scratch: Block) -> Vector:
        residual = block if client is None else np.subtract(block, block[client], out=scratch.reshape(block.shape))
        return np.append(sweeps.row_squares(block), residual @ residual.T)

    if fast is None:
        return Pass(interpreted, updates.long_tile, threads=False, scratch=client is not None)

    def compiled(block: Block, _: slice, __: Block) -> Vector:
        products, squares = fast(block, np.zeros_like(block[0]) if client is None else block[client])
        return np.append(squares, products)

    return Pass(compiled, _tile(updates), threads=True, scratch=False)


def _compiled(updates: Updates) -> Callable[..., tuple[Vector, Vector]] | None:
    if not updates.sweeps.threads or updates.m > MANY:
        return None
    from fedhold.kernels.compiled_gram import gram

    return gram


def _tile(updates: Updates) -> int:
    """Enough numbers for the matrix that comes of them to be small beside them."""
    return max(updates.sweeps.tile, 32 * updates.m**2)


@dataclass(frozen=True, eq=False)
class Residuals:
    """Of X_i - place, all pairs: products, lengths, and by how much their quotients, the cosines, can be off at most."""

    products: NDArray[np.float64]
    lengths: Vector
    error: float


def residuals(updates: Updates, place: Vector, distances: Vector) -> Residuals:
    """With a proven error, however the sums of a run are ordered: n products are off by n roundings of |x| |y| at most.

    `distances` are about the lengths: where float32 would underflow, float64 is read. The place is rounded as the updates are.
    """
    some = distances[distances > 0]
    if len(some) and np.square(some.min()) < updates.d * 2.0**-80:
        updates = replace(updates, wide=True)
    m, fast = updates.m, _compiled(updates)

    def interpreted(block: Block, at: slice, scratch: Block) -> Vector:
        residual = np.subtract(block, place[at].astype(block.dtype), out=scratch.reshape(block.shape))
        found = np.zeros(m + m * m)
        squares, products = found[:m], found[m:].reshape(m, m)
        for part, run in _runs(residual, RUN):
            for piece in part:
                products += piece @ piece.T
            for piece, _ in _runs(residual[:, run], SQUARE_RUN):
                squares += np.vecdot(piece, piece).sum(axis=0, dtype=np.float64)
        return found

    def compiled(block: Block, at: slice, _: Block) -> Vector:
        assert fast is not None
        products, squares = fast(block, place[at].astype(block.dtype), exactly=True)
        return np.append(squares, products)

    if fast is None:
        found = updates.sum(interpreted, tile=max(SLAB, m * RUN))
    else:
        found = updates.sum(compiled, tile=_tile(updates), threads=True, scratch=False)
    single = not updates.wide and any(source.dtype is np.float32 for source in updates.sources)
    # 64 more for the lengths, which are off by half of SQUARE_RUN each, for rounding the differences and for the sums.
    error = (RUN + 64) * float(np.finfo(np.float32 if single else np.float64).eps)
    return Residuals(found[m:].reshape(m, m), np.sqrt(found[:m]), error)


def _runs(block: Block, length: int) -> Iterator[tuple[Block, slice]]:
    """(runs, m, length) views of the block's columns, and the columns that do not fill one."""
    m, width = block.shape
    whole = width - width % length
    if whole:
        yield block[:, :whole].reshape(m, -1, length).transpose(1, 0, 2), slice(0, whole)
    if whole < width:
        yield block[None, :, whole:], slice(whole, width)
