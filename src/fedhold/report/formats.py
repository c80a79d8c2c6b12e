"""How values are written: numbers with few digits for readers, numbers with many digits for files."""

from __future__ import annotations

import math
import re

READ_DIGITS = 3  # enough to compare two results at a glance
STORED_DIGITS = 8  # more than any two seeds have in common


def number(value: float, digits: int = READ_DIGITS) -> str:
    """A number for a reader, with `digits` significant digits; below 100000 all digits before the point are written.

    >>> [number(v) for v in (0.12345, 12345.6, 1.5e12, 2e-7, math.inf, math.nan)]
    ['0.123', '12346', '1.5e12', '2e-7', '∞', '-']
    """
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if 10**digits <= abs(value) < 1e5:
        return f"{value:.0f}"
    return re.sub(r"e\+?(-?)0*", r"e\1", f"{value:.{digits}g}")


def cell(value: object) -> str:
    """A table's cell for a reader: `number` for floats, "yes" or "no" for bools, an empty text for None.

    >>> [cell(v) for v in (1 / 3, 1234, True, None, "huber")]
    ['0.333', '1234', 'yes', '', 'huber']
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value) if isinstance(value, float) else str(value)


def csv_cell(value: object) -> object:
    """A cell of a CSV file: floats have eight digits, and NaN (not measured) is an empty cell.

    >>> [csv_cell(v) for v in (1 / 3, math.nan, 7, "huber")]
    ['0.33333333', '', 7, 'huber']
    """
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.{STORED_DIGITS}g}"
    return value
