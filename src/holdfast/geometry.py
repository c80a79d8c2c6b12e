"""Geometry: distances between clients, and to any weighted centre; all that a geometry rule may see.

Answers come from passes over the data (cheap for many clients) or from the m x m Gram matrix (cheap for few clients); the
rules never learn which.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from holdfast.arrays import Vector, length, lengths
from holdfast.updates import SLAB, Block, Updates

__all__ = ["Geometry", "Matrix", "Measurement", "Rays", "Weights", "normalised"]

Weights = NDArray[np.float64]
Matrix = NDArray[np.float64]

GRAM_CLIENTS = 32  # up to here the Gram matrix costs no more than the passes of one solve
START_COLUMNS = 512  # distances over so many columns are right to a few percent: enough to start from
START_STEPS = 8
LARGEST = np.finfo(np.float64).max / 4
SQUARABLE = 1e140  # a hundred million of these can be squared and added up
TINY = np.finfo(np.float64).tiny


@dataclass(frozen=True)
class Measurement:
    """A weighted centre, and every client's distance to it."""

    weights: Weights
    centre: Vector
    distances: Vector


@dataclass(frozen=True)
class Rays:
    """Clients as scaled points around an origin: client i lies at points[i] / scales[i], however far that is."""

    points: Matrix
    scales: Vector

    def towards(self, place: Vector) -> tuple[Matrix, Vector]:
        """Unit vectors from the clients to `place` (0 where a client is there), and the distances."""
        residuals = self.scales[:, None] * place - self.points
        norms = np.linalg.norm(residuals, axis=1)
        return residuals / np.maximum(norms, TINY)[:, None], norms / self.scales

    def distances(self, place: Vector) -> Vector:
        return self.towards(place)[1]


def normalised(pulls: Weights) -> Weights:
    """Weights that sum to 1. Divided by the largest first, so that 1e308 samples do not overflow the sum."""
    shares = pulls / pulls.max()
    total: Weights = shares / shares.sum()
    return total


