"""Which side does the loops: NumPy, or numba (the extra `fast`) where it is installed and the data is large."""

from __future__ import annotations

import warnings
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from fedhold.kernels.numpy_side import NUMPY, NumpyKernels

__all__ = ["ENOUGH", "kernels_for", "numba_version", "worth_compiling"]

ENOUGH = 2**22  # numbers: compiled code saves 5 to 10 ms each time, which pays for importing numba, half a second


def kernels_for(numbers: int) -> NumpyKernels:
    """The kernels to use on so many numbers."""
    return _compiled() if worth_compiling(numbers) else NUMPY


def worth_compiling(numbers: int) -> bool:
    """Whether numba is installed, and to be used for so many numbers."""
    return numbers >= ENOUGH and _has_numba()


@cache
def _compiled() -> NumpyKernels:
    from fedhold.kernels.numba_side import NumbaKernels  # only here, so that little data does not import numba

    return NumbaKernels()


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
    """The version of numba that is installed, without importing it; "none" where there is none."""
    try:
        return version("numba")
    except PackageNotFoundError:
        return "none"
