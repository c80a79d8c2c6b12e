"""What touches numbers: array libraries, half precision, threads, and the loops over one tile of columns.

In: a tile, some columns of all clients, as a float32 or float64 array. Out: sums over its columns, or one row.
Imports: `fedhold.sizes`.

    loops.py     sums over the columns of a tile: squares, products, pairs
    columns.py   order statistics of the columns of a tile
    compiled.py  twins of some of both, compiled by numba where it is installed
    threads.py   threads that share tiles, and those of BLAS
    half.py      float16 and bfloat16, whose bits are read as float32
    arrays.py    NumPy, torch and JAX arrays in and out; the aliases Block, Vector, Matrix, Weights, Floats
"""

from fedhold.kernels import columns, compiled, loops
from fedhold.kernels.arrays import (
    Block,
    Floats,
    Matrix,
    Vector,
    Weights,
    between,
    compute_dtype,
    distance,
    dtype_name,
    from_host,
    host,
    is_array,
    is_dask,
    is_plain,
    kind,
    largest,
    length,
    middle,
    numbers,
    stacked,
    to_host,
    unscaled,
    weighted_median,
)
from fedhold.kernels.half import BFLOAT16, is_half, narrowed, widened
from fedhold.kernels.loops import RUN, SQUARE_RUN
from fedhold.kernels.threads import one_blas_thread, shared, thread_count

__all__ = [
    "BFLOAT16",
    "RUN",
    "SQUARE_RUN",
    "Block",
    "Floats",
    "Matrix",
    "Vector",
    "Weights",
    "between",
    "columns",
    "compiled",
    "compute_dtype",
    "distance",
    "dtype_name",
    "from_host",
    "host",
    "is_array",
    "is_dask",
    "is_half",
    "is_plain",
    "kind",
    "largest",
    "length",
    "loops",
    "middle",
    "narrowed",
    "numbers",
    "one_blas_thread",
    "shared",
    "stacked",
    "thread_count",
    "to_host",
    "unscaled",
    "weighted_median",
    "widened",
]
