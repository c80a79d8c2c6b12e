"""The Gram matrix: m x m products from which all distances follow without another pass over the data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import NamedTuple

import numpy as np

from fedhold.kernels import Matrix, Vector, Weights, middle

__all__ = ["TRUSTED", "Gram", "Origin", "ResidualPairs"]

# A squared distance that was found as a difference of products is trusted if it is this many times its rounding error: it is
# then right to five digits. If one client's is not, all distances are measured by subtraction instead.
TRUSTED = 1e5
# Products of mixed points are sums of products of clients. Where huge clients cancel out in a point, their rounding error may
# be all that is left of it, and could put the point anywhere. So the error must be this many times smaller than the point's
# squared distance to the reference, or to other points.
SOUND = 100.0
# A proof is made from the matrix if no cosine between residuals can be off by more than this, some ten times what it is off by
# where r is one of the nearer clients. A matrix made for the proof is off by less.
LARGE = 2e-3


class Origin(NamedTuple):
    """A point more, beside the clients.

    along  <X_i - r, origin - r> of every client
    size   |origin - r|^2
    """

    along: Vector
    size: float


@dataclass(frozen=True, eq=False)
class ResidualPairs:
    """The residuals X_i - place of all clients.

    products  <X_i - place, X_j - place> for all pairs
    lengths   |X_i - place|
    force     |sum_i pulls_i (X_i - place)|, or more
    error     the most that a cosine, a product over two lengths, can be off
    doubt     the relative error of the lengths, or more
    """

    products: Matrix
    lengths: Vector
    force: float
    error: float
    doubt: float


@dataclass(frozen=True, eq=False)
class Gram:
    """<X_i - r, X_j - r> for all pairs, where r is one of the clients, or 0 where 0 is near: this removes a common offset.

    base      the matrix of the clients
    mixture   None, or a mixture: the points are then mixture @ X instead of the clients
    """

    base: Matrix
    mixture: Matrix | None = None

    @cached_property
    def matrix(self) -> Matrix:
        """The matrix of the points."""
        return self.base if self.mixture is None else self.mixture @ self.base @ self.mixture.T

    @cached_property
    def away(self) -> Vector:
        """|X_i - r| of every point."""
        return np.sqrt(np.maximum(self.matrix.diagonal(), 0.0))

    @cached_property
    def squared_distances(self) -> Matrix:
        """|X_i - X_j|^2 for all pairs, exactly 0 on the diagonal."""
        own = self.matrix.diagonal()
        squares = own[:, None] + own
        for _ in range(2):  # Twice, in place: 2 * matrix would be another m x m numbers.
            squares -= self.matrix
        np.maximum(squares, 0, out=squares)
        np.fill_diagonal(squares, 0)
        return squares

    def distances(self, weights: Weights, resolution: float, origin: Origin | None = None) -> Vector | None:
        """|X_i - sum_j weights_j X_j| of every point; None where too many digits would be lost.

        origin  the products of the points with one more point, around r, which gets what the weights lack to 1
        """
        towards = self.matrix.dot(weights)
        size = float(weights.dot(towards))
        reach = float(weights.dot(self.away))  # The centre may be nearer to r, but what was added up was not.
        if origin is not None:
            rest = 1 - float(weights.sum())
            size += rest * (2 * float(weights @ origin.along) + rest * origin.size)
            towards += rest * origin.along
            reach += abs(rest) * sqrt(origin.size)
        squares = self.matrix.diagonal() - 2 * towards + size
        doubtful = TRUSTED * resolution * np.square(self.away + reach)
        return np.sqrt(squares) if (squares > doubtful).all() else None

    def length(self, shares: Vector, error: float) -> float:
        """|sum_i shares_i (X_i - r)|, or more: with all that products that are off by `error` can have taken from it."""
        square = max(float(shares @ (self.matrix @ shares)), 0.0)
        return sqrt(square + error * float(np.abs(shares) @ self.away) ** 2)

    def residuals(self, weights: Weights, pulls: Weights, error: float) -> ResidualPairs | None:
        """The residuals to the centre weights @ X with a proven error; None where that would be large.

        <X_i - c, X_j - c> = <a_i, a_j> - <a_i, b> - <a_j, b> + <b, b>, where a_i = X_i - r and b = sum_i weights_i a_i. The
        products are off by e |a_i| |a_j|, so that this is off by e (|a_i| + s)(|a_j| + s), s = sum_i weights_i |a_i|.
        """
        products = self.around(weights)
        squares, reach = products.diagonal(), self.away + float(weights @ self.away)
        if self.mixture is not None or not (squares > error * np.square(reach) / LARGE).all():
            return None
        # A length is off by half as much as its square; a hundredth more covers that 1 / (1 - off) is not 1 + off.
        off = error * float(np.square(reach / np.sqrt(squares)).max())
        # The pulls that the centre itself has are taken off first: what is left of them is small, and so is its error.
        force = self.length(pulls - pulls.sum() * weights, error)
        return ResidualPairs(products, np.sqrt(squares), force, error=off, doubt=0.51 * off)

    def around(self, weights: Weights) -> Matrix:
        """<X_i - c, X_j - c> for all pairs, where c is the centre of these weights, which sum to 1."""
        towards = self.matrix @ weights
        return self.matrix - towards[:, None] - towards + float(weights @ towards)

    @cached_property
    def to_middle(self) -> Vector:
        """For every point, its squared distance to the client that half of the others are nearer than."""
        half = len(self.matrix) // 2
        middle_ones: Vector = np.partition(self.squared_distances, half, axis=1)[:, half].copy()
        return middle_ones

    def is_precise(self, resolution: float) -> bool:
        """Whether r is near enough to most clients for the distances between them to keep their digits."""
        if not np.isfinite(self.matrix).all():
            return False
        return middle(self.to_middle) > TRUSTED * resolution * middle(self.matrix.diagonal())

    def mixed(self, mixture: Matrix, resolution: float) -> Gram | None:
        """The Gram matrix of the points mixture @ X.

        None where rows of the mixture do not sum to 1, or where rounding may have taken all digits of a point.
        """
        if not np.allclose(mixture.sum(axis=1), 1, rtol=0, atol=1e-9):
            return None
        points = Gram(self.matrix, mixture)
        lost = resolution * np.square(mixture @ np.sqrt(self.matrix.diagonal()))
        typical = np.median(points.squared_distances)
        return points if (SOUND * lost <= np.maximum(points.matrix.diagonal(), typical)).all() else None
