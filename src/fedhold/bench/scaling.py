"""How the cost of a rule grows: log-log slopes over the number of clients and over the number of columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedhold.bench.measure import YARDSTICK, clients, measure

__all__ = ["RULES", "TARGET", "scaling", "slope"]

RULES = ("huber", "median", "trimmed_mean")
TARGET = 1.1
CLIENTS, WITH_COLUMNS = (50, 158, 500, 1581, 5000), 10_000  # 200 MB at most
COLUMNS, WITH_CLIENTS = (10_000, 100_000, 1_000_000, 10_000_000), 20  # 800 MB at most


def scaling(
    *,
    repeat: int,
    budget: float,
    seed: int,
    watch: Callable[[str], None],
    over_clients: Sequence[int] = CLIENTS,
    over_columns: Sequence[int] = COLUMNS,
) -> list[dict[str, Any]]:
    """One row per rule and axis: sizes, best seconds, slope; the mean's own slope for comparison."""
    rows = []
    for axis, sizes, fixed in (("clients", over_clients, WITH_COLUMNS), ("columns", over_columns, WITH_CLIENTS)):
        best: dict[str, list[float]] = {rule: [] for rule in (YARDSTICK, *RULES)}
        for size in sizes:
            watch(f"{size:,} {axis}")
            X = clients(*((size, fixed) if axis == "clients" else (fixed, size)), seed)
            for row in measure(X, RULES, (), repeat=repeat, budget=budget, watch=_silent, reference=False):
                best[row["rule"]].append(row["best"])
        axis_rows = {"axis": axis, "sizes": list(sizes), "fixed": fixed}
        rows += [
            {"rule": rule, **axis_rows, "seconds": seconds, "slope": slope(sizes, seconds)}
            for rule, seconds in best.items()
        ]
    return rows


def _silent(_: str) -> None:
    """The shape has been named already."""


def slope(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """The exponent p of seconds ~ size^p, by least squares.

    >>> slope([10, 100, 1000], [0.2, 2.0, 20.0])
    1.0
    """
    fitted = np.polyfit([math.log(size) for size in sizes], [math.log(second) for second in seconds], 1)
    return round(float(fitted[0]), 3)
