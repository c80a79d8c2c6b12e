"""How large numbers may be: what can be squared and added up, in which dtype, and what cannot."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["DOUBLE_ROOM", "SINGLE_ROOM", "exponents_of", "out_of_reach"]

SINGLE_ROOM = 40  # float32 numbers within 2**+-40 can be squared and added up by the hundred thousand
DOUBLE_ROOM = 400  # and float64 numbers within 2**+-400


def out_of_reach(magnitudes: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Rows so far above the median row that float64 cannot square both: 2**400 times, which no honest client is."""
    exponents, typical = exponents_of(magnitudes)
    return exponents > typical + DOUBLE_ROOM


def exponents_of(magnitudes: NDArray[np.float64]) -> tuple[NDArray[np.intc], int]:
    """Every row's power of two, and the median one; rows of zeros have none, and stand with the median."""
    some = magnitudes > 0
    exponents = np.frexp(magnitudes)[1]
    typical = int(np.median(exponents[some])) if some.any() else 0
    return np.where(some, exponents, typical), typical
