"""A place whose distances are known, and from there those to any other place, by products alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedhold.kernels import Vector

__all__ = ["Anchor"]


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

    def at(self, columns: slice) -> Vector | None:
        """The place in these columns."""
        return None if self.place is None else self.place[columns]

    def distances_by(self, found: Vector, resolution: float) -> Vector | None:
        """The distances to where products led, over all columns; None where too many digits would be lost.

        |X_i - r - delta|^2 = |X_i - r|^2 - 2 <X_i - r, delta> + |delta|^2.
        """
        along, offset, size = found[:-2], found[-2], found[-1]
        near = np.square(self.distances)
        with np.errstate(over="ignore", invalid="ignore"):
            squares = near - 2 * (along - offset) + size
            doubt = resolution * (near + size + self.reach * np.sqrt(size))
        return np.sqrt(squares) if (squares > 1e5 * doubt).all() else None
