"""The Gram matrix: m x m products that answer every question about distances without another look at the data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from holdfast.arrays import Vector
from holdfast.updates import Block, Kernel, Updates

__all__ = ["Gram", "Residuals", "central_client", "gram_kernel", "residuals"]

CENTRAL_COLUMNS = 256
RUN, SQUARE_RUN = 1024, 32  # products, and squares, to add up in float32 before float64 goes on


@dataclass(frozen=True, eq=False)
class Gram:
    """<X_i - r, X_j - r> for all pairs, r one of the clients: what all of them share has come off."""

    matrix: NDArray[np.float64]

    def distances(self, weights: Vector, resolution: float) -> Vector | None:
        """|X_i - sum_j weights_j X_j| of every client; None where that would lose too many digits."""
        towards = self.matrix @ weights
        own, size = self.matrix.diagonal(), float(weights @ towards)
        squares = own - 2 * towards + size
        doubt = resolution * (own + size + 2 * np.sqrt(own) * np.sqrt(abs(size)))
        return np.sqrt(squares) if (squares > 1e5 * doubt).all() else None

    def fine(self, resolution: float) -> bool:
        """Whether the client that came off is near enough to most others for their distances to keep their digits."""
        typical = np.median(np.median(self.squared_distances, axis=1))
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
        return Gram(mixture @ self.matrix @ mixture.T) if whole else None


def central_client(updates: Updates) -> int:
    """A client near the middle of most others, as far as a sample of columns tells; numbers may be anything."""
    sample = updates.sample(CENTRAL_COLUMNS)
    with np.errstate(over="ignore", invalid="ignore"):
        middle = np.sort(sample, axis=0)[updates.m // 2]
        squares = np.square(sample - middle).sum(axis=1)
    return int(np.argmin(np.where(np.isfinite(squares), squares, np.inf)))


def gram_kernel(client: int) -> Kernel[Block]:
    """For a pass over the data: the matrix around this client, flat."""

    def kernel(block: Block, _: slice, scratch: Block) -> Block:
        residual = np.subtract(block, block[client], out=scratch.reshape(block.shape))
        return (residual @ residual.T).reshape(-1)

    return kernel


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
    m = updates.m

    def kernel(block: Block, at: slice, scratch: Block) -> Vector:
        residual = np.subtract(block, place[at].astype(block.dtype), out=scratch.reshape(block.shape))
        products, squares = np.zeros((m, m)), np.zeros(m)
        for part, run in _runs(residual, RUN):
            products += np.matmul(part, part.transpose(0, 2, 1)).sum(axis=0, dtype=np.float64)
            for piece, _ in _runs(residual[:, run], SQUARE_RUN):
                squares += np.vecdot(piece, piece).sum(axis=0, dtype=np.float64)
        return np.append(products.reshape(-1), squares)

    found = updates.sum(kernel, tile=updates.long_tile)
    single = not updates.wide and any(source.dtype is np.float32 for source in updates.sources)
    # 64 more for the lengths, which are off by half of SQUARE_RUN each, for rounding the differences and for the sums.
    error = (RUN + 64) * float(np.finfo(np.float32 if single else np.float64).eps)
    return Residuals(found[: m * m].reshape(m, m), np.sqrt(found[m * m :]), error)


def _runs(block: Block, length: int) -> Iterator[tuple[Block, slice]]:
    """(runs, m, length) views of the block's columns, and the columns that do not fill one."""
    m, width = block.shape
    whole = width - width % length
    if whole:
        yield block[:, :whole].reshape(m, -1, length).transpose(1, 0, 2), slice(0, whole)
    if whole < width:
        yield block[None, :, whole:], slice(whole, width)
