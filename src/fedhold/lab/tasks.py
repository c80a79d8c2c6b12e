"""What is learnt: a model and a loss, with the gradients of all clients at once.

A task is pure: the model is the vector w it is given, chance enters through rng, and gradients are means over the
client's samples,  G_i = (1/n_i) sum_j grad f(w, Z_ij).  `fedhold.lab.torch_task` makes a task of any torch module.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedhold.errors import integer, require
from fedhold.kernels import shared
from fedhold.lab.datasets import Samples
from fedhold.lab.first_layer import Dense, Layer, Part, Sparse, client_products, precision, sparse

__all__ = ["LinearRegression", "Mlp", "Shards", "Task", "shard"]

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True, eq=False)
class Shards:
    """The samples of m clients, sorted by client: client i holds the rows offsets[i] to offsets[i + 1].

    Inputs in bytes are pixels, 0 to 255 for 0 to 1: a quarter of the memory, and of the time it takes to read it.
    """

    inputs: NDArray[Any]
    targets: NDArray[Any]
    offsets: NDArray[np.intp]
    lasting: bool = False  # read in many rounds, so that it pays to prepare them

    @property
    def m(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def counts(self) -> NDArray[np.intp]:
        """n_i."""
        return np.diff(self.offsets)

    @cached_property
    def weights(self) -> Floats:
        """1/n_i for every sample of client i, so that a weighted sum over its samples is their mean."""
        return np.repeat((1 / self.counts).astype(precision(self.inputs)), self.counts)

    def layer(self, hidden: int) -> Layer:
        """As the first layer of a network reads them, which has so many hidden units."""
        found = self._sparse
        return Dense(self.inputs, self.offsets) if found is None or hidden % found.lanes else found

    @cached_property
    def _sparse(self) -> Sparse | None:
        return sparse(self.inputs, self.offsets) if self.lasting else None

    def batch(self, size: int, rng: np.random.Generator) -> "Shards":
        """`size` samples of every client, drawn without replacement; all those of a client that has fewer."""
        integer(size, "size", at_least=1)
        owner = np.repeat(np.arange(self.m), self.counts)
        shuffled = np.lexsort((rng.random(len(owner)), owner))  # within clients; the clients stay in order
        place = np.arange(len(owner)) - np.repeat(self.offsets[:-1], self.counts)
        chosen = shuffled[place < size]
        return Shards(self.inputs[chosen], self.targets[chosen], _offsets(np.minimum(self.counts, size)))


def shard(samples: Samples, parts: Sequence[NDArray[np.intp]]) -> Shards:
    """Sort the samples by client, given who holds which (as `fedhold.lab.partition` says it); copies them once.

    >>> samples = Samples(np.arange(6.0).reshape(3, 2), np.array([10, 20, 30]))
    >>> shard(samples, [np.array([2]), np.array([0, 1])]).targets
    array([30, 10, 20])
    """
    counts = np.array([len(part) for part in parts], dtype=np.intp)
    require(
        len(counts) > 0 and bool((counts > 0).all()),
        "shard",
        needs="at least one client and one sample for each",
        remedy="Use a function of fedhold.lab.partition, which leaves nobody empty.",
        clients=len(counts),
        empty=np.flatnonzero(counts == 0).tolist(),
    )
    order = np.concatenate(parts)
    return Shards(samples.inputs[order], samples.targets[order], _offsets(counts), lasting=True)


class Task(Protocol):
    """What the round loop asks of a model and its loss."""

    @property
    def d(self) -> int:
        """How many parameters."""

    def initial(self, rng: np.random.Generator) -> Floats:
        """(d,) w_0."""

    def gradients(self, w: Floats, shards: Shards, out: Floats | None = None) -> Floats:
        """(m, d) every client's mean gradient at w, in the precision of the samples; into `out` where given."""

    def loss(self, w: Floats, samples: Samples) -> float:
        """The mean of f(w, z) over samples."""

    def evaluate(self, w: Floats) -> dict[str, float]:
        """What is plotted."""


