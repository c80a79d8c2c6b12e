"""A matrix of numbers from 0 to 1 that readers sort and filter, with a chart behind every cell.

The page's script draws it from what the block holds as JSON. Colours are those of the heat maps, which differ in brightness
for every eye, and every cell has its number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedhold.report.colours import SCALE
from fedhold.report.pages import Block

DIGITS = 3  # of the numbers in the page


@dataclass(frozen=True)
class Facet:
    """What the matrix can be filtered by: one of the choices, or one of the groups of them.

    name     what the choices are, such as "setting"
    choices  in the order of their numbers
    groups   label -> the numbers of some choices; "all" is always there
    """

    name: str
    choices: Sequence[str]
    groups: Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Entry:
    """One number of the matrix; several that share row and column stand in one cell, which shows their least or their mean.

    row, column  numbers of its row and column
    facets       for each facet the number of its choice
    value        from 0, bad, to 1, good
    low, high    the interval over seeds
    mark         a word in place of the number, such as "refused"
    end          the metric behind the number, for the reader
    curve        the metric at some rounds, None where it was not finite
    """

    row: int
    column: int
    facets: tuple[int, ...]
    value: float
    low: float
    high: float
    mark: str = ""
    end: float | None = None
    curve: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class Matrix(Block):
    """Rows x columns, with facets to filter by.

    title    of the figure
    rows     names, each with a note that may be empty, such as "told f"
    columns  names
    facets   the filters; of the first, `axes` says for each choice the metric of its curves and their rounds
    entries  the numbers
    """

    template: ClassVar[str] = "matrix.html"
    title: str
    rows: Sequence[tuple[str, str]]
    columns: Sequence[str]
    facets: Sequence[Facet]
    axes: Sequence[tuple[str, Sequence[int]]]
    entries: Sequence[Entry]

    @property
    def data(self) -> dict[str, Any]:
        """All of it in plain values, for the script."""
        return {
            "rows": [list(row) for row in self.rows],
            "columns": list(self.columns),
            "facets": [
                {
                    "name": facet.name,
                    "choices": list(facet.choices),
                    "groups": [[label, list(members)] for label, members in facet.groups.items()],
                }
                for facet in self.facets
            ],
            "axes": [[metric, list(rounds)] for metric, rounds in self.axes],
            "entries": [
                [
                    *(entry.row, entry.column, list(entry.facets)),
                    *map(_short, (entry.value, entry.low, entry.high)),
                    *(entry.mark, _short(entry.end), [_short(value) for value in entry.curve]),
                ]
                for entry in self.entries
            ],
            "scale": ["#{:02x}{:02x}{:02x}".format(*colour) for colour in SCALE.tolist()],
        }


def _short(value: float | None) -> float | None:
    """A number with few digits; None for what JSON has no number for."""
    return None if value is None or not np.isfinite(value) else float(f"{value:.{DIGITS}g}")
