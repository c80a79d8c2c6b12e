"""The directions in which scaled residuals spread most, found in the space of m weights.

The right singular vectors of an m x d matrix A are V = A'U / l, where U are the top eigenvectors of A A'. Whoever can multiply
A A' with a few columns can find them, and the columns have m numbers, not d: a pass over the data is one such product, and with
a Gram matrix it takes no pass at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedhold.kernels import Matrix, Vector

__all__ = ["Principal", "principal"]

NOTHING = 1e-10  # of the largest. Lengths and eigenvalues below this are rounding.


@dataclass(frozen=True, eq=False)
class Principal:
    """The top singular directions v_j of scaled residuals a_i (X_i - c).

    values  the singular values, the largest first
    along   (m, count) <X_i - c, v_j>: how far every client, not scaled, lies along each direction
    """

    values: Vector
    along: Matrix


def principal(
    images: Callable[[Matrix], Matrix], scales: Vector, start: Matrix, *, steps: int, count: int
) -> Principal:
    """The top directions in the Krylov space of A A' that begins with the columns of `start`; A_i = scales_i (X_i - c).

    images  columns of m numbers -> Y Y' @ columns, where the residuals X_i - c are the rows of Y
    scales  the a_i
    start   (m, k) orthonormal columns. With k = m, one step gives the exact answer
    steps   how often to call `images`: the space has k * steps dimensions, or fewer if it is exhausted
    count   how many directions to find; fewer are found where A has a smaller rank

    Rayleigh & Ritz in such a space find a direction that stands out after very few steps (Golub & Underwood 1977). Where none
    stands out, they find directions along which the clients spread nearly as much as along the top ones.
    """
    basis, found = start, images(scales[:, None] * start)
    image = found
    for _ in range(steps - 1):
        block = _new(scales[:, None] * image, basis)
        if not block.size:
            break
        image = images(scales[:, None] * block)
        basis, found = np.hstack([basis, block]), np.hstack([found, image])
    matrix = basis.T @ (scales[:, None] * found)
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    top = np.flatnonzero(values > NOTHING * max(values[-1], 0.0))[::-1][:count]
    lengths = np.sqrt(values[top])
    return Principal(lengths, found @ vectors[:, top] / lengths)


def _new(columns: Matrix, basis: Matrix) -> Matrix:
    """Orthonormal columns that span what the basis does not contain of these."""
    columns = columns / (np.abs(columns).max() or 1.0)  # Now squares of them neither overflow nor vanish.
    for _ in range(2):  # The second time removes what rounding left of the basis.
        columns = columns - basis @ (basis.T @ columns)
    left, lengths, _ = np.linalg.svd(columns, full_matrices=False)
    return left[:, lengths > NOTHING]