@dataclass(frozen=True, eq=False)
class LinearRegression:
    """f(w, (u, v)) = (1/2) (<u, w> - v)^2, gradient (<u, w> - v) u.  Paper, section 7.1.

    `samples` are the training samples; the plotted rmse is sqrt(mean((<u, w> - v)^2)) over them.

    >>> task = LinearRegression(Samples(np.eye(2), np.array([3.0, 4.0])))
    >>> task.gradients(np.zeros(2), shard(task.samples, [np.array([0, 1])]))
    array([[-1.5, -2. ]])
    """

    samples: Samples

    @property
    def d(self) -> int:
        return int(self.samples.inputs.shape[1])

    def initial(self, rng: np.random.Generator) -> Floats:  # noqa: ARG002
        """Zero: the problem is convex, so nothing is to be had from chance."""
        return np.zeros(self.d, self.samples.inputs.dtype)

    def gradients(self, w: Floats, shards: Shards, out: Floats | None = None) -> Floats:
        w = _vector(w, self.d, shards.inputs)
        out = _buffer(out, shards.m, w)
        residuals = (shards.inputs @ w - shards.targets) * shards.weights
        client_products(residuals[:, None], shards.inputs, shards.offsets, out[:, None, :])
        return out

    def loss(self, w: Floats, samples: Samples) -> float:
        return float(np.mean((samples.inputs @ w - samples.targets) ** 2) / 2)

    def evaluate(self, w: Floats) -> dict[str, float]:
        loss = self.loss(w, self.samples)
        return {"rmse": float(np.sqrt(2 * loss)), "loss": loss}


@dataclass(frozen=True, eq=False)
class Mlp:
    """One hidden layer of ReLU units, softmax cross-entropy.  Paper, section 7.2.

    f(w, (x, y)) = log sum_c exp(z_c) - z_y,  z = W2 max(0, W1 x + b1) + b2,  w = (W1, b1, W2, b2) row by row, which is
    the order of torch.nn.Sequential(Linear(p, hidden), ReLU(), Linear(hidden, classes)).parameters().
    `samples` are the test samples that `evaluate` measures loss and accuracy on.
    """

    samples: Samples
    hidden: int = 32
    classes: int = 10

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        p = int(self.samples.inputs.shape[1])
        return (self.hidden, p), (self.hidden,), (self.classes, self.hidden), (self.classes,)

    @property
    def d(self) -> int:
        return sum(int(np.prod(shape)) for shape in self.shapes)

    def initial(self, rng: np.random.Generator) -> Floats:
        """Every weight and bias uniform in +-1/sqrt(inputs of its layer), as torch.nn.Linear has it."""
        p = self.shapes[0][1]
        fan_in = np.concatenate(
            [np.full(self.hidden * (p + 1), p), np.full(self.classes * (self.hidden + 1), self.hidden)]
        )
        start: Floats = (rng.uniform(-1, 1, self.d) / np.sqrt(fan_in)).astype(precision(self.samples.inputs))
        return start

    def gradients(self, w: Floats, shards: Shards, out: Floats | None = None) -> Floats:
        w = _vector(w, self.d, shards.inputs)
        out = _buffer(out, shards.m, w)
        W1, b1, W2, b2 = self._layers(w)
        _, g1, G2, g2 = self._layers(out)
        unit, layer = _unit(shards.inputs), shards.layer(self.hidden)
        weights = layer.weights(W1 * unit)

        def learn(block: tuple[slice, slice]) -> None:
            clients, rows = block
            y, ends = shards.targets[rows], shards.offsets[clients.start : clients.stop + 1] - rows.start
            part = layer.part(clients, rows)
            hidden, errors = _forward(part, weights, b1, W2, b2)
            errors -= errors.max(axis=0)
            np.exp(errors, out=errors)
            errors /= errors.sum(axis=0)
            errors[y, np.arange(len(y))] -= 1
            errors *= shards.weights[rows]
            back = errors.T @ W2
            back *= np.sign(hidden)
            # A product with ones: np.add.reduceat along samples takes ten times as long.
            client_products(np.ones((len(y), 1), w.dtype), back, ends, g1[clients][:, None])
            client_products(errors.T, hidden, ends, G2[clients])
            g2[clients] = np.add.reduceat(errors, ends[:-1], axis=1).T
            back *= unit
            part.backward(back, out[clients])

        for _ in shared(learn, list(_blocks(shards.offsets, layer.block)), layer.workers):
            pass
        return out

    def loss(self, w: Floats, samples: Samples) -> float:
        return self._measure(w, samples, _one(samples, lasting=False).layer(self.hidden))["loss"]

    def evaluate(self, w: Floats) -> dict[str, float]:
        return self._measure(w, self.samples, self._test.layer(self.hidden))

    @cached_property
    def _test(self) -> Shards:
        return _one(self.samples, lasting=True)

    def _measure(self, w: Floats, samples: Samples, layer: Layer) -> dict[str, float]:
        w, n = _vector(w, self.d, samples.inputs), len(samples.targets)
        W1, b1, W2, b2 = self._layers(w)
        logits, weights = np.empty((self.classes, n)), layer.weights(W1 * _unit(samples.inputs))
        for start in range(0, n, layer.block):
            rows = slice(start, min(start + layer.block, n))
            logits[:, rows] = _forward(layer.part(slice(0, 0), rows), weights, b1, W2, b2)[1]
        top, y = logits.max(axis=0), samples.targets
        losses = np.log(np.exp(logits - top).sum(axis=0)) + top - logits[y, np.arange(len(y))]
        return {"accuracy": float(np.mean(logits.argmax(axis=0) == y)), "loss": float(losses.mean())}

    def _layers(self, flat: Floats) -> list[Floats]:
        """Views of the last axis as W1, b1, W2, b2."""
        ends = np.cumsum([np.prod(shape) for shape in self.shapes])
        pieces = np.split(flat, ends[:-1], axis=-1)
        return [piece.reshape(*flat.shape[:-1], *shape) for piece, shape in zip(pieces, self.shapes, strict=True)]


