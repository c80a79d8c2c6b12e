"""Tasks: a model and a loss, with the gradients of all clients at once, and the shards they are computed from.

A task has no state of its own: it is given the model as the vector w, randomness only through rng, and it returns mean
gradients,  G_i = (1/n_i) sum_j grad f(w, Z_ij).  `TorchTask` makes a task of any torch module.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedhold.errors import integer, require
from fedhold.kernels import Floats, Matrix, Vector
from fedhold.lab.datasets import Samples

# The samples that one step of Mlp works on. A block of MNIST (3 MB as float32) stays in the cache between the forward and the
# backward product, which both read it: a quarter faster than 6,000 samples at once, a tenth faster than 300.
BLOCK = 1024


@dataclass(frozen=True, eq=False)
class Shards:
    """The samples of m clients, sorted by client.

    inputs   (N, p); bytes are pixels, where 0 to 255 stands for 0 to 1, and take a quarter of the memory of float32
    targets  (N,)
    offsets  (m + 1,) client i holds the rows offsets[i] to offsets[i + 1]
    """

    inputs: NDArray[Any]
    targets: NDArray[Any]
    offsets: NDArray[np.intp]

    @property
    def m(self) -> int:
        """The number of clients."""
        return len(self.offsets) - 1

    @cached_property
    def counts(self) -> NDArray[np.intp]:
        """(m,) the number of samples n_i of every client."""
        return np.diff(self.offsets)

    @cached_property
    def weights(self) -> Floats:
        """(N,) 1/n_i for every sample of client i, so that a weighted sum over its samples is their mean."""
        return np.repeat((1 / self.counts).astype(_precision(self.inputs)), self.counts)

    def client(self, i: int) -> Shards:
        """Client i alone, as views of the same memory."""
        rows = slice(int(self.offsets[i]), int(self.offsets[i + 1]))
        return Shards(self.inputs[rows], self.targets[rows], np.array([0, rows.stop - rows.start], dtype=np.intp))

    def subset(self, clients: NDArray[np.intp]) -> Shards:
        """The shards of some clients, in the order of their numbers in `clients`."""
        if len(clients) == self.m:
            return self
        rows = np.concatenate([np.arange(self.offsets[i], self.offsets[i + 1]) for i in clients])
        return Shards(self.inputs[rows], self.targets[rows], _offsets(self.counts[clients]))

    def batch(self, size: int, rng: np.random.Generator) -> Shards:
        """`size` samples of every client, drawn without replacement; all those of a client that has fewer."""
        size = min(integer(size, "size", at_least=1), int(self.counts.max()))
        owner = np.repeat(np.arange(self.m), self.counts)
        shuffled = np.lexsort((rng.random(len(owner)), owner))  # within clients; the clients stay in order
        place = np.arange(len(owner)) - np.repeat(self.offsets[:-1], self.counts)
        chosen = shuffled[place < size]
        return Shards(self.inputs[chosen], self.targets[chosen], _offsets(np.minimum(self.counts, size)))


def shard(samples: Samples, parts: Sequence[NDArray[np.intp]]) -> Shards:
    """Sort the samples by client; copies them once.

    samples  what all clients hold together
    parts    for each client the indices of its samples, as the functions of PARTITIONS return them

    >>> samples = Samples(np.arange(6.0).reshape(3, 2), np.array([10, 20, 30]))
    >>> shard(samples, [np.array([2]), np.array([0, 1])]).targets
    array([30, 10, 20])
    """
    counts = np.array([len(part) for part in parts], dtype=np.intp)
    require(
        len(counts) > 0 and bool((counts > 0).all()),
        "shard",
        needs="at least one client and one sample for each",
        remedy="Use a function of fedhold.lab.PARTITIONS, which leave no client empty.",
        clients=len(counts),
        empty=np.flatnonzero(counts == 0).tolist(),
    )
    order = np.concatenate(parts)
    return Shards(samples.inputs[order], samples.targets[order], _offsets(counts))


class Task(Protocol):
    """What the round loop needs of a model and its loss."""

    @property
    def d(self) -> int:
        """The number of parameters."""

    def initial(self, rng: np.random.Generator) -> Floats:
        """(d,) the model w_0 that learning starts from."""

    def gradients(self, w: Floats, shards: Shards, out: Floats | None = None) -> Floats:
        """(m, d) every client's mean gradient at w, in the precision of the samples; written into `out` if given."""

    def evaluate(self, w: Floats) -> dict[str, float]:
        """The metrics that are plotted, by name."""


