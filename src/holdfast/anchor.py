"""A place whose distances are known, and from there those to any other place, by products alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from holdfast.arrays import Vector
from holdfast.mixture import Block

__all__ = ["Anchor", "products"]


def products(block: Block, delta: Block, place: Block | None = None) -> Vector:
    """<X_i, delta> of every row, <place, delta> (0 without one) and |delta|^2."""
    found = np.empty(len(block) + 2)
    found[:-2] = block @ delta
    found[-2] = 0.0 if place is None else place @ delta
    found[-1] = np.dot(delta, delta)
    return found


@dataclass(frozen=True, eq=False)
class Anchor:
    """A place (None: 0) of known length, and every client's distance to it."""

    place: Vector | None
    distances: Vector
    length: float

    @cached_property
    def reach(self) -> Vector:
        """At least |X_i|."""
        return self.length + self.distances

    def products(self, block: Block, at: slice, middle: Block) -> Vector:
        """Of every client with the way from here to `middle`, of this place with it, of it with itself; columns `at`."""
        if self.place is None:
            return products(block, middle.astype(block.dtype, copy=False))
        here = self.place[at]
        return products(block, (middle - here).astype(block.dtype), here)

    def distances_by(self, found: Vector, resolution: float) -> Vector | None:
        """The distances to where `products` led, over all columns; None where too many digits would be lost.

        |X_i - r - delta|^2 = |X_i - r|^2 - 2 <X_i - r, delta> + |delta|^2.
        """
        along, offset, size = found[:-2], found[-2], found[-1]
        near = np.square(self.distances)
        with np.errstate(over="ignore", invalid="ignore"):
            squares = near - 2 * (along - offset) + size
            doubt = resolution * (near + size + self.reach * np.sqrt(size))
        return np.sqrt(squares) if (squares > 1e5 * doubt).all() else None
