"""The few loops over the d numbers of an update, and what they stand on: array libraries, threads, compiled code.

In: blocks of columns, as NumPy arrays. Out: sums over their columns, or one row. Imports: `fedhold.errors` alone.
"""

from fedhold.kernels.arrays import (
    Block,
    Floats,
    Matrix,
    Vector,
    Weights,
    compute_dtype,
    dtype_name,
    each,
    from_host,
    host,
    is_array,
    is_dask,
    kind,
    largest,
    length,
    numbers,
    to_host,
    unscaled,
)
from fedhold.kernels.native import ENOUGH, RUN, numba_version, worth_compiling
from fedhold.kernels.sweeps import INTERPRETED, Sweeps, sweeps_for
from fedhold.kernels.threads import shared, threads

__all__ = [
    "ENOUGH",
    "INTERPRETED",
    "RUN",
    "Block",
    "Floats",
    "Matrix",
    "Sweeps",
    "Vector",
    "Weights",
    "compute_dtype",
    "dtype_name",
    "each",
    "from_host",
    "host",
    "is_array",
    "is_dask",
    "kind",
    "largest",
    "length",
    "numba_version",
    "numbers",
    "shared",
    "sweeps_for",
    "threads",
    "to_host",
    "unscaled",
    "worth_compiling",
]
