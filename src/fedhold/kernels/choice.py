"""Whether NumPy or numba (the extra `fast`) runs the loops: numba, where it is installed and the data is large."""

from __future__ import annotations

import warnings
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from fedhold.kernels.numpy_side import NUMPY, NumpyKernels

__all__ = ["ENOUGH", "kernels_for", "numba_version", "worth_compiling"]

ENOUGH = 2**22  # numbers. Compiled code then saves 5 to 10 ms per call, which pays for half a second of importing it.
# A sixteenth of them is enough for order statistics, which compiled code makes in a third to a tenth of NumPy's time: the
# trimmed mean of 50 x 7,850 numbers takes 0.4 ms and not 1 ms, that of 10 x 100,000 numbers 0.6 ms and not 6 ms.
EASED = 16


def kernels_for(numbers: int, *, ordering: bool = False) -> NumpyKernels:
    """The kernels to use on this many numbers; with `ordering`, those to use for order statistics."""
    return _compiled() if worth_compiling(numbers, ordering=ordering) else NUMPY


def worth_compiling(numbers: int, *, ordering: bool = False) -> bool:
    """Whether numba is installed, and worth using for this many numbers, or for order statistics of them."""
    return numbers * (EASED if ordering else 1) >= ENOUGH and _has_numba()


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
