"""The model that was sent: updates relative to it, and the model they make, in its own dtypes and order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhold.flower.api import Array, ArrayRecord

__all__ = ["KINDS", "WIDEST", "Arrays", "Model"]

Arrays = dict[str, NDArray[Any]]
KINDS = {"f": "float", "i": "integer", "u": "integer", "b": "bool"}
WIDEST = 8  # bytes of a number


@dataclass(frozen=True)
class Model:
    """The arrays of the model, in order. Those of floats make the geometry; where there are none, all of them do.

    The rest (counters, masks) has no distances: each number becomes the weighted median of the admitted clients', which one
    of them sent and no minority can move.
    """

    arrays: Arrays

    @staticmethod
    def of(record: ArrayRecord) -> Model:
        """The model of a record that the ServerApp, not a client, made: whatever is wrong with it is an error."""
        arrays = {key: array.numpy() for key, array in record.items()}
        for key, array in arrays.items():
            if array.dtype.kind not in KINDS or array.dtype.itemsize > WIDEST:
                raise TypeError(
                    f"array {key!r} of the model has dtype {array.dtype}; needed are floats, integers or bools of at most "
                    "64 bits. Leave it out of the ArrayRecord, or convert it."
                )
            if not np.isfinite(array).all():
                raise ValueError(
                    f"array {key!r} of the model has numbers that are not finite. Start from a sound model."
                )
        if not sum(array.size for array in arrays.values()):
            raise ValueError("the model holds no numbers. Pass an ArrayRecord with at least one number in it.")
        return Model(arrays)

    @cached_property
    def measured(self) -> Arrays:
        """The arrays that make the geometry."""
        some = {key: array for key, array in self.arrays.items() if array.size}
        return {key: array for key, array in some.items() if array.dtype.kind == "f"} or some

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())

    def fits(self, other: Model) -> bool:
        """Whether both have the same keys in the same order, shapes and dtypes."""
        one, two = ([(key, a.shape, a.dtype) for key, a in model.arrays.items()] for model in (self, other))
        return one == two

    def record(self) -> ArrayRecord:
        """As Flower sends it."""
        return ArrayRecord({key: Array(np.asarray(array)) for key, array in self.arrays.items()})

    def update(self, reply: Arrays) -> Arrays:
        """Reply minus model; what float32 cannot hold becomes infinite, and is then rejected."""
        with np.errstate(over="ignore", invalid="ignore"):
            return {
                key: np.asarray(np.subtract(reply[key], array, dtype=np.result_type(reply[key], array, np.float32)))
                for key, array in self.measured.items()
            }

    def moved(self, update: Mapping[str, NDArray[Any]], replies: Sequence[Arrays], weights: Sequence[float]) -> Model:
        """The model plus an update; what has no distances comes from the replies, by their weights."""
        return Model(
            {
                key: _fitted(array.astype(np.float64) + update[key], array.dtype)
                if key in self.measured
                else _weighted_median(np.stack([reply[key] for reply in replies]), np.asarray(weights)).astype(
                    array.dtype
                )
                for key, array in self.arrays.items()
            }
        )


def _fitted(values: NDArray[np.float64], dtype: np.dtype[Any]) -> NDArray[Any]:
    """`values` in this dtype; rounded, and brought to its nearest number, where it cannot hold them."""
    if dtype.kind == "b":
        return np.asarray(values >= 0.5)
    limits: Any = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    low, high = float(limits.min), float(limits.max)
    if dtype.kind != "f":
        values = np.rint(values)
        # float(2**63 - 1) is 2**63, which int64 does not hold
        low, high = (float(np.nextafter(x, 0)) if abs(x) > 2**53 else x for x in (low, high))
    return np.asarray(np.clip(values, low, high)).astype(dtype)


def _weighted_median(rows: NDArray[Any], weights: NDArray[np.float64]) -> NDArray[Any]:
    """Of each column the smallest entry at which half of the weight is reached."""
    order = np.argsort(rows, axis=0, kind="stable")
    below = np.cumsum(weights[order], axis=0)
    half = np.argmax(below >= 0.5 * weights.sum() * (1 - 1e-12), axis=0)
    place = np.take_along_axis(order, half[None], axis=0)
    return np.asarray(np.take_along_axis(rows, place, axis=0)[0])
