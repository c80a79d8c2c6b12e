"""The few loops over the d numbers of an update, and what they stand on: array libraries, threads, compiled code.

In: blocks of columns, as NumPy arrays. Out: sums over their columns, or one row. Imports: `fedhold.errors` alone.
"""

from fedhold.kernels.arrays import Block, Vector
from fedhold.kernels.native import numba_version
from fedhold.kernels.threads import shared, threads

__all__ = ["Block", "Vector", "numba_version", "shared", "threads"]
