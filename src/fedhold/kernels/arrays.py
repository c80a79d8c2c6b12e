"""Array libraries: NumPy, torch and JAX arrays as NumPy views, and results as arrays of these libraries again.

Arrays that live in host memory are read as NumPy views without a copy. Arrays on another device stay there and are read
tile by tile through the array API.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import array_api_compat as api
import numpy as np
from numpy.typing import DTypeLike, NDArray

from fedhold.kernels.half import BFLOAT16, LARGEST_BFLOAT16, is_half, widened
from fedhold.sizes import COMPARED, SORTED

__all__ = [
    "Block",
    "Floats",
    "Matrix",
    "Vector",
    "Weights",
    "between",
    "compute_dtype",
    "distance",
    "dtype_name",
    "from_host",
    "host",
    "is_array",
    "is_dask",
    "is_plain",
    "kind",
    "largest",
    "length",
    "lengths",
    "middle",
    "numbers",
    "stacked",
    "to_host",
    "unscaled",
    "weighted_median",
]

Block = NDArray[Any]
"""Some columns of all rows."""

Vector = NDArray[np.float64]
"""One axis of numbers. A vector of d numbers is a Dask array instead, if the updates lie on a cluster."""

Matrix = NDArray[np.float64]
"""Two axes of numbers, such as m x m products."""

Weights = NDArray[np.float64]
"""One number of at least 0 per client."""

Floats = NDArray[np.floating[Any]]
"""float32 or float64, of any shape: models and gradients."""


LARGEST = float(np.finfo(np.float64).max)
NO_ARRAYS = (list, tuple, dict, np.generic, type)  # Every library would be asked about them, in turn.
NO_DASK = (np.ndarray, *NO_ARRAYS)


def is_array(thing: object) -> bool:
    """Whether `thing` is an array of a supported library (a NumPy scalar is not)."""
    return isinstance(thing, np.ndarray) or (not isinstance(thing, NO_ARRAYS) and bool(api.is_array_api_obj(thing)))


def is_dask(thing: object) -> bool:
    """Whether `thing` is a Dask array. This never imports Dask."""
    return not isinstance(thing, NO_DASK) and bool(api.is_dask_array(thing))


def is_plain(array: Any) -> bool:
    """Whether it is an array of NumPy already, and of a dtype of NumPy itself: the bfloat16 of others is not."""
    return type(array) is np.ndarray and array.dtype.isbuiltin == 1


def dtype_name(array: Any) -> str:
    """The name of an array's dtype, such as 'float32', 'bfloat16' or 'int64', in every library."""
    return _name(array.dtype)


@lru_cache(maxsize=64)  # NumPy takes microseconds to write the name of a dtype.
def _name(dtype: Any) -> str:
    if isinstance(dtype, np.dtype):
        dtype = "bfloat16" if dtype == BFLOAT16 else dtype.newbyteorder("=")
    return str(dtype).rpartition(".")[2]


def kind(array: Any) -> str:
    """'float', 'integer', or the dtype's own name where it cannot be aggregated."""
    return _kind(array.dtype)


@lru_cache(maxsize=64)
def _kind(dtype: Any) -> str:
    name = _name(dtype)
    if name.startswith(("float", "bfloat")) or name == "longdouble":
        return "float"
    if name.startswith(("int", "uint")):
        return "integer"
    return name


def compute_dtype(name: str) -> type[np.float32] | type[np.float64]:
    """The dtype to compute in: float32 where the data has no more digits, float64 for other floats and for integers."""
    return np.float32 if name in ("float16", "float32", "bfloat16") else np.float64


