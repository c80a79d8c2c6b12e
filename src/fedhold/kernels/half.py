"""float16 and bfloat16, which NumPy converts number by number or lacks: their bits, these as float32, and float32 as these."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["BFLOAT16", "LARGEST_BFLOAT16", "is_half", "narrowed", "widened"]

BFLOAT16 = np.dtype([("bfloat16", np.uint16)])  # NumPy has no such type: these are its bits, under its name.
LARGEST_BFLOAT16, LARGEST_FLOAT16 = (2 - 2.0**-7) * 2.0**127, float(np.finfo(np.float16).max)
INFINITE = 0x7C00  # the bits of the float16 that is infinite
# What a float16 that is not finite becomes before its exponent is set right; all others are less.
BEYOND = np.float32(65536)
EXPONENT = np.uint32(0x7F800000)  # that of a float32 that is not finite


@lru_cache(maxsize=64)  # To compare with the dtype that has a name takes microseconds.
def is_half(dtype: Any) -> bool:
    """Whether `widened` takes a dtype of NumPy: float16 or BFLOAT16, in the machine's own order of bytes."""
    return bool(dtype in (np.float16, BFLOAT16))


def widened(numbers: NDArray[Any], out: NDArray[np.float32] | None = None) -> NDArray[Any]:
    """float16 or BFLOAT16 numbers as float32 (in `out`), exactly; others as they are. NumPy's own cast takes six times as long.

    A bfloat16 is the upper half of a float32. A float16 has a sign, 5 bits of exponent and 10 of digits, where float32 has 8
    and 23. Shifted by 13 bits, the digits are in place and the exponent is too small by 127 - 15, which a product sets right,
    also for numbers below the least normal one.
    """
    if not is_half(numbers.dtype):
        return numbers
    out = np.empty(numbers.shape, np.float32) if out is None else out
    if numbers.dtype == BFLOAT16:
        return np.left_shift(numbers.view(np.uint16), 16, out=out.view(np.uint32), dtype=np.uint32).view(np.float32)
    signed = numbers.view(np.int16)
    bits = np.left_shift(signed, 13, out=out.view(np.int32), dtype=np.int32)
    bits &= np.int32(-0x70000001)  # The sign, which the cast has copied to the three highest bits of the exponent, too.
    wide: NDArray[np.float32] = bits.view(np.float32)
    wide *= np.float32(2.0**112)
    # Of either sign, what is not finite has the greatest bits.
    if wide.size and (signed.max() >= INFINITE or numbers.view(np.uint16).max() >= INFINITE + 2**15):
        bits.view(np.uint32)[np.abs(wide) >= BEYOND] |= EXPONENT
    return wide


def narrowed(numbers: NDArray[np.float32], dtype: np.dtype[Any]) -> NDArray[Any]:
    """The nearest float16 or BFLOAT16 numbers; what is too large becomes the largest one."""
    if dtype != BFLOAT16:
        return np.clip(numbers, -LARGEST_FLOAT16, LARGEST_FLOAT16).astype(np.float16)
    bits = np.clip(numbers, -LARGEST_BFLOAT16, LARGEST_BFLOAT16).view(np.uint32)
    # Half of the last digit is added before the rest is cut off: of two equally near numbers, the even one counts.
    bits += np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (bits >> np.uint32(16)).astype(np.uint16).view(BFLOAT16)
