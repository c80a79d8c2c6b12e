"""Geometry: distances between clients, and to any weighted centre; all that a geometry rule may see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from fedhold.geometry.gram import TRUSTED, Gram
from fedhold.geometry.principal import Principal, principal
from fedhold.kernels import Block, Matrix, Products, Signs, Vector, Weights, length, middle, unscaled
from fedhold.updates import (
    Centre,
    Columnwise,
    FirstLook,
    ResidualPairs,
    Sample,
    Updates,
    centre_of,
    column_row,
    coordinates,
    first_look,
    gram_around,
    images,
    measured,
    over_pairs,
    places_on_a_line,
    products_with,
    residual_pairs,
    sample_of,
    sampled_gram,
    signs_of,
    squared_distances_to,
    summed,
    swept,
)

__all__ = ["Geometry", "Measurement", "normalised", "sampled_centre"]

WHAT_A_RULE_RECEIVES = (
    "A rule receives a fedhold.Geometry, not the updates: m, d, samples, distances(weights), squared_distances, lengths() and "
    "sum_over_columns(measure). It returns m weights. For a rule that maps columns of the updates to a row, write a function "
    "of a block of columns under @fedhold.rules.by_columns."
)
START_STEPS = 3  # Huber steps over a sample of columns
TIED = 1e-12  # Shares of all samples that differ by less are equal.
COARSE = 1e-4  # typical distances. Where rounding moves the centre by more, float32 is not enough.
PLENTY = 4  # columns of a sample per client. With fewer, angles between clients are mostly chance.
LARGE = 512  # columns. A larger sample is one of much data, where a pass costs more than what the sample can tell.
LEAST = 1e-30  # A smaller weight times a small number may be less than float32 can hold.
SURPRISE = 10  # A centre this many times farther from most clients than in the sample was moved in other columns.

# Principal directions.
# Clients. Up to this many, the products of all pairs cost less than a solve and the passes that find directions, and all
# eigenvectors of their matrix next to nothing.
SEVERAL = 128
COLUMNS = 4  # columns of a Krylov space; two more than directions are wanted, as usual in subspace iterations
STEPS = 4  # passes for one. docs/default.md says what more of them would change.


@dataclass(frozen=True)
class Measurement:
    """A weighted centre, every client's distance to it, and the force of given pulls on it.

    The centre is rounded to the clients' dtype where it is the value of the call.
    """

    centre: Vector
    distances: Vector
    force: float | None = None


def normalised(pulls: Weights) -> Weights:
    """Weights that sum to 1. They are divided by the largest one first, so that the sum does not overflow for 1e308 samples."""
    shares = pulls / np.maximum.reduce(pulls)
    weights: Weights = shares / np.add.reduce(shares)
    return weights


def sampled_centre(updates: Updates, samples: Weights) -> Centre:
    """A robust centre, found cheaply: a few Huber steps from the coordinate-wise median, over a sample of columns.

    The numbers may not have been checked yet. If any is not finite, the weights mean nothing.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        sample = sample_of(updates)
        distances = sample.distances_to_median()
        for _ in range(START_STEPS - 1):
            distances = sample.distances(_downweighted(samples, distances))
        return Centre(_downweighted(samples, distances), sample)


def _downweighted(samples: Weights, distances: Vector) -> Weights:
    """n_i min(1, typical distance / d_i), normalised."""
    typical = middle(distances)
    far = distances > typical
    return normalised(samples * np.divide(typical, distances, out=np.ones(len(samples)), where=far))


