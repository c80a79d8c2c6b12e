"""Array libraries: NumPy, torch and JAX arrays as NumPy views, and results as arrays of these libraries again.

Arrays that live in host memory are read as NumPy views without a copy. Arrays on another device stay there and are read
block by block through the array API.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from ctypes import addressof, c_char
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any

import array_api_compat as api
import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import DTypeLike, NDArray

from fedhold.kernels.narrow import BFLOAT16, LARGEST_BFLOAT16, bits_of, is_narrow, wide

__all__ = [
    "Block",
    "Floats",
    "Matrix",
    "Rows",
    "Strided",
    "Vector",
    "Weights",
    "apart",
    "between",
    "compute_dtype",
    "dtype_name",
    "each",
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
    "to_host",
    "unscaled",
    "upright",
    "weighted_median",
]

Block = NDArray[Any]
"""Some columns of all rows."""

Vector = NDArray[np.float64]
"""One axis of numbers. A vector of d numbers is a `Spread` instead, if the updates lie on a cluster."""

Matrix = NDArray[np.float64]
"""Two axes of numbers, such as m x m products."""

Weights = NDArray[np.float64]
"""One number of at least 0 per client."""

Floats = NDArray[np.floating[Any]]
"""float32 or float64, of any shape: models and gradients."""

SORTED = 1024  # numbers. To sort up to so many takes no longer than a partition.


SHORT = 256  # numbers. Rows up to this long are gathered faster all at once than one by one.


def _addresses(arrays: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
    """Where arrays begin in memory. NumPy takes four times as long to say so, which counts for hundreds of arrays."""
    buffers: Sequence[Any] = arrays
    try:
        return np.fromiter(map(addressof, map(c_char.from_buffer, buffers)), np.int64, len(arrays))
    except (TypeError, ValueError):  # Some are read-only, empty or not contiguous.
        return np.array([array.ctypes.data for array in arrays], np.int64)


@dataclass(frozen=True, eq=False)
class Rows:
    """A block whose rows may lie anywhere in memory, each in one piece: nothing was gathered to make it.

    line    all memory from the first row to the last one as one array. What lies between rows belongs to others, and is never
            read
    starts  where every row starts in it
    width   how many numbers a row has
    held    an array that must live as long as these rows, because some of them lie in it; None where others hold them all
    """

    line: NDArray[Any]
    starts: NDArray[np.int64]
    width: int
    held: NDArray[Any] | None = None

    @staticmethod
    def of(arrays: Sequence[NDArray[Any]]) -> Rows | None:
        """Contiguous arrays of one size and dtype as rows; None where they are not, or lie askew in memory."""
        first, forms = arrays[0], set(map(attrgetter("dtype", "flags.c_contiguous", "flags.aligned"), arrays))
        if forms != {(first.dtype, True, True)}:
            return None
        places = _addresses(arrays)
        starts, askew = np.divmod(places - places.min(), first.itemsize)
        if askew.any():
            return None
        # It is always read-only, so that compiled code sees one type and is compiled once.
        length = int(starts.max()) + first.size
        line = as_strided(arrays[int(starts.argmin())].reshape(-1), (length,), (first.itemsize,), writeable=False)
        return Rows(line, starts, first.size)

    @staticmethod
    def of_matrix(matrix: NDArray[Any]) -> Rows | None:
        """The rows of a matrix; None where the numbers of a row are not contiguous, or lie askew in memory."""
        size, (apart, step) = matrix.itemsize, matrix.strides
        if step != size or apart < 0 or apart % size or not matrix.flags.aligned:
            return None
        apart //= size
        length = (len(matrix) - 1) * apart + matrix.shape[1]
        line = as_strided(matrix, (length,), (size,), writeable=False)
        return Rows(line, apart * np.arange(len(matrix)), matrix.shape[1])

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.starts), self.width

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.line.dtype

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, client: int) -> NDArray[Any]:
        """One row."""
        return self.line[self.starts[client] : self.starts[client] + self.width]

    def part(self, start: int, stop: int) -> Rows:
        """The columns from start to stop."""
        return Rows(self.line, self.starts + start, min(stop, self.width) - start, self.held)

    def taken(self, clients: NDArray[np.intp]) -> Rows:
        """Some of the rows."""
        return Rows(self.line, self.starts[clients], self.width, self.held)

    def replaced(self, which: NDArray[np.intp], block: NDArray[Any]) -> Rows:
        """The same rows, but some of them are those of a block, which is contiguous and has the same dtype and width."""
        away = (block.ctypes.data - self.line.ctypes.data) // block.itemsize
        starts = self.starts - min(away, 0)  # The line begins with whichever lies first in memory.
        starts[which] = max(away, 0) + self.width * np.arange(len(which))
        length = int(starts.max()) + self.width
        line = as_strided(block.reshape(-1) if away < 0 else self.line, (length,), (block.itemsize,), writeable=False)
        return Rows(line, starts, self.width, block)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """The rows gathered in an array."""
        if self.width <= SHORT:
            return self.line[self.starts[:, None] + np.arange(self.width)].astype(dtype or self.dtype, copy=False)
        return np.array([self[client] for client in range(len(self))], dtype=dtype)


def upright(matrix: NDArray[Any]) -> bool:
    """Whether a column lies together in memory, and a row apart."""
    size, (step, apart) = matrix.itemsize, matrix.strides
    return bool(step == size and apart > step and apart % size == 0 and len(matrix) > 1 and matrix.flags.aligned)


@dataclass(frozen=True, eq=False)
class Strided:
    """Arrays of one shape, dtype and layout, whose numbers do not lie in the order of their axes.

    arrays  the arrays
    line    all memory from the first number of the first of them on, as one array. Others may own parts of it
    starts  where the first number of every array lies in it
    """

    arrays: Sequence[NDArray[Any]]
    line: NDArray[Any]
    starts: NDArray[np.int64]

    @staticmethod
    def of(arrays: Sequence[NDArray[Any]]) -> Strided:
        """The arrays, whose numbers must be aligned."""
        places, first = _addresses(arrays), arrays[0]
        starts = (places - places.min()) // first.itemsize
        reach = sum((n - 1) * max(stride, 0) for n, stride in zip(first.shape, first.strides, strict=True))
        length = int(starts.max()) + reach // first.itemsize + 1
        line = as_strided(arrays[int(starts.argmin())], (length,), (first.itemsize,), writeable=False)
        return Strided(arrays, line, starts)

    def taken(self, which: NDArray[np.intp]) -> Strided:
        """Some of the arrays."""
        return Strided([self.arrays[i] for i in which], self.line, self.starts[which])


LARGEST = float(np.finfo(np.float64).max)
NO_ARRAYS = (list, tuple, dict, np.generic, type)  # Every library would be asked about them, in turn.
NO_DASK = (np.ndarray, *NO_ARRAYS)
PART = 2**16  # numbers of narrow vectors that are converted at a time


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
        block = wide(block)
    elif api.is_torch_array(block):
        block = block.float() if dtype_name(block) == "bfloat16" else block
        block = block.cpu().numpy()
    return np.asarray(block, dtype=dtype)


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
            known = bits_of(values).view(np.int16) if is_narrow(values.dtype) else values
            return xp.asarray(known, device=api.device(template)).view(dtype).reshape(template.shape)
    if kind(template) == "bool":
        return xp.asarray(values.reshape(template.shape) > 0, device=api.device(template))
    values = wide(values)
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
    """The Euclidean norm of one vector, also where squares would overflow; it makes a copy only there."""
    if not isinstance(vector, np.ndarray):
        return float(vector.length())
    if vector.dtype != np.float64:
        return float(np.sqrt(sum(length(wide(part).astype(np.float64)) ** 2 for part in _parts(vector))))
    with np.errstate(over="ignore", under="ignore"):
        square = float(vector @ vector)
    if 1e-280 < square < np.inf:
        return float(np.sqrt(square))
    # Zeros are common: a value that is its centre exactly.
    return float(lengths(vector[None])[0]) if vector.any() else 0.0


def apart(mine: Vector, other: Vector) -> float:
    """|mine - other|, in float64. Where one of them is not, a difference of both would take more memory than they do."""
    if not isinstance(mine, np.ndarray) or mine.dtype == other.dtype == np.float64:
        return length(mine - other)
    pairs = zip(_parts(mine), _parts(other), strict=True)
    return float(np.sqrt(sum(length(wide(a) - np.asarray(wide(b), np.float64)) ** 2 for a, b in pairs)))


def _parts(vector: Vector) -> Iterator[Vector]:
    return (vector[start : start + PART] for start in range(0, len(vector), PART))


def each(vector: Vector, function: Callable[[Vector], Vector]) -> Vector:
    """function(vector), for a function that treats every number by itself."""
    return function(vector) if isinstance(vector, np.ndarray) else vector.each(function)


def largest(vector: Vector) -> float:
    """The largest magnitude in a vector; NaN where the vector holds one."""
    return float(max(vector.max(), -vector.min()) if isinstance(vector, np.ndarray) else vector.largest())


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