def host(array: Any) -> Any:
    """A NumPy view of an array in host memory, with the dtype BFLOAT16 for bfloat16; arrays elsewhere come back as they are.

    Raises the library's own error for what cannot be read: sparse layouts, dtypes that NumPy lacks, arrays without data.
    """
    if is_plain(array):
        return array
    if api.is_torch_array(array):
        array = array.detach().resolve_conj().resolve_neg()
        if array.device.type == "meta":
            raise TypeError("a meta tensor has no data")
        if array.device.type != "cpu":
            return array
        # NumPy takes no bfloat16 from torch, but its bits under another name.
        brain = dtype_name(array) == "bfloat16"
        return array.view(api.array_namespace(array).int16).numpy().view(BFLOAT16) if brain else array.numpy()
    if api.is_jax_array(array):
        array = np.asarray(array) if next(iter(array.devices())).platform == "cpu" else array
    if not isinstance(array, np.ndarray):
        return array
    return array.view(BFLOAT16) if dtype_name(array) == "bfloat16" else np.asarray(array)


def to_host(block: Any, dtype: DTypeLike | None) -> NDArray[Any]:
    """Any array as a NumPy array of `dtype` (None: of its own); this is free if it is one already."""
    if isinstance(block, np.ndarray):
        block = widened(block)
    elif api.is_torch_array(block):
        block = block.float() if dtype_name(block) == "bfloat16" else block
        block = block.cpu().numpy()
    return np.asarray(block, dtype=dtype)


def stacked(arrays: Sequence[Any]) -> NDArray[Any]:
    """Arrays of one library, dtype and shape as one array in host memory, whose first axis counts them."""
    if isinstance(arrays, np.ndarray):
        return arrays
    first = arrays[0]
    if api.is_torch_array(first):  # One view of all takes a fifth of the time of a view of each.
        return np.asarray(host(api.array_namespace(first).stack(arrays)))
    plain = [host(array) for array in arrays] if not isinstance(first, np.ndarray) else arrays
    shape = (len(plain), *plain[0].shape)
    return np.concatenate(plain).reshape(shape) if plain[0].ndim else np.array(plain)


