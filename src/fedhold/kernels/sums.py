"""What the loops over columns find, with a name for every number; and how results of several blocks are added up."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np

from fedhold.kernels.arrays import Matrix, Vector

__all__ = ["Pairs", "Products", "Residuals", "Signs", "Squares", "Sums", "Swept", "added"]

Found = TypeVar("Found", bound="Vector | Sums")


class Sums:
    """Base of frozen dataclasses whose fields are sums over columns: a float, a float64 array, other Sums, or None."""


@dataclass(frozen=True, eq=False)
class Squares(Sums):
    """Every row's square.

    own     |X_i|^2; not finite where the row has a number that is not finite or cannot be squared
    around  |X_i - place|^2, where a place was given
    """

    own: Vector
    around: Vector | None = None


@dataclass(frozen=True, eq=False)
class Products(Sums):
    """Products of every row with a vector delta that leads from an anchor point to a centre.

    along   <X_i - anchor, delta> of every row. The anchor is subtracted from every number first, because products with a large
            common offset would keep no digits of what rows differ by
    size    |delta|^2
    force   |pulls @ (X - anchor)|^2, where pulls were given
    """

    along: Vector
    size: float
    force: float = 0.0


@dataclass(frozen=True, eq=False)
class Swept(Sums):
    """What one reading of rows finds out about them and a weighted centre: their squares, and their products with it."""

    squares: Squares
    products: Products


@dataclass(frozen=True, eq=False)
class Residuals(Sums):
    """Every row's residual to a centre.

    squares  |X_i - centre|^2
    force    |sum_i pulls_i (X_i - centre)|^2
    """

    squares: Vector
    force: float


@dataclass(frozen=True, eq=False)
class Pairs(Sums):
    """Products of all pairs of rows.

    products  <X_i - place, X_j - place>
    squares   |X_i|^2, or |X_i - place|^2: the kernel's docstring says which
    force     |sum_i pulls_i (X_i - place)|^2, where pulls were given
    """

    products: Matrix
    squares: Vector
    force: float = 0.0


@dataclass(frozen=True, eq=False)
class Signs(Sums):
    """How many numbers of every row are above 0, and how many below."""

    above: Vector
    below: Vector


def added(mine: Found, other: Found) -> Found:
    """The sum, field by field. The arrays of `mine` are overwritten."""
    result: Found = _added(mine, other)
    return result


def _added(mine: Any, other: Any) -> Any:
    if isinstance(mine, np.ndarray):
        return np.add(mine, other, out=mine)
    if isinstance(mine, Sums):
        names = [field.name for field in fields(mine)]  # type: ignore[arg-type]
        return type(mine)(*(_added(getattr(mine, name), getattr(other, name)) for name in names))
    return None if mine is None else mine + other