class Geometry:
    """The clients as points: m of them, with n_i samples each."""

    def __init__(self, updates: Updates, samples: Weights) -> None:
        self.updates = updates
        self.samples = samples
        self.m = updates.m
        self._measured: list[Measurement] = []

    def distances(self, weights: Weights) -> Vector:
        """|X_i - sum_j weights_j X_j| of every client i. The weights sum to 1."""
        if self.by_gram:
            products = self._gram @ weights
            sizes = self._gram.diagonal() + weights @ products
            squares = sizes - 2 * products
            if (squares > np.sqrt(self.resolution) * sizes).all():  # else too much has cancelled
                return np.sqrt(squares)
        return self.measure(weights).distances

    def separation(self, first: Weights, second: Weights) -> float:
        """The distance between the centres of two sets of weights, from the centres themselves."""
        return length(self.measure(second).centre - self.measure(first).centre)

    @cached_property
    def squared_distances(self) -> Matrix:
        """|X_i - X_j|^2 for all pairs, exactly 0 on the diagonal; inf where float64 has no number for it.

        In units of 4**-base, the same for all pairs, where all updates are too large or too small to be squared.
        """
        norms = self._gram.diagonal()
        with np.errstate(invalid="ignore", over="ignore"):
            squares = norms[:, None] + norms - 2 * self._gram
        squares = np.where(np.isnan(squares), np.inf, np.maximum(squares, 0))
        np.fill_diagonal(squares, 0)
        return squares

    @property
    def by_gram(self) -> bool:
        """Whether the m x m matrix is there already, or cheaper than passes."""
        return self.updates.exponents is None and ("_gram" in self.__dict__ or self.m <= GRAM_CLIENTS)

    @property
    def resolution(self) -> float:
        """The relative rounding error of one number as it is read."""
        single = not self.updates.wide and any(source.dtype is np.float32 for source in self.updates.sources)
        return float(np.finfo(np.float32 if single else np.float64).eps)

    @cached_property
    def _gram(self) -> Matrix:
        """<X_i - r, X_j - r>, r a robust centre: without r, float32 would lose the differences in the offset they share."""
        gram = self.gram_around(self.measure(self.start()).centre)
        if self.updates.exponents is None:
            return gram
        with np.errstate(over="ignore"):
            shifts = self.updates.base - self.updates.exponents
            return np.ldexp(gram, shifts[:, None] + shifts)

    def gram_around(self, place: Vector) -> Matrix:
        """<X_i - place, X_j - place>, rows times their powers of two where they have some."""

        def kernel(block: Block, columns: slice, scratch: Block) -> Block:
            middle = np.ldexp(place[columns], self.updates.base).astype(block.dtype)
            residual = self._residual(block, middle, scratch)
            return residual @ residual.T

        return self.updates.sum(kernel, tile=SLAB, threads=False)  # BLAS brings threads of its own to this product

    @cached_property
    def _relative_scales(self) -> Vector | None:
        """Each row's power of two over the one that ordinary rows share."""
        exponents = self.updates.exponents
        return None if exponents is None else np.ldexp(1.0, exponents - self.updates.base)

    def measure(self, weights: Weights, origin: Vector | None = None) -> Measurement:
        """Centre and distances in one pass: each block's centre is known while the block is in cache.

        The centre is weights @ X; with an origin, what the weights lack of 1 lies there.
        """
        for known in self._measured:
            if origin is None and np.array_equal(known.weights, weights):
                return known
        updates, scales = self.updates, self._relative_scales
        centre = np.empty(updates.d)
        coefficients = weights if scales is None else weights / scales
        total = weights.sum() if origin is None else 1.0

        def kernel(block: Block, columns: slice, scratch: Block) -> Block:
            share = coefficients.astype(block.dtype)
            middle = share @ block
            if origin is not None:
                away = np.ldexp(origin[columns], updates.base) * (1.0 - weights.sum())
                middle += away.astype(block.dtype)
            if scales is not None:
                middle = np.clip(np.nan_to_num(middle), -LARGEST, LARGEST)
            near = middle if scales is None else np.clip(middle, -SQUARABLE, SQUARABLE)
            residual = self._residual(block, near, scratch)
            # `middle` is rounded as the block is; the mean of the residuals, which are small, mends that.
            mend = share @ residual
            if origin is not None:
                mend = mend + away - (1.0 - weights.sum()) * middle
            centre[columns] = middle + np.where(near == middle, mend, 0.0) / total
            return np.vecdot(residual, residual)

        squares = updates.sum(kernel)
        with np.errstate(over="ignore"):
            centre = np.clip(np.ldexp(centre, -updates.base), -LARGEST, LARGEST) if updates.base else centre
        measured = Measurement(weights.copy(), centre, self._distances(squares, centre))
        if origin is None:
            self._measured = [*self._measured[-1:], measured]
        return measured

    def distances_to(self, place: Vector) -> Vector:
        """|X_i - place| of every client."""

        def kernel(block: Block, columns: slice, scratch: Block) -> Block:
            middle = np.ldexp(place[columns], self.updates.base).astype(block.dtype)
            residual = self._residual(block, middle, scratch)
            return np.vecdot(residual, residual)

        return self._distances(self.updates.sum(kernel), place)

    def _residual(self, block: Block, middle: Block, scratch: Block) -> Block:
        """block - middle, into scratch; where rows have powers of two of their own, so does their middle."""
        scales = self._relative_scales
        residual = scratch.reshape(block.shape)
        return np.subtract(block, middle if scales is None else scales[:, None] * middle, out=residual)

    def _distances(self, squares: Vector, centre: Vector) -> Vector:
        """Distances from sums of squares as read; 0 for what lies within the rounding of the centre."""
        distances = np.sqrt(squares)
        if self.updates.exponents is not None:
            with np.errstate(over="ignore"):
                distances = np.minimum(np.ldexp(distances, -self.updates.exponents), LARGEST)
        floor = 8 * self.resolution * length(centre)
        distances[distances <= floor] = 0.0
        return distances

    def start(self) -> Weights:
        """Weights of a robust centre, cheaply: a few Huber steps from the coordinate median, over a sample of columns.

        Only a place to start from: whoever hides outside the sample costs the solver steps, never the result.
        """
        sample = self.updates.sample(START_COLUMNS)
        if self.updates.exponents is not None:
            sample = np.ldexp(sample, self.updates.base - self.updates.exponents[:, None])
        sample = sample - np.median(sample, axis=0)
        centre = np.zeros(sample.shape[1])
        weights = normalised(self.samples)
        for _ in range(START_STEPS):
            distances = lengths(sample - centre)
            typical = np.median(distances)
            far = distances > typical
            weights = normalised(self.samples * np.divide(typical, distances, out=np.ones(self.m), where=far))
            centre = weights @ sample
        return weights

    def rays(self, weights: Weights) -> Rays:
        """The clients around the centre of `weights`, in a space of at most m dimensions, in float64."""
        wide = self.widened()
        measured, exponents = wide.measure(weights), wide.updates.exponents
        far = measured.distances / max(float(np.median(measured.distances)), TINY)
        scales = 1 / np.maximum(far, 1.0)
        shrink = scales if exponents is None else np.ldexp(scales, -exponents)
        if self.updates.d <= self.m:
            return Rays(
                wide.updates.read(0, self.updates.d) * shrink[:, None] - scales[:, None] * measured.centre, scales
            )
        values, vectors = np.linalg.eigh(wide.gram_around(measured.centre) * shrink[:, None] * shrink)
        return Rays(vectors * np.sqrt(np.maximum(values, 0)), scales)

    def widened(self) -> Geometry:
        """The same clients, read in float64."""
        return Geometry(replace(self.updates, wide=True), self.samples)

    def take(self, clients: NDArray[np.intp]) -> Geometry:
        """Only these clients."""
        return Geometry(self.updates.take(clients), self.samples[clients])

    def mixed(self, mixture: Matrix, samples: Weights | None = None) -> Geometry:
        """The points mixture @ X, with equal samples unless given. Rows of the mixture sum to 1."""
        plain = replace(self.updates, wide=False, base=0, exponents=None)
        magnitudes = np.minimum(np.abs(mixture) @ np.minimum(plain.magnitudes(), LARGEST), LARGEST)
        combined = mixture if self.updates.mixture is None else mixture @ self.updates.mixture
        points = replace(plain, m=len(mixture), mixture=combined).scaled(magnitudes)
        return Geometry(points, np.ones(len(mixture)) if samples is None else samples)
