"""Column rules, the second view: a block of some columns of all clients -> one row. They know nothing but the block."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from fedhold.kernels import Block, Vector, columns
from fedhold.rules.declaration import Bound, declares

__all__ = ["by_columns", "mean_around_median", "median", "phocas", "trimmed_mean"]


@declares(
    view="columns",
    source="Yin et al. 2018",
    needs="liars are less than half of the clients",
    also_known_as=("cwmed", "coordinate_median", "coordinate_wise_median", "comed"),
)
def median(block: Block) -> Block:
    """The median of every column; for even m the mean of the two middle values.

    >>> from fedhold import aggregate
    >>> aggregate(np.array([[1.0, 9.0], [2.0, 8.0], [99.0, 7.0]]), "median").value
    array([2., 8.])

    It holds while less than half of the clients lie, and ignores the n_i.  Yin et al. 2018.
    """
    return columns.median(block)


@declares(
    view="columns",
    bound=Bound(2, 1),
    source="Yin et al. 2018",
    also_known_as=("trmean", "cwtm", "coordinate_wise_trimmed_mean"),
)
def trimmed_mean(block: Block, *, f: int) -> Block:
    """The mean of every column without its f smallest and f largest values.

    f  how many liars to withstand

    >>> from fedhold import aggregate
    >>> aggregate(np.array([[1.0], [2.0], [3.0], [99.0]]), "trimmed_mean", f=1).value
    array([2.5])

    Needs m >= 2f + 1.  Yin et al. 2018.
    """
    return columns.trimmed_mean(block, f)


@declares(view="columns", bound=Bound(2, 1), source="Xie et al. 2018", also_known_as=("meamed",))
def mean_around_median(block: Block, *, f: int) -> Block:
    """The mean of the m - f values of every column that are nearest to its median.

    f  how many liars to withstand

    >>> from fedhold import aggregate
    >>> aggregate(np.array([[1.0], [2.0], [3.0], [99.0]]), "mean_around_median", f=1).value
    array([2.])

    Needs m >= 2f + 1.  Xie et al. 2018 (Meamed).
    """
    return columns.mean_around_median(block, len(block) - f)


@declares(view="columns", bound=Bound(2, 1), source="Xie, Koyejo, Gupta 2018")
def phocas(block: Block, *, f: int) -> Block:
    """The mean of the m - f values of every column that are nearest to its trimmed mean.

    f  how many liars to withstand; the trimmed mean leaves out the f smallest and the f largest values

    >>> from fedhold import aggregate
    >>> aggregate(np.array([[1.0], [2.0], [3.0], [99.0]]), "phocas", f=1).value
    array([2.])

    Needs m >= 2f + 1.  Xie, Koyejo, Gupta 2018.
    """
    return columns.mean_around_trimmed_mean(block, f)


def by_columns(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a column rule of a function that maps a block of columns to one row, as a decorator.

    function  (block, parameters by name) -> row. The block is an (m, b) array with a row for every client and some columns of
              its update; what comes back has b numbers, one for each column. Columns come in blocks of any width, so that a
              row must not depend on other columns. Blocks may come in several threads, and must not be modified

    >>> from fedhold import aggregate
    >>> @by_columns
    ... def midrange(block):
    ...     return (block.min(axis=0) + block.max(axis=0)) / 2
    >>> aggregate(np.array([[1.0, 9.0], [2.0, 8.0], [5.0, 5.0]]), midrange).value
    array([3., 7.])
    """

    @declares(view="columns")
    @wraps(function)
    def rule(block: Block, **parameters: Any) -> Vector:
        row = np.asarray(function(block, **parameters))
        numbers = row.shape == block.shape[1:] and row.dtype.kind in "fiub"
        # The first pass meets clients that will be rejected for numbers that are not finite; its row is then made again.
        if not numbers or not (np.isfinite(row).all() or not np.isfinite(block).all()):
            raise ValueError(
                f"{function.__name__} must return one finite number per column, shape {block.shape[1:]}, got shape "
                f"{row.shape} of {row.dtype}. Reduce over the clients: block.mean(axis=0), say."
            )
        return row.astype(np.float64, copy=False)

    return rule
