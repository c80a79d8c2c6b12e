"""What rules see: clients as points of which they know nothing but distances, products and weighted centres."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from fedhold.geometry.gram import TRUSTED, Gram, Origin, ResidualPairs
from fedhold.geometry.principal import Principal, principal
from fedhold.kernels import RUN, SQUARE_RUN, Block, Matrix, Vector, Weights, columns, length, loops, middle, unscaled
from fedhold.sizes import MAX_PAIRED, ROWS_OF_PAIRS, SEVERAL
from fedhold.updates import (
    SURPRISE,
    Centre,
    Columns,
    Columnwise,
    FirstLook,
    Sample,
    Updates,
    column_row,
    first_look,
    pair_numbers,
)

__all__ = ["Geometry", "Measurement", "normalised", "sampled_centre"]

WHAT_A_RULE_RECEIVES = (
    "A rule receives a fedhold.Geometry, not the updates: m, d, samples, distances(weights), squared_distances, lengths() and "
    "sum_over_columns(measure). It returns m weights. For a rule that maps columns of the updates to a row, write a function "
    "of a block of columns under @fedhold.rules.by_columns."
)
START_STEPS = 3  # Huber steps over a sample of columns
TIED = 1e-12  # Shares of all samples that differ by less are equal.
LEAST = 1e-30  # A smaller weight times a small number may be less than float32 can hold.
LARGE, PLENTY = 512, 4  # columns, and columns per client. With fewer, clients' residuals are not nearly orthogonal.
STRAIGHT = 1e-4  # Points off a line by less than this, relatively, are on it.

# Principal directions.
KRYLOV_COLUMNS = 4  # two more than directions are wanted, as usual in subspace iterations
KRYLOV_STEPS = 4  # passes for one. docs/default.md says what more of them would change.


@dataclass(frozen=True)
class Measurement:
    """A weighted centre, every client's distance to it, and the force of given pulls on it."""

    centre: Vector
    distances: Vector
    force: float = 0.0


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
        sample = Sample.of(updates)
        distances = sample.distances()
        for _ in range(START_STEPS - 1):
            distances = sample.distances(_downweighted(samples, distances))
        return Centre(_downweighted(samples, distances), sample)


def _downweighted(samples: Weights, distances: Vector) -> Weights:
    """n_i min(1, typical distance / d_i), normalised."""
    typical = middle(distances)
    far = distances > typical
    return normalised(samples * np.divide(typical, distances, out=np.ones(len(samples)), where=far))


