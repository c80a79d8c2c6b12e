"""The few loops over the d numbers of an update, and what they build on: array libraries, threads, compiled code.

In: blocks of columns, as NumPy arrays or as rows that lie anywhere in memory. Out: sums over their columns, or one row.
Imports: nothing of fedhold.

    sums.py         what the loops find, with a name for every number
    numpy_side.py   the interface: every loop, by NumPy
    numba_side.py   the loops that compiled code makes faster
    choice.py       whether NumPy or numba runs the loops
    threads.py      threads that share blocks, and those of BLAS
    narrow.py       float16 and bfloat16, whose bits are read as float32
    arrays.py       NumPy, torch and JAX arrays in and out; Rows, Strided; the aliases Block, Vector, Matrix, Weights, Floats
"""

from fedhold.kernels.arrays import (
    Block,
    Floats,
    Matrix,
    Rows,
    Strided,
    Vector,
    Weights,
    apart,
    between,
    compute_dtype,
    dtype_name,
    each,
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
    to_host,
    unscaled,
    upright,
    weighted_median,
)
from fedhold.kernels.choice import ENOUGH, kernels_for, numba_version, worth_compiling
from fedhold.kernels.narrow import BFLOAT16, bits_of, is_narrow, wide, widened
from fedhold.kernels.numpy_side import NUMPY, RUN, SQUARE_RUN, TILE, NumpyKernels, Portion
from fedhold.kernels.sums import Pairs, Products, Residuals, Signs, Squares, Sums, Swept, added
from fedhold.kernels.threads import one_blas_thread, shared, thread_count

__all__ = [
    "BFLOAT16",
    "ENOUGH",
    "NUMPY",
    "RUN",
    "SQUARE_RUN",
    "TILE",
    "Block",
    "Floats",
    "Matrix",
    "NumpyKernels",
    "Pairs",
    "Portion",
    "Products",
    "Residuals",
    "Rows",
    "Signs",
    "Squares",
    "Strided",
    "Sums",
    "Swept",
    "Vector",
    "Weights",
    "added",
    "apart",
    "between",
    "bits_of",
    "compute_dtype",
    "dtype_name",
    "each",
    "from_host",
    "host",
    "is_array",
    "is_dask",
    "is_narrow",
    "is_plain",
    "kernels_for",
    "kind",
    "largest",
    "length",
    "middle",
    "numba_version",
    "numbers",
    "one_blas_thread",
    "shared",
    "thread_count",
    "to_host",
    "unscaled",
    "upright",
    "weighted_median",
    "wide",
    "widened",
    "worth_compiling",
]