@dataclass(frozen=True, eq=False)
class _Anchor:
    """An anchor point, and every client's distance to it.

    The distances to any other place follow from products with the data around the anchor point, which cost a fraction of what
    a measurement by subtraction costs.

    place      the anchor point: a vector, or the index of a client; None: the origin
    distances  |X_i - anchor|
    inexact    the length of an anchor point that is rounded before it is subtracted; 0 for the origin and for clients, which
               are not
    """

    place: Vector | int | None
    distances: Vector
    inexact: float = 0.0

    @cached_property
    def reach(self) -> Vector:
        """An upper bound on the lengths that are rounded in products."""
        return self.inexact + self.distances

    def distances_by(self, found: Products, resolution: float) -> Vector | None:
        """The distances to the place r + delta that the products were made with; None where too many digits would be lost.

        |X_i - r - delta|^2 = |X_i - r|^2 - 2 <X_i - r, delta> + |delta|^2, where r is the anchor point.
        """
        near = np.square(self.distances)
        with np.errstate(over="ignore", invalid="ignore"):
            squares = near - 2 * found.along + found.size
            doubt = resolution * (near + found.size + self.reach * np.sqrt(found.size))
        return np.sqrt(squares) if (squares > TRUSTED * doubt).all() else None


def _first_anchor(look: FirstLook) -> _Anchor | None:
    """The client that the first look has measured from, or the origin; None where it could not measure."""
    if look.norms is None:
        return None
    if look.around is None or not np.isfinite(look.around).all():
        return _Anchor(None, look.norms)
    return _Anchor(look.reference, look.around)


@dataclass(frozen=True, eq=False)
class _Origin:
    """A point that gets the rest of the weight, where weights sum to less than 1.

    place     the point, as it was given
    anchor    the clients' distances to it: it is the anchor point from which distances to centres are found
    products  those of the clients with it, around the point that the Gram matrix was made around; None without such a matrix
    """

    place: Vector
    anchor: _Anchor
    products: Products | None


@dataclass(frozen=True, eq=False)
class _Asked:
    """What the last pass has measured about the centre of these weights."""

    weights: Weights
    measured: Measurement