def _forward(part: Part, weights: Floats, b1: Floats, W2: Floats, b2: Floats) -> tuple[Floats, Floats]:
    """The hidden units, one row per sample, and the logits: classes by samples, so that a maximum or sum over ten classes is
    ten long vector operations.
    """
    hidden = part.forward(weights)
    hidden += b1
    np.maximum(hidden, 0, out=hidden)
    logits: Floats = W2 @ hidden.T
    logits += b2[:, None]
    return hidden, logits


def _unit(inputs: NDArray[Any]) -> Any:
    """What 1 in the inputs stands for."""
    return precision(inputs).type(1 / 255 if inputs.dtype == np.uint8 else 1)


def _one(samples: Samples, *, lasting: bool) -> Shards:
    """All samples in one hand."""
    return Shards(samples.inputs, samples.targets, _offsets(np.array([len(samples.targets)])), lasting)


def _blocks(offsets: NDArray[np.intp], size: int) -> Iterator[tuple[slice, slice]]:
    """Clients, and their rows, in runs of about so many samples."""
    first, m = 0, len(offsets) - 1
    while first < m:
        last = max(first + 1, int(np.searchsorted(offsets, offsets[first] + size, side="right")) - 1)
        yield slice(first, last), slice(int(offsets[first]), int(offsets[last]))
        first = last


def _offsets(counts: NDArray[np.intp]) -> NDArray[np.intp]:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.intp)


def _vector(w: Floats, d: int, inputs: NDArray[Any]) -> Floats:
    require(w.shape == (d,), "w", needs=f"shape ({d},)", remedy="Start from task.initial(rng).", shape=w.shape)
    return w.astype(precision(inputs), copy=False)  # else every product would first copy the samples to w's precision


def _buffer(out: Floats | None, m: int, w: Floats) -> Floats:
    if out is None:
        return np.empty((m, w.size), w.dtype)
    fits = out.shape == (m, w.size) and out.dtype == w.dtype
    needs, remedy = f"shape ({m}, {w.size}) of {w.dtype}", "Leave it away to have one made."
    require(fits, "out", needs=needs, remedy=remedy, shape=out.shape, dtype=out.dtype)
    return out
