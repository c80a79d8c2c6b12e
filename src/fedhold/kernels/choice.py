"""Whether NumPy or numba (the extra `fast`) runs the loops: numba, where it is installed and the data is large."""

from __future__ import annotations

import warnings
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from fedhold.kernels.numpy_side import NUMPY, NumpyKernels

__all__ = ["ENOUGH", "kernels_for", "numba_version", "worth_compiling"]

ENOUGH = 2**22  # numbers. Compiled code then saves 5 to 10 ms per call, which pays for half a second of importing it.


def kernels_for(numbers: int) -> NumpyKernels:
    """The kernels to use on this many numbers."""
    return _compiled() if worth_compiling(numbers) else NUMPY


def worth_compiling(numbers: int) -> bool:
    """Whether numba is installed, and worth using for this many numbers."""
    return numbers >= ENOUGH and _has_numba()


@cache
def _compiled() -> NumpyKernels:
    from fedhold.kernels.numba_side import NumbaKernels  # Imported here, numba is not loaded for small data.

    return NumbaKernels()


@cache
def _has_numba() -> bool:
    try:
        import numba  # noqa: F401
    except ModuleNotFoundError:
        return False
    except Exception as broken:  # A library that does not fit the machine may raise anything when it is loaded.
        warnings.warn(f"numba is installed but cannot be used; NumPy does the work. {broken}", stacklevel=2)
        return False
    return True


def numba_version() -> str:
    """The version of numba that is installed, found without importing it; "none" if it is not installed."""
    try:
        return version("numba")
    except PackageNotFoundError:
        return "none"
