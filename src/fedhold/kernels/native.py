"""Where compiled code takes over: numba's (the extra `fast`), for data that is worth it."""

from __future__ import annotations

import warnings
from functools import cache
from importlib.metadata import PackageNotFoundError, version

import numpy as np
from numpy.lib.stride_tricks import as_strided

from fedhold.kernels.arrays import Block

__all__ = ["ENOUGH", "RUN", "line_of", "numba_version", "worth_compiling"]

ENOUGH = 2**22  # numbers: 5 to 10 ms saved each time stand against one import of numba, half a second
RUN = 1024  # squares or products to add up in single precision before float64 goes on


def worth_compiling(numbers: int) -> bool:
    """Whether compiled code is there, and to be used for so many numbers."""
    return numbers >= ENOUGH and _has_numba()


@cache
def _has_numba() -> bool:
    try:
        import numba  # noqa: F401
    except ModuleNotFoundError:
        return False
    except ImportError as broken:
        warnings.warn(f"numba is installed but cannot be used; NumPy does the work. {broken}", stacklevel=2)
        return False
    return True


def numba_version() -> str:
    """What is installed, without importing it."""
    try:
        return version("numba")
    except PackageNotFoundError:
        return "none"


def line_of(block: Block) -> tuple[Block, int]:
    """The block's memory as one line, and how far apart its rows begin; of a copy where rows are no runs of it."""
    size, (apart, step) = block.itemsize, block.strides
    if step != size or apart < 0 or apart % size or not block.flags.aligned:
        block = np.array(block, order="C")
        apart = block.strides[0]
    apart //= size
    # Read-only whatever it was: one type, compiled once.
    return as_strided(block, ((len(block) - 1) * apart + block.shape[1],), (size,), writeable=False), apart