@runtime_checkable
class Measurable(Protocol):
    """A task that can be measured on other samples than its own: what an attack's success is told from."""

    @property
    def samples(self) -> Samples:
        """The samples that `evaluate` measures on."""

    def measure(self, w: Floats, samples: Samples) -> dict[str, float]:
        """The metrics on these samples, by name; "accuracy" is one of them where targets are classes."""


@runtime_checkable
class Guarding(Protocol):
    """A task whose loss can be had for each sample: what a guard decides by."""

    def losses(self, w: Floats, samples: Samples) -> Vector:
        """The loss at w on each of the samples."""


@dataclass(frozen=True, eq=False)
class LinearRegression:
    """f(w, (u, v)) = factor (<u, w> - v)^2, gradient 2 factor (<u, w> - v) u.  Paper, section 7.1.

    samples  the training samples; the plotted rmse is sqrt(mean((<u, w> - v)^2)) over them
    factor   1/2 makes the gradient the residual times u; 1 makes it twice as long

    >>> task = LinearRegression(Samples(np.eye(2), np.array([3.0, 4.0])))
    >>> task.gradients(np.zeros(2), shard(task.samples, [np.array([0, 1])]))
    array([[-1.5, -2. ]])
    """

    samples: Samples
    factor: float = 0.5

    @property
    def d(self) -> int:
        return int(self.samples.inputs.shape[1])

    def initial(self, rng: np.random.Generator) -> Floats:  # noqa: ARG002
        """Zero: the problem is convex, so a random start would gain nothing."""
        return np.zeros(self.d, self.samples.inputs.dtype)

    def gradients(self, w: Floats, shards: Shards, out: Floats | None = None) -> Floats:
        w = _checked(w, self.d, shards.inputs, self.d)
        out = _buffer(out, shards.m, w)
        residuals = (shards.inputs @ w - shards.targets) * shards.weights * w.dtype.type(2 * self.factor)
        _client_products(residuals[:, None], shards.inputs, shards.offsets, out[:, None, :])
        return out

    def evaluate(self, w: Floats) -> dict[str, float]:
        return self.measure(w, self.samples)

    def measure(self, w: Floats, samples: Samples) -> dict[str, float]:
        """The metrics on other samples than the task's own."""
        loss = float(np.mean(self.losses(w, samples)))
        return {"rmse": float(np.sqrt(loss / self.factor)), "loss": loss}

    def losses(self, w: Floats, samples: Samples) -> Vector:
        """The loss on each sample."""
        losses: Vector = (samples.inputs @ w - samples.targets) ** 2 * self.factor
        return losses


