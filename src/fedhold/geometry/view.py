"""Geometry: distances between clients, and to any weighted centre; all that a geometry rule may see."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fedhold.geometry.anchor import Anchor
from fedhold.geometry.gram import Gram
from fedhold.kernels import Block, Matrix, Vector, Weights, length, unscaled
from fedhold.updates import Columnwise, Mixture, Updates, columns

__all__ = ["Geometry", "Matrix", "Measurement", "Weights", "normalised"]

START_COLUMNS = 256  # distances over so many columns are right to some percent: enough to start from
START_STEPS = 3
SURPRISE = 10  # a centre so many times farther from most clients than the sample said was captured outside of it


@dataclass(frozen=True)
class Measurement:
    """A weighted centre, and every client's distance to it; the force of given pulls on it."""

    centre: Vector
    distances: Vector
    force: float | None = None


def normalised(pulls: Weights) -> Weights:
    """Weights that sum to 1. Divided by the largest first, so that 1e308 samples do not overflow the sum."""
    shares = pulls / pulls.max()
    total: Weights = shares / shares.sum()
    return total


class Geometry:
    """The clients as points: m of them, with n_i samples each.

    Lengths are in units of 2**-base, as the updates are read; `real` and `read` go between them and the caller's.
    """

    def __init__(
        self, updates: Updates, samples: Weights, norms: Vector | None = None, gram: Gram | None = None
    ) -> None:
        """`norms` are the |X_i| where they are known: 0 is then the first centre that has been measured.

        With a `gram` there is no need to look at the data until the answer is known.
        """
        self.updates = updates
        self.gram = gram
        self.samples = samples
        self.m = updates.m
        self._anchor = None if norms is None else Anchor(None, norms, 0.0)
        self._last: tuple[Weights, Vector] | None = None

    @cached_property
    def shares(self) -> Weights:
        """The samples over the largest of them: the same weights, and no sum that overflows."""
        return self.samples / self.samples.max()

    def real(self, lengths: Vector | float) -> Vector:
        """Lengths as the caller knows them; what float64 cannot hold becomes its largest number."""
        return unscaled(lengths, self.updates.base)

    def read(self, lengths: Vector | float) -> Vector:
        """The caller's lengths as we reckon in them, infinity where they are beyond all clients."""
        with np.errstate(over="ignore"):
            return np.ldexp(lengths, self.updates.base) if self.updates.base else np.asarray(lengths)

    def distances(self, weights: Weights) -> Vector:
        """|X_i - sum_j weights_j X_j| of every client i. The weights sum to 1."""
        if self._last is None or not np.array_equal(self._last[0], weights):
            known = None if self.gram is None else self.gram.distances(weights, self.resolution)
            known = self._by_products(weights, None, None)[0] if known is None else known
            self._last = weights.copy(), self._directly(weights, None, None).distances if known is None else known
        return self._last[1]

    @cached_property
    def squared_distances(self) -> Matrix:
        """|X_i - X_j|^2 for all pairs, exactly 0 on the diagonal."""
        if self.gram is None:
            # A client comes off first: else float32 would lose the differences in the offset all clients share.
            middle = int(self.distances(self.start()).argmin())
            self.gram = Gram(self.gram_around(self.updates.row(middle)))
        return self.gram.squared_distances

    def gram_around(self, place: Vector) -> Matrix:
        """<X_i - place, X_j - place>, summed in float64."""

        def kernel(block: Block, at: slice, scratch: Block) -> Block:
            residual = np.subtract(block, place[at].astype(block.dtype), out=scratch.reshape(block.shape))
            return residual @ residual.T

        return self.updates.sum(kernel, tile=self.updates.long_tile)

    def measure(
        self,
        weights: Weights,
        *,
        pulls: Weights | None = None,
        origin: Vector | None = None,
        directly: bool = False,
    ) -> Measurement:
        """Centre, distances and |sum_i pulls_i (X_i - centre)|, in one pass; directly, or by products where they will do.

        The centre is weights @ X; with an origin, what the weights lack of 1 lies there.
        """
        if self.gram is not None and origin is None and pulls is None and np.count_nonzero(weights) == 1:
            return self._at_client(self.gram, int(weights.argmax()))
        if not directly and origin is None:
            centre = self.updates.zeros()
            distances, force = self._by_products(weights, pulls, centre)
            if distances is not None:
                known = None if self.gram is None else self.gram.distances(weights, self.resolution)
                return Measurement(centre, distances if known is None else known, force)
        return self._directly(weights, pulls, origin)

    def _at_client(self, gram: Gram, client: int) -> Measurement:
        """A client as the centre: distances between pairs are known, but for those too near to tell."""
        place = self.updates.row(client)
        squares, own = gram.squared_distances[client], gram.matrix.diagonal()
        near = np.flatnonzero(squares <= 1e5 * self.resolution * (own + own[client]))
        near, distances = near[near != client], np.sqrt(squares)
        if near.size:
            distances[near] = Geometry(self.updates.take(near), self.samples[near]).distances_to(place)
        return Measurement(place, distances)

    def _by_products(
        self, weights: Weights, pulls: Weights | None, centre: Vector | None
    ) -> tuple[Vector | None, float | None]:
        """Distances, and the force of the pulls, from the place they were last measured from directly: a product with a
        block in cache costs a fraction of subtracting from it. No distances where that would lose too many digits.
        """
        anchor = self._anchor
        if anchor is None:
            return None, None
        # Near the solution the pulls are nearly the weights, and what is left of them is small: so is its rounding.
        rows = np.stack([weights] if pulls is None else [weights, pulls - pulls.sum() * weights])
        sweeps = self.updates.sweeps

        def kernel(block: Block, at: slice, _: Block) -> Vector:
            return sweeps.sweep(block, rows, anchor.at(at), None if centre is None else centre[at])

        found = self.updates.sum(kernel, tile=sweeps.tile, threads=sweeps.threads, scratch=False)
        distances = anchor.distances_by(found[: self.m + 2], self.resolution)
        return distances, None if pulls is None else float(np.sqrt(found[-1])) + self.blur(pulls)

    def blur(self, pulls: Weights) -> float:
        """What rounding can take from the force of pulls where it is found by products."""
        return np.inf if self._anchor is None else self.resolution * float(pulls @ self._anchor.reach)

    def _directly(self, weights: Weights, pulls: Weights | None, origin: Vector | None) -> Measurement:
        """Each block's centre is known while the block is in cache. It is rounded as the block is; the mean of the residuals,
        which are small, mends that.
        """
        updates = self.updates
        centre = updates.zeros()
        total, rest = (weights.sum(), 0.0) if origin is None else (1.0, 1.0 - weights.sum())
        forces = np.stack([weights, np.zeros(self.m) if pulls is None else pulls])

        def kernel(block: Block, at: slice, scratch: Block) -> Vector:
            both = forces.astype(block.dtype)
            middle = both[0] @ block
            away = 0.0 if origin is None else rest * origin[at]
            middle = (middle + away).astype(block.dtype)
            residual = np.subtract(block, middle, out=scratch.reshape(block.shape))
            means = both @ residual
            mend = (means[0] + away - rest * middle) / total
            centre[at] = middle + mend
            force = means[1] - forces[1].sum() * mend
            return np.append(np.vecdot(residual, residual).astype(np.float64), force @ force)

        *squares, force = updates.sum(kernel)
        force = None if pulls is None else float(np.sqrt(force))
        distances = self._distances(np.array(squares), centre)
        if origin is None:
            self._anchor = Anchor(centre, distances, length(centre))
        return Measurement(centre, distances, force)

    def distances_to(self, place: Vector, found: Vector | None = None) -> Vector:
        """|X_i - place| of every client; `found` are the products with it, where they are known."""
        anchor = self._anchor
        if anchor is not None:
            sweeps = self.updates.sweeps

            def product(block: Block, at: slice, _: Block) -> Vector:
                here = anchor.at(at)
                way = place[at] if here is None else place[at] - here
                return sweeps.products(block, way.astype(block.dtype), here)

            if found is None:
                found = self.updates.sum(product, tile=sweeps.tile, threads=sweeps.threads, scratch=False)
            distances = anchor.distances_by(found, self.resolution)
            if distances is not None:
                return distances

        def kernel(block: Block, at: slice, scratch: Block) -> Block:
            residual = np.subtract(block, place[at].astype(block.dtype), out=scratch.reshape(block.shape))
            return np.vecdot(residual, residual)

        return self._distances(self.updates.sum(kernel), place)

    def start(self) -> Weights:
        """Weights of a robust centre, cheaply: near the client whose distances have the lowest median, where they are known;
        else after a few Huber steps from the coordinate median, over a sample of columns.

        Whoever hides outside the sample shows when the centre is measured over all columns; then these are found over
        all columns, too.
        """
        return self._start

    @cached_property
    def _start(self) -> Weights:
        if self.gram is not None:
            squares = self.gram.squared_distances
            return self._downweighted(np.sqrt(squares[np.median(squares, axis=1).argmin()]))
        sample = self.updates.sample(START_COLUMNS)
        half, turned = self.m // 2, np.array(sample.T, order="C")  # a copy in any case, to be reordered
        turned.partition(half, axis=1)
        low = turned[:, half] if self.m % 2 else turned[:, :half].max(axis=1)
        middle = (low / 2 + turned[:, half] / 2).astype(sample.dtype)
        sample = sample - middle
        away, distances = np.empty_like(sample), np.sqrt(np.vecdot(sample, sample))
        for _ in range(START_STEPS):
            weights = self._downweighted(distances)
            np.subtract(sample, (weights @ sample).astype(sample.dtype), out=away)
            distances = np.sqrt(np.vecdot(away, away))
        expected = np.median(distances) * np.sqrt(self.updates.d / sample.shape[1])
        if np.median(self.distances(weights)) <= SURPRISE * expected:
            return weights
        return self._downweighted(self.distances_to(columns.apply(self.updates, Columnwise(columns.median))))

    def _downweighted(self, distances: Vector) -> Weights:
        """n_i min(1, typical distance / d_i), normalised."""
        typical = np.median(distances)
        far = distances > typical
        return normalised(self.samples * np.divide(typical, distances, out=np.ones(self.m), where=far))

    @property
    def rounding(self) -> float:
        """About the rounding error of a centre: the resolution times how far the clients are from 0."""
        if self._anchor is None:
            self._directly(self.start(), None, None)
        assert self._anchor is not None
        return self.resolution * (self._anchor.length or float(np.median(self._anchor.distances)))

    @property
    def resolution(self) -> float:
        """The relative rounding error of one number as it is read."""
        single = not self.updates.wide and any(source.dtype is np.float32 for source in self.updates.sources)
        return float(np.finfo(np.float32 if single else np.float64).eps)

    def widened(self) -> Geometry:
        """The same clients, read in float64."""
        return Geometry(replace(self.updates, wide=True), self.samples)

    def mixed(self, mixture: Matrix, samples: Weights) -> Geometry:
        """The points mixture @ X."""
        combined = mixture if self.updates.mixture is None else mixture @ self.updates.mixture.matrix
        gram = None if self.gram is None else self.gram.mixed(mixture)
        return Geometry(replace(self.updates, m=len(mixture), mixture=Mixture(combined)), samples, gram=gram)

    def _distances(self, squares: Vector, centre: Vector) -> Vector:
        """Distances from sums of squares as read; 0 for what lies within the rounding of the centre."""
        distances = np.sqrt(squares)
        floor = 8 * self.resolution * length(centre)
        distances[distances <= floor] = 0.0
        return distances
