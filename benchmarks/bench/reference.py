"""The answers of huber and geometric_median, found another way: plain fixed-point steps in float64 on a Gram matrix.

Of the library's own code, only the definition of the automatic threshold is used, none of its passes and solvers. The
clients are read in blocks of columns, relative to the client that is nearest to the others, so that no float64 copy of
all of them is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fedhold.kernels import Floats, Matrix, Vector
from fedhold.thresholds import automatic

BLOCK = 2**23  # numbers in a block of columns: 64 MB in float64
LOOKED_AT = 4096  # columns that are enough to find the client nearest to the others
STEPS = 100_000
CLOSE = 1e-13  # a step that moves the weights by less, summed over the clients, is the last


def _huber(distances: Vector) -> Vector:
    pulls: Vector = np.minimum(1.0, automatic()(distances, np.ones(len(distances))) / distances)
    return pulls


def _geometric_median(distances: Vector) -> Vector:
    return 1 / distances


# For each rule, what it weighs a client by, before normalisation, given the distances of the clients to the centre.
PULLS: dict[str, Callable[[Vector], Vector]] = {"huber": _huber, "geometric_median": _geometric_median}


@dataclass(frozen=True)
class Reference:
    """The exact answer of a rule.

    weights  one per client; the answer is the sum of weights times clients
    typical  the median distance of a client to the answer
    """

    weights: Vector
    typical: float


def gram(X: Floats) -> Matrix:
    """(m, m) products <X_i - r, X_j - r> in float64; r is the client with the smallest median distance to the others."""
    columns = X[:, :: max(1, X.shape[1] // LOOKED_AT)].astype(np.float64)
    columns -= columns[0]
    squares = np.einsum("ij,ij->i", columns, columns)
    nearest = int(np.median(squares[:, None] + squares - 2 * columns @ columns.T, axis=1).argmin())
    total = np.zeros((len(X), len(X)))
    for part in _blocks(X):
        block = X[:, part].astype(np.float64)
        block -= block[nearest].copy()
        total += block @ block.T
    return total


def solve(products: Matrix, rule: str) -> Reference:
    """Repeat w <- pulls(distances of the clients to the centre w @ X), normalised, until w stands still.

    products  the Gram matrix of the clients
    rule      a key of PULLS
    """
    m, squares = len(products), products.diagonal()
    weights = np.full(m, 1 / m)
    for _ in range(STEPS):
        along = products @ weights
        distances = np.sqrt(np.maximum(squares - 2 * along + weights @ along, 0))
        pulls = PULLS[rule](distances)
        stepped = pulls / pulls.sum()
        if np.abs(stepped - weights).sum() <= CLOSE:
            return Reference(stepped, float(np.median(distances)))
        weights = stepped
    raise RuntimeError(
        f"the reference of {rule} still moves after {STEPS} steps: its answer may sit on a client. Try other data."
    )


def off_by(X: Floats, reference: Reference, values: Sequence[Floats]) -> list[float]:
    """The distance of each of the `values` to the reference, in units of the typical distance of a client to it."""
    squares = np.zeros(len(values))
    for part in _blocks(X):
        centre = reference.weights @ X[:, part].astype(np.float64)
        squares += [float(np.sum((value[part] - centre) ** 2)) for value in values]
    off: list[float] = (np.sqrt(squares) / reference.typical).tolist()
    return off


def _blocks(X: Floats) -> Iterator[slice]:
    width = max(1, BLOCK // len(X))
    return (slice(start, start + width) for start in range(0, X.shape[1], width))