@dataclass(frozen=True, eq=False)
class Mlp:
    """One hidden layer of ReLU units, softmax cross-entropy.  Paper, section 7.2.

    f(w, (x, y)) = log sum_c exp(z_c) - z_y,  z = W2 max(0, W1 x + b1) + b2,  w = (W1, b1, W2, b2) row by row, which is
    the order of torch.nn.Sequential(Linear(p, hidden), ReLU(), Linear(hidden, classes)).parameters().

    samples  the test samples that `evaluate` measures loss and accuracy on
    hidden   the number of ReLU units
    classes  the number of classes; targets are 0 to classes - 1

    >>> task = Mlp(Samples(np.eye(3), np.array([0, 1, 1])), hidden=4, classes=2)
    >>> task.d  # (3 + 1) * 4 + (4 + 1) * 2
    26
    >>> task.gradients(task.initial(np.random.default_rng(0)), shard(task.samples, [np.arange(2), np.array([2])])).shape
    (2, 26)
    """

    samples: Samples
    hidden: int = 32
    classes: int = 10

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of W1, b1, W2 and b2."""
        p = int(self.samples.inputs.shape[1])
        return (self.hidden, p), (self.hidden,), (self.classes, self.hidden), (self.classes,)

    @property
    def d(self) -> int:
        return sum(int(np.prod(shape)) for shape in self.shapes)

    def initial(self, rng: np.random.Generator) -> Floats:
        """Every weight and bias uniform in +-1/sqrt(inputs of its layer), as torch.nn.Linear draws them."""
        p = self.shapes[0][1]
        fan_in = np.concatenate(
            [np.full(self.hidden * (p + 1), p), np.full(self.classes * (self.hidden + 1), self.hidden)]
        )
        start: Floats = (rng.uniform(-1, 1, self.d) / np.sqrt(fan_in)).astype(_precision(self.samples.inputs))
        return start

    def gradients(self, w: Floats, shards: Shards, out: Floats | None = None) -> Floats:
        w = _checked(w, self.d, shards.inputs, self.shapes[0][1])
        out = _buffer(out, shards.m, w)
        unit, layers, (G1, g1, G2, g2) = _unit(shards.inputs), self._layers(w), self._layers(out)
        scaled = layers._replace(W1=unit * layers.W1)
        for clients, rows in _blocks(shards.offsets):
            y, ends = shards.targets[rows], shards.offsets[clients.start : clients.stop + 1] - rows.start
            x = shards.inputs[rows].astype(w.dtype, copy=False)
            hidden, errors = _forward(x, scaled)
            errors -= errors.max(axis=0)
            np.exp(errors, out=errors)
            errors /= errors.sum(axis=0)
            errors[y, np.arange(len(y))] -= 1
            errors *= shards.weights[rows]
            back = errors.T @ layers.W2
            back *= np.sign(hidden)
            # A product with ones: np.add.reduceat along samples takes ten times as long.
            _client_products(np.ones((len(y), 1), w.dtype), back, ends, g1[clients][:, None])
            _client_products(errors.T, hidden, ends, G2[clients])
            g2[clients] = np.add.reduceat(errors, ends[:-1], axis=1).T
            back *= unit
            _client_products(back, x, ends, G1[clients])
        return out

    def evaluate(self, w: Floats) -> dict[str, float]:
        return self.measure(w, self.samples)

    def measure(self, w: Floats, samples: Samples) -> dict[str, float]:
        """The metrics on other samples than the task's own."""
        logits = self._logits(w, samples)
        right = logits.argmax(axis=0) == samples.targets
        return {"accuracy": float(np.mean(right)), "loss": float(_cross_entropy(logits, samples.targets).mean())}

    def losses(self, w: Floats, samples: Samples) -> Vector:
        """The loss on each sample."""
        return _cross_entropy(self._logits(w, samples), samples.targets)

    def _logits(self, w: Floats, samples: Samples) -> Matrix:
        """Classes by samples."""
        w, y = _checked(w, self.d, samples.inputs, self.shapes[0][1]), samples.targets
        layers, logits = self._layers(w), np.empty((self.classes, len(y)))
        scaled = layers._replace(W1=_unit(samples.inputs) * layers.W1)
        for start in range(0, len(y), BLOCK):
            rows = slice(start, start + BLOCK)
            x = samples.inputs[rows].astype(w.dtype, copy=False)
            logits[:, rows] = _forward(x, scaled).logits
        return logits

    def _layers(self, flat: Floats) -> _Layers:
        """Views of the last axis."""
        ends = np.cumsum([np.prod(shape) for shape in self.shapes])
        pieces = np.split(flat, ends[:-1], axis=-1)
        shapes = zip(pieces, self.shapes, strict=True)
        return _Layers(*(piece.reshape(*flat.shape[:-1], *shape) for piece, shape in shapes))


