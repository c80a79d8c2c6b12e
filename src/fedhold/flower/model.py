"""The global model: updates are differences from it, and an aggregate of them makes the next one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhold.flower.api import Array, ArrayRecord
from fedhold.kernels import Matrix, Vector, from_host, weighted_median
from fedhold.report import one_line

Arrays = dict[str, NDArray[Any]]
KINDS = {"f": "float", "i": "integer", "u": "integer", "b": "bool"}  # NumPy's kinds of dtype that a model may have
WIDEST = 8  # the most bytes of one number


@dataclass(frozen=True)
class Model:
    """The arrays of the model by key, in order.

    Its floats are what the rule aggregates, and what distances between clients are about; in a model without floats, all of
    its arrays are. The others (counters, masks) have no distances. Each of their numbers becomes the weighted median of what
    the admitted clients sent: a number that one of them did send, and that no minority can move.
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
            if flaw := _no_bools(array):
                raise ValueError(f"array {key!r} of the model has {flaw}. Make it with NumPy, from sound numbers.")
            if not np.isfinite(array).all():
                raise ValueError(
                    f"array {key!r} of the model has numbers that are not finite. Start from a sound model."
                )
        if not sum(array.size for array in arrays.values()):
            raise ValueError("the model holds no numbers. Pass an ArrayRecord with at least one number in it.")
        return Model(arrays)

    @cached_property
    def aggregated(self) -> Arrays:
        """The arrays that the rule aggregates."""
        some = {key: array for key, array in self.arrays.items() if array.size}
        return {key: array for key, array in some.items() if array.dtype.kind == "f"} or some

    @property
    def nbytes(self) -> int:
        """The bytes of all numbers of the model."""
        return sum(array.nbytes for array in self.arrays.values())

    def fits(self, other: Model) -> bool:
        """Whether both have the same keys, shapes and dtypes, in the same order."""
        one, two = ([(key, a.shape, a.dtype) for key, a in model.arrays.items()] for model in (self, other))
        return one == two

    def flaw(self, reply: Arrays) -> str | None:
        """Why arrays of the right keys, shapes and dtypes cannot be part of a model all the same; None where they can."""
        flaws = {key: _no_bools(reply[key]) for key in self.arrays}
        return next((f"array {one_line(repr(key))} has {flaw}" for key, flaw in flaws.items() if flaw), None)

    def could_be(self, reply: Arrays) -> bool:
        """Whether the numbers that the rule aggregates are finite, and so are their differences from the model."""
        return bool(np.isfinite(self.updates([reply])).all())

    def record(self) -> ArrayRecord:
        """The model as Flower sends it."""
        return ArrayRecord({key: Array.from_numpy_ndarray(np.asarray(array)) for key, array in self.arrays.items()})

    def parts(self, replies: Sequence[Arrays]) -> list[Arrays] | None:
        """What the rule aggregates of every reply, as it came: for rules that treat models as they treat updates.

        Arrays of other dtypes or layouts are converted, so that nobody can slow down the reading of all. None where the rule
        aggregates no floats: bools have no mean.
        """
        if any(array.dtype.kind != "f" for array in self.aggregated.values()):
            return None
        with np.errstate(over="ignore"):
            return [
                {key: np.asarray(reply[key], array.dtype, order="C") for key, array in self.aggregated.items()}
                for reply in replies
            ]

    def updates(self, replies: Sequence[Arrays], unusable: int = 0) -> Matrix:
        """What clients add to the model: one row for each, its reply minus the model; then rows of NaN for those unusable.

        One matrix is passed over several times faster than many small arrays. Its dtype holds the digits of all arrays of the
        model. A difference that the dtype cannot hold becomes infinite, and the client is then rejected.
        """
        size = sum(array.size for array in self.aggregated.values())
        dtype = np.result_type(np.float32, *self.aggregated.values())
        matrix = np.empty((len(replies) + unusable, size), dtype)
        matrix[len(replies) :] = np.nan
        with np.errstate(over="ignore", invalid="ignore"):
            for row, reply in zip(matrix, replies, strict=False):
                for key, part in self.split(row).items():
                    dtype = np.result_type(reply[key], self.arrays[key], np.float32)
                    np.subtract(reply[key], self.arrays[key], out=part, dtype=dtype, casting="same_kind")
        return matrix

    def split(self, row: Vector) -> Arrays:
        """A row of `updates`, or an aggregate of such rows, as the arrays that it consists of; they are views of it."""
        ends = np.cumsum([array.size for array in self.aggregated.values()])
        parts = np.split(row, ends[:-1])
        return {k: part.reshape(a.shape) for (k, a), part in zip(self.aggregated.items(), parts, strict=True)}

    def joined(self, update: Mapping[str, NDArray[Any]]) -> Vector:
        """What `split` made of a row, as one row again."""
        return np.concatenate([np.ravel(update[key]) for key in self.aggregated])

    def plus(self, update: Mapping[str, NDArray[Any]]) -> Arrays:
        """The aggregated arrays of this model, moved by an update, in their own dtypes."""
        moved = {key: np.asarray(array.astype(np.float64) + update[key]) for key, array in self.aggregated.items()}
        return {key: np.asarray(_as_dtype(values, self.arrays[key])) for key, values in moved.items()}

    def minus(self, aggregated: Mapping[str, NDArray[Any]]) -> Arrays:
        """The update that leads from this model to another one."""
        return {key: aggregated[key].astype(np.float64) - array for key, array in self.aggregated.items()}

    def moved(self, made: Mapping[str, NDArray[Any]], replies: Sequence[Arrays], weights: Sequence[float]) -> Model:
        """The next model.

        made     the arrays that the rule has aggregated
        replies  the arrays of the admitted clients, for those arrays that the rule does not aggregate
        weights  the weight of each of these clients
        """
        arrays: Arrays = {}
        for key, array in self.arrays.items():
            if key in self.aggregated:
                arrays[key] = made[key]
            else:
                rows = np.stack([reply[key] for reply in replies])
                arrays[key] = weighted_median(rows, np.asarray(weights)).astype(array.dtype)
        return Model(arrays)

    def like(self, reply: Arrays) -> Model:
        """The model in a reply, in the dtypes of this one."""
        return Model({key: np.asarray(reply[key], array.dtype) for key, array in self.arrays.items()})

    def with_floats_of(self, made: ArrayRecord, maker: str) -> Model | None:
        """The model that another strategy made of this one, in our dtypes; None where it is not finite.

        Of arrays that the rule does not aggregate the ones of this model stay: an optimiser's steps are for floats.

        made   the arrays that the strategy returned
        maker  its name
        """
        arrays: Arrays = {}
        for key, array in self.arrays.items():
            if key not in made or made[key].numpy().shape != array.shape:
                raise ValueError(
                    f"{maker} returned no array {key!r} of shape {array.shape}. Return all of the model's."
                )
            new = made[key].numpy()
            if key in self.aggregated and not np.isfinite(new).all():
                return None
            arrays[key] = _as_dtype(new.astype(np.float64), array) if key in self.aggregated else array
        return Model(arrays)


def _no_bools(array: NDArray[Any]) -> str | None:
    """What is wrong with an array of bools whose bytes come from outside: NumPy and torch write no byte but 0 and 1, and what
    their functions make of any other byte is not defined."""
    if array.dtype.kind == "b" and (array.view(np.uint8) > 1).any():
        return "bytes other than 0 and 1 among its bools"
    return None


def _as_dtype(values: Vector, template: NDArray[Any]) -> NDArray[Any]:
    """`values` in the dtype of the template: rounded for integers, and clipped to the range that it holds."""
    return np.asarray(values >= 0.5) if template.dtype.kind == "b" else from_host(values, template, template.dtype.name)
