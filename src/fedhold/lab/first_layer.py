"""The two products of a network's first layer with everybody's samples, which take nearly all of a gradient's time.

Samples that are mostly zeros, as pixels are, are read without these by compiled code; all others go to BLAS.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fedhold.errors import require
from fedhold.kernels import threads, worth_compiling

__all__ = ["Dense", "Layer", "Part", "Sparse", "client_products", "precision", "sparse"]

Floats = NDArray[np.floating[Any]]

FILLED = 0.35  # at most, to leave zeros out: about at 0.45 both ways take the same time
SHARED = 16  # samples of a client, on average and at least: else what is kept for each of its columns outweighs them
SHORT = 2**16  # columns, and samples of a client, that two bytes can number


class Part(Protocol):
    """The samples of some clients, the rows of x."""

    def forward(self, weights: Floats) -> Floats:
        """(n, hidden) x W^T, with weights as Layer.weights gave them."""

    def backward(self, back: Floats, out: Floats) -> None:
        """back_i^T x_i for each of the clients, (hidden, p) row by row, into the first columns of out[i]."""


class Layer(Protocol):
    """The samples of all clients."""

    @property
    def block(self) -> int:
        """Samples to work on together."""

    @property
    def workers(self) -> int:
        """Threads that may do so at once."""

    def weights(self, W: Floats) -> Floats:
        """The layer's weights, (hidden, p), as forward() wants them."""

    def part(self, clients: slice, rows: slice) -> Part:
        """Some of them."""


class Dense:
    """Any samples; those in bytes become floats on the way. A part is good until the next one is asked for."""

    # One block of MNIST (3 MB) stays in the cache between the forward and the backward product, which read it both: a tenth
    # faster than all 60,000 samples at once.
    block = 1024
    workers = 1  # BLAS has threads of its own

    def __init__(self, inputs: NDArray[Any], offsets: NDArray[np.intp]) -> None:
        self._inputs, self._offsets = inputs, offsets
        self._room = np.empty((0, inputs.shape[1]), precision(inputs))

    def weights(self, W: Floats) -> Floats:
        return W

    def part(self, clients: slice, rows: slice) -> Part:
        x, offsets = self._inputs[rows], self._offsets[clients.start : clients.stop + 1] - rows.start
        if x.dtype != self._room.dtype:
            if len(self._room) < len(x):
                self._room = np.empty(x.shape, self._room.dtype)
            np.copyto(self._room[: len(x)], x)
            x = self._room[: len(x)]
        return _Dense(x, offsets)


class _Dense(NamedTuple):
    x: Floats
    offsets: NDArray[np.intp]

    def forward(self, weights: Floats) -> Floats:
        return self.x @ weights.T

    def backward(self, back: Floats, out: Floats) -> None:
        shape = (len(out), back.shape[1], self.x.shape[1])
        client_products(back, self.x, self.offsets, out[:, : shape[1] * shape[2]].reshape(shape))


@dataclass(frozen=True, eq=False)
class Sparse:
    """Bytes, mostly zeros; made once for many rounds. What is not zero is kept by samples and, when asked for, by columns."""

    inputs: NDArray[np.uint8]
    offsets: NDArray[np.intp]

    block = 512  # the small products in between stay below what BLAS calls other threads for

    @property
    def workers(self) -> int:
        return threads()

    @property
    def lanes(self) -> int:
        """The hidden units are so many, or a multiple."""
        from fedhold.lab.compiled_sparse import LANES

        return LANES

    def weights(self, W: Floats) -> Floats:
        columns, remedy = self.inputs.shape[1], "Train and test on samples of the same kind."
        require(W.shape[1] == columns, "samples", needs=f"{W.shape[1]} columns", remedy=remedy, columns=columns)
        return np.ascontiguousarray(W.T)

    def part(self, clients: slice, rows: slice) -> Part:
        return _Sparse(self, clients, rows)

    @cached_property
    def by_sample(self) -> tuple[NDArray[np.intp], NDArray[np.uint16], NDArray[np.uint8]]:
        from fedhold.lab.compiled_sparse import by_sample

        starts, places, values = np.empty(len(self.inputs) + 1, np.intp), *self._room()
        by_sample(self.inputs, starts, places, values)
        return starts, places, values

    @cached_property
    def by_client(self) -> tuple[NDArray[np.intp], NDArray[np.uint16], NDArray[np.uint8]]:
        from fedhold.lab.compiled_sparse import by_client

        starts, places, values = np.empty((len(self.offsets) - 1, self.inputs.shape[1] + 1), np.intp), *self._room()
        by_client(self.inputs, self.offsets, starts, places, values)
        return starts, places, values

    def _room(self) -> tuple[NDArray[np.uint16], NDArray[np.uint8]]:
        places = np.count_nonzero(self.inputs) + 1
        return np.empty(places, np.uint16), np.empty(places, np.uint8)


class _Sparse(NamedTuple):
    layer: Sparse
    clients: slice
    rows: slice

    def forward(self, weights: Floats) -> Floats:
        from fedhold.lab.compiled_sparse import forward

        out = np.empty((self.rows.stop - self.rows.start, weights.shape[1]), np.float32)
        forward(*self.layer.by_sample, self.rows.start, weights, out)
        return out

    def backward(self, back: Floats, out: Floats) -> None:
        from fedhold.lab.compiled_sparse import backward

        offsets = self.layer.offsets[self.clients.start : self.clients.stop + 1] - self.rows.start
        rows = out if out.flags.c_contiguous else np.array(out, order="C")
        backward(*self.layer.by_client, self.clients.start, offsets, np.ascontiguousarray(back), rows)
        if rows is not out:
            out[:] = rows


def sparse(inputs: NDArray[Any], offsets: NDArray[np.intp]) -> Sparse | None:
    """Samples to be read many times, without their zeros; None where that would be no faster."""
    (n, columns), counts = inputs.shape, np.diff(offsets)
    whole = offsets[0] == 0 and offsets[-1] == n and counts.min() > 0  # compiled code takes that for granted
    short = columns < SHORT and counts.max() < SHORT
    if inputs.dtype != np.uint8 or not (whole and short and n >= SHARED * len(counts) and worth_compiling(inputs.size)):
        return None
    return Sparse(np.ascontiguousarray(inputs), offsets) if np.count_nonzero(inputs) <= FILLED * inputs.size else None


def precision(inputs: NDArray[Any]) -> np.dtype[Any]:
    """What to reckon in: as the inputs are; float32 for pixels, float64 for other integers."""
    return (
        inputs.dtype if inputs.dtype.kind == "f" else np.dtype(np.float32 if inputs.dtype == np.uint8 else np.float64)
    )


def client_products(left: Floats, right: Floats, offsets: NDArray[np.intp], out: Floats) -> None:
    """out_i = left_i^T right_i, with left_i and right_i the rows of client i: (m, a, b) from (N, a) and (N, b)."""
    m, counts = len(offsets) - 1, np.diff(offsets)
    if (counts == counts[0]).all():
        clients = left.reshape(m, -1, left.shape[1]).transpose(0, 2, 1)
        np.matmul(clients, right.reshape(m, -1, right.shape[1]), out=out)
        return
    # One small product per client keeps BLAS busy at any n_i; padding to the largest n_i costs far more.
    bounds = offsets.tolist()
    for target, start, stop in zip(out, bounds, bounds[1:], strict=False):
        np.matmul(left[start:stop].T, right[start:stop], out=target)
