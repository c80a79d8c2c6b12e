"""The global model: what aggregate() gets of the replies to it, and the next model from what it makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from fedhold.transport import KINDS, WIDEST, Arrays, flaw_of

# What torch, Keras and Flax call the statistics of normalisation layers, which clients measure and nobody trains.
STATISTICS = ("running_mean", "running_var", "num_batches_tracked", "moving_mean", "moving_var", "batch_stats")


@dataclass(frozen=True)
class Model:
    """The arrays of the model by key, in order.

    Distances between clients are about its floats; in a model without floats, about all of its arrays. The others (counters,
    masks) go to aggregate() beside them, which makes each of their numbers the weighted median of the admitted clients'.
    """

    arrays: Arrays

    @staticmethod
    def of(record: ArrayRecord) -> Model:
        """The model in a record of the ServerApp. It is no client's, so whatever is wrong with it is an error."""
        arrays = {key: array.numpy() for key, array in record.items()}
        for key, array in arrays.items():
            if array.dtype.kind not in KINDS or array.dtype.itemsize > WIDEST:
                raise TypeError(
                    f"array {key!r} of the model has dtype {array.dtype}; needed are floats, integers or bools of at most "
                    "64 bits. Leave it out of the ArrayRecord, or convert it."
                )
            if flaw := flaw_of(array):
                raise ValueError(f"array {key!r} of the model has {flaw}. Make it with NumPy, from sound numbers.")
            if not np.isfinite(array).all():
                raise ValueError(
                    f"array {key!r} of the model has numbers that are not finite. Start from a sound model."
                )
        if not sum(array.size for array in arrays.values()):
            raise ValueError("the model holds no numbers. Pass an ArrayRecord with at least one number in it.")
        return Model(arrays)

    @cached_property
    def measured(self) -> frozenset[str]:
        """The keys of the arrays that distances between clients are about."""
        floats = frozenset(key for key, array in self.arrays.items() if array.dtype.kind == "f" and array.size)
        return floats or frozenset(self.arrays)

    def fits(self, other: Model) -> bool:
        """Whether both have the same keys, shapes and dtypes, in the same order."""
        one, two = ([(key, a.shape, a.dtype) for key, a in model.arrays.items()] for model in (self, other))
        return one == two

    def record(self) -> ArrayRecord:
        """The model as Flower sends it."""
        return ArrayRecord({key: Array.from_numpy_ndarray(np.asarray(array)) for key, array in self.arrays.items()})

    def update(self, reply: Mapping[str, NDArray[Any]], *, whole: bool) -> Arrays:
        """What aggregate() gets of a reply: arrays of one form, whatever dtypes and layouts the node chose.

        reply  the arrays of the reply
        whole  hand on the numbers as they came, for rules that treat models as they treat updates; otherwise what the reply
               adds to the model. A difference that the dtype cannot hold becomes infinite, and the client is then rejected
        """
        update: Arrays = {}
        with np.errstate(over="ignore", invalid="ignore"):
            for key, array in self.arrays.items():
                wide = np.result_type(array, np.float32)
                if key not in self.measured:
                    update[key] = np.asarray(reply[key], array.dtype)
                elif whole:
                    update[key] = np.asarray(reply[key], array.dtype if array.dtype.kind == "f" else wide, order="C")
                else:
                    exact = np.result_type(reply[key], wide)
                    update[key] = np.asarray(np.subtract(reply[key], array, dtype=exact), wide)
        return update

    def after(self, aggregate: Mapping[str, NDArray[Any]], *, whole: bool) -> Model | None:
        """The model that an aggregate of such updates leads to, in the dtypes of this one; None where it is not finite."""
        arrays: Arrays = {}
        for key, array in self.arrays.items():
            value = aggregate[key]
            if key in self.measured:
                if not whole:
                    value = array.astype(np.float64) + value
                if not np.isfinite(value).all():
                    return None
                value = _as_dtype(value, array.dtype)
            arrays[key] = np.asarray(value)
        return Model(arrays)

    def moved(self, update: Mapping[str, NDArray[Any]]) -> Arrays:
        """The arrays of this model after an update; those without distances stay."""
        return {key: array + update[key] if key in update else array for key, array in self.arrays.items()}

    def minus(self, other: Model) -> Arrays:
        """The update that leads from another model to this one."""
        return {
            key: self.arrays[key].astype(np.float64) - other.arrays[key] for key in self.arrays if key in self.measured
        }

    def like(self, reply: Arrays) -> Model:
        """The model in a reply, in the dtypes of this one."""
        return Model({key: np.asarray(reply[key], array.dtype) for key, array in self.arrays.items()})

    def with_floats_of(self, made: ArrayRecord, maker: str) -> Model | None:
        """The model that another strategy made of this one, in our dtypes; None where it is not finite.

        Of statistics, and of arrays that distances are not about, the ones of this model stay: an optimiser's steps are for
        what is trained.

        made   the arrays that the strategy returned
        maker  its name
        """
        for key, array in self.arrays.items():
            if key not in made or made[key].numpy().shape != array.shape:
                raise ValueError(
                    f"{maker} returned no array {key!r} of shape {array.shape}. Return all of the model's."
                )
        trained = {key for key in self.measured if not any(name in key for name in STATISTICS)}
        return self.after(
            {key: made[key].numpy() if key in trained else array for key, array in self.arrays.items()}, whole=True
        )


def _as_dtype(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Finite values in another dtype: rounded for integers, and clipped to the range that it holds."""
    if dtype.kind == "b":
        return values >= 0.5
    if dtype.kind == "f":
        limits = np.finfo(dtype)
        return np.clip(values, limits.min, limits.max).astype(dtype)
    low, above = float(np.iinfo(dtype).min), float(np.iinfo(dtype).max) + 1
    return np.clip(np.rint(values), low, np.nextafter(above, 0)).astype(dtype)
