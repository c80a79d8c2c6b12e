"""How values are written: numbers with few digits for readers, numbers with many digits for files."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

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


def decimals(values: Iterable[float]) -> int:
    """How many digits after the point the numbers of a column have: as many as `number` gives any of them, within reason.

    >>> decimals([0.25, 1 / 3, 12.0]), decimals([5.0, 7.0])
    (3, 0)
    """
    written = {value: number(value) for value in values if math.isfinite(value)}
    places = {value: len(text.partition(".")[2]) for value, text in written.items() if "e" not in text}
    if not places:
        return 0
    largest = places[max(places, key=abs)]
    return min(max(places.values()), max(READ_DIGITS, largest + READ_DIGITS - 1))


def fixed(value: float, places: int) -> str:
    """A number of a column whose numbers all have so many digits after the point; `number` where that would not show it.

    >>> [fixed(v, 2) for v in (0.123, 7.0, 1.5e12, 2e-7, math.nan)]
    ['0.12', '7.00', '1.5e12', '2e-7', '-']
    """
    shown = math.isfinite(value) and abs(value) < 1e5 and (value == 0 or abs(value) >= 0.5 * 10**-places)
    return f"{value:.{places}f}" if shown else number(value)


def column(values: Sequence[object]) -> list[str]:
    """A table's column for a reader: floats with equally many digits after the point, yes or no for bools, nothing for None.

    >>> column([1 / 3, 2.0, 1234, True, None, "huber"])
    ['0.333', '2.000', '1234', 'yes', '', 'huber']
    """
    places = decimals(value for value in values if isinstance(value, float))
    return [_cell(value, places) for value in values]


def _cell(value: object, places: int) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return fixed(value, places) if isinstance(value, float) else str(value)


def csv_cell(value: object) -> object:
    """A cell of a CSV file: floats have eight digits, and NaN (not measured) is an empty cell.

    >>> [csv_cell(v) for v in (1 / 3, math.nan, 7, "huber")]
    ['0.33333333', '', 7, 'huber']
    """
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.{STORED_DIGITS}g}"
    return value