class _Layers(NamedTuple):
    """The parameters of Mlp, or their gradients."""

    W1: Floats
    b1: Floats
    W2: Floats
    b2: Floats


class _Activations(NamedTuple):
    """The hidden units with one row per sample, and the logits as classes by samples: a maximum or a sum over ten classes
    is then ten operations on long vectors.
    """

    hidden: Floats
    logits: Floats


def _forward(x: Floats, layers: _Layers) -> _Activations:
    hidden: Floats = x @ layers.W1.T
    hidden += layers.b1
    np.maximum(hidden, 0, out=hidden)
    logits: Floats = layers.W2 @ hidden.T
    logits += layers.b2[:, None]
    return _Activations(hidden, logits)


def _cross_entropy(logits: Matrix, classes: NDArray[Any]) -> Vector:
    top = logits.max(axis=0)
    losses: Vector = np.log(np.exp(logits - top).sum(axis=0)) + top - logits[classes, np.arange(len(classes))]
    return losses


def _client_products(left: Floats, right: Floats, offsets: NDArray[np.intp], out: Floats) -> None:
    """out_i = left_i^T right_i, with left_i and right_i the rows of client i: (m, a, b) from (N, a) and (N, b)."""
    m, counts = len(offsets) - 1, np.diff(offsets)
    if (counts == counts[0]).all():
        clients = left.reshape(m, -1, left.shape[1]).transpose(0, 2, 1)
        np.matmul(clients, right.reshape(m, -1, right.shape[1]), out=out)
        return
    # One small product per client is efficient at any n_i; padding to the largest n_i costs far more.
    bounds = offsets.tolist()
    for target, start, stop in zip(out, bounds, bounds[1:], strict=False):
        np.matmul(left[start:stop].T, right[start:stop], out=target)


def _blocks(offsets: NDArray[np.intp]) -> Iterator[tuple[slice, slice]]:
    """Clients, and their rows, in runs of at most BLOCK samples; a client with more samples is a block by itself."""
    first, m = 0, len(offsets) - 1
    while first < m:
        last = max(first + 1, int(np.searchsorted(offsets, offsets[first] + BLOCK, side="right")) - 1)
        yield slice(first, last), slice(int(offsets[first]), int(offsets[last]))
        first = last


def _offsets(counts: NDArray[np.intp]) -> NDArray[np.intp]:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.intp)


def _precision(inputs: NDArray[Any]) -> np.dtype[Any]:
    """The precision to compute in: that of the inputs; float32 for pixels in bytes, float64 for other integers."""
    if inputs.dtype.kind == "f":
        return inputs.dtype
    return np.dtype(np.float32 if inputs.dtype == np.uint8 else np.float64)


def _unit(inputs: NDArray[Any]) -> Any:
    """The number that a 1 in the inputs stands for: 1/255 for pixels in bytes."""
    return _precision(inputs).type(1 / 255 if inputs.dtype == np.uint8 else 1)


def _checked(w: Floats, d: int, inputs: NDArray[Any], p: int) -> Floats:
    """w in the precision of the samples: with another one, every product would first convert all samples to it."""
    require(w.shape == (d,), "w", needs=f"shape ({d},)", remedy="Start from task.initial(rng).", shape=w.shape)
    remedy, columns = "Train and test on samples of the same kind.", inputs.shape[1]
    require(columns == p, "samples", needs=f"{p} columns", remedy=remedy, columns=columns)
    return w.astype(_precision(inputs), copy=False)


def _buffer(out: Floats | None, m: int, w: Floats) -> Floats:
    if out is None:
        return np.empty((m, w.size), w.dtype)
    fits = out.shape == (m, w.size) and out.dtype == w.dtype
    needs, remedy = f"shape ({m}, {w.size}) of {w.dtype}", "Omit it to have one made."
    require(fits, "out", needs=needs, remedy=remedy, shape=out.shape, dtype=out.dtype)
    return out