class Geometry:
    """The clients as points: m of them, with n_i samples each.

    m           how many clients there are
    d           how many numbers an update has
    samples     the n_i
    resolution  the relative rounding error of one number as it is read

    Lengths are in units of 2**-base, as the updates are read; `real` converts them to the caller's units and `read` back.
    """

    def __init__(self, updates: Updates, samples: Weights, look: FirstLook | None = None) -> None:
        """`look` is what the first pass has found. With a Gram matrix in it, solving needs no pass over the data."""
        self._updates, self._look = updates, look
        self.samples = samples
        self.m, self.d, self.resolution = updates.m, updates.d, updates.resolution
        self._reference = None if look is None else look.reference
        # |X_i - r|^2, where the first pass has found them.
        self._squares = None if look is None or isinstance(look.wanted, Columnwise) else look.squares
        self._find_gram: Callable[[], Gram | None] | None = None
        self._last: tuple[Weights, Measurement] | None = None

    @cached_property
    def _gram(self) -> Gram | None:
        """The Gram matrix, where it is known and precise. That of mixed points is made when it is first needed."""
        if self._find_gram is not None:
            return self._find_gram()
        gram = None if self._look is None or self._look.pairs is None else Gram(self._look.pairs)
        return gram if gram is not None and gram.is_precise(self.resolution) else None

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
        return self.measure(weights).distances if known is None else known

    def _distances_from(self, origin: Vector, weights: Weights) -> Vector:
        if self._gram is not None and self._look is not None:
            known = self._gram.distances(weights, self.resolution, self._origin(origin))
            if known is not None:
                return known
        if not weights.any():
            return self.distances_to(origin) if length(origin) else self.lengths()
        return self.measure(weights, origin=origin).distances

    def _origin(self, place: Vector) -> Origin:
        """What the Gram matrix has to know of a point more. That of the last one is kept: steps ask for the same one."""
        known = self.__dict__.get("_known_origin")
        if known is None or known[0] is not place:
            away = place if self._reference is None else place - self._updates.row(self._reference)
            size = length(away) ** 2
            along = self._updates.sum(loops.along, away, minus=self._reference) if size else np.zeros(self.m)
            known = self.__dict__["_known_origin"] = (place, Origin(along, size))
        return known[1]

    @cached_property
    def squared_distances(self) -> Matrix:
        """|X_i - X_j|^2 for all pairs, exactly 0 on the diagonal."""
        if self._gram is not None:
            return self._gram.squared_distances
        return Gram(self._pairs_around(self._updates, self._central)).squared_distances

    @property
    def known_squared_distances(self) -> Matrix | None:
        """`squared_distances` where they are known without a pass; else None."""
        return None if self._gram is None else self._gram.squared_distances

    @property
    def _central(self) -> int:
        """A client near most others. It is subtracted first: with a large common offset float32 would lose the differences."""
        return int(self.distances(self.start()).argmin())

    def _pairs_around(self, updates: Updates, place: Vector | int | None) -> Matrix:
        return updates.sum(loops.pairs, minus=place, numbers=pair_numbers(self.m))

    def over_pairs(self, measure: Callable[[Matrix], Vector]) -> Vector:
        """measure(rows of squared_distances), one number for each row. Of very many clients, some rows are there at a time."""
        if self._gram is not None or self.m <= MAX_PAIRED or self._updates.costly_to_read:
            return measure(self.squared_distances)
        central, m = self._central, self.m
        own = self._updates.sum(loops.squares, minus=central)

        def measured(clients: NDArray[np.intp]) -> Vector:
            found = self._updates.sum(partial(loops.some_pairs, clients=clients), minus=central)
            squares = np.maximum(own[clients, None] + own - 2 * found, 0)
            squares[np.arange(len(clients)), clients] = 0
            return measure(squares)

        return np.concatenate([measured(part) for part in np.array_split(np.arange(m), -(-m * m // ROWS_OF_PAIRS))])

    def lengths(self) -> Vector:
        """|X_i| of every client."""
        if self._squares is not None and self._reference is None:
            return np.sqrt(self._squares)
        return np.sqrt(self._updates.sum(loops.squares))

    def cosines(self, place: Vector) -> Vector:
        """The cosine of the angle between every client and a place, as seen from 0; 0 where one of them is 0."""
        along, lengths = self._updates.sum(loops.along, place), self.lengths() * length(place)
        return np.clip(np.divide(along, lengths, out=np.zeros(self.m), where=lengths > 0), -1, 1)

    def pairwise_cosines(self) -> Matrix:
        """The cosine of the angle between each pair of clients, as seen from 0; 0 where one of them is 0."""
        updates, own = self._updates, self.lengths()
        updates = updates.widened() if np.square(own[own > 0].min(initial=1.0)) < self.d * 2.0**-80 else updates
        products = self._pairs_around(updates, None)
        own = np.sqrt(products.diagonal())
        lengths = own[:, None] * own
        return np.clip(np.divide(products, lengths, out=np.zeros_like(lengths), where=lengths > 0), -1, 1)

    def signs(self) -> loops.Signs:
        """How many numbers of every client are above 0, and how many below."""
        found: loops.Signs = self._updates.sum(loops.signs)
        return found

    def sum_over_columns(self, measure: Callable[[Block, slice], Any]) -> Any:
        """The sum of measure(block, columns) over all blocks of columns: for a rule that needs whole updates.

        measure  gets an (m, b) block of all clients' numbers and the slice of the columns they are from, and returns an array
                 of a shape that does not depend on the block, such as m numbers. It may be called in other processes, where
                 the data is, and must not modify the block

        The votes of every client's signs are sum_over_columns(lambda block, _: (block > 0).sum(axis=1)), and its products with
        a vector sum_over_columns(lambda block, columns: block @ vector[columns]). The numbers in a block are the client's
        times `read(1.0)`, which is 1 unless squares of them would overflow or vanish.
        """

        def loop(tile: Block, at: slice) -> NDArray[np.float64]:
            found = np.array(measure(tile, at), dtype=np.float64)  # A copy: the sum is made in place.
            if not np.isfinite(found).all():
                raise ValueError(
                    f"measure gave numbers that are not finite for {tile.shape[1]} columns. Sum finite numbers."
                )
            return found

        return self._updates.sum(loop, Columns())

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

    @property
    def in_many_dimensions(self) -> bool:
        """Whether steps of a solve take passes, and residuals of different clients are nearly orthogonal."""
        return self._gram is None and self.d > max(LARGE, PLENTY * self.m)

    # Where a solve starts.

    def start(self) -> Weights:
        """Weights of a robust centre, found cheaply.

        With a Gram matrix, the centre is near the client whose distances have the lowest median. Otherwise it comes from a few
        Huber steps from the coordinate-wise median, over a sample of columns. Liars may hide outside the sample: the centre,
        measured over all columns, is then unexpectedly far from most clients, and the weights are found over all columns.
        """
        return self._start if self.middle is None else self.middle

    @cached_property
    def _start(self) -> Weights:
        if self._gram is not None:
            distances = np.sqrt(self._gram.squared_distances[self._gram.to_middle.argmin()])
            return _downweighted(self.samples, distances)
        sample, weights = self._sampled
        expected = middle(sample.distances(weights)) * np.sqrt(self.d / sample.columns)
        if middle(self.distances(weights)) <= SURPRISE * expected:
            return weights
        return _downweighted(self.samples, np.sqrt(column_row(self._updates, Columnwise(columns.median))[1]))

    @cached_property
    def _sampled(self) -> tuple[Sample, Weights]:
        """A sample of columns, and the weights of a robust centre that it gives."""
        found = None if self._look is None else self._look.wanted
        if not isinstance(found, Centre) or found.sample is None:
            found = sampled_centre(self._updates, self.samples)
        assert found.sample is not None
        return found.sample, found.weights

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
            return np.asarray(self._updates.sample(1)[:, 0], np.float64)
        if self._gram is not None:
            squares = self._gram.squared_distances
            # Squares from a Gram matrix are off by its rounding, and distances between near clients by the root of it.
            off = np.sqrt(self.resolution * np.abs(self._gram.matrix.diagonal() + self._gram.matrix[0, 0]))
            return _places_on_a_line(lambda client: np.sqrt(squares[client]), off)
        sample, _ = self._sampled
        places = _places_on_a_line(lambda client: sample.distances(np.eye(1, self.m, client)[0]))
        if places is None or sample.columns == self.d:
            return places
        return _places_on_a_line(lambda client: self.distances_to(client))

    # Directions.

    def sampled_gram(self, clients: NDArray[np.intp], columns: int, rng: np.random.Generator) -> Matrix:
        """<X_i - mean, X_j - mean> of these clients over this many columns, drawn by `rng`, up to a factor."""
        chosen = np.sort(rng.choice(self.d, min(columns, self.d), replace=False))
        block = self._updates.take(clients).columns(chosen)
        block = block / (np.abs(block).max() or 1.0)
        centred = block - block.mean(axis=0)
        gram: Matrix = centred @ centred.T
        return gram

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
            return principal(lambda block: pairs @ block, scales, np.eye(self.m), steps=1, count=count)
        dealt = np.random.default_rng(0).standard_normal((self.m, min(KRYLOV_COLUMNS, self.m)))
        start = np.empty_like(dealt)
        start[np.argsort(distances, kind="stable")] = np.linalg.qr(dealt)[0]
        products = self._residual_images(weights) if pairs is None else lambda block: pairs @ block
        return principal(products, scales, start, steps=KRYLOV_STEPS, count=count)

    def _residual_products(self, weights: Weights) -> Matrix | None:
        """<X_i - c, X_j - c> for all pairs, where c = weights @ X; None where they would cost more than a few passes."""
        if self._gram is not None and self._gram.distances(weights, self.resolution) is not None:
            return self._gram.around(weights)
        if self.m > SEVERAL:
            return None
        return self._pairs_around(self._updates.widened(), self.measure(weights).centre)

    def _residual_images(self, weights: Weights) -> Callable[[Matrix], Matrix]:
        """A function columns -> Y Y' @ columns by one pass, where the residuals X_i - weights @ X are the rows of Y."""

        def products(block: Matrix) -> Matrix:
            around = block - np.outer(weights, block.sum(axis=0))  # They sum to 0: the reference cancels.
            found = self._updates.sum(partial(loops.images, columns=around), minus=self._reference)
            return found - weights @ found

        return products

    def separation(self, weights: Weights, others: Weights) -> float:
        """The distance between two weighted centres. Both weights sum to 1."""
        change = (weights - others)[:, None]
        pairs = self._residual_products(others)
        products = self._residual_images(others)(change) if pairs is None else pairs @ change
        return float(np.sqrt(np.maximum(change[:, 0] @ products[:, 0], 0.0)))

    # Other points.

    def counted(self, samples: Weights) -> Geometry:
        """The same clients with other samples."""
        points = copy(self)
        points.samples = samples
        for name in ("shares", "middle", "_start"):  # What depends on the samples is found anew.
            points.__dict__.pop(name, None)
        return points

    def widened(self) -> Geometry:
        """The same clients, read in float64."""
        return Geometry(self._updates.widened(), self.samples)

    def mixed(self, mixture: Matrix, samples: Weights) -> Geometry:
        """The points mixture @ X."""
        points = Geometry(self._updates.mixed(mixture), samples)
        points._find_gram = lambda: None if self._gram is None else self._gram.mixed(mixture, self.resolution)
        return points

    def materialised(self) -> Geometry:
        """The same points for a solve, mixed once and not in every pass. Points with a Gram matrix stay as they are."""
        if self._gram is not None:
            return self
        rows = self._updates.materialised()
        return Geometry(rows, self.samples, first_look(rows, None))

    # Measurements: what the solver and the account of a result are made from.

    def measured(self, weights: Weights) -> Measurement | None:
        """What the last measurement found, if it was about the centre of these weights."""
        return self._last[1] if self._last is not None and (self._last[0] == weights).all() else None

    def measure(self, weights: Weights, *, pulls: Weights | None = None, origin: Vector | None = None) -> Measurement:
        """The centre, the distances to it, and |sum_i pulls_i (X_i - centre)|, in one pass.

        weights  the centre is weights @ X
        pulls    the pulls whose force on the centre is to be found
        origin   with weights that sum to less than 1, the point that gets the rest of the weight

        Distances come from products where those keep enough digits, which is twice as fast, and else from subtraction.
        """
        if pulls is not None or origin is not None:
            return self._by_subtraction(weights, pulls, self._reference if origin is None else origin)
        found = self.measured(weights)
        if found is None:
            self._last = None  # The memory of its centre is free before the next centre takes as much.
            if self._gram is not None and np.count_nonzero(weights) == 1:
                found = self._at_client(self._gram, int(weights.argmax()))
            else:
                found = self._by_products(weights) or self._by_subtraction(weights, None, self._reference)
            self._last = weights.copy(), found
        return found

    def _by_products(self, weights: Weights) -> Measurement | None:
        """|X_i - c|^2 = |X_i - r|^2 - 2 <X_i - r, c - r> + |c - r|^2; None where too many digits would be lost."""
        look, own = self._look, self._squares
        if look is None or own is None:
            return None
        if isinstance(look.wanted, Centre) and look.products is not None and (look.wanted.weights == weights).all():
            found, row = look.products, look.row
        else:
            loop = partial(loops.products, weights=weights)
            found, row = self._updates.read(loop, minus=self._reference, row=True)
        assert row is not None
        with np.errstate(over="ignore", invalid="ignore"):
            squares = own - 2 * found.along + found.size
            doubt = self.resolution * (own + found.size + np.sqrt(own * found.size))
        return Measurement(row, np.sqrt(squares)) if (squares > TRUSTED * doubt).all() else None

    def _by_subtraction(self, weights: Weights, pulls: Weights | None, around: Vector | int | None) -> Measurement:
        loop = partial(loops.centred_squares, weights=weights, pulls=pulls)
        found, centre = self._updates.read(loop, minus=around, row=True)
        return Measurement(centre, self._distances(found.squares, centre), float(np.sqrt(found.force)))

    def measure_sum(self, weights: Weights) -> Measurement | None:
        """weights @ X, whatever the weights sum to, and the clients' distances to it; None where digits would be lost."""
        if weights[weights > 0].min(initial=1.0) < LEAST:
            return None
        return (self._by_products(weights) if self._reference is None else None) or self._by_subtraction(
            weights, None, None
        )

    def _at_client(self, gram: Gram, client: int) -> Measurement:
        """A client as the centre: its distances to the others are known. Those too small to be trusted are measured."""
        place = self._updates.row(client)
        squares, own = gram.squared_distances[client], gram.matrix.diagonal()
        near = np.flatnonzero(squares <= TRUSTED * self.resolution * (own + own[client]))
        near, distances = near[near != client], np.sqrt(squares)
        if near.size:
            distances[near] = Geometry(self._updates.take(near), self.samples[near]).distances_to(place)
        return Measurement(place, distances)

    def known_force(self, weights: Weights, pulls: Weights) -> float | None:
        """An upper bound on the force of pulls on the centre weights @ X, if the Gram matrix knows the distances to it."""
        if self._gram is None or self._gram.distances(weights, self.resolution) is None:
            return None
        return self._gram.length(pulls - pulls.sum() * weights, product_error(self.resolution))

    def distances_to(self, place: Vector | int) -> Vector:
        """|X_i - place| of every client; the place may be a client (its index)."""
        squares = self._updates.sum(loops.squares, minus=place)
        return np.sqrt(squares) if isinstance(place, int) else self._distances(squares, place)

    def _distances(self, squares: Vector, centre: Vector) -> Vector:
        """Distances from sums of squares; distances within the rounding of the centre become 0."""
        distances = np.sqrt(squares)
        distances[distances <= 8 * self.rounding_of(centre)] = 0.0
        return distances

    def column_row(self, rule: Columnwise) -> tuple[Vector, Vector]:
        """The row that a column rule makes from the points, and their distances to it."""
        look = self._look
        if look is not None and isinstance(look.wanted, Columnwise) and look.row is not None:
            row, squares = look.row, look.squares
        else:
            row, squares = column_row(self._updates, rule)
        return row, self._distances(squares, row)

    def coordinates(self, centre: Vector, scales: Vector) -> Matrix:
        """The points scales_i (X_i - centre) in a space of at most m dimensions: the columns, or from the Gram matrix."""
        if self.d <= self.m:
            return self._updates.columns(np.arange(self.d)) * scales[:, None] - scales[:, None] * centre
        pairs = self._pairs_around(self._updates, centre)
        values, vectors = np.linalg.eigh(pairs * scales[:, None] * scales)
        points: Matrix = vectors * np.sqrt(np.maximum(values, 0))
        return points

    # What a proof is made from.

    def known_residuals(self, weights: Weights, pulls: Weights) -> ResidualPairs | None:
        """The residuals to the centre weights @ X with a proven error, without a pass; None where that cannot be."""
        return None if self._gram is None else self._gram.residuals(weights, pulls, product_error(self.resolution))

    def reach_of_rounding(self, weights: Weights, centre: Vector, others: Weights) -> float:
        """How far the centre of `weights`, as a pass has made it, can be from that of other weights, both of a Gram matrix.

        A sum over m clients is off by m roundings of what is added up, and the centre is rounded where it is written.
        """
        assert self._gram is not None
        away = float(weights @ self._gram.away)
        rounding = 2 * self.resolution * ((self.m + 8) * away + length(centre))
        return self._gram.length(weights - others, product_error(self.resolution)) + rounding

    def residual_pairs(self, place: Vector, distances: Vector, pulls: Weights) -> ResidualPairs:
        """Residuals with a proven error: n products added up in any order are off by n roundings of |x| |y| at most.

        place      a place that the dtype in which updates are read can hold
        distances  about the lengths of the residuals: where squares would vanish in float32, float64 is read
        pulls      the pulls whose force on the place is to be found
        """
        updates = self._updates
        updates = updates.widened() if np.square(distances.min()) < self.d * 2.0**-80 else updates
        loop = partial(loops.residual_pairs, pulls=pulls)
        found: loops.Pairs = updates.sum(loop, minus=place, numbers=pair_numbers(self.m))
        lengths, doubt = np.sqrt(found.squares), SQUARE_RUN * updates.resolution
        # The force is added up over as many rows at a time as the squares over columns.
        force = float(np.sqrt(found.force) + doubt * (pulls @ lengths))
        return ResidualPairs(found.products, lengths, force, product_error(updates.resolution), doubt)

    def rounded(self, place: Vector) -> Vector:
        """The place in the dtypes in which updates are read: residuals to it round as the clients' own differences do."""
        return self._updates.rounded(place)

    def rounding_of(self, place: Vector) -> float:
        """The rounding error of a place: the resolution times its length."""
        return self.resolution * length(place)


def product_error(resolution: float) -> float:
    """How much <x, y> can be off, in units of |x| |y|: it is added up over runs of RUN columns, and then in float64.

    A sum of n products is off by n roundings of half the resolution each, in whatever order it is made. The 64 cover two
    lengths, which are off by half of SQUARE_RUN roundings each, the rounding of the differences, and the sum over runs.
    """
    return (RUN + 64) * resolution / 2


def _places_on_a_line(distances_to: Callable[[int], Vector], error: Vector | float = 0.0) -> Vector | None:
    """Coordinates of points along the line that they lie on; None where they lie on none, or on one point.

    distances_to  point -> the distances of all points to it
    error         how far those distances may be off
    """
    from_first = distances_to(0)
    end = int(from_first.argmax())
    places = distances_to(end)  # The point farthest from another one is an end of the line.
    off = np.abs(np.abs(places - places[0]) - from_first)
    return places if places.any() and (off <= STRAIGHT * from_first + 4 * error).all() else None
