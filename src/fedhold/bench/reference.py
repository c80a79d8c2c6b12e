"""What huber and geometric_median should give, found another way: plain fixed-point steps in float64 on a Gram matrix.

Nothing of the library's own passes or solver is used, only the definition of the automatic threshold. The clients are
read in blocks of columns, around the client that is nearest to the others, so that no float64 copy of them is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedhold.kernels import Vector
from fedhold.thresholds import automatic

__all__ = ["PULLS", "Reference", "gram", "off_by", "solve"]

Matrix = NDArray[np.float64]
BLOCK = 2**23  # numbers in a block of columns: 64 MB in float64
LOOKED_AT = 4096  # columns that tell which client is nearest to the others
STEPS, CLOSE = 100_000, 1e-13


def _huber(distances: Vector) -> Vector:
    pulls: Vector = np.minimum(1.0, automatic()(distances, np.ones(len(distances))) / distances)
    return pulls


def _geometric_median(distances: Vector) -> Vector:
    return 1 / distances


PULLS: dict[str, Callable[[Vector], Vector]] = {"huber": _huber, "geometric_median": _geometric_median}


@dataclass(frozen=True)
class Reference:
    """The minimiser as the sum of `weights` times clients, and the median distance of a client to it."""

    weights: Vector
    typical: float


def gram(X: NDArray[np.floating]) -> Matrix:
    """(m, m) <X_i - r, X_j - r> in float64, r the client with the smallest median distance to the others."""
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
    """w <- pull(d_i), normalised, with d_i the distance of client i to the centre that w makes; until w stands still."""
    m, squares = len(products), products.diagonal()
    weights, distances = np.full(m, 1 / m), np.ones(m)
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


def off_by(X: NDArray[np.floating], reference: Reference, values: Sequence[NDArray[np.floating]]) -> list[float]:
    """|value - reference| in units of the typical distance, for every value."""
    squares = np.zeros(len(values))
    for part in _blocks(X):
        centre = reference.weights @ X[:, part].astype(np.float64)
        squares += [float(np.sum((value[part] - centre) ** 2)) for value in values]
    off: list[float] = (np.sqrt(squares) / reference.typical).tolist()
    return off


def _blocks(X: NDArray[np.floating]) -> Iterator[slice]:
    width = max(1, BLOCK // len(X))
    return (slice(start, start + width) for start in range(0, X.shape[1], width))