class Geometry:
    """The clients as points: m of them, with n_i samples each.

    m           how many clients there are
    d           how many numbers an update has
    samples     the n_i
    resolution  the relative rounding error of one number as it is read

    Lengths are in units of 2**-base, as the updates are read; `real` converts them to the caller's units and `read` back.
    """

    def __init__(self, updates: Updates, samples: Weights, look: FirstLook | None = None) -> None:
        """`look` is what an earlier pass has found. With a Gram matrix in it, solving needs no pass over the data."""
        self._updates = updates
        self.samples = samples
        self.m, self.d, self.resolution = updates.m, updates.d, updates.resolution
        self._anchor = None if look is None else _first_anchor(look)
        self._lengths = None if look is None else look.norms
        self._origin: _Origin | None = None
        self._known_gram: Gram | None = None
        self._gram_from: _Anchor | None = None
        self._find_gram: Callable[[], Gram | None] | None = None
        self._last = None if look is None else self._looked(look)
        self._centre = None if look is None else look.centre
        if look is not None and look.pairs is not None:
            gram = Gram(look.pairs)
            if gram.is_precise(self.resolution):
                self._known_gram, self._gram_from = gram, self._anchor

    def _looked(self, look: FirstLook) -> _Asked | None:
        """What the first look has found out about a weighted centre."""
        if look.centre is None or look.row is None or look.row_products is None or self._anchor is None:
            return None
        distances = self._anchor.distances_by(look.row_products, self.resolution)
        return None if distances is None else _Asked(look.centre.weights, Measurement(look.row, distances))

    @property
    def _gram(self) -> Gram | None:
        """The Gram matrix, if there is one. That of mixed points is made when it is first needed: a column rule needs none."""
        if self._find_gram is not None:
            self._known_gram, self._find_gram = self._find_gram(), None
        return self._known_gram

    def __getattr__(self, name: str) -> NoReturn:
        """Most often the caller of a rule of his own took it for the array of updates."""
        raise AttributeError(f"Geometry has no {name!r}. {WHAT_A_RULE_RECEIVES}", name=name, obj=self)

    def __array__(self, dtype: Any = None, copy: Any = None) -> NoReturn:
        raise TypeError(f"Geometry is no array. {WHAT_A_RULE_RECEIVES}")

    # What every rule may ask.

    def distances(self, weights: Weights, *, origin: Vector | None = None) -> Vector:
        """|X_i - sum_j weights_j X_j| of every client i.

        weights  they sum to 1
        origin   with weights that sum to less than 1, the point that gets the rest of the weight
        """
        if origin is not None:
            return self._distances_from(origin, weights)
        known = None if self._gram is None else self._gram.distances(weights, self.resolution)
        if known is not None:
            return known
        if self._last is None or not (self._last.weights == weights).all():
            self._last = None  # The memory of its centre is free before the next centre takes as much.
            found = self.measure(weights)
            self._last = _Asked(weights.copy(), found)
        return self._last.measured.distances

    def _distances_from(self, origin: Vector, weights: Weights) -> Vector:
        seen = self._seen_from(origin)
        if not weights.any():
            return seen.anchor.distances
        known = None
        if self._gram is not None and seen.products is not None:
            known = self._gram.distances(weights, self.resolution, seen.products)
        return self.measure(weights, origin=origin).distances if known is None else known

    def _seen_from(self, origin: Vector) -> _Origin:
        """The clients' distances to an origin, and what the Gram matrix has to know about it. It is found once."""
        if self._origin is None or self._origin.place is not origin:
            far, around = length(origin), self._gram_from
            if far == 0 and self._lengths is not None and (around is None or around.place is None):
                nothing = Products(np.zeros(self.m), 0.0)
                self._origin = _Origin(origin, _Anchor(None, self._lengths), None if around is None else nothing)
            else:
                products = None if around is None else products_with(self._updates, origin, around.place)
                distances = (
                    None if around is None or products is None else around.distances_by(products, self.resolution)
                )
                distances = self.distances_to(origin) if distances is None else distances
                self._origin = _Origin(origin, _Anchor(origin if far else None, distances, far), products)
        return self._origin

    @cached_property
    def squared_distances(self) -> Matrix:
        """|X_i - X_j|^2 for all pairs, exactly 0 on the diagonal."""
        gram = self._gram
        if gram is None:
            gram = self._known_gram = Gram(gram_around(self._updates, self._central))
        return gram.squared_distances

    @property
    def _central(self) -> Vector:
        """A client near most others. It is subtracted first: with a large common offset float32 would lose the differences."""
        return self._updates.row(int(self.distances(self.start()).argmin()))

    def over_pairs(self, measure: Callable[[Matrix], Vector]) -> Vector:
        """measure(rows of squared_distances), one number for each row. Of very many clients, some rows are there at a time."""
        if self._gram is None and not self._updates.few_pairs:
            return over_pairs(self._updates, self._central, measure)
        return measure(self.squared_distances)

    def lengths(self) -> Vector:
        """|X_i| of every client."""
        return self.distances_to(self._zeros) if self._lengths is None else self._lengths

    def cosines(self, place: Vector) -> Vector:
        """The cosine of the angle between every client and a place, as seen from 0; 0 where one of them is 0."""
        along = products_with(self._updates, place, None).along
        lengths = self.lengths() * length(place)
        return np.clip(np.divide(along, lengths, out=np.zeros(self.m), where=lengths > 0), -1, 1)

    def pairwise_cosines(self) -> Matrix:
        """The cosine of the angle between each pair of clients, as seen from 0; 0 where one of them is 0."""
        found = residual_pairs(self._updates, self._zeros, self.lengths(), pulls=np.zeros(self.m))
        lengths = found.lengths[:, None] * found.lengths
        return np.clip(np.divide(found.products, lengths, out=np.zeros_like(lengths), where=lengths > 0), -1, 1)

    def signs(self) -> Signs:
        """How many numbers of every client are above 0, and how many below."""
        return signs_of(self._updates)

    @property
    def _zeros(self) -> Vector:
        return self._updates.zeros()

    def sum_over_columns(self, measure: Callable[[Block, slice], Any]) -> Any:
        """The sum of measure(block, columns) over all blocks of columns: for a rule that needs whole updates.

        measure  gets an (m, b) block of all clients' numbers and the slice of the columns they are from, and returns an array
                 of a shape that does not depend on the block, such as m numbers. It may be called in other processes, where
                 the data is, and must not modify the block

        The votes of every client's signs are sum_over_columns(lambda block, _: (block > 0).sum(axis=1)), and its products with
        a vector sum_over_columns(lambda block, columns: block @ vector[columns]). The numbers in a block are the client's
        times `read(1.0)`, which is 1 unless squares of them would overflow or vanish.
        """
        return summed(self._updates, measure)

    @cached_property
    def shares(self) -> Weights:
        """The samples divided by the largest of them: the same weights, and their sum does not overflow."""
        return self.samples / self.samples.max()

    def real(self, lengths: Vector | float) -> Vector:
        """Lengths in the caller's units; what float64 cannot hold becomes its largest number."""
        return unscaled(lengths, self._updates.base) if self._updates.base else np.asarray(lengths)

    def read(self, lengths: Vector | float) -> Vector:
        """The caller's lengths in the units used here; infinity where they overflow."""
        if not self._updates.base:
            return np.asarray(lengths)
        with np.errstate(over="ignore"):
            return np.ldexp(lengths, self._updates.base)

    def start(self) -> Weights:
        """Weights of a robust centre, found cheaply.

        With a Gram matrix, the centre is near the client whose distances have the lowest median. Otherwise it comes from a few
        Huber steps from the coordinate-wise median, over a sample of columns. Liars may hide outside the sample: the centre,
        measured over all columns, is then unexpectedly far from most clients, and the weights are found over all columns.
        """
        return self._start if self.middle is None else self.middle

    @cached_property
    def middle(self) -> Weights | None:
        """Weights of the point halfway between the two middle clients, where all clients lie on a line with half of the samples
        on either side of it; None elsewhere.

        Only then do sums of distances, and Huber losses with small thresholds, have more than one minimiser. All points
        between the two clients are, and this is the one to choose: a solve that starts there ends there.
        """
        if self.m % 2 and (self.samples == self.samples[0]).all():
            return None  # No part of the clients has half of the samples.
        places = self._places_on_a_line()
        if places is None:
            return None
        order = np.argsort(places, kind="stable")
        below = np.cumsum(self.shares[order]) / self.shares.sum()
        last = int(np.argmin(np.abs(below - 0.5)))
        if abs(below[last] - 0.5) > TIED:
            return None
        return np.isin(np.arange(self.m), order[last : last + 2]) / 2

    def _places_on_a_line(self) -> Vector | None:
        """Coordinates of the clients along the line that they lie on; None where they lie on none, or on one point."""
        if self.d == 1:
            return np.asarray(self._updates.read(0, 1)[:, 0], np.float64)
        if self._gram is None:
            sample, _ = self._sampled
            places = sample.places_on_a_line()
            if places is None or sample.columns == self.d:
                return places
            return places_on_a_line(lambda client: self.distances_to(self._updates.row(client)))
        squares = self._gram.squared_distances
        # Squares from a Gram matrix are off by its rounding, and distances between near clients by the root of it.
        off = np.sqrt(self.resolution * np.abs(self._gram.matrix.diagonal() + self._gram.matrix[0, 0]))
        return places_on_a_line(lambda client: np.sqrt(squares[client]), off)

    @cached_property
    def _sampled(self) -> tuple[Sample, Weights]:
        """A sample of columns, and the weights of a robust centre that it gives."""
        known = self._centre if self._centre is not None and self._centre.sample is not None else None
        centre = sampled_centre(self._updates, self.samples) if known is None else known
        assert centre.sample is not None
        return centre.sample, centre.weights

    def sampled_cosines(self, weights: Weights) -> Matrix | None:
        """The cosines of the angles between residuals to a weighted centre, as far as a sample of columns tells.

        None where the Gram matrix knows better, or where the sample is too small.
        """
        if self._gram is not None:
            return None
        sample, _ = self._sampled
        return sample.cosines(weights) if sample.columns > max(LARGE, PLENTY * self.m) else None

    @cached_property
    def _start(self) -> Weights:
        if self._gram is not None:
            distances = np.sqrt(self._gram.squared_distances[self._gram.to_middle.argmin()])
            return _downweighted(self.samples, distances)
        sample, weights = self._sampled
        expected = middle(sample.distances(weights)) * np.sqrt(self.d / sample.columns)
        if middle(self.distances(weights)) <= SURPRISE * expected:
            return weights
        median = column_row(self._updates, Columnwise(lambda kernels, block: kernels.median(block)))
        return _downweighted(self.samples, self.distances_to(median))

    def sampled_gram(self, clients: NDArray[np.intp], columns: int, rng: np.random.Generator) -> Matrix:
        """<X_i - mean, X_j - mean> of these clients over this many columns, drawn by `rng`, up to a factor."""
        chosen = np.sort(rng.choice(self.d, min(columns, self.d), replace=False))
        return sampled_gram(self._updates.take(clients), chosen)

    def principal(self, weights: Weights, scales: Vector, count: int, distances: Vector) -> Principal:
        """The directions in which the points scales_i (X_i - weights @ X) spread most, and the clients along them.

        weights    the centre is weights @ X; they sum to 1
        scales     what each residual is multiplied with
        count      how many directions to find
        distances  the clients' distances to that centre, or to one nearby

        For up to 128 clients the directions are exact. Otherwise they are found by four products of the Gram matrix with four
        columns, each of which takes a pass. These begin with numbers dealt to the clients in order of their distances, so it
        does not matter who stands where, or how the axes lie.
        """
        pairs = self._residual_products(weights)
        if pairs is not None and self.m <= SEVERAL:
            return principal(lambda columns: pairs @ columns, scales, np.eye(self.m), steps=1, count=count)
        dealt = np.random.default_rng(0).standard_normal((self.m, min(COLUMNS, self.m)))
        start = np.empty_like(dealt)
        start[np.argsort(distances, kind="stable")] = np.linalg.qr(dealt)[0]
        products = self._residual_images(weights, distances) if pairs is None else lambda columns: pairs @ columns
        return principal(products, scales, start, steps=STEPS, count=count)

    def _residual_products(self, weights: Weights) -> Matrix | None:
        """<X_i - c, X_j - c> for all pairs, where c = weights @ X; None where they would cost more than a few passes."""
        if self._gram is not None and self._gram.distances(weights, self.resolution) is not None:
            return self._gram.around(weights)
        if self.m > SEVERAL:
            return None
        return gram_around(self._updates.widened(), self.measure(weights).centre)

    def _residual_images(self, weights: Weights, distances: Vector) -> Callable[[Matrix], Matrix]:
        """A function columns -> Y Y' @ columns by one pass, where the residuals X_i - weights @ X are the rows of Y."""
        updates = self._finely(distances)
        anchor = None if self._anchor is None else self._anchor.place

        def products(columns: Matrix) -> Matrix:
            rows = columns.T - columns.sum(axis=0)[:, None] * weights  # They sum to 0: the anchor point cancels.
            found = images(updates, rows, anchor)
            return found - weights @ found

        return products

    def _finely(self, distances: Vector) -> Updates:
        """The updates, in float64 where an offset that all clients share hides their differences in float32."""
        coarse = COARSE * middle(distances) < self.rounding
        return self._updates.widened() if coarse else self._updates

    def separation(self, weights: Weights, others: Weights) -> float:
        """The distance between two weighted centres. Both weights sum to 1."""
        change = weights - others
        pairs = self._residual_products(others)
        size = change @ (
            self._residual_images(others, self.distances(others))(change[:, None])[:, 0]
            if pairs is None
            else pairs @ change
        )
        return float(np.sqrt(np.maximum(size, 0.0)))

    # Other points.

    def counted(self, samples: Weights) -> Geometry:
        """The same clients with other samples."""
        points = Geometry(self._updates, samples)
        points._known_gram, points._anchor, points._last, points._centre = (
            self._gram,
            self._anchor,
            self._last,
            self._centre,
        )
        return points

    def widened(self) -> Geometry:
        """The same clients, read in float64."""
        return Geometry(self._updates.widened(), self.samples)

    def mixed(self, mixture: Matrix, samples: Weights) -> Geometry:
        """The points mixture @ X."""
        points, gram = Geometry(self._updates.mixed(mixture), samples), self._gram
        points._find_gram = None if gram is None else lambda: gram.mixed(mixture, self.resolution)
        return points

    def materialised(self) -> Geometry:
        """The same points for a solve, mixed once and not in every pass. Points with a Gram matrix stay as they are."""
        if self._gram is not None:
            return self
        rows = self._updates.materialised()
        return Geometry(rows, self.samples, first_look(rows, None))

    # What the solver and the account of a result need.

    def measured(self, weights: Weights) -> Measurement | None:
        """What the last pass has measured, if it was about the centre of these weights."""
        return self._last.measured if self._last is not None and (self._last.weights == weights).all() else None

    def measure(
        self,
        weights: Weights,
        *,
        pulls: Weights | None = None,
        origin: Vector | None = None,
        directly: bool = False,
        final: bool = False,
    ) -> Measurement:
        """The centre, the distances to it, and |sum_i pulls_i (X_i - centre)|, in one pass.

        weights   the centre is weights @ X
        pulls     the pulls whose force on the centre is to be found
        origin    with weights that sum to less than 1, the point that gets the rest of the weight
        directly  measure distances by subtraction; by default they come from products where those keep enough digits
        final     the centre is the value of the call, and is rounded to its dtype
        """
        known = self.measured(weights) if pulls is None and origin is None and not directly else None
        if known is not None:
            return known
        if origin is not None and pulls is None and not directly:
            found_around = self._sum_around(self._seen_from(origin).anchor, weights)
            if found_around is not None:
                return found_around
        if self._gram is not None and origin is None and pulls is None and np.count_nonzero(weights) == 1:
            return self._at_client(self._gram, int(weights.argmax()))
        if not directly and origin is None:
            distances = None if self._gram is None else self._gram.distances(weights, self.resolution)
            if distances is not None and pulls is None and self._anchor is not None:
                return Measurement(centre_of(self._updates, weights, self._anchor.place, final=final), distances)
            centre = self._updates.zeros()
            found = self._by_products(weights, pulls, centre)
            if found.distances is not None:
                return Measurement(centre, found.distances if distances is None else distances, found.force)
        return self._directly(weights, pulls, origin)

    def measure_sum(self, weights: Weights) -> Measurement | None:
        """weights @ X, whatever the weights sum to, and the clients' distances to it; None where digits would be lost."""
        if self._lengths is None or weights[weights > 0].min(initial=1.0) < LEAST:
            return None
        return self._sum_around(_Anchor(None, self._lengths), weights)

    def _sum_around(self, anchor: _Anchor, weights: Weights) -> Measurement | None:
        """anchor + weights @ (X - anchor), whatever the weights sum to; None where its distances would lose too many digits."""
        centre = self._updates.zeros()
        distances = anchor.distances_by(swept(self._updates, weights, None, anchor.place, centre), self.resolution)
        return None if distances is None else Measurement(centre, distances)

    def _at_client(self, gram: Gram, client: int) -> Measurement:
        """A client as the centre: its distances to the others are known. Those too small to be trusted are measured."""
        place = self._updates.row(client)
        squares, own = gram.squared_distances[client], gram.matrix.diagonal()
        near = np.flatnonzero(squares <= TRUSTED * self.resolution * (own + own[client]))
        near, distances = near[near != client], np.sqrt(squares)
        if near.size:
            distances[near] = Geometry(self._updates.take(near), self.samples[near]).distances_to(place)
        return Measurement(place, distances)

    def _by_products(self, weights: Weights, pulls: Weights | None, centre: Vector | None) -> _ByProducts:
        """Distances to the centre weights @ X from those to the anchor point, and the force of the pulls."""
        anchor = self._anchor
        if anchor is None:
            return _ByProducts(None, None)
        # Near the solution the pulls are nearly proportional to the weights: the difference is small, and so is its rounding.
        rest = None if pulls is None else pulls - pulls.sum() * weights
        found = swept(self._updates, weights, rest, anchor.place, centre)
        force = None if pulls is None else float(np.sqrt(found.force)) + self.blur(pulls)
        return _ByProducts(anchor.distances_by(found, self.resolution), force)

    def known_force(self, weights: Weights, pulls: Weights) -> float | None:
        """An upper bound on the force of pulls on the centre weights @ X, if the Gram matrix knows the distances to it."""
        if self._gram is None or self._gram.distances(weights, self.resolution) is None:
            return None
        return self._gram.length(pulls - pulls.sum() * weights, self.resolution)

    def blur(self, pulls: Weights) -> float:
        """How much rounding can take from the force of pulls where it is found by products."""
        return np.inf if self._anchor is None else self.resolution * float(pulls @ self._anchor.reach)

    def _directly(self, weights: Weights, pulls: Weights | None, origin: Vector | None) -> Measurement:
        """The measurement by subtraction. The centre becomes the anchor point of later measurements by products."""
        found = measured(self._updates, weights, pulls, origin)
        distances = self._distances(found.residuals.squares, found.centre)
        if origin is None:
            self._anchor = _Anchor(found.centre, distances, length(found.centre))
        return Measurement(found.centre, distances, None if pulls is None else float(np.sqrt(found.residuals.force)))

    def distances_to(self, place: Vector, products: Products | None = None) -> Vector:
        """|X_i - place| of every client; `products` are those with the place, if an earlier pass has found them."""
        anchor = self._anchor
        if anchor is not None:
            products = products_with(self._updates, place, anchor.place) if products is None else products
            distances = anchor.distances_by(products, self.resolution)
            if distances is not None:
                return distances
        return self._distances(squared_distances_to(self._updates, place), place)

    def _distances(self, squares: Vector, centre: Vector) -> Vector:
        """Distances from sums of squares; distances within the rounding of the centre become 0."""
        distances = np.sqrt(squares)
        floor = 8 * self.rounding_of(centre)
        distances[distances <= floor] = 0.0
        return distances

    def column_row(self, rule: Columnwise) -> Vector:
        """The row that a column rule makes from the points."""
        return column_row(self._updates, rule)

    def coordinates(self, centre: Vector, scales: Vector) -> Matrix:
        """The points scales_i (X_i - centre) in a space of at most m dimensions."""
        return coordinates(self._updates, centre, scales)

    def known_residuals(self, weights: Weights, pulls: Weights) -> ResidualPairs | None:
        """The residuals to the centre weights @ X with a proven error, without a pass; None where that cannot be."""
        return None if self._gram is None else self._gram.residuals(weights, pulls, self.resolution)

    def reach_of_rounding(self, weights: Weights, centre: Vector, others: Weights) -> float:
        """How far the centre of `weights`, as a pass has made it, can be from that of other weights, both of a Gram matrix.

        A sum over m clients is off by m roundings of what is added up, and the centre is rounded where it is written.
        """
        assert self._gram is not None
        away = float(weights @ self._gram.away)
        rounding = 2 * self.resolution * ((self.m + 8) * away + length(centre))
        return self._gram.length(weights - others, self.resolution) + rounding

    def residual_pairs(self, place: Vector, distances: Vector, pulls: Weights) -> ResidualPairs:
        """Products of all pairs of residuals X_i - place, and the force of pulls on the place, with a proven error.

        place      a place of `rounded`
        distances  about the lengths of the residuals
        pulls      one per client
        """
        return residual_pairs(self._updates, place, distances, pulls)

    # Rounding.

    def rounded(self, place: Vector) -> Vector:
        """The place in the dtypes in which updates are read: residuals to it round as the clients' own differences do."""
        return self._updates.rounded(place)

    def rounding_of(self, place: Vector) -> float:
        """The rounding error of a place: the resolution times its length."""
        return self.resolution * length(place)

    @property
    def rounding(self) -> float:
        """About the rounding error of a centre: the resolution times the lengths that are rounded on the way to it."""
        if self._anchor is None:
            self._directly(self.start(), None, None)
        assert self._anchor is not None
        return self.resolution * (self._anchor.inexact or middle(self._anchor.distances))


@dataclass(frozen=True)
class _ByProducts:
    """What products gave: distances, or None where too many digits would be lost; and the force of pulls, if there were any."""

    distances: Vector | None
    force: float | None