def between(array: Any, start: int, stop: int) -> Any:
    """The numbers from start to stop of an array of any library, in the order of its axes.

    Where it is not contiguous, only the rows they lie in are copied.
    """
    while array.ndim > 1 and array.shape[0] == 1:
        array = array[0]
    inner = int(np.prod(array.shape[1:]))
    if array.ndim < 2 or inner == 0:
        return array.reshape(-1)[start:stop]
    first = start // inner
    return array[first : -(-stop // inner)].reshape(-1)[start - first * inner : stop - first * inner]


def from_host(values: Vector, template: Any, name: str) -> Any:
    """`values` with the shape, library and device of `template` and the dtype of that name, or the template's own.

    Integers are rounded; what the dtype cannot hold becomes its nearest finite number. Values that have this dtype already
    become a view of them, if the library can make one.
    """
    xp = np if isinstance(template, np.ndarray) else api.array_namespace(template)
    dtype = getattr(xp, name, template.dtype)
    dtype = np.dtype(dtype) if xp is np else dtype
    if _name(dtype) == _name(values.dtype):
        if xp is np:
            return values.view(dtype).reshape(template.shape)
        if api.is_torch_array(template):
            known = values.view(np.int16) if is_half(values.dtype) else values
            return xp.asarray(known, device=api.device(template)).view(dtype).reshape(template.shape)
    if kind(template) == "bool":
        return xp.asarray(values.reshape(template.shape) > 0, device=api.device(template))
    values = widened(values)
    if xp is np and _name(dtype) == "bfloat16":  # a dtype of another library, which np.finfo does not know
        low, high = -LARGEST_BFLOAT16, LARGEST_BFLOAT16
    else:
        limits = xp.iinfo(dtype) if kind(template) == "integer" else xp.finfo(dtype)
        low, high = float(limits.min), float(limits.max)
    if kind(template) == "integer":
        values = values if values.dtype.kind in "iu" else np.rint(values)
        # float(2**63 - 1) is 2**63, which int64 does not hold.
        low, high = (float(np.nextafter(x, 0)) if abs(x) > 2**53 else x for x in (low, high))
    if values.size and (values.min() < low or values.max() > high):
        values = np.clip(values, low, high)
    shaped = values.reshape(template.shape)
    if isinstance(template, np.ndarray):
        return shaped.astype(dtype)
    return xp.astype(xp.asarray(shaped, device=api.device(template)), dtype)


def weighted_median(rows: NDArray[Any], weights: Weights) -> NDArray[Any]:
    """The weighted median of each column: its smallest entry such that entries up to it have at least half of the weight.

    >>> weighted_median(np.array([3, 1, 2]), np.array([1.0, 1.0, 5.0]))
    array(2)
    """
    order = np.argsort(rows, axis=0, kind="stable")
    shares = weights / weights.max()  # so that the sum does not overflow for 1e308 samples
    below = np.cumsum(shares[order], axis=0)
    half = np.argmax(below >= 0.5 * shares.sum() * (1 - 1e-12), axis=0)
    place = np.take_along_axis(order, half[None], axis=0)
    return np.asarray(np.take_along_axis(rows, place, axis=0)[0])


def middle(values: NDArray[Any]) -> float:
    """The median of some finite numbers, in a tenth of the time that np.median takes for a few of them.

    >>> middle(np.array([3.0, 1.0, 2.0, 9.0]))
    2.5
    """
    half, ordered = len(values) // 2, np.array(values)
    if len(values) <= SORTED or ordered.dtype.kind == "i":  # Many integers are equal, which sorts faster.
        ordered.sort()
        below = ordered[half - 1]
    else:
        ordered.partition(half)
        below = ordered[half] if len(values) % 2 else np.maximum.reduce(ordered[:half])
    # They are halved first, because a sum of numbers near the largest float overflows.
    return float(ordered[half]) if len(values) % 2 else float(below) / 2 + float(ordered[half]) / 2


def lengths(rows: NDArray[np.float64]) -> Vector:
    """The Euclidean norm of every row, also where squares would overflow or vanish."""
    largest = np.abs(rows).max(axis=1, initial=0.0)
    scale = np.where(largest > 0, largest, 1.0)
    result: Vector = scale * np.linalg.norm(rows / scale[:, None], axis=1)
    return result


def length(vector: Vector) -> float:
    """The Euclidean norm of one vector, also where squares would overflow."""
    if not isinstance(vector, np.ndarray):
        return length(_of_chunks(vector, length))
    if vector.dtype != np.float64:  # A copy of all would be twice as large.
        parts = [vector[start : start + COMPARED] for start in range(0, len(vector), COMPARED)]
        return length(np.array([length(part.astype(np.float64)) for part in parts]))
    with np.errstate(over="ignore", under="ignore"):
        square = float(vector @ vector)
    if 1e-280 < square < np.inf:
        return float(np.sqrt(square))
    # Zeros are common: a value that is its centre exactly.
    return float(lengths(vector[None])[0]) if vector.any() else 0.0


def distance(mine: Vector, other: Vector) -> float:
    """|mine - other|, in float64."""
    if not isinstance(mine, np.ndarray):
        return length(mine - other)
    parts = (slice(start, start + COMPARED) for start in range(0, len(mine), COMPARED))
    return length(np.array([length(np.subtract(mine[at], other[at], dtype=np.float64)) for at in parts]))


def largest(vector: Vector) -> float:
    """The largest magnitude in a vector; NaN where the vector holds one."""
    if not isinstance(vector, np.ndarray):
        return largest(_of_chunks(vector, largest))
    return float(max(vector.max(), -vector.min()))


def _of_chunks(vector: Any, function: Callable[[Vector], float]) -> Vector:
    """function(chunk) of every chunk of a Dask array, computed where the chunks are."""
    chunks = ((1,) * vector.numblocks[0],)
    found = vector.map_blocks(lambda chunk: np.array([function(chunk)]), dtype=np.float64, chunks=chunks)
    return np.asarray(found.compute())


def unscaled(numbers: Vector | float, base: int) -> Vector:
    """Numbers that were read times 2**base in the caller's units; what float64 cannot hold becomes its largest number."""
    if not base:
        return np.asarray(numbers)
    with np.errstate(over="ignore"):
        return np.clip(np.ldexp(numbers, -base), -LARGEST, LARGEST)


def numbers(given: object) -> Vector:
    """What a user's function returned, as float64; an empty array where it is not an array of numbers."""
    try:
        return np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        return np.empty(0)
